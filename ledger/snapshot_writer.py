"""Writing the members of a snapshot: the rows of a view, then the large artifacts, then the manifest."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata as _distributions
from pathlib import Path
from typing import Any, Final

import attrs
from sqlalchemy import Table

from .ahead import ahead
from .artifacts import file_of
from .errors import LedgerDamaged, UsageError
from .ledger import Reader
from .schema import SCHEMA_NUMBER
from .snapshot_format import (
    FORMAT,
    MANIFEST,
    PART_BYTES,
    ArtifactCount,
    CustodyMode,
    Manifest,
    MemberEntry,
    RedactionEntry,
    RunEntry,
    artifact_member,
    manifest_bytes,
    rows_member,
    snapshot_digest,
)
from .snapshot_redaction import Redaction
from .snapshot_same import same_of
from .snapshot_scratch import LINE_MAX
from .snapshot_tables import (
    COLUMNS_LEFT_OUT,
    RUN_TABLES,
    SHARED_TABLES,
    TABLES_LEFT_OUT,
    columns_of,
    lines_of_run,
    lines_of_shared,
    rows_of_run,
    rows_of_shared,
)
from .zip_reader import MEMBERS_MAX
from .zip_writer import ZipWriter

__all__ = ["ChosenRun", "SnapshotWriter"]

_CHUNK: Final = 1 << 20
_NO_DIGEST: Final = "sha256:" + 64 * "0"


@attrs.frozen
class ChosenRun:
    """A run that is to be written, as it stands in the view."""

    run_key: int
    run_id: str
    planned: int
    epoch: int
    event_no: int
    event_hash: str


class SnapshotWriter:
    """One snapshot under way: `write_rows` while the view is open, then `finish`."""

    def __init__(
        self,
        file: io.BufferedRandom,
        chosen: Sequence[ChosenRun],
        custody: CustodyMode,
        redactions: Mapping[int, Redaction],
    ) -> None:
        self._zip = ZipWriter(file)
        self._chosen = chosen
        self._custody = custody
        self._redactions = redactions
        self._members: list[MemberEntry] = []
        self._runs: list[RunEntry] = []
        self._shared: dict[str, int] = {}
        self._large: list[tuple[str, int]] = []

    def write_rows(self, reader: Reader) -> None:
        """All rows, and which artifacts they refer to."""
        self._runs = [self._run(reader, run) for run in self._chosen]
        keys = [run.run_key for run in self._chosen]
        kept = {digest for one in self._redactions.values() for digest in one.artifacts} if self._redactions else None
        for table in SHARED_TABLES:
            if kept is not None:
                lines = self._changed_lines(reader.each(rows_of_shared(table, keys)), table, keys[0], kept)
            else:
                lines = (row[0] for row in reader.each(lines_of_shared(table, keys)))
            self._shared[table.name] = self._write(table, lines)
            if table.name == "artifacts":
                self._large = _large_ones(reader, table, keys, kept)

    def finish(self, artifacts: Path) -> tuple[Manifest, int]:
        """The artifacts from their folder, and the manifest; returns it and the size of the file."""
        for digest, size in self._large:
            self._artifact(artifacts, digest, size)
        if self._zip.count >= MEMBERS_MAX:
            raise UsageError(
                f"the snapshot would have {self._zip.count} members, and no more than {MEMBERS_MAX} are read",
                "export fewer runs at once",
            )
        manifest = Manifest(
            format=FORMAT,
            schema_number=SCHEMA_NUMBER,
            producer=f"tallystick {_version()}",
            runs=self._runs,
            shared=self._shared,
            columns={table.name: columns_of(table) for table in (*RUN_TABLES, *SHARED_TABLES)},
            never_carried=_never_carried(),
            members=self._members,
            artifacts=ArtifactCount(count=len(self._large), bytes=sum(size for _, size in self._large)),
            digest=_NO_DIGEST,
        )
        manifest = manifest.model_copy(update={"digest": snapshot_digest(manifest)})
        self._zip.deflate(MANIFEST, [manifest_bytes(manifest)])
        return manifest, self._zip.finish()

    def _run(self, reader: Reader, run: ChosenRun) -> RunEntry:
        redaction = self._redactions.get(run.run_key)
        rows, same = {}, {}
        for table in RUN_TABLES:
            if redaction is not None:
                found = reader.each(rows_of_run(table, run.run_key))
                lines = self._changed_lines(found, table, run.run_key, None)
            else:
                if always := same_of(reader, table, run.run_key):
                    same[table.name] = always
                lines = (row[0] for row in reader.each(lines_of_run(table, run.run_key, without=always)))
            rows[table.name] = self._write(table, lines, run=run.run_id)
        names, row = columns_of(RUN_TABLES[0]), reader.row(rows_of_run(RUN_TABLES[0], run.run_key))
        head: dict[str, Any] = dict(zip(names, row, strict=True))
        if redaction is not None:
            head = redaction.row("runs", head)
        return RunEntry(
            run=run.run_id, name=head["name"], state=head["state"], planned=run.planned, event_no=run.event_no,
            event_hash=run.event_hash, custody=self._custody, epoch=run.epoch, rows=rows, same=same,
            left_out=_left_out(head["left_out"], [] if redaction is None else redaction.entries()),
        )  # fmt: skip

    def _changed_lines(
        self, rows: Iterator[tuple[Any, ...]], table: Table, run_key: int, kept: set[str] | None
    ) -> Iterator[str]:
        """The rows as they may leave; of artifacts those that are ``kept``."""
        names, redaction = columns_of(table), self._redactions[run_key]
        for row in rows:
            changed = redaction.row(table.name, dict(zip(names, row, strict=True)))
            if kept is None or table.name != "artifacts" or changed["digest"] in kept:
                values = [value.hex() if type(value) is bytes else value for value in changed.values()]
                yield json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    def _write(self, table: Table, lines: Iterator[str], *, run: str | None = None) -> int:
        """Write the members of one table; returns how many rows they have."""
        source = _Lines(lines, table.name)
        part = 0
        while not source.is_done:
            part, before = part + 1, source.count
            name = rows_member(table.name, part, run)
            with contextlib.closing(ahead(source.part())) as chunks:  # packed and hashed while the next rows are read
                written = self._zip.deflate(name, chunks)
            self._members.append(
                MemberEntry(name=name, size=written.member.size, digest=written.digest, rows=source.count - before)
            )
        return source.count

    def _artifact(self, folder: Path, digest: str, size: int) -> None:
        path = file_of(folder, digest)
        try:
            with path.open("rb", buffering=0) as source:
                written = self._zip.store(artifact_member(digest), size, iter(lambda: source.read(_CHUNK), b""))
        except (FileNotFoundError, ValueError) as problem:
            raise _damaged(digest, str(problem)) from problem
        if written.digest != digest:
            raise _damaged(digest, "its bytes have changed")


class _Lines:
    """Lines in chunks of about a megabyte and in parts of bounded size."""

    def __init__(self, lines: Iterator[str], table: str) -> None:
        self._lines = lines
        self._table = table
        self._next = next(lines, None)
        self.count = 0

    @property
    def is_done(self) -> bool:
        return self._next is None

    def part(self) -> Iterator[bytes]:
        size = 0
        while self._next is not None and size < PART_BYTES:
            chunk = self._chunk()
            size += len(chunk)
            yield chunk

    def _chunk(self) -> bytes:
        lines, size, line = [], 0, self._next
        while line is not None and size < _CHUNK:
            lines.append(line)
            size += len(line)
            line = next(self._lines, None)
        self._next = line
        self.count += len(lines)
        data = ("\n".join(lines) + "\n").encode()
        if len(data) > LINE_MAX:
            raise UsageError(f"a row of {self._table} has more than {LINE_MAX} bytes", "a snapshot cannot hold it")
        return data


def _left_out(kept: str | None, now: Sequence[RedactionEntry]) -> list[RedactionEntry]:
    """What was left out now, and of what a snapshot brought before."""
    before = [] if kept is None else json.loads(kept)
    earlier = sorted(set(before) - {one.rule for one in now})
    return [*now, *(RedactionEntry(rule=rule, texts=0, events=0) for rule in earlier)]


def _large_ones(reader: Reader, table: Table, keys: Sequence[int], kept: set[str] | None) -> list[tuple[str, int]]:
    """Digest and size of those that lie in files."""
    names = columns_of(table)
    places = [names.index(name) for name in ("digest", "size", "data")]
    found = ([row[place] for place in places] for row in reader.each(rows_of_shared(table, keys)))
    return [(digest, size) for digest, size, data in found if data is None and (kept is None or digest in kept)]


def _damaged(digest: str, why: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"the artifact {digest} is not what was kept ({why})", "run `tallystick ledger check`, and restore its file"
    )


def _never_carried() -> dict[str, str]:
    columns = {f"{table}.{column}": why for table, found in COLUMNS_LEFT_OUT.items() for column, why in found.items()}
    return {**{name: why for name, why in TABLES_LEFT_OUT.items() if why != "part of the schema"}, **columns}


def _version() -> str:
    try:
        return _distributions.version("tallystick")
    except _distributions.PackageNotFoundError:
        return "checkout"
