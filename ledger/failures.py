"""What the disk or the file did, as an error of ours with the fitting remedy."""

from __future__ import annotations

from .driver import SqliteError
from .errors import LedgerError, LedgerFailed

__all__ = ["as_failure", "cause_of", "first_line", "is_full", "is_of_the_disk", "remedy_of"]


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
