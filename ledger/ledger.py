"""A ledger, open in this process.

One process opens a ledger file once, however often it asks: every `Ledger` of the same file shares one scribe, one
turnstile and one worker identity. That is not thrift: closing a second descriptor of a locked file would drop the locks
of the first. A process that only reads becomes no worker and writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from . import driver
from .bulk import BulkWriter, bulk_writer
from .clocks import Clock, SystemClock
from .errors import LedgerClosed
from .failures import is_damage, is_of_file, unreadable
from .identifiers import IdSource
from .location import resolved, side_folder
from .opening import prepare
from .processes import ProcessIdentity
from .readers import Reader
from .scribe import Scribe
from .sharing import Shared
from .transaction import Transaction

__all__ = ["Ledger", "Reader"]

T = TypeVar("T")


_open: dict[tuple[int, int], Shared] = {}
_inherited: list[Shared] = []
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

    def __init__(self, shared: Shared) -> None:
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

        Raises LedgerMissing, LedgerOutdated, LedgerNewer, NotALedger, LedgerOnNetwork, LedgerReadOnly or UsageError,
        each before anything is changed. ``clock`` is for tests and only used by the first opening in a process.
        """
        # Through links: locks lie beside the file itself, so that every name of it leads to the same ones.
        place = resolved(Path(path))
        with _registry:
            if place.exists() and (shared := _open.get(_key(place))) is not None:
                shared.users += 1
                return cls(shared)
            prepare(place, create=create, upgrade=upgrade)
            source = clock or SystemClock()
            shared = _open.setdefault(_key(place), Shared(place, clock=source, ids=IdSource(source)))
            shared.users += 1
            return cls(shared)

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._shared.path

    @property
    def artifacts(self) -> Path:
        """The folder for the files of large artifacts; may not be there yet."""
        return side_folder(self._shared.path) / "artifacts"

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

    @contextlib.contextmanager
    def stall_limit(self, seconds: float) -> Iterator[None]:
        """While inside, a process that is stopped inside a transaction keeps this one waiting for no longer than that.

        For who holds or waits for a lease: nobody else's standing still may cost it more than a part of its time.
        """
        self._scribe()
        with self._shared.turnstile.hurried(seconds):
            yield

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
        """A consistent read-only view, on a connection of its own; see `Reader` for how long it may last.

        Raises LedgerUnreadable or LedgerDamaged where the disk or the file fails, also from inside.
        """
        if self._closed:
            raise LedgerClosed("the ledger is closed", "open it again")
        try:
            connection = self._shared.reader()
            reader = Reader(connection, self.artifacts)
            try:
                connection.execute("BEGIN")
                self._shared.watch.add(reader)
                yield reader
            finally:
                self._shared.watch.remove(reader)
                with contextlib.suppress(driver.SqliteError):  # a failed read must not hide its own error
                    connection.execute("ROLLBACK")
                self._shared.reader_back(connection, again=not reader.is_ended)
        except driver.SqliteError as problem:
            if not is_damage(problem) and not is_of_file(problem):
                raise  # a statement of ours is wrong
            raise unreadable(self._shared.path, problem) from problem

    @contextlib.contextmanager
    def alone(self) -> Iterator[driver.Connection]:
        """A connection while nobody of any process writes; for compacting."""
        self._scribe()
        with self._shared.turnstile, contextlib.closing(driver.harden(driver.connect(self._shared.path))) as made:
            yield made

    @contextlib.contextmanager
    def bulk(self, source: Path) -> Iterator[BulkWriter]:
        """A writer for verified rows, from the tables of that file; for imports."""
        self._scribe()
        shared = self._shared

        def transaction(connection: driver.Connection) -> Transaction:
            return Transaction(connection, clock=shared.clock, ids=shared.ids, worker_id=shared.worker_id)

        with bulk_writer(shared.path, shared.turnstile, source, transaction=transaction) as writer:
            yield writer

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
