"""Where a backup is made: by one at a time, and nothing that it has brought there stays when it fails.

Its file is published by itself. The files of its artifacts get their names before that, since a backup is whole as soon
as it has its own; so a failure has to take them back. What a kill leaves of them is whole, and the next backup to that
path uses it; the half of one it removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from . import driver
from .desk import size_of
from .errors import LedgerBusy, LedgerFailed
from .location import side_folder

__all__ = ["BackupPlace", "backup_place"]

_PART: Final = ".part"
_DIGEST_LENGTH: Final = 64
_TRIES_MAX: Final = 100
_IN_FILES: Final = "SELECT digest FROM artifacts WHERE data IS NULL"


class BackupPlace:
    """The folder for the artifacts of a backup at ``path``, and what has been made there since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: list[Path] = []
        self.artifacts = side_folder(path) / "artifacts"

    def make_folder(self, folder: Path) -> None:
        """Make it unless it is there; raises OSError."""
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            self._made.append(folder)

    def unfinished(self, file: Path) -> Path:
        """The name for an artifact's file until it is whole; nobody else gives one."""
        temporary = file.with_name(file.name + _PART)
        self._made.append(temporary)
        return temporary

    def finish(self, file: Path) -> None:
        """Give the file its name; raises OSError."""
        self._made[-1].replace(file)
        self._made[-1] = file

    def clear(self) -> None:
        """Remove the half of a file that a killed backup has left; a ledger's own have longer names."""
        for left in self.artifacts.glob(f"*/{'?' * _DIGEST_LENGTH}{_PART}"):
            with contextlib.suppress(OSError):
                left.unlink()

    def take_back(self) -> None:
        """Remove what was made, but what the database at the path names: that may have its name already."""
        named = _named_at(self._path)
        if named is None:
            return
        for path in reversed(self._made):
            with contextlib.suppress(OSError):  # a folder that others have put something into, or gone already
                if path.is_dir():
                    path.rmdir()
                elif path.name not in named:
                    path.unlink()


@contextlib.contextmanager
def backup_place(path: Path) -> Iterator[BackupPlace]:
    """The place of a backup, for this one alone; raises LedgerBusy while another is made there."""
    with _alone_at(path):
        place = BackupPlace(path)
        place.clear()
        try:
            yield place
        except BaseException:
            place.take_back()
            raise


@contextlib.contextmanager
def _alone_at(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")
    with contextlib.ExitStack() as stack:
        for _ in range(_TRIES_MAX):
            file = stack.enter_context(_locked(lock, path))
            if _is_at(lock, file):
                break
            stack.close()  # who had it was about to remove it
        else:
            raise _busy(path)
        stack.callback(_remove, lock)
        yield


def _remove(lock: Path) -> None:
    with contextlib.suppress(OSError):  # it may be gone, or its disk read-only by now; what is left locks nobody out
        lock.unlink()


def _locked(lock: Path, path: Path) -> BinaryIO:
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(lock.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.pop_all()
            return file
    except BlockingIOError as problem:
        raise _busy(path) from problem
    except OSError as problem:
        raise LedgerFailed(
            f"{path} could not be written ({problem.strerror})", "free space on its disk and check its permissions"
        ) from problem


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _busy(path: Path) -> LedgerBusy:
    return LedgerBusy(
        f"another backup is being made at {path}", "wait until it has ended, or name another path", str(path)
    )


def _named_at(path: Path) -> frozenset[str] | None:
    """The names of the artifact files that the database there has, None where that cannot be told."""
    if not path.exists():
        return frozenset()
    if size_of(path.with_name(path.name + "-wal")):
        return None  # somebody has begun to use it
    try:
        with contextlib.closing(driver.connect_frozen(path)) as there:
            return frozenset(digest.removeprefix("sha256:") for (digest,) in there.execute(_IN_FILES))
    except driver.SqliteError:
        return None
