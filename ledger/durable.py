"""Bringing bytes and names to the disk, as far as the system lets us.

On macOS `fsync` leaves them in the disk's own cache, and only F_FULLFSYNC brings them further (fsync(2) there); where a
file system does not know it, `fsync` is what there is. SQLite does the same under `fullfsync`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["sync", "sync_folder"]

_FULL: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_KNOWS_NO_SUCH_THING: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY})


def sync(descriptor: int) -> None:
    """Bring a file's bytes to the disk; raises OSError."""
    if _FULL is not None:
        try:
            fcntl.fcntl(descriptor, _FULL)
        except OSError as problem:
            if problem.errno not in _KNOWS_NO_SUCH_THING:
                raise
        else:
            return
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk; raises OSError. A file system that cannot sync folders is let be."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    except OSError as problem:
        if problem.errno not in _KNOWS_NO_SUCH_THING:
            raise
    finally:
        os.close(descriptor)
