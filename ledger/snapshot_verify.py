"""Verifying a snapshot completely, before a ledger is touched: its layout, every member, every row, every promise.

The file may have been made to do harm. Memory is bounded by a megabyte of rows and the names of the members; the disk
by what the file announces, which is compared with the space that is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs
from pydantic import ValidationError

from .check_rules import Severity
from .checks import EventsRead, check_histories, check_references, check_rows
from .crashpoints import crashpoint
from .errors import LedgerFailed, SnapshotInvalid, SnapshotNewer, UsageError
from .failures import cause_of, first_line, is_of_file
from .findings import Finding
from .ledger import Reader
from .schema import SCHEMA_NUMBER
from .snapshot_artifacts import ArtifactStage
from .snapshot_format import (
    FORMAT,
    MANIFEST,
    MANIFEST_MAX,
    Manifest,
    RunEntry,
    manifest_bytes,
    snapshot_digest,
    table_of_member,
)
from .snapshot_load import rows_loaded
from .snapshot_scratch import RowsUnfit, Scratch
from .snapshot_values import names_in, strange_values
from .zip_reader import NotOurZip, ZipReader

__all__ = ["VerifiedSnapshot", "read_manifest", "verified"]

_REMEDY: Final = "ask whoever made it for another export; nothing was taken from it"


@attrs.frozen
class VerifiedSnapshot:
    """A snapshot of which everything holds. Its rows stand in ``rows`` in the newest schema, runs numbered from 1.

    ``artifacts`` has the large ones as files, ``scratch`` is where the rows are.
    """

    path: Path
    manifest: Manifest
    rows: Reader
    artifacts: ArtifactStage
    scratch: Scratch

    def run_key(self, entry: RunEntry) -> int:
        """The number of the run among ``rows``."""
        return self.manifest.runs.index(entry) + 1


@contextlib.contextmanager
def verified(path: Path, folder: Path) -> Iterator[VerifiedSnapshot]:
    """The snapshot at that path, verified; ``folder`` is empty and holds what is unpacked meanwhile.

    Raises SnapshotInvalid, naming the place, SnapshotNewer, UsageError where there is no such file, and LedgerFailed
    where the disk is full.
    """
    try:
        with _opened(path) as archive, contextlib.ExitStack() as stack:
            manifest = _manifest(archive, path)
            _refuse_too_large(manifest, folder, path)
            members = archive.members[len(manifest.members) : -1]
            stage = ArtifactStage(archive, members, folder / "artifacts")
            stack.enter_context(stage.begun())  # by a thread of its own, while the rows are looked at
            rows = stack.enter_context(Scratch(folder, schema_number=manifest.schema_number))
            with rows_loaded(archive, manifest, rows) as events:
                _look(manifest, rows, events)
            stage.finish(rows.reader, manifest.artifacts)
            crashpoint("import.verified")
            yield VerifiedSnapshot(path, manifest, rows.reader, stage, rows)
    except (NotOurZip, RowsUnfit) as problem:
        raise _invalid(path, problem) from problem
    except Exception as problem:
        cause = cause_of(problem)
        if not (isinstance(cause, OSError) or is_of_file(cause)):
            raise
        what = cause.strerror if isinstance(cause, OSError) else first_line(cause)
        raise LedgerFailed(
            f"{path} could not be unpacked ({what})", "free space on the ledger's disk, then import it again"
        ) from problem


def read_manifest(path: Path) -> Manifest:
    """What a snapshot says of itself, of which nothing but its layout and its own digest is verified.

    Raises SnapshotInvalid, SnapshotNewer, and UsageError where there is no such file.
    """
    try:
        with _opened(path) as archive:
            return _manifest(archive, path)
    except NotOurZip as problem:
        raise _invalid(path, problem) from problem


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[ZipReader]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not keep us waiting
    except OSError as problem:
        raise UsageError(f"{path} cannot be read ({problem.strerror})", "name a snapshot's file") from problem
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotOurZip("it is not a file")
        yield ZipReader(descriptor)
    finally:
        os.close(descriptor)


def _invalid(path: Path, problem: Exception) -> SnapshotInvalid:
    return SnapshotInvalid(f"{path} is no sound snapshot: {problem}", _REMEDY, str(path), str(problem))


def _manifest(archive: ZipReader, path: Path) -> Manifest:
    last = archive.members[-1] if archive.members else None
    if last is None or last.name != MANIFEST:
        raise NotOurZip(f"its last member is not {MANIFEST}")
    if last.size > MANIFEST_MAX:
        raise NotOurZip(f"{MANIFEST} has {last.size} bytes")
    text = b"".join(archive.chunks(last))
    _refuse_newer(text, path)
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise NotOurZip(f"{MANIFEST}, {place}: {first['msg']}") from problem
    if manifest_bytes(manifest) != text:
        raise NotOurZip(f"{MANIFEST} is not written as manifests are")
    if snapshot_digest(manifest) != manifest.digest:
        raise NotOurZip(f"{MANIFEST} has another digest than it says")
    _refuse_other_members(archive, manifest)
    return manifest


def _refuse_newer(text: bytes, path: Path) -> None:
    try:
        said = json.loads(text)
        form, number = said["format"], said["schema_number"]
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise NotOurZip(f"{MANIFEST} is not one") from problem
    known = isinstance(form, str) and form.startswith("tallystick.snapshot/")
    if (known and form != FORMAT) or (form == FORMAT and type(number) is int and number > SCHEMA_NUMBER):
        raise SnapshotNewer(
            f"the snapshot {path} has the form {form} with schema {number}, and this version knows {FORMAT} with"
            f" schemas up to {SCHEMA_NUMBER}", "use the newer version of tallystick that made it", str(path),
        )  # fmt: skip


def _refuse_other_members(archive: ZipReader, manifest: Manifest) -> None:
    """The members are those of the manifest in its order, then artifacts, then the manifest."""
    rows, rest = archive.members[: len(manifest.members)], archive.members[len(manifest.members) : -1]
    for told, found in zip(manifest.members, rows, strict=False):
        if (told.name, told.size) != (found.name, found.size):
            raise NotOurZip(f"{found.name} stands where {MANIFEST} says {told.name} of {told.size} bytes")
    if len(rows) != len(manifest.members):
        raise NotOurZip(f"{MANIFEST} tells of {len(manifest.members)} members with rows, and there are {len(rows)}")
    strangers = [member.name for member in rest if not member.name.startswith("artifacts/")]
    if strangers:
        raise NotOurZip(f"{MANIFEST} does not tell of {strangers[0]}")
    if (len(rest), sum(member.size for member in rest)) != (manifest.artifacts.count, manifest.artifacts.bytes):
        raise NotOurZip(f"{MANIFEST} tells of other artifacts than there are")
    runs = [entry.run for entry in manifest.runs]
    if runs != sorted(set(runs)):
        raise NotOurZip(f"{MANIFEST} does not name every run once and in order")


def _refuse_too_large(manifest: Manifest, folder: Path, path: Path) -> None:
    # Rows are unpacked into a scratch file and written into the ledger, each about as large as their text.
    runs = {entry.run: entry for entry in manifest.runs}
    same = sum(
        member.rows * run.same_size(table)
        for member in manifest.members
        for run, table in [(runs.get(member.name.split("/")[-2]), table_of_member(member.name))]
        if run is not None
    )
    needed = 2 * (sum(member.size for member in manifest.members) + same) + manifest.artifacts.bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise LedgerFailed(
            f"{path} would unpack to about {needed:,} bytes, and the ledger's disk has {free:,} left",
            "free space on the ledger's disk, then import it again",
        )


_RUN: Final = (
    "SELECT r.run_id, r.name, r.state, r.planned, e.event_no, lower(hex(e.hash)) FROM runs r"
    " LEFT JOIN events e ON e.run_key = r.run_key WHERE r.run_key = ? ORDER BY e.event_no DESC LIMIT 1"
)
_CUSTODY: Final = (
    "SELECT kind FROM events WHERE run_key = ? AND kind IN"
    " ('run.adopted', 'run.custody_lost', 'run.moving', 'run.taken_over') ORDER BY event_no DESC LIMIT 1"
)
"""The newest event that changes who may go on with a run."""


def _look(manifest: Manifest, scratch: Scratch, events: Callable[[], EventsRead | None]) -> None:
    """The rows keep every promise that a ledger keeps, and are what the manifest says of them."""
    _compare_runs(manifest, scratch.reader)
    with scratch.another_reader() as other, ThreadPoolExecutor(1) as helper:
        # SQLite lets go of the interpreter, which goes through the histories meanwhile.
        rules = helper.submit(lambda: _rules(other))
        if not scratch.is_older:  # else it was done before the migrations
            scratch.look_at_kinds(scratch.reader)
        references = list(check_references(scratch.reader))
        histories = list(check_histories(scratch.reader, events()))
        findings = [*references, *rules.result(), *histories]
    for finding in findings:
        if finding.severity is Severity.ERROR:
            raise NotOurZip(f"{finding.code}: {finding.what}")


def _rules(reader: Reader) -> list[Finding]:
    for what in strange_values(reader):  # before queries look into JSON
        raise NotOurZip(what)
    return list(check_rows(reader))


def _compare_left_out(entry: RunEntry, said: str | None) -> None:
    try:
        names = names_in(said)
    except (ValueError, RecursionError) as problem:
        raise NotOurZip(f"run {entry.run}: what was left out is no list of rules") from problem
    if names != sorted({one.rule for one in entry.left_out}):
        raise NotOurZip(f"run {entry.run} is without {names}, and {MANIFEST} says otherwise")


def _compare_runs(manifest: Manifest, rows: Reader) -> None:
    for key, entry in enumerate(manifest.runs, start=1):
        told = (entry.run, entry.name, entry.state, entry.planned, entry.event_no, entry.event_hash)
        if (found := rows.row(_RUN, (key,))) != told:
            raise NotOurZip(f"run {entry.run} is {found}, and {MANIFEST} says {told}")
        if entry.custody == "move" and rows.row(_CUSTODY, (key,)) != ("run.moving",):
            raise NotOurZip(f"run {entry.run} is to be moved by it, and the run's history does not say so")
        _compare_left_out(entry, rows.row("SELECT left_out FROM runs WHERE run_key = ?", (key,))[0])
    if (count := rows.row("SELECT count(*) FROM runs")[0]) != len(manifest.runs):
        raise NotOurZip(f"it has {count} runs, and {MANIFEST} says {len(manifest.runs)}")
    holders = rows.row("SELECT lease_id FROM leases WHERE state NOT IN ('released', 'lost', 'revoked')")
    if holders is not None:
        raise NotOurZip(f"the lease {holders[0]} has not ended")
