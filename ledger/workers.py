"""Who is alive: each process that opens a ledger is a worker with a locked file of its own beside it.

The lock, not a pid, a boot id or a clock, proves on this host that a worker has died. The row says who it was.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import attrs

from .errors import LedgerFailed
from .failures import unwritable
from .file_locks import LockFile, holder_pid
from .processes import ProcessIdentity, host_id, is_alive, is_stopped, kill_verified, this_process

__all__ = ["Worker", "WorkerFolder"]


@attrs.frozen
class Worker:
    """This process at one ledger."""

    worker_id: str
    identity: ProcessIdentity


class WorkerFolder:
    """The folder of worker locks. Keeps this process's own lock open for as long as the process is a worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: dict[str, LockFile] = {}
        folder.mkdir(exist_ok=True)

    def enter(self, worker_id: str) -> Worker:
        """Become a worker: create the file, lock it, say who we are; raises LedgerFailed where the disk is full."""
        path = self._file(worker_id)
        try:
            lock = LockFile(path)
        except OSError as problem:
            raise unwritable(path, problem, "written", kind="file") from problem
        if not lock.try_acquire():
            raise LedgerFailed(f"the lock of worker {worker_id} is taken", "start again")
        identity = this_process()
        try:
            lock.write(json.dumps(attrs.asdict(identity)).encode())
        except OSError as problem:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            lock.close()
            raise unwritable(path, problem, "written", kind="file") from problem
        self._own[worker_id] = lock
        return Worker(worker_id, identity)

    def leave(self, worker_id: str, *, has_said_so: bool = True) -> None:
        """Stop being a worker. The file goes when the worker's end stands in its row.

        Where that could not be written, the file stays, and its free lock proves the end though the process lives on.
        """
        lock = self._own.pop(worker_id, None)
        if lock is not None:
            if has_said_so:
                # A file that cannot be removed is as good: nobody holds its lock.
                with contextlib.suppress(OSError):
                    self._file(worker_id).unlink(missing_ok=True)
            lock.close()

    def is_own(self, worker_id: str) -> bool:
        """Whether the worker is this process."""
        return worker_id in self._own

    def is_dead(self, worker_id: str, identity: ProcessIdentity) -> bool:
        """Whether that worker is *proven* dead; False means alive or not provable from here."""
        if self.is_own(worker_id):
            return False
        if identity.host != host_id():
            return False
        try:
            return holder_pid(self._file(worker_id)) is None
        except FileNotFoundError:
            # Its folder was cleared or it left in good order: then only the process table can tell.
            return not is_alive(identity)

    def sweep(self, worker_id: str) -> None:
        """Remove the file of a worker that is proven dead and recorded as ended."""
        if not self.is_own(worker_id):
            self._file(worker_id).unlink(missing_ok=True)

    def remove_stalled(self, pid: int) -> bool:
        """Kill the holder with this pid if it is verifiably a worker of this ledger and stands still; says whether."""
        if not is_stopped(pid):
            return False
        for path in self._folder.glob("*.lock"):
            identity = self._read(path)
            # A dead worker's file may name the same pid, as in containers, where every start has it again.
            if identity is not None and identity.pid == pid and holder_pid(path) == pid and kill_verified(identity):
                return True
        return False

    def _read(self, path: Path) -> ProcessIdentity | None:
        if self.is_own(path.stem):
            return None
        try:
            return ProcessIdentity(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _file(self, worker_id: str) -> Path:
        return self._folder / f"{worker_id}.lock"
