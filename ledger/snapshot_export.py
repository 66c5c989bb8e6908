"""Exporting runs: one file that holds everything they refer to, whatever goes on in the ledger meanwhile.

All rows are read at one instant. The same runs give the same bytes: no time, no place and no name of the machine stands
in the file. Memory is bounded by a chunk and by the names of the artifacts.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from importlib import metadata as _distributions
from pathlib import Path
from typing import Final

import attrs
from sqlalchemy import Table

from .artifacts import file_of
from .crashpoints import crashpoint
from .errors import LedgerDamaged, RunNotFound, UsageError
from .ledger import Ledger, Reader
from .publishing import published
from .schema import SCHEMA_NUMBER
from .snapshot_format import (
    FORMAT,
    MANIFEST,
    PART_BYTES,
    ArtifactCount,
    CustodyMode,
    Manifest,
    MemberEntry,
    RunEntry,
    artifact_member,
    manifest_bytes,
    rows_member,
    snapshot_digest,
)
from .snapshot_tables import (
    COLUMNS_LEFT_OUT,
    RUN_TABLES,
    SHARED_TABLES,
    TABLES_LEFT_OUT,
    columns_of,
    lines_of_run,
    lines_of_shared,
    rows_of_shared,
)
from .zip_writer import ZipWriter

__all__ = ["RUNS_MAX", "Exported", "export_runs"]

RUNS_MAX: Final = 1_000
_CHUNK: Final = 1 << 20
_RUN: Final = (
    "SELECT r.run_key, r.run_id, r.name, r.state, r.planned, r.custody_epoch, e.event_no, e.hash FROM runs r"
    " JOIN events e ON e.run_key = r.run_key WHERE r.run_id = ? AND r.state NOT IN ('planning', 'importing')"
    " ORDER BY e.event_no DESC LIMIT 1"
)


@attrs.frozen
class Exported:
    """A snapshot that lies durably at its path; ``digest`` is the one over everything, ``size`` that of the file."""

    path: Path
    digest: str
    size: int
    manifest: Manifest


@attrs.frozen
class _Chosen:
    run_key: int
    run_id: str
    name: str
    planned: int
    epoch: int
    event_no: int
    event_hash: str


def export_runs(
    ledger: Ledger, run_ids: Sequence[str], path: Path, *, custody: CustodyMode = "copy", force: bool = False
) -> Exported:
    """Write a snapshot of the runs to that path.

    Raises RunNotFound, UsageError where the path is taken, LedgerDamaged where an artifact is not what was kept, and
    LedgerFailed where the disk fails; then nothing new lies at the path.
    """
    if not 0 < len(set(run_ids)) <= RUNS_MAX:
        raise UsageError(f"a snapshot holds 1 to {RUNS_MAX} runs, not {len(set(run_ids))}", "name other runs")
    written, renamed = (lambda: crashpoint("export.written")), (lambda: crashpoint("export.renamed"))
    with published(path, force=force, written=written, renamed=renamed) as file:
        with ledger.reading() as reader:
            chosen = [_choose(reader, run_id) for run_id in sorted(set(run_ids))]
            made = _Snapshot(file, reader, chosen, custody)
            manifest = made.write()
        size = made.zip.finish()
    return Exported(path, manifest.digest, size, manifest)


def _choose(reader: Reader, run_id: str) -> _Chosen:
    row = reader.row(_RUN, (run_id,))
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    run_key, _, name, _, planned, epoch, event_no, digest = row
    return _Chosen(run_key, run_id, name, planned, epoch, event_no, bytes(digest).hex())


class _Snapshot:
    """One snapshot under way."""

    def __init__(
        self, file: io.BufferedRandom, reader: Reader, chosen: Sequence[_Chosen], custody: CustodyMode
    ) -> None:
        self.zip = ZipWriter(file)
        self._reader = reader
        self._chosen = chosen
        self._custody = custody
        self._members: list[MemberEntry] = []

    def write(self) -> Manifest:
        runs = [self._run(run) for run in self._chosen]
        keys = [run.run_key for run in self._chosen]
        shared = {table.name: self._rows(table, lines_of_shared(table, keys)) for table in SHARED_TABLES}
        artifacts = self._artifacts(keys)
        manifest = Manifest(
            format=FORMAT,
            schema_number=SCHEMA_NUMBER,
            producer=f"tallystick {_version()}",
            runs=runs,
            shared=shared,
            columns={table.name: columns_of(table) for table in (*RUN_TABLES, *SHARED_TABLES)},
            never_carried=_never_carried(),
            members=self._members,
            artifacts=artifacts,
            digest="sha256:" + 64 * "0",
        )
        manifest = manifest.model_copy(update={"digest": snapshot_digest(manifest)})
        self.zip.deflate(MANIFEST, [manifest_bytes(manifest)])
        return manifest

    def _run(self, run: _Chosen) -> RunEntry:
        rows = {table.name: self._rows(table, lines_of_run(table, run.run_key), run=run.run_id) for table in RUN_TABLES}
        state = self._reader.row(f"SELECT json_extract(({lines_of_run(RUN_TABLES[0], run.run_key)}), ?)",
                                 (f"$[{columns_of(RUN_TABLES[0]).index('state')}]",))[0]  # fmt: skip
        return RunEntry(
            run=run.run_id, name=run.name, state=state, planned=run.planned, event_no=run.event_no,
            event_hash=run.event_hash, custody=self._custody, epoch=run.epoch, rows=rows,
        )  # fmt: skip

    def _rows(self, table: Table, sql: str, *, run: str | None = None) -> int:
        """Write the members of one table; returns how many rows they have."""
        lines = _Lines(self._reader.each(sql))
        part = 0
        while not lines.is_done:
            part, before = part + 1, lines.count
            name = rows_member(table.name, part, run)
            written = self.zip.deflate(name, lines.part())
            self._members.append(
                MemberEntry(name=name, size=written.member.size, digest=written.digest, rows=lines.count - before)
            )
        return lines.count

    def _artifacts(self, keys: Sequence[int]) -> ArtifactCount:
        table = next(table for table in SHARED_TABLES if table.name == "artifacts")
        names = columns_of(table)
        count = total = 0
        for row in self._reader.each(rows_of_shared(table, keys)):
            found = dict(zip(names, row, strict=True))
            if found["data"] is None:
                self._artifact(found["digest"], found["size"])
                count, total = count + 1, total + found["size"]
        return ArtifactCount(count=count, bytes=total)

    def _artifact(self, digest: str, size: int) -> None:
        path = file_of(self._reader.artifacts, digest)
        try:
            with path.open("rb") as source:
                written = self.zip.store(artifact_member(digest), size, iter(lambda: source.read(_CHUNK), b""))
        except (OSError, ValueError) as problem:
            raise _damaged(digest, str(problem)) from problem
        if written.digest != digest:
            raise _damaged(digest, "its bytes have changed")


class _Lines:
    """Lines from a query, in chunks of about a megabyte and in parts of bounded size."""

    def __init__(self, rows: Iterator[tuple[str]]) -> None:
        self._rows = rows
        self._next = next(rows, None)
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
        lines, size, row = [], 0, self._next
        while row is not None and size < _CHUNK:
            lines.append(row[0])
            size += len(row[0])
            row = next(self._rows, None)
        self._next = row
        self.count += len(lines)
        return ("\n".join(lines) + "\n").encode()


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
