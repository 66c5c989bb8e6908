"""POSIX record locks on small files beside the ledger.

A record lock belongs to a process: the kernel frees it within a millisecond of SIGKILL, keeps it through SIGSTOP, and
a forked child does not inherit it. It is also lost when *any* descriptor of the file is closed in the owning process,
so each file is opened once a process and stays open while the process may hold its lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Final

__all__ = ["LockFile", "SharedLockFile", "holder_pid", "open_shared"]

_IS_DARWIN: Final = sys.platform == "darwin"
# struct flock on 64 bits: type, whence, start, length, pid; on Darwin: start, length, pid, type, whence.
_FLOCK: Final = "qqihh" if _IS_DARWIN else "hhqqi4x"
_DEADLOCK_RETRIES_MAX: Final = 1_000
_DEADLOCK_PAUSE_SECONDS: Final = 0.001


class LockFile:
    """One lock file, kept open. Not safe for threads by itself: a process counts as one holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._opened()

    def acquire(self) -> None:
        """Wait until the lock is ours.

        The kernel looks for deadlocks by process, not by thread, and may report one where two threads wait for two
        ledgers; that report is not true here, since no thread waits for one lock while it holds a later one.
        """
        for _ in range(_DEADLOCK_RETRIES_MAX):
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            except OSError as problem:
                if problem.errno != errno.EDEADLK:
                    raise
                time.sleep(_DEADLOCK_PAUSE_SECONDS)  # noqa: TID251 -- there is nothing to wait on: the kernel said no
            else:
                return
        raise OSError(errno.EDEADLK, "the lock could not be had", str(self.path))

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self) -> None:
        """Give the lock back."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def holder(self) -> int | None:
        """The pid of another process that holds the lock."""
        return _ask(self._descriptor)

    def write(self, content: bytes) -> None:
        """Replace what the file says of its holder."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def close(self) -> None:
        """Close the file, which also gives the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class SharedLockFile(LockFile):
    """A lock file in a folder that every user of the host may write in; raises FileNotFoundError unless ``create``."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._create = create
        super().__init__(path)

    def read(self, size: int) -> bytes:
        """What the file says, at most so many bytes."""
        return os.pread(self._descriptor, size, 0)

    def overwrite(self, content: bytes) -> None:
        """Write over the beginning at once, so that a reader never finds the file empty."""
        os.pwrite(self._descriptor, content, 0)

    def _opened(self) -> int:
        return open_shared(self.path, create=self._create)


def open_shared(path: Path, *, create: bool = True) -> int:
    """A descriptor of a file that every user of the host may write to.

    No link is followed, no pipe is waited for: raises OSError for what is no file.
    """
    descriptor = _open_or_create(path, create=create)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EISDIR, "it is no file", str(path))


def _open_or_create(path: Path, *, create: bool) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # First without O_CREAT: where regular files are protected, it may not name another user's in a sticky folder.
        return os.open(path, flags)
    except FileNotFoundError:
        if not create:
            raise
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def holder_pid(path: Path) -> int | None:
    """The pid of the other process that holds the lock of this file, None when nobody does.

    Never call it for a file that this process has open as a `LockFile`: closing the second descriptor would drop the
    lock. Raises FileNotFoundError.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno != errno.EROFS:
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # to ask takes no right to write
    try:
        return _ask(descriptor)
    finally:
        os.close(descriptor)


def _ask(descriptor: int) -> int | None:
    asked = (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET) if _IS_DARWIN else (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    told = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *asked)))
    kind, pid = (told[3], told[2]) if _IS_DARWIN else (told[0], told[4])
    return None if kind == fcntl.F_UNLCK else pid
