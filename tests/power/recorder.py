"""Runs a program and writes down what it, its threads and its children do to the files of a folder.

    python recorder.py --root FOLDER --said FILE --log FILE [--fail KIND:ERROR:N[-]] -- PROGRAM ARGUMENTS...

Every write, cut, sync, new name, rename and removal below the root goes into the log (see `records`), and the lines
that are appended to the file ``said`` as well, in the one order in which they happened. A call that touches a file of
the root in a way that is not known here ends the program: a recording is whole or there is none.

``--fail sync:EIO:3`` lets the third sync below the root fail, ``write:ENOSPC:3-`` the third write and every later one;
the kinds are write, size, sync, make, name and any.
``--count`` prints how many calls of each kind there were.

Ends as the program ends. Needs nothing but the kernel: it follows by ptrace and stops only at the calls of `kernel`.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import pickle
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.power import kernel
from tests.power.records import Failed, Made, Record, Removed, Renamed, Said, Sized, Synced, Wrote

_AT_FDCWD: Final = 2**32 - 100
_MAP_SHARED, _PROT_WRITE = 0x1, 0x2
_KINDS: Final = {
    "write": "write", "pwrite64": "write", "writev": "write", "copy_file_range": "write",
    "ftruncate": "size", "truncate": "size",
    "fallocate": "size", "fsync": "sync", "fdatasync": "sync", "rename": "name", "renameat": "name",
    "renameat2": "name", "mkdir": "name", "mkdirat": "name", "unlink": "name", "unlinkat": "name",
    "open": "make", "openat": "make", "creat": "make",
}  # fmt: skip

# Where a call that is refused has the folder and the path of what it would change.
_NAMES_AT: Final[dict[str, tuple[int | None, int]]] = {
    "link": (None, 1), "linkat": (2, 3), "symlink": (None, 1), "symlinkat": (1, 2), "truncate": (None, 0),
}  # fmt: skip

Finish = Callable[[int], None]


class Unknown(Exception):
    """The program did something to a file of the root that is not understood here."""


class Fault:
    """Which call is to fail, and how."""

    def __init__(self, text: str) -> None:
        found = re.fullmatch(r"(\w+):(\w+):(\d+)(-?)", text)
        if found is None:
            raise SystemExit(f"no such fault: {text}")
        self.kind, self.first, self.stays = found[1], int(found[3]), bool(found[4])
        self.error: int = getattr(errno, found[2])

    def hits(self, kind: str, count: int) -> bool:
        return kind == self.kind and (count == self.first or (self.stays and count > self.first))


class Recorder:
    """Follows one program; one thread, one order."""

    def __init__(self, root: Path, said: Path, log: Path, fault: Fault | None) -> None:
        self.root = f"{root.resolve()}/"
        self.said = str(said.resolve())
        self.fault = fault
        self.counts: Counter[str] = Counter()
        self._log = log.open("wb", buffering=1 << 20)
        self._moment = 0
        self._files: dict[tuple[int, int], int] = {}
        self._next_file = 0
        self._open_calls: dict[int, Finish] = {}
        self._learn()

    def follow(self, command: list[str]) -> int:
        """Run the program to its end and return its wait status."""
        child = os.fork()
        if child == 0:
            kernel.begin_to_be_followed()
            os.execvp(command[0], command)
        os.waitpid(child, 0)
        kernel.follow(child)
        kernel.go_on(child)
        seen, status_of_child = {child}, 0
        while True:
            try:
                pid, status = os.waitpid(-1, kernel.WALL)
            except ChildProcessError:
                break
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                self._gone(pid)
                status_of_child = status if pid == child else status_of_child
            else:
                self._stopped(pid, status, is_new=pid not in seen)
            seen.add(pid)
        self._log.close()
        return status_of_child

    def _stopped(self, pid: int, status: int, *, is_new: bool) -> None:
        signal, event = os.WSTOPSIG(status), status >> 16
        if event == kernel.EVENT_SECCOMP:
            try:
                kernel.go_on(pid, until_return=self._before(pid))
            except ProcessLookupError:
                return  # killed while it stood before the call; its end is reported next
        elif signal == 5 | kernel.SYSCALL_STOP:
            self._behind(pid)
        elif event or (is_new and signal == 19):
            kernel.go_on(pid)
        else:
            kernel.go_on(pid, signal=signal)

    def _gone(self, pid: int) -> None:
        finish = self._open_calls.pop(pid, None)
        if finish is not None:
            finish(-errno.EINTR)

    def _before(self, pid: int) -> bool:
        """Look at the call that the thread stands before; whether its return is of interest."""
        name, arguments = kernel.name_and_arguments(pid)
        self._moment += 1
        finish = _BEFORE.get(name, Recorder._other)(self, pid, name, arguments)
        if finish is None:
            return False
        kind = _KINDS.get(name)
        if kind is not None and not getattr(finish, "is_word", False):
            self.counts.update((kind, "any"))
            if self.fault is not None and any(self.fault.hits(one, self.counts[one]) for one in (kind, "any")):
                kernel.refuse(pid, self.fault.error)
                self._keep(Failed(self._moment, self._moment, name, self.fault.error))
                finish(-self.fault.error)
                return False
        self._open_calls[pid] = finish
        return True

    def _behind(self, pid: int) -> None:
        self._moment += 1
        finish = self._open_calls.pop(pid, None)
        if finish is not None:
            finish(kernel.result(pid))
        kernel.go_on(pid)

    # What a call is about.

    def _write(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        descriptor, address, size = arguments[0], arguments[1], arguments[2]
        path = self._path_of(pid, descriptor)
        if path == self.said and name == "write":
            data = kernel.read_memory(pid, address, size)
            return self._say(data)
        if not self._is_ours(path):
            return None
        if name == "writev":
            raise Unknown(f"{name} on {path}")
        data = kernel.read_memory(pid, address, size)
        file = self._file_of(pid, descriptor)
        offset = arguments[3] if name == "pwrite64" else self._position(pid, descriptor)
        begun = self._moment

        def finish(found: int) -> None:
            if found >= 0:
                self._keep(Wrote(begun, self._moment, file, offset, data[:found]))
            elif found == -errno.EINTR:
                self._keep(Wrote(begun, None, file, offset, data))

        return finish

    def _copy(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        source, begins_at, descriptor, target_at, size = arguments[:5]
        path = self._path_of(pid, descriptor)
        if not self._is_ours(path):
            return None
        if not begins_at or target_at:
            raise Unknown(f"{name} to {path} from or to other places than are understood here")
        begins = int.from_bytes(kernel.read_memory(pid, begins_at, 8), sys.byteorder)
        with Path(f"/proc/{pid}/fd/{source}").open("rb") as file_read:
            file_read.seek(begins)
            data = file_read.read(size)
        file, offset, begun = self._file_of(pid, descriptor), self._position(pid, descriptor), self._moment

        def finish(found: int) -> None:
            if found >= 0:
                self._keep(Wrote(begun, self._moment, file, offset, data[:found]))

        return finish

    def _say(self, data: bytes) -> Finish:
        begun = self._moment

        def finish(found: int) -> None:
            self._keep(Said(begun, self._moment, data.decode()))

        finish.is_word = True  # type: ignore[attr-defined]  # no fault is meant for it
        return finish

    def _size(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        if name != "ftruncate":
            return self._other(pid, name, arguments)
        descriptor, size = arguments[0], arguments[1]
        if not self._is_ours(self._path_of(pid, descriptor)):
            return None
        file, begun = self._file_of(pid, descriptor), self._moment

        def finish(found: int) -> None:
            if found in (0, -errno.EINTR):
                self._keep(Sized(begun, None if found else self._moment, file, size))

        return finish

    def _sync(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        if not self._is_ours(self._path_of(pid, arguments[0]), or_root=True):
            return None
        file, begun = self._file_of(pid, arguments[0]), self._moment

        def finish(found: int) -> None:
            if found == -errno.EINTR:
                return  # the process died meanwhile; it may have been done in part, and that is a subset
            self._keep(Synced(begun, self._moment, file, found < 0))

        return finish

    def _open(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        at = 1 if name == "openat" else 0
        flags = arguments[at + 1] if name != "creat" else os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return None
        path = self._path(pid, arguments[0] if at else _AT_FDCWD, arguments[at])
        if not self._is_ours(path):
            return None
        was_there, begun = Path(path).exists(), self._moment
        file = None if was_there else self._new_file()

        def finish(found: int) -> None:
            if found < 0 and found != -errno.EINTR:
                return
            ended = None if found < 0 else self._moment
            if file is not None:
                if ended is not None:
                    self._files[_identity(Path(path).stat())] = file
                self._keep(Made(begun, ended, path, file, False))
            elif flags & os.O_TRUNC:
                self._keep(Sized(begun, ended, self._files[_identity(Path(path).stat())], 0))

        return finish

    def _make_folder(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        path = self._path(pid, *(arguments[:2] if name == "mkdirat" else (_AT_FDCWD, arguments[0])))
        if not self._is_ours(path):
            return None
        begun = self._moment

        def finish(found: int) -> None:
            if found in (0, -errno.EINTR):
                file = self._new_file()
                if found == 0:
                    self._files[_identity(Path(path).stat())] = file
                self._keep(Made(begun, None if found else self._moment, path, file, True))

        return finish

    def _rename(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        if name == "rename":
            old, new = (self._path(pid, _AT_FDCWD, address) for address in arguments[:2])
        else:
            old, new = self._path(pid, *arguments[:2]), self._path(pid, *arguments[2:4])
        if not (self._is_ours(old) or self._is_ours(new)):
            return None
        if not (self._is_ours(old) and self._is_ours(new)) or Path(old).is_dir():
            raise Unknown(f"{name} from {old} to {new}")
        begun = self._moment

        def finish(found: int) -> None:
            if found in (0, -errno.EINTR):
                self._keep(Renamed(begun, None if found else self._moment, old, new))

        return finish

    def _remove(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        path = self._path(pid, *(arguments[:2] if name == "unlinkat" else (_AT_FDCWD, arguments[0])))
        if not self._is_ours(path):
            return None
        begun = self._moment

        def finish(found: int) -> None:
            if found in (0, -errno.EINTR):
                self._keep(Removed(begun, None if found else self._moment, path))

        return finish

    def _map(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        protection, flags, descriptor = arguments[2], arguments[3], arguments[4]
        if not (flags & _MAP_SHARED and protection & _PROT_WRITE) or descriptor >= 2**31:
            return None
        path = self._path_of(pid, descriptor)
        # The index of the write-ahead log is made anew after a crash; what is in it is never relied on.
        if self._is_ours(path) and not path.endswith("-shm"):
            raise Unknown(f"a shared mapping of {path}")
        return None

    def _other(self, pid: int, name: str, arguments: tuple[int, ...]) -> Finish | None:
        if name in ("sync", "syncfs", "io_uring_setup"):
            raise Unknown(name)
        if name in _NAMES_AT:
            folder, at = _NAMES_AT[name]
            path = self._path(pid, _AT_FDCWD if folder is None else arguments[folder], arguments[at])
        else:
            path = self._path_of(pid, arguments[2 if name == "splice" else 0])
        if self._is_ours(path):
            raise Unknown(f"{name} on {path}")
        return None

    # Names, numbers, files.

    def _path(self, pid: int, folder: int, address: int) -> str:
        path = kernel.read_text(pid, address)
        if path.startswith("/"):
            return os.path.normpath(path)
        place = "cwd" if folder & 0xFFFFFFFF == _AT_FDCWD else f"fd/{folder & 0xFFFFFFFF}"
        return os.path.normpath(os.path.join(os.readlink(f"/proc/{pid}/{place}"), path))  # noqa: PTH115, PTH118

    def _path_of(self, pid: int, descriptor: int) -> str:
        try:
            return os.readlink(f"/proc/{pid}/fd/{descriptor & 0xFFFFFFFF}")  # noqa: PTH115
        except OSError:
            return ""

    def _is_ours(self, path: str, *, or_root: bool = False) -> bool:
        return path.startswith(self.root) or (or_root and f"{path}/" == self.root)

    def _file_of(self, pid: int, descriptor: int) -> int:
        return self._files[_identity(Path(f"/proc/{pid}/fd/{descriptor & 0xFFFFFFFF}").stat())]

    def _position(self, pid: int, descriptor: int) -> int:
        told = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii")
        if int(told.split("flags:")[1].split()[0], 8) & os.O_APPEND:
            return Path(f"/proc/{pid}/fd/{descriptor}").stat().st_size
        return int(told.split("pos:")[1].split()[0])

    def _new_file(self) -> int:
        self._next_file += 1
        return self._next_file

    def _keep(self, record: Record) -> None:
        pickle.dump((type(record).__name__, tuple(record)), self._log, protocol=5)

    def _learn(self) -> None:
        """What lies below the root before the program begins is on the disk."""
        for path in [Path(self.root), *sorted(Path(self.root).rglob("*"))]:
            found, file = path.stat(), self._new_file()
            self._files[_identity(found)] = file
            is_folder = stat.S_ISDIR(found.st_mode)
            self._keep(Made(0, 0, str(path), file, is_folder))
            if not is_folder:
                self._keep(Wrote(0, 0, file, 0, path.read_bytes()))


_BEFORE: Final[dict[str, Callable[[Recorder, int, str, tuple[int, ...]], Finish | None]]] = {
    "write": Recorder._write, "pwrite64": Recorder._write, "writev": Recorder._write, "copy_file_range": Recorder._copy,
    "ftruncate": Recorder._size,
    "fsync": Recorder._sync, "fdatasync": Recorder._sync, "open": Recorder._open, "openat": Recorder._open,
    "creat": Recorder._open, "mkdir": Recorder._make_folder, "mkdirat": Recorder._make_folder,
    "rename": Recorder._rename, "renameat": Recorder._rename, "renameat2": Recorder._rename,
    "unlink": Recorder._remove, "unlinkat": Recorder._remove, "rmdir": Recorder._remove, "mmap": Recorder._map,
}  # fmt: skip


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--root", "--said", "--log"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--fail", type=Fault)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("command", nargs="+")
    asked: Any = parser.parse_args()
    recorder = Recorder(asked.root, asked.said, asked.log, asked.fail)
    status = os.waitstatus_to_exitcode(recorder.follow(asked.command))
    if asked.count:
        print(json.dumps(recorder.counts))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
