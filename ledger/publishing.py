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

__all__ = ["beside", "published", "refuse_taken"]

_PART: Final = ".part"


@contextlib.contextmanager
def published(
    path: Path,
    *,
    force: bool,
    written: Callable[[], None] = lambda: None,
    renamed: Callable[[], None] = lambda: None,
) -> Iterator[io.BufferedRandom]:
    """The file to write into; it gets its name when the block ends well, and leaves nothing when it does not.

    ``written`` is called when all of it is durable under its other name, ``renamed`` when it has its own. Raises
    UsageError when there is a file of that name (unless ``force``) or no such folder, and LedgerFailed when the disk
    fails.
    """
    refuse_taken(path, force=force)
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
                refuse_taken(path, force=force)
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


def refuse_taken(path: Path, *, force: bool) -> None:
    """Raise UsageError when something is there that must stay, or when its folder is not there."""
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist", "create it, or name another path")
    if path.is_dir() or (path.exists() and not force):
        kind = "a folder" if path.is_dir() else "a file"
        raise UsageError(f"there is {kind} at {path} already", "name another path, or say --force to replace a file")


def _another_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}{_PART}")


def _clear(path: Path) -> None:
    for left in path.parent.glob(f".{_escaped(path.name)}.????????????{_PART}"):
        with contextlib.suppress(OSError), left.open("rb") as file:  # somebody else's, or gone meanwhile
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
