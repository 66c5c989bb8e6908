"""Finding out what lies at a path, and making it a ledger of the newest schema when that was asked for.

Nothing is changed before the file is known to be a ledger, or known to be absent or empty and meant to be created.
"""

from __future__ import annotations

import contextlib
from enum import Enum, auto
from pathlib import Path
from typing import Final

from . import driver, migrate
from .errors import (
    LedgerDamaged,
    LedgerMissing,
    LedgerNewer,
    LedgerOutdated,
    LedgerReadOnly,
    NotALedger,
)
from .failures import cause_of, is_damage, is_forbidden, is_of_the_disk, unreadable, unwritable
from .location import make_side_folder, refuse_network, side_folder
from .schema import SCHEMA_NUMBER
from .turnstile import Turnstile
from .workers import WorkerFolder

__all__ = ["Found", "look", "prepare"]


_HEADER_BYTES: Final = 112
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")


class Found(Enum):
    """What lies at a path."""

    NOTHING = auto()
    EMPTY = auto()
    CURRENT = auto()
    OUTDATED = auto()


def look(path: Path) -> Found:
    """Say what lies there, changing nothing; raises NotALedger, LedgerNewer or LedgerReadOnly."""
    if not path.exists():
        return Found.NOTHING
    if not path.is_file():
        raise NotALedger(f"{path} is not a file", "name the ledger's file with --ledger", str(path))
    if path.stat().st_nlink > 1:
        raise NotALedger(
            f"{path} has another name (a hard link), under which its log and its locks would not be found",
            "remove the other name, or copy the file in place of the link (`cp --remove-destination`)", str(path),
        )  # fmt: skip
    if path.stat().st_size == 0:
        return Found.EMPTY
    try:
        if _is_torn_beginning(path):
            return Found.EMPTY
        _refuse_by_header(path)
        connection = driver.connect(path)
    except (OSError, driver.SqliteError) as problem:
        raise LedgerReadOnly(f"{path} cannot be opened ({problem})", "check its permissions", str(path)) from problem
    try:
        return _look_inside(connection, path)
    except (driver.SqliteError, UnicodeDecodeError) as problem:  # SQLite shows what is damaged in what it says of it
        raise _unreadable(path, problem) from problem
    finally:
        connection.close()


def _is_torn_beginning(path: Path) -> bool:
    """Whether the power failed while SQLite wrote the first page of all: any bytes may be there.

    A journal says that there were none before (sqlite.org/fileformat2.html, section 3), and SQLite takes them back when
    the next start opens the file.
    """
    journal = path.with_name(path.name + "-journal")
    if not journal.exists():
        return False
    with journal.open("rb") as file:
        header = file.read(28)
    return header[:8] == _JOURNAL_MAGIC and header[16:20] == bytes(4)


def _refuse_by_header(path: Path) -> None:
    """Refuse what is foreign or newer by its first bytes (sqlite.org/fileformat2.html, section 1.3).

    SQLite itself would recover and copy back the write-ahead log of a foreign database by just opening and closing it.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    application, number = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
    # A new ledger, for an instant or since a kill, is a database without a table: a leaf page of 0 cells.
    is_new = application == 0 and header[100:101] == b"\r" and header[103:105] == b"\0\0"
    if header[:16] != b"SQLite format 3\0" or not (is_new or application == driver.APPLICATION_ID):
        raise _foreign(path)
    if number > SCHEMA_NUMBER:
        raise _newer(path, number)


def _look_inside(connection: driver.Connection, path: Path) -> Found:
    if migrate.is_empty(connection):
        return Found.EMPTY
    if not migrate.is_ledger(connection):
        raise _foreign(path)
    number = migrate.schema_number(connection)
    if number > SCHEMA_NUMBER:
        raise _newer(path, number)
    return Found.CURRENT if number == SCHEMA_NUMBER else Found.OUTDATED


def prepare(path: Path, *, create: bool, upgrade: bool) -> None:
    """Make sure that a ledger of the newest schema lies there.

    Raises LedgerMissing when there is none and ``create`` is false, LedgerOutdated when it is old and ``upgrade`` is
    false, LedgerOnNetwork, LedgerReadOnly, NotALedger and LedgerNewer before anything is changed.
    """
    refuse_network(path)
    found = look(path)
    _refuse_unasked(path, found, create=create, upgrade=upgrade)
    if found is Found.CURRENT:
        return
    folder = make_side_folder(path)
    try:
        with contextlib.ExitStack() as stack:
            turnstile = Turnstile(folder, remove_stalled=WorkerFolder(folder / "workers").remove_stalled)
            stack.callback(turnstile.close)
            stack.enter_context(turnstile)
            # Somebody else may have created or upgraded it while we stood in line.
            if look(path) is not Found.CURRENT:
                migrate.migrate(path, backups=folder / "backups")
    except Exception as problem:
        cause = cause_of(problem)
        if not is_of_the_disk(cause):
            raise
        raise unwritable(path, cause, "created" if found in (Found.NOTHING, Found.EMPTY) else "upgraded") from problem


def _refuse_unasked(path: Path, found: Found, *, create: bool, upgrade: bool) -> None:
    if found is Found.NOTHING and not create:
        raise LedgerMissing(
            f"there is no ledger at {path}", "start a run, or name another path with --ledger", str(path)
        )
    if found is Found.EMPTY and not create:
        raise LedgerMissing(
            f"the ledger {path} is empty: its first start was killed",
            "start a run again, which completes it",
            str(path),
        )
    if found is Found.OUTDATED and not upgrade:
        raise LedgerOutdated(
            f"the ledger {path} has an older schema", "run `tallystick ledger upgrade` (it makes a backup first)",
            str(path),
        )  # fmt: skip


def _newer(path: Path, number: int) -> LedgerNewer:
    return LedgerNewer(
        f"the ledger {path} has schema {number}, and this version knows schemas up to {SCHEMA_NUMBER}",
        "use the newer version of tallystick that made it",
        str(path),
    )


def _foreign(path: Path) -> NotALedger:
    return NotALedger(
        f"{path} is not a tallystick ledger", "name another path with --ledger; this file was not changed", str(path)
    )


def _unreadable(path: Path, problem: Exception) -> Exception:
    text = str(problem).lower()
    if is_damage(problem):
        # Its header said that it is a ledger, or that it is new.
        return LedgerDamaged(
            f"the ledger {path} is damaged ({text})",
            f"copy it aside, restore the newest backup (in {side_folder(path).name}/backups, where there is one), "
            "and check the disk", str(path),
        )  # fmt: skip
    if not is_forbidden(problem):
        return unreadable(path, problem)
    return LedgerReadOnly(
        f"the ledger {path} cannot be read ({problem})",
        f"check the permissions of it and of {side_folder(path).name}",
        str(path),
    )
