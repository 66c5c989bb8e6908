"""What every `Ledger` of one file shares in this process: one scribe, one turnstile, one worker identity."""

from __future__ import annotations

import os
import threading
from importlib import metadata as _distributions
from pathlib import Path

from . import driver
from .clocks import Clock
from .desk import Desk, size_of
from .errors import LedgerError, LedgerForked, LedgerReadOnly
from .failures import unwritable
from .identifiers import IdSource
from .ledger_place import settle_place
from .location import make_side_folder, side_folder
from .processes import ProcessIdentity
from .readers import ReaderWatch
from .schema import workers
from .scribe import Scribe
from .statements import hot_insert
from .transaction import Transaction
from .turnstile import Turnstile
from .workers import Worker, WorkerFolder

__all__ = ["Shared"]

_ADD_WORKER = hot_insert(workers, "worker_id", "pid", "start_ticks", "boot_id", "host", "version", "began_us")
_END_WORKER = "UPDATE workers SET ended_us = ?, end_reason = ? WHERE worker_id = ? AND ended_us IS NULL"


class Shared:
    """What every `Ledger` of one file shares in this process."""

    def __init__(self, path: Path, *, clock: Clock, ids: IdSource) -> None:
        self.path = path
        self.wal_path = path.with_name(path.name + "-wal")
        self.clock = clock
        self.ids = ids
        self.pid = os.getpid()
        self.users = 0
        self._gate = threading.Lock()
        self._idle_readers: list[driver.Connection] = []
        self.watch = ReaderWatch(lambda: size_of(self.wal_path))
        self._scribe: Scribe | None = None
        self._desk: Desk | None = None
        self._worker: Worker | None = None
        self._turnstile: Turnstile | None = None
        self._folder: WorkerFolder | None = None

    @property
    def turnstile(self) -> Turnstile:
        assert self._turnstile is not None
        return self._turnstile

    @property
    def worker_id(self) -> str:
        assert self._worker is not None
        return self._worker.worker_id

    def worker_folder(self) -> WorkerFolder:
        with self._gate:
            return self._worker_folder()

    def scribe(self) -> Scribe:
        scribe = self._scribe
        if scribe is not None:
            return scribe
        self.refuse_fork()
        with self._gate:
            return self._scribe or self._become_worker()

    def reader(self) -> driver.Connection:
        self.refuse_fork()
        with self._gate:
            if self._idle_readers:
                return self._idle_readers.pop()
        return driver.harden(driver.connect(self.path), query_only=True)

    def reader_back(self, connection: driver.Connection, *, again: bool = True) -> None:
        """Give a connection back, to be used ``again`` where there is room."""
        with self._gate:
            if again and self.users > 0 and len(self._idle_readers) < 4 and not connection.in_transaction:
                self._idle_readers.append(connection)
                return
        connection.close()

    def close(self) -> None:
        if os.getpid() != self.pid:
            return  # the parent's: closing it here would touch the parent's file
        self.watch.close()
        for connection in self._idle_readers:
            connection.close()
        self._idle_readers.clear()
        scribe, worker = self._scribe, self._worker
        if scribe is None or worker is None:
            return
        has_said_so = _end(scribe, worker)
        scribe.close()
        assert self._desk is not None
        self._desk.close()
        self._worker_folder().leave(worker.worker_id, has_said_so=has_said_so)
        self.turnstile.close()
        self._scribe = None

    def refuse_fork(self) -> None:
        if os.getpid() != self.pid:
            raise LedgerForked(
                "a forked child used the ledger of its parent", "open the ledger again in the child process"
            )

    def _worker_folder(self) -> WorkerFolder:
        if self._folder is None:
            # Whoever only looks changes nothing, and may look at a ledger that it cannot write to.
            there = side_folder(self.path) / "workers"
            try:
                self._folder = WorkerFolder(there if there.is_dir() else make_side_folder(self.path) / "workers")
            except OSError as problem:
                raise unwritable(self.path, problem, "written") from problem
        return self._folder

    def _become_worker(self) -> Scribe:
        folder = self._worker_folder()
        worker = folder.enter(self.ids.next())
        try:
            self._turnstile = Turnstile(make_side_folder(self.path), remove_stalled=folder.remove_stalled)
        except OSError as problem:
            folder.leave(worker.worker_id)
            raise unwritable(self.path, problem, "written") from problem
        self._worker = worker
        self._desk = Desk(self)
        scribe = Scribe(self._desk)
        try:
            scribe.run(lambda tx: _record_worker(tx, worker, self.path))
        except BaseException as problem:
            scribe.close()
            self._desk.close()
            folder.leave(worker.worker_id)
            self._turnstile.close()
            if "readonly" in str(problem).lower().replace(" ", ""):
                raise LedgerReadOnly(
                    f"the ledger {self.path} is read-only", "make it writable, or copy it to a writable folder",
                    str(self.path),
                ) from problem  # fmt: skip
            raise
        self._scribe = scribe
        return scribe


def _end(scribe: Scribe, worker: Worker) -> bool:
    """Whether the worker's end could be written down; where the disk failed it cannot."""
    try:
        scribe.run(lambda tx: tx.change(_END_WORKER, (tx.now_us, "closed", worker.worker_id)))
    except LedgerError:
        return False
    return True


def _record_worker(tx: Transaction, worker: Worker, path: Path) -> None:
    who: ProcessIdentity = worker.identity
    tx.change(
        _ADD_WORKER,
        (worker.worker_id, who.pid, who.start_ticks, who.boot_id, who.host, _version(), tx.now_us),
    )
    settle_place(tx, path)


def _version() -> str:
    try:
        return _distributions.version("tallystick")
    except _distributions.PackageNotFoundError:
        return "checkout"
