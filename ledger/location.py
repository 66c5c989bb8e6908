"""Where a ledger lies, and whether it may lie there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from .errors import LedgerOnNetwork, LedgerReadOnly, UsageError
from .failures import unwritable

__all__ = [
    "default_path",
    "filesystem_of",
    "make_side_folder",
    "path_for_order",
    "refuse_network",
    "resolved",
    "side_folder",
]

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
     "ocfs2", "gfs2", "pvfs2", "orangefs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs",
     "davfs", "fuse.davfs", "ncpfs", "afpfs", "webdav"}
)  # fmt: skip
_PROJECT_MARKS: Final = ("pyproject.toml", ".git")


def default_path(environment: Mapping[str, str] | None = None, start: Path | None = None) -> Path:
    """``$TALLYSTICK_LEDGER``, else ``tallystick.db`` beside the nearest project mark upwards, else here.

    Here, too, where it is and the project has none: the mark may have come afterwards.
    """
    named = (os.environ if environment is None else environment).get("TALLYSTICK_LEDGER")
    if named:
        return Path(named)
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in _PROJECT_MARKS):
            found = [path for path in (folder / "tallystick.db", here / "tallystick.db") if path.exists()]
            return found[0] if found else folder / "tallystick.db"
    return here / "tallystick.db"


def path_for_order(folder: Path, environment: Mapping[str, str] | None = None, start: Path | None = None) -> Path:
    """The default path, for a work order in this folder.

    Raises UsageError where there is no ledger yet, but one beside the work order: in another one, all that was answered
    would be paid for anew.
    """
    path, beside = default_path(environment, start), folder.resolve() / "tallystick.db"
    is_named = bool((os.environ if environment is None else environment).get("TALLYSTICK_LEDGER"))
    if is_named or path.exists() or not beside.exists():
        return path
    raise UsageError(
        f"there is no ledger at {path}, and one lies beside the work order",
        f"go on with that one: --ledger {shlex.quote(str(beside))} (in Python ledger={str(beside)!r}); or name this one"
        f" in the same way, to begin it: {shlex.quote(str(path))}",
    )


def resolved(path: Path) -> Path:
    """Where the path leads, through all links; raises UsageError for a link without end."""
    try:
        found = path.resolve()
    except (OSError, RuntimeError) as problem:
        raise UsageError(f"{path} is a link that leads nowhere ({problem})", "name another path") from problem
    if found.is_symlink():  # what Python 3.13 gives back for a link without end
        raise UsageError(f"{path} is a link that leads nowhere", "name another path")
    return found


def side_folder(path: Path) -> Path:
    """The folder beside the ledger for its locks, backups and artifact files."""
    return path.with_name(path.name + ".d")


def filesystem_of(path: Path) -> str:
    """The type of the file system that holds the path (``ext4``, ``nfs4``, …), empty where it cannot be told."""
    place = path.resolve()
    best, kind = -1, ""
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        if (place == mount or mount in place.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), partition.fstype
    return kind


def refuse_network(path: Path) -> None:
    """Raise LedgerOnNetwork before anything is written to a network file system."""
    kind = filesystem_of(path.parent)
    if kind.lower() in _NETWORK or kind.lower().startswith("nfs"):
        raise LedgerOnNetwork(
            f"the ledger {path} would lie on a network file system ({kind}), which loses data under several writers",
            "name a path on a local disk with --ledger or TALLYSTICK_LEDGER, and carry results with snapshots",
            str(path),
            kind,
        )


def make_side_folder(path: Path) -> Path:
    """Create the side folder; raises LedgerReadOnly where that is not allowed."""
    folder = side_folder(path)
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except FileNotFoundError as problem:
        raise LedgerReadOnly(
            f"the ledger {path} cannot be created: its folder does not exist",
            "create the folder, or name another path with --ledger",
            str(path),
        ) from problem
    except OSError as problem:
        raise unwritable(path, problem, "written") from problem
    return folder
