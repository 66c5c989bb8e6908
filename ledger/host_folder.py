"""The folder through which all ledgers of one host keep out of each other's way at a device.

It belongs to nobody's ledger: everybody on the host may write in it (mode 1777), and its files are named by digests, so
that no name of a device can lead out of it. Every entry is a small file that its writer's process holds a record lock
on: the kernel frees it at a death, and keeps it through SIGSTOP. The *gate* is one lock for short critical sections.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from .durable import sync
from .errors import DeviceLocksUnusable
from .file_locks import SharedLockFile, open_shared
from .location import resolved
from .processes import ProcessIdentity, is_stopped, kill_verified, this_process

__all__ = ["FOLDER_VARIABLE", "Entry", "Found", "HostFolder", "default_folder", "host_folder", "revoked_mark"]

FOLDER_VARIABLE: Final = "TALLYSTICK_DEVICE_LOCKS"
STALL_SECONDS: Final = 10.0
"""How long a process that is stopped inside the gate may keep everybody waiting before it is killed."""

_GATE_SECONDS_MAX: Final = 30.0
_PAUSE_SECONDS: Final = 0.002
_ENTRY_BYTES: Final = 16_384
_READS_MAX: Final = 3
_REVOKED: Final = ".revoked"


@attrs.frozen
class Entry:
    """What a file of the folder says of its writer: a claim of a device, or a place in line for it."""

    resource: str
    ledger: str
    ledger_path: str
    set_id: str
    lease_id: str
    worker_id: str
    process: ProcessIdentity
    fence: int
    compares_fences: bool
    expires_boot_ns: int
    since_us: int
    ticket: int = 0


@attrs.frozen
class Found:
    """An entry as it was found; ``entry`` is None where its file is locked and cannot be understood."""

    path: Path
    entry: Entry | None
    is_locked: bool


def default_folder(environment: Mapping[str, str] | None = None) -> Path:
    """``$TALLYSTICK_DEVICE_LOCKS``, else in ``/run/lock`` where that can be, else in ``/tmp``.

    Not ``$TMPDIR``, which differs between users and shells: they would not see each other. Raises DeviceLocksUnusable
    for a relative path, which would mean another folder in another working directory.
    """
    named = (os.environ if environment is None else environment).get(FOLDER_VARIABLE)
    if named:
        if not Path(named).is_absolute():
            raise DeviceLocksUnusable(
                f"{FOLDER_VARIABLE}={named} is relative: in another folder it would lock other files",
                "give it an absolute path, the same for everybody who shares the devices", named,
            )  # fmt: skip
        return Path(named)
    common = [Path(place) for place in ("/run/lock", "/tmp", tempfile.gettempdir())]  # noqa: S108 -- see above
    for place in common:
        folder = place / "tallystick-devices"
        if os.access(folder if folder.is_dir() else place, os.W_OK | os.X_OK):
            return folder
    return common[-1] / "tallystick-devices"


_folders: dict[Path, HostFolder] = {}
_inherited: list[HostFolder] = []
_registry = threading.Lock()


def host_folder(path: Path | None = None) -> HostFolder:
    """The folder, once a process: a second descriptor of a locked file would drop its lock when it is closed.

    Raises UsageError for a link without end.
    """
    place = resolved(path or default_folder())
    with _registry:
        return _folders.setdefault(place, HostFolder(place))


def _after_fork_in_child() -> None:
    # A child holds none of its parent's locks. The files are kept open for ever: they are not the child's to close.
    global _registry
    _inherited.extend(_folders.values())
    _folders.clear()
    _registry = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class HostFolder:
    """The folder as this process uses it; safe for threads. Make it with `host_folder`.

    Nothing is created before `gate` is first passed; reading creates nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stall_seconds = STALL_SECONDS
        self._passing = threading.Lock()
        self._files = threading.RLock()
        self._gate: SharedLockFile | None = None
        self._own: dict[Path, tuple[SharedLockFile, Entry]] = {}

    @contextlib.contextmanager
    def gate(self, *, stall_seconds: float = STALL_SECONDS) -> Iterator[None]:
        """A short critical section among all processes of the host: no ledger, no network, nothing that waits.

        A process that has stood still inside it for ``stall_seconds`` is killed, if it is verifiably that process.
        Raises DeviceLocksUnusable where the folder cannot be written or the gate is not to be had.
        """
        with self._passing, self.usable():
            gate = self._opened()
            self._pass(gate, min(stall_seconds, self.stall_seconds))
            try:
                yield
            finally:
                gate.release()

    def try_out(self) -> None:
        """See that devices could be claimed through it, before anything depends on that; makes the folder.

        Raises DeviceLocksUnusable.
        """
        with self.gate():
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        """Have what the system refuses in the folder be told as DeviceLocksUnusable."""
        try:
            yield
        except OSError as problem:
            raise DeviceLocksUnusable(
                f"the folder {self.path}, through which runs share devices, cannot be used ({problem.strerror})",
                f"free its disk and let every user of the devices write to it, or name another with {FOLDER_VARIABLE}",
                str(self.path),
            ) from problem

    def device(self, resource: str) -> Path:
        """The folder of one device; may not be there."""
        return self.path / hashlib.sha256(resource.encode()).hexdigest()

    def add(self, folder: Path, name: str, entry: Entry) -> Path:
        """Put a locked entry into a folder of a device; inside the gate."""
        _make_shared(folder.parent)
        _make_shared(folder)
        path = folder / name
        with self._files:
            lock = SharedLockFile(path)
            self._own[path] = (lock, entry)
            try:
                if not lock.try_acquire():
                    raise BlockingIOError(f"{path} is locked by somebody else")
                lock.write(_written(entry))
            except OSError:
                self.remove(path)
                raise
        return path

    def rewrite(self, path: Path, entry: Entry) -> None:
        """Say something else in an entry that is still ours; readers see one of both whole, or read again."""
        with self._files:
            if path in self._own:
                lock, _ = self._own[path]
                lock.overwrite(_written(entry))
                self._own[path] = (lock, entry)

    def remove(self, path: Path) -> None:
        """Take an entry of ours away; idempotent."""
        with self._files:
            lock, _ = self._own.pop(path, (None, None))
            if lock is not None:
                path.unlink(missing_ok=True)
                lock.close()

    def own(self, path: Path) -> Entry | None:
        """What an entry of ours says, None when it is not ours (any more)."""
        found = self._own.get(path)
        return None if found is None else found[1]

    def entries(self, folder: Path) -> list[Found]:
        """The entries of a folder of a device, by name; looks only."""
        found = [self._look(path) for path in _files(folder) if path.suffix != _REVOKED]
        return [one for one in found if one is not None]

    def sweep(self, folder: Path) -> None:
        """Remove what dead processes left, where its owner lets us; inside the gate, where no entry is half made."""
        for one in self.entries(folder):
            if not one.is_locked:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    one.path.unlink()
        for path in _files(folder):
            if path.suffix == _REVOKED and not path.with_suffix("").exists():
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    path.unlink()

    def note(self, path: Path) -> str:
        """What a file says, empty where it is not there."""
        try:
            # Anybody may put anything here: no link is followed, and no pipe is waited for.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return ""
        try:
            return os.read(descriptor, _ENTRY_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)

    def keep_note(self, path: Path, text: str) -> None:
        """Have a file say this, synced; nothing takes it away. Inside the gate."""
        content = text.encode()
        _make_shared(path.parent)
        descriptor = open_shared(path)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
            sync(descriptor)
        finally:
            os.close(descriptor)

    def number(self, path: Path) -> int:
        """The number that a file holds, 0 where it is not there."""
        text = self.note(path).strip()
        return int(text) if text.isascii() and text.isdigit() else 0

    def keep_number(self, path: Path, value: int) -> None:
        """Write the number, synced; inside the gate. In place: nobody may rename over another user's file here."""
        _make_shared(path.parent)
        descriptor = open_shared(path)
        try:
            os.pwrite(descriptor, f"{value:020d}\n".encode(), 0)
            sync(descriptor)
        finally:
            os.close(descriptor)

    def _look(self, path: Path) -> Found | None:
        with self._files:  # or another thread's new entry would be taken for a stranger's, opened, and closed
            own = self.own(path)
            return self._look_at_stranger(path) if own is None else Found(path, own, True)

    def _look_at_stranger(self, path: Path) -> Found | None:
        entry, is_locked = None, True
        for _ in range(_READS_MAX):
            try:
                lock = SharedLockFile(path, create=False)
            except FileNotFoundError:
                return None
            except PermissionError:
                return Found(path, None, True)
            except OSError as problem:
                if problem.errno in (errno.ELOOP, errno.EISDIR):
                    return None  # a link, a folder, a pipe: nothing that we ever put there
                raise
            try:
                is_locked, entry = lock.holder() is not None, _read(lock.read(_ENTRY_BYTES))
            finally:
                lock.close()
            if entry is not None or not is_locked:
                break
        return Found(path, entry, is_locked)

    def _opened(self) -> SharedLockFile:
        if self._gate is None:
            _make_shared(self.path)
            self._gate = SharedLockFile(self.path / "gate")
        return self._gate

    def _pass(self, gate: SharedLockFile, stall_seconds: float) -> None:
        began = time.monotonic()
        seen: tuple[int, float] | None = None
        while not gate.try_acquire():
            now, pid = time.monotonic(), gate.holder()
            if pid is None or not is_stopped(pid):
                seen = None
            elif seen is None or seen[0] != pid:
                seen = (pid, now)
            elif now - seen[1] >= stall_seconds and _kill(gate.read(_ENTRY_BYTES), pid):
                seen = None
            if now - began > _GATE_SECONDS_MAX:
                raise DeviceLocksUnusable(
                    f"process {pid} has kept {gate.path} for {_GATE_SECONDS_MAX:.0f} s",
                    "let it go on or end it", str(gate.path),
                )  # fmt: skip
            time.sleep(_PAUSE_SECONDS)  # noqa: TID251 -- a record lock is waited for without a limit, or not at all
        gate.write(json.dumps(attrs.asdict(this_process())).encode())


def revoked_mark(path: Path) -> Path:
    """The file that says that an operator has taken the claim away; its own holder's file may be another user's."""
    return path.with_name(path.name + _REVOKED)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _make_shared(folder: Path) -> None:
    try:
        folder.mkdir()
    except FileExistsError:
        if folder.is_symlink() or not folder.is_dir():
            raise NotADirectoryError(f"{folder} is no folder") from None
        return
    folder.chmod(0o1777)


def _written(entry: Entry) -> bytes:
    """One record that says its own length and checksum: a reader may come while it is written over."""
    text = json.dumps(attrs.asdict(entry)).encode()
    return b"%08x %d " % (zlib.crc32(text), len(text)) + text


def _read(content: bytes) -> Entry | None:
    checksum, _, rest = content.partition(b" ")
    length, _, text = rest.partition(b" ")
    try:
        text = text[: int(length)]
        if int(checksum, 16) != zlib.crc32(text):
            return None
        told: dict[str, Any] = json.loads(text)
        return Entry(**{**told, "process": ProcessIdentity(**told["process"])})
    except (ValueError, TypeError, KeyError):
        return None


def _kill(content: bytes, pid: int) -> bool:
    """End the stopped process that stands in the gate, if it is verifiably the one that passed it."""
    try:
        identity = ProcessIdentity(**json.loads(content))
    except (ValueError, TypeError):
        return False
    return identity.pid == pid and kill_verified(identity)
