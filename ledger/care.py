"""Backing a ledger up while it is used, and giving back the space that it does not need.

A backup is a ledger: its file with the files of its artifacts beside it. It is another one, as `ledger_place` sees it:
who goes on with it adopts its runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import attrs

from . import driver
from .artifacts import file_of, files_in
from .backup_place import BackupPlace, backup_place
from .crashpoints import crashpoint
from .durable import sync, sync_folder
from .errors import LedgerBusy, LedgerDamaged, LedgerFailed
from .failures import first_line
from .import_care import discard_half_imported, remove_left_folders
from .ledger import Ledger
from .planning import discard_half_planned
from .processes import ProcessIdentity
from .publishing import followed, published, refuse_taken
from .whole_copy import copy_whole

__all__ = ["BackedUp", "Compacted", "backup_ledger", "compact_ledger"]


@attrs.frozen
class BackedUp:
    """A backup that lies durably at its path; sizes in bytes."""

    path: Path
    size: int
    artifacts: int
    artifact_bytes: int


@attrs.frozen
class Compacted:
    """What compacting gave back; sizes in bytes.

    ``orphans`` counts files that belonged to no artifact; ``hidden_runs`` and ``unpacked`` what plans and imports had
    left whose process died: runs that were never shown, and folders of imports.
    """

    size_before: int
    size: int
    orphans: int
    orphan_bytes: int
    hidden_runs: int
    unpacked: int
    unpacked_bytes: int


def backup_ledger(ledger: Ledger, path: Path, *, force: bool = False) -> BackedUp:
    """Copy the ledger as it is at one instant, while it may be written to; its own name comes last.

    Raises UsageError where the path is taken, LedgerBusy while another backup is made there, LedgerDamaged where an
    artifact's file is not there, and LedgerFailed where the disk fails; then what was there is as it was.
    """

    def written() -> None:
        crashpoint("backup.written")

    refuse_taken(path, force=force, ledger=ledger.path, is_database=True)  # before anything is made beside it
    with (
        backup_place(followed(path)) as place,
        published(path, force=force, ledger=ledger.path, is_database=True, written=written) as file,
    ):
        copy_whole(ledger.path, Path(file.name))
        with contextlib.closing(driver.connect_frozen(Path(file.name))) as copy:
            count, total = _copy_artifacts(copy, ledger.artifacts, place)
        file.seek(0, os.SEEK_END)
        size = file.tell()
    return BackedUp(path, size, count, total)


def _copy_artifacts(copy: driver.Connection, source: Path, place: BackupPlace) -> tuple[int, int]:
    """Bring over what the copy names and is not there yet: files by digest never change."""
    count = total = 0
    side = place.artifacts.parent
    folders = set[Path]()
    for digest, size in copy.execute("SELECT digest, size FROM artifacts WHERE data IS NULL ORDER BY digest"):
        count, total = count + 1, total + size
        path = file_of(place.artifacts, digest)
        # Those of a file that is there already, too: whoever brought it may have died before its name was durable.
        folders |= {side.parent, side, place.artifacts, path.parent}
        if path.is_file() and path.stat().st_size == size:
            continue
        try:
            _copy_file(file_of(source, digest), path, place)
        except OSError as problem:
            if isinstance(problem, FileNotFoundError) and not file_of(source, digest).exists():
                raise LedgerDamaged(
                    f"the file of the artifact {digest} is missing", "run `tallystick ledger check`"
                ) from problem
            raise LedgerFailed(
                f"the artifact {digest} could not be copied to {side} ({problem.strerror})",
                "free space there, look after both disks, then start again",
            ) from problem
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        sync_folder(folder)
    return count, total


def _copy_file(source: Path, path: Path, place: BackupPlace) -> None:
    for folder in (path.parent.parent.parent, path.parent.parent, path.parent):
        place.make_folder(folder)
    temporary = place.unfinished(path)
    with source.open("rb") as read, temporary.open("wb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
        written.flush()
        sync(written.fileno())
    place.finish(path)


def compact_ledger(ledger: Ledger) -> Compacted:
    """Write the file anew without its free pages, and remove what the dead have left and what belongs to nothing.

    Nobody else may use the ledger meanwhile, nor another thread of this process. Raises LedgerBusy while somebody does,
    a reader too, LedgerDamaged where the file is damaged, and LedgerFailed where the disk has no room for the file once
    more; then every row is as it was.
    """
    _refuse_others(ledger)
    unpacked, unpacked_bytes = remove_left_folders(ledger)  # first, because it makes room
    before = ledger.path.stat().st_size
    if shutil.disk_usage(ledger.path.parent).free < 2 * before:
        raise LedgerFailed(
            f"compacting needs {2 * before:,} bytes of free space for a while", "free space on the ledger's disk"
        )
    hidden = discard_half_imported(ledger) + discard_half_planned(ledger)
    with ledger.alone() as connection:
        _refuse_others(ledger)
        try:
            known = _written_anew(ledger, connection)
        except driver.SqliteError as problem:
            raise LedgerFailed(
                f"the ledger {ledger.path} could not be compacted: {first_line(problem)}",
                "see to its disk and to the folder for temporary files (SQLITE_TMPDIR), then compact it again",
            ) from problem
        orphans = [path for path in files_in(ledger.artifacts) if path.name not in known]
        freed = sum(path.stat().st_size for path in orphans)
        for path in orphans:
            path.unlink()
    size = ledger.path.stat().st_size
    return Compacted(before, size, len(orphans), freed, hidden, unpacked, unpacked_bytes)


def _written_anew(ledger: Ledger, connection: driver.Connection) -> set[str]:
    """Write the file anew, and return the names of the files that its artifacts have."""
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise LedgerDamaged(f"the ledger {ledger.path} is damaged: {problem}", "restore a backup")
    known = {digest[7:] for (digest,) in connection.execute("SELECT digest FROM artifacts WHERE data IS NULL")}
    _empty_log(ledger, connection)
    connection.execute("VACUUM")
    _empty_log(ledger, connection)
    return known


def _empty_log(ledger: Ledger, connection: driver.Connection) -> None:
    """Bring the log into the file, which is only then as short as its pages; raises LedgerBusy where somebody reads."""
    is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if is_busy:
        raise LedgerBusy(
            f"a program reads the ledger {ledger.path}, so that its file cannot be cut short",
            "end what reads it (a report, a notebook, an SQLite shell), then compact it again", str(ledger.path),
        )  # fmt: skip


def _refuse_others(ledger: Ledger) -> None:
    """Raise LedgerBusy while another process that is not proven dead is a worker of this ledger."""
    own = ledger.worker_id
    with ledger.reading() as reader:
        rows = reader.rows("SELECT worker_id, pid, start_ticks, boot_id, host FROM workers WHERE ended_us IS NULL")
    # Workers that a snapshot brought are not of this ledger.
    others = [(name, ProcessIdentity(*row)) for name, *row in rows if name != own and row[3]]
    alive = [(name, who) for name, who in others if not ledger.is_dead(name, who)]
    if alive:
        raise LedgerBusy(
            f"process {alive[0][1].pid} uses the ledger {ledger.path}", "wait until it has ended", str(ledger.path)
        )
