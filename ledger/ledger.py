"""A ledger, open in this process.

One process opens a ledger file once, however often it asks: every `Ledger` of the same file shares one scribe, one turnstile
and one worker identity. That is not thrift: closing a second descriptor of a locked file would drop the locks of the
first. A process that only reads becomes no worker and writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from importlib import metadata as _distributions
from pathlib import Path
from typing import Any, TypeVar

from . import driver
from .clocks import Clock, SystemClock
from .crashpoints import crashpoint
from .errors import LedgerClosed, LedgerForked, LedgerReadOnly
from .identifiers import IdSource
from .location import make_side_folder
from .opening import prepare
from .processes import ProcessIdentity
from .schema import workers
from .scribe import Scribe
from .statements import hot_insert
from .transaction import Transaction
from .turnstile import Turnstile
from .workers import Worker, WorkerFolder

__all__ = ["Ledger", "Reader"]

T = TypeVar("T")

_ADD_WORKER = hot_insert(workers, "worker_id", "pid", "start_ticks", "boot_id", "host", "version", "began_us")
_END_WORKER = "UPDATE workers SET ended_us = ?, end_reason = ? WHERE worker_id = ? AND ended_us IS NULL"
_MARK_BATCH = "UPDATE workers SET last_batch = ? WHERE worker_id = ?"
_LAST_BATCH = "SELECT last_batch FROM workers WHERE worker_id = ?"

_COMMITS_PER_CHECKPOINT = 400
_WAL_BYTES_MAX = 64 * 1024 * 1024


class Reader:
    """A consistent view of the ledger at one instant; close it soon, a reader keeps the write-ahead log from shrinking."""

    __slots__ = ("_connection", "execute")

    def __init__(self, connection: driver.Connection) -> None:
        self._connection = connection
        self.execute = connection.execute

    def row(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The first row, or None."""
        return self.execute(sql, parameters).fetchone()

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """All rows; for queries with a bound of their own."""
        rows: list[Any] = self.execute(sql, parameters).fetchall()
        return rows

    def each(self, sql: str, parameters: tuple[Any, ...] = ()) -> Iterator[Any]:
        """The rows one by one, whatever their number."""
        return iter(self.execute(sql, parameters))


class _Desk:
    """The writing side: a connection behind the turnstile. Used by the scribe's thread alone."""

    def __init__(self, ledger: _Shared) -> None:
        self._ledger = ledger
        self._connection: driver.Connection | None = None
        self._batch = 0
        self._commits = 0
        self._inside = False

    def connection(self) -> driver.Connection:
        if self._connection is None:
            self._connection = driver.harden(driver.connect(self._ledger.path))
        return self._connection

    def begin(self) -> Transaction:
        self._ledger.turnstile.__enter__()
        self._inside = True
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        shared = self._ledger
        return Transaction(connection, clock=shared.clock, ids=shared.ids, worker_id=shared.worker_id)

    def mark(self, transaction: Transaction) -> int:
        self._batch += 1
        transaction.execute(_MARK_BATCH, (self._batch, self._ledger.worker_id))
        return self._batch

    def committed(self) -> None:
        self._commits += 1
        if self._commits >= _COMMITS_PER_CHECKPOINT:
            self.checkpoint()

    def checkpoint(self) -> None:
        self._commits = 0
        # TRUNCATE would make each later commit grow the file again, which costs a journal commit of the file system;
        # PASSIVE lets the log be overwritten in place. It waits for nobody.
        large = _size(self._ledger.wal_path) > _WAL_BYTES_MAX
        connection = self.connection()
        if large:
            connection.execute("PRAGMA busy_timeout=0").fetchone()
        try:
            connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if large else 'PASSIVE'})").fetchone()
        finally:
            if large:
                connection.execute("PRAGMA busy_timeout=5000").fetchone()
        crashpoint("checkpoint.after")

    def leave(self) -> None:
        if not self._inside:
            return
        self._inside = False
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except driver.SqliteError:
            self._drop()
        finally:
            self._ledger.turnstile.__exit__(None, None, None)

    def look_again(self, number: int) -> bool:
        """Still inside the turnstile: a marker is committed first, so that a half-written commit cannot come back."""
        self._drop()
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO facts (name, value) VALUES ('marker', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (self._ledger.ids.next(),),
        )
        found = connection.execute(_LAST_BATCH, (self._ledger.worker_id,)).fetchone()
        connection.execute("COMMIT")
        return bool(found and found[0] == number)

    def close(self) -> None:
        if self._connection is not None:
            with self._ledger.turnstile:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(driver.SqliteError):  # it is being thrown away because it failed
                connection.close()


class _Shared:
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
        self._scribe: Scribe | None = None
        self._desk: _Desk | None = None
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
        if self._scribe is not None:
            return self._scribe
        self.refuse_fork()
        with self._gate:
            if self._scribe is None:
                self._become_worker()
            assert self._scribe is not None
            return self._scribe

    def reader(self) -> driver.Connection:
        self.refuse_fork()
        with self._gate:
            if self._idle_readers:
                return self._idle_readers.pop()
        return driver.harden(driver.connect(self.path), query_only=True)

    def reader_back(self, connection: driver.Connection) -> None:
        with self._gate:
            if self.users > 0 and len(self._idle_readers) < 4 and not connection.in_transaction:
                self._idle_readers.append(connection)
                return
        connection.close()

    def close(self) -> None:
        if os.getpid() != self.pid:
            return  # the parent's: closing it here would touch the parent's file
        for connection in self._idle_readers:
            connection.close()
        self._idle_readers.clear()
        scribe, worker = self._scribe, self._worker
        if scribe is None or worker is None:
            return
        if scribe.failure is None:
            scribe.run(lambda tx: tx.change(_END_WORKER, (tx.now_us, "closed", worker.worker_id)))
        scribe.close()
        assert self._desk is not None
        self._desk.close()
        self._worker_folder().leave(worker.worker_id)
        self.turnstile.close()
        self._scribe = None

    def refuse_fork(self) -> None:
        if os.getpid() != self.pid:
            raise LedgerForked(
                "a forked child used the ledger of its parent", "open the ledger again in the child process"
            )

    def _worker_folder(self) -> WorkerFolder:
        if self._folder is None:
            self._folder = WorkerFolder(make_side_folder(self.path) / "workers")
        return self._folder

    def _become_worker(self) -> None:
        folder = self._worker_folder()
        worker = folder.enter(self.ids.next())
        self._worker = worker
        self._turnstile = Turnstile(make_side_folder(self.path), remove_stalled=folder.remove_stalled)
        self._desk = _Desk(self)
        scribe = Scribe(self._desk)
        try:
            scribe.run(lambda tx: _record_worker(tx, worker))
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


def _record_worker(tx: Transaction, worker: Worker) -> None:
    who: ProcessIdentity = worker.identity
    tx.change(
        _ADD_WORKER,
        (worker.worker_id, who.pid, who.start_ticks, who.boot_id, who.host, _version(), tx.now_us),
    )


def _version() -> str:
    try:
        return _distributions.version("tallystick")
    except _distributions.PackageNotFoundError:
        return "checkout"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


_open: dict[tuple[int, int], _Shared] = {}
_inherited: list[_Shared] = []
_registry = threading.RLock()


def _after_fork_in_child() -> None:
    # Kept for ever and never closed: closing them would close the parent's files with their buffers.
    global _registry
    _inherited.extend(_open.values())
    _open.clear()
    _registry = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Ledger:
    """The authority for runs, attempts, request ids, leases and budgets. Safe for threads; a context manager.

    Make one with `Ledger.open`. State changes only through `write` and `write_async`.
    """

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        upgrade: bool = False,
        clock: Clock | None = None,
    ) -> Ledger:
        """Open the ledger of that file.

        Raises LedgerMissing, LedgerOutdated, LedgerNewer, NotALedger, LedgerOnNetwork or LedgerReadOnly, each before
        anything is changed. ``clock`` is for tests and only used by the first opening in a process.
        """
        place = Path(path).absolute()
        with _registry:
            if place.exists() and (shared := _open.get(_key(place))) is not None:
                shared.users += 1
                return cls(shared)
            prepare(place, create=create, upgrade=upgrade)
            source = clock or SystemClock()
            shared = _open.setdefault(_key(place), _Shared(place, clock=source, ids=IdSource(source)))
            shared.users += 1
            return cls(shared)

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._shared.path

    @property
    def clock(self) -> Clock:
        """The clock that rows and leases go by."""
        return self._shared.clock

    @property
    def ids(self) -> IdSource:
        """The source of this process's ids."""
        return self._shared.ids

    @property
    def worker_id(self) -> str:
        """This process's worker id; the first use makes the process a worker."""
        self._scribe()
        return self._shared.worker_id

    @property
    def failure(self) -> Exception | None:
        """What closed the writing side, None while it works."""
        scribe = self._shared._scribe
        return None if scribe is None else scribe.failure

    @property
    def longest_wait_seconds(self) -> float:
        """The longest time that this process has waited at the turnstile."""
        turnstile = self._shared._turnstile
        return 0.0 if turnstile is None else turnstile.longest_wait_seconds

    def is_dead(self, worker_id: str, identity: ProcessIdentity) -> bool:
        """Whether a worker of this ledger is proven dead."""
        return self._shared.worker_folder().is_dead(worker_id, identity)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run the work in a transaction and return once it is durable; see `Scribe` for what is raised."""
        return self._scribe().run(work)

    async def write_async(
        self, work: Callable[[Transaction], T], *, undo: Callable[[Transaction, T], object] | None = None
    ) -> T:
        """The same for an event loop; a cancelled await is compensated by ``undo``."""
        return await self._scribe().run_async(work, undo=undo)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reader]:
        """A consistent read-only view, on a connection of its own."""
        if self._closed:
            raise LedgerClosed("the ledger is closed", "open it again")
        connection = self._shared.reader()
        try:
            connection.execute("BEGIN")
            yield Reader(connection)
        finally:
            with contextlib.suppress(driver.SqliteError):  # a failed read must not hide its own error
                connection.execute("ROLLBACK")
            self._shared.reader_back(connection)

    def close(self) -> None:
        """Commit what is queued and let go; the last user of the file in this process closes it. Idempotent."""
        with _registry:
            if self._closed:
                return
            self._closed = True
            self._shared.users -= 1
            if self._shared.users == 0:
                for key in [key for key, shared in _open.items() if shared is self._shared]:
                    del _open[key]
                self._shared.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _scribe(self) -> Scribe:
        if self._closed:
            raise LedgerClosed("the ledger is closed", "open it again")
        return self._shared.scribe()


def _key(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
