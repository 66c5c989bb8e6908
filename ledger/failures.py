"""What the disk or the file did, as an error of ours with the fitting remedy."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Final

from .driver import SqliteError
from .errors import LedgerDamaged, LedgerError, LedgerFailed, LedgerReadOnly, LedgerUnreadable, TallystickError

__all__ = [
    "as_failure",
    "cause_of",
    "first_line",
    "is_damage",
    "is_forbidden",
    "is_full",
    "is_locked",
    "is_of_file",
    "is_of_the_disk",
    "remedy_of",
    "unreadable",
    "unwritable",
]

# The primary result codes of SQLite (sqlite.org/rescode.html).
_DAMAGE: Final = frozenset({11, 26})  # CORRUPT, NOTADB
_UNDECODABLE: Final = "Could not decode to UTF-8"  # the driver's words
_BUSY: Final = 5
_INPUT_OUTPUT: Final = 10
_INDEX_BYTES: Final = 32 * 1024
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FORBIDDEN_WORDS: Final = ("readonly", "read-only", "unable to open")
_OF_FILE: Final = frozenset({3, 5, 6, 7, 10, 13, 14, 15, 22})  # PERM … NOLFS: the disk, its locks, its room


def as_failure(problem: BaseException, what: str) -> LedgerError:
    """The problem as a LedgerFailed, or as it is where it has a name of ours already."""
    if isinstance(problem, LedgerError):
        return problem
    failure = LedgerFailed(f"{what}: {first_line(problem)}", remedy_of(problem))
    failure.__cause__ = problem
    return failure


def remedy_of(problem: BaseException) -> str:
    """What to do about it, by the words of SQLite and of the system."""
    text = str(problem).lower()
    if is_full(problem):
        return "free space on the ledger's disk, then resume"
    if "locked" in text or "busy" in text:
        return "end the program that holds the ledger's file open for writing, then resume"
    if isinstance(problem, SqliteError | OSError):
        return "look after the ledger's disk, run `tallystick ledger check`, then resume"
    return "run `tallystick ledger check`, then resume"


def is_damage(problem: BaseException) -> bool:
    """Whether SQLite says that the file is no sound database any more, or its texts are none."""
    return _code(problem) in _DAMAGE or isinstance(problem, UnicodeDecodeError) or _UNDECODABLE in str(problem)


def is_of_file(problem: BaseException) -> bool:
    """Whether SQLite could not read or lock the file, so that the statement is not to blame."""
    return _code(problem) in _OF_FILE


def unreadable(path: Path, problem: BaseException) -> LedgerError:
    """The error for a ledger that could not be read."""
    text = first_line(problem)
    if is_damage(problem):
        return LedgerDamaged(f"the ledger {path} is damaged: {text}", "run `tallystick ledger check`", str(path))
    if _code(problem) == _INPUT_OUTPUT and _is_without_room(path):
        text, remedy = f"{text}, and its disk is full", "free space on the ledger's disk, then start again"
    else:
        remedy = remedy_of(problem)
    return LedgerUnreadable(f"the ledger {path} could not be read: {text}", remedy, str(path))


def unwritable(path: Path, problem: BaseException, verb: str, *, kind: str = "ledger") -> TallystickError:
    """The error for a ledger or a file beside it that could not be created, upgraded or written."""
    text = _said_by(problem)
    if is_forbidden(problem):
        what = f"the {kind} {path} cannot be {verb} ({text})"
        return LedgerReadOnly(what, "make it and its folder writable, or name another path with --ledger", str(path))
    remedy = "free space on the ledger's disk" if is_full(problem) else "look after the ledger's disk"
    return LedgerFailed(f"the {kind} {path} could not be {verb}: {text}", f"{remedy}, then start again")


def is_forbidden(problem: BaseException) -> bool:
    """Whether the file or its folder may not be used so: permissions, or a disk that is mounted to be read."""
    text = _said_by(problem).lower()
    return getattr(problem, "errno", None) in _FORBIDDEN or any(word in text for word in _FORBIDDEN_WORDS)


def _is_without_room(path: Path) -> bool:
    """Whether the index of the log, which each opening makes, has no room: SQLite says nothing more of that."""
    try:
        return shutil.disk_usage(path.parent).free < _INDEX_BYTES
    except OSError:
        return False


def _said_by(problem: BaseException) -> str:
    """Without the path, which may hold any word."""
    return (problem.strerror or "") if isinstance(problem, OSError) else first_line(problem)


def _code(problem: BaseException) -> int:
    found: int = getattr(problem, "sqlite_errorcode", 0)
    return found & 0xFF


def is_locked(problem: BaseException) -> bool:
    """Whether somebody else has the file locked (SQLITE_BUSY)."""
    return _code(problem) == _BUSY


def is_full(problem: BaseException) -> bool:
    """Whether there is no room left."""
    text = str(problem).lower()
    return "full" in text or "no space" in text


def first_line(problem: BaseException) -> str:
    """Its text on one line, its class where it has none."""
    return (str(problem) or type(problem).__name__).splitlines()[0]


def cause_of(problem: BaseException) -> BaseException:
    """The driver's own error, where SQLAlchemy has put it into one of its."""
    found = getattr(problem, "orig", None)
    return found if isinstance(found, BaseException) else problem


def is_of_the_disk(problem: BaseException) -> bool:
    """Whether the disk, the file or its permissions are to blame."""
    return isinstance(problem, SqliteError | OSError)
