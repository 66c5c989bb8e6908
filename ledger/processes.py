"""Which process is meant: pid, start ticks, boot and host, to tell people and to kill nobody else.

None of this proves a death; a worker's lock does (`workers`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import uuid
from pathlib import Path

import attrs
import psutil

__all__ = ["ProcessIdentity", "boot_id", "host_id", "is_alive", "is_stopped", "kill_verified", "this_process"]


@attrs.frozen
class ProcessIdentity:
    """A process that cannot be mistaken for another that got its pid later."""

    pid: int
    start_ticks: int
    boot_id: str
    host: str


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    return ProcessIdentity(os.getpid(), _start_ticks(os.getpid()) or 0, boot_id(), host_id())


def boot_id() -> str:
    """The kernel's id of this boot; where there is none, one made of the boot time."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{int(psutil.boot_time())}"


def host_id() -> str:
    """An id of this host that tells nothing about it: a digest of its machine id."""
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            seed = Path(name).read_text().strip()
        except OSError:
            continue
        if seed:
            break
    else:
        seed = f"{platform.node()}-{uuid.getnode()}"
    return hashlib.sha256(b"tallystick host\n" + seed.encode()).hexdigest()[:16]


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether that very process exists on this host and boot; for places where no lock can be asked."""
    if identity.host != host_id() or identity.boot_id != boot_id():
        return False
    return _start_ticks(identity.pid) == identity.start_ticks


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a debugger."""
    try:
        return bool(psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
    except psutil.Error:
        return False


def kill_verified(identity: ProcessIdentity) -> bool:
    """SIGKILL that very process and no other; False when it is not there any more, or not ours to kill."""
    if identity.pid == os.getpid() or not is_alive(identity):
        return False
    try:
        handle = os.pidfd_open(identity.pid)
    except (AttributeError, OSError):
        return False
    try:
        # The handle keeps meaning the same process, so the second look cannot be overtaken by a reused pid.
        if _start_ticks(identity.pid) != identity.start_ticks:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False  # it is gone, or another user's
    finally:
        os.close(handle)
    return True


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _start_ticks_elsewhere(pid)
    return int(stat.rpartition(")")[2].split()[19])


def _start_ticks_elsewhere(pid: int) -> int | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        return int(psutil.Process(pid).create_time() * 100)
    except psutil.Error:
        return None
