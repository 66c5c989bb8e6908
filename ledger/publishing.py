"""Publishing a file: under its name there is the whole of it, durably, or what was there before.

It is written under another name beside it, synced, renamed, and its folder synced. What a killed process has left under
such a name is cleared away by the next one that publishes there.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from .durable import sync, sync_folder
from .errors import LedgerFailed, UsageError
from .location import resolved, side_folder

__all__ = ["beside", "followed", "published", "refuse_taken"]

_PART: Final = ".part"
_LOGS: Final = ("-wal", "-journal", "-shm")
_MAGIC: Final = b"SQLite format 3\0"


@contextlib.contextmanager
def published(
    path: Path,
    *,
    force: bool,
    ledger: Path | None = None,
    is_database: bool = False,
    written: Callable[[], None] = lambda: None,
    renamed: Callable[[], None] = lambda: None,
) -> Iterator[io.BufferedRandom]:
    """The file to write into; it gets its name when the block ends well, and leaves nothing when it does not.

    A symbolic link is followed. ``ledger`` is where the contents come from, ``is_database`` that they are one;
    ``written`` is called when all of it is durable under its other name, ``renamed`` when it has its own. Raises
    UsageError as `refuse_taken` does, and LedgerFailed when the disk fails.
    """
    path = followed(path)
    refuse_taken(path, force=force, ledger=ledger, is_database=is_database)
    try:
        _clear(path)
        temporary = _another_name(path)
        with temporary.open("x+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # kept until it is closed: says that somebody is at it
            try:
                yield file
                file.flush()
                sync(file.fileno())
                written()
                refuse_taken(path, force=force, ledger=ledger, is_database=is_database)
                temporary.replace(path)
                sync_folder(path.parent)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as problem:
        if problem.filename not in (None, str(path)) and not str(problem.filename).endswith(_PART):
            raise
        raise LedgerFailed(
            f"{path} could not be written ({problem.strerror})", "free space on its disk and check its permissions"
        ) from problem
    renamed()


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name beside that path for a file that is needed meanwhile; there is an empty file under it."""
    temporary = _another_name(path)
    with temporary.open("x+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def refuse_taken(path: Path, *, force: bool, ledger: Path | None = None, is_database: bool = False) -> None:
    """Raise UsageError when something is there that must stay, or when its folder is not there.

    With ``force`` a file may be replaced, but never one of the ``ledger``, and a database by nothing but one.
    """
    path = followed(path)
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist", "create it, or name another path")
    if ledger is not None and _is_of(ledger, path):
        raise UsageError(f"{path} belongs to the ledger {ledger} itself", "name another path")
    if path.is_dir() or (path.exists() and not force):
        kind = "a folder" if path.is_dir() else "a file"
        raise UsageError(f"there is {kind} at {path} already", "name another path, or say --force to replace a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"there is something at {path} that is no file", "name another path")
    if is_database:
        _refuse_log(path)
    elif path.exists() and _has_database(path):
        raise UsageError(f"there is a database at {path}, which nothing of another kind replaces", "name another path")


def followed(path: Path) -> Path:
    """Where a file of that name is written: where a symbolic link leads to; raises UsageError for one without end."""
    return resolved(path) if path.is_symlink() else path


def _is_of(ledger: Path, path: Path) -> bool:
    own, place = ledger.resolve(), path.parent.resolve() / path.name
    names = {own, *(own.with_name(own.name + end) for end in _LOGS)}
    return place in names or side_folder(own) in place.parents or (path.exists() and path.samefile(own))


def _refuse_log(path: Path) -> None:
    """A log that is there would be taken for the new file's, and written into it."""
    for log in (path.with_name(path.name + end) for end in _LOGS[:2]):
        if log.exists() and log.stat().st_size:
            raise UsageError(
                f"{log} belongs to a database that is, or was, at {path}",
                "end what uses that one, or name another path; if it is of no use any more, remove both",
            )


def _has_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as problem:
        raise UsageError(f"what is at {path} cannot be read ({problem.strerror})", "name another path") from problem


def _another_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}{_PART}")


def _clear(path: Path) -> None:
    for left in path.parent.glob(f".{_escaped(path.name)}.????????????{_PART}"):
        with contextlib.suppress(OSError), left.open("rb") as file:  # somebody else's, or gone meanwhile
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
    for journal in path.parent.glob(f".{_escaped(path.name)}.????????????{_PART}-journal"):
        if not journal.with_name(journal.name.removesuffix("-journal")).exists():
            journal.unlink(missing_ok=True)


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
