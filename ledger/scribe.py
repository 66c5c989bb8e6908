"""The one thread of a process that writes: group commit.

It takes pieces of work from a bounded queue, runs each in a savepoint of its own, commits all that were waiting in one
durable commit, and only then tells each caller. There is no timer: a batch is what arrived while the last commit was
syncing, while we stood at the turnstile, and while the others of the batch ran. It is bounded, so that other processes
do not stand in line for long.

What a caller is told:

* its result, once the commit that holds it is durable;
* its own exception, when its work raised and the transaction survived (its savepoint is rolled back, the others stay);
* `LedgerFailed`, when the whole batch is known not to be committed (disk full, I/O error);
* `CommitUnknown`, when COMMIT failed and what became of it could not be read.

After a failed commit the scribe takes no more work: every later caller gets `LedgerClosed`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar, cast

from .crashpoints import crashpoint
from .driver import Connection, StatementError
from .errors import CommitUnknown, LedgerClosed, LedgerError, LedgerFailed, LedgerForked
from .failures import as_failure, first_line, remedy_of
from .to_its_end import to_its_end
from .transaction import Transaction

__all__ = ["BATCH_MAX", "QUEUE_MAX", "Scribe", "Together", "WriterDesk"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[Transaction], T]


class Together(Protocol):
    """Work of a kind that costs less when it is done for several callers at once.

    Called, it works for its own caller, as any other. ``together`` is one function for all work of the kind, or None
    where this piece is not of the ordinary kind: it does them all and returns their results in order, or raises, and
    then each is done by itself.
    """

    def __call__(self, transaction: Transaction) -> Any: ...

    @property
    def together(self) -> Callable[[Transaction, list[Any]], list[Any]] | None: ...


BATCH_MAX: Final = 256
QUEUE_MAX: Final = 8_192
_ROOM_PAUSE_SECONDS: Final = 0.002
_STOP: Final = object()


class WriterDesk(Protocol):
    """What the scribe needs of the store: the turnstile, a connection, and a way to look again."""

    def begin(self) -> Transaction:
        """Pass the turnstile and open the one write transaction."""

    def connection(self) -> Connection:
        """The connection of the open transaction."""

    def mark(self, transaction: Transaction) -> int:
        """Write this batch's number into the transaction, so that it can be looked for later."""

    def is_checkpoint_due(self) -> bool:
        """Asked once after each durable commit: whether `committed` will take long."""

    def committed(self) -> None:
        """After a durable commit, still inside the turnstile; makes the checkpoint that is due."""

    def leave(self) -> None:
        """Leave the turnstile, with a rollback if a transaction is still open."""

    def look_again(self, number: int) -> bool:
        """After a failed COMMIT: reopen, commit a marker, and say whether that batch is durable."""


class _Item:
    """One piece of work on its way; exactly one of result and error is set when it is done."""

    __slots__ = ("done", "error", "future", "loop", "result", "waiter", "work")

    def __init__(self, work: Work[Any], loop: asyncio.AbstractEventLoop | None) -> None:
        self.work = work
        self.loop = loop
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.future: Future[None] | None = None if loop else Future()
        self.waiter: asyncio.Future[None] | None = loop.create_future() if loop else None

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class Scribe:
    """Runs work in batches. Safe for threads and for any number of event loops; not for a forked child."""

    def __init__(self, desk: WriterDesk) -> None:
        self._desk = desk
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._failure: LedgerError | None = None
        self._closed = False
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="tallystick-scribe", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> LedgerError | None:
        """What closed the scribe, None while it works."""
        return self._failure

    def run(self, work: Work[T]) -> T:
        """Run the work and return its result once it is durable. Blocks; not for an event loop's thread."""
        item = _Item(work, None)
        self._put(item)
        cast("Future[None]", item.future).result()
        return cast("T", item.outcome())

    async def run_async(self, work: Work[T], *, undo: Callable[[Transaction, T], object] | None = None) -> T:
        """The same for an event loop.

        A cancelled await does not orphan what it asked for: the outcome is waited for, what was committed is
        compensated by ``undo`` in a transaction of its own, and then the cancellation goes on.
        """
        cancelled = await self._room() if self._queue.qsize() >= QUEUE_MAX else None
        item = _Item(work, asyncio.get_running_loop())
        self._put(item)
        try:
            if cancelled is not None:
                raise cancelled
            await cast("asyncio.Future[None]", item.waiter)
        except asyncio.CancelledError:
            await self._after_cancel(item, undo)
            raise
        return cast("T", item.outcome())

    def close(self) -> None:
        """Commit what is queued and end the thread; idempotent."""
        with self._gate:
            already, self._closed = self._closed, True
            if not already:
                self._queue.put(_STOP)
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join()

    async def _room(self) -> asyncio.CancelledError | None:
        """Wait for room in the queue, however often cancelled; the last cancellation, to go on with afterwards.

        What is asked for may be the outcome of a call that was paid for. The scribe always comes to the end of what is
        queued: it writes it or, after a failure, refuses it.
        """
        cancelled = None
        while self._queue.qsize() >= QUEUE_MAX and os.getpid() == self._pid:
            try:
                await asyncio.sleep(_ROOM_PAUSE_SECONDS)  # the queue has no event of this loop
            except asyncio.CancelledError as again:
                cancelled = again
        return cancelled

    async def _after_cancel(self, item: _Item, undo: Callable[[Transaction, Any], object] | None) -> None:
        loop = asyncio.get_running_loop()
        while not item.done:
            item.waiter = loop.create_future()
            try:
                await item.waiter
            except asyncio.CancelledError:
                continue  # the commit is on its way and bounded by the disk
        if item.error is None and undo is not None:
            result = item.result
            await to_its_end(self.run_async(lambda tx: undo(tx, result)))

    def _put(self, item: _Item) -> None:
        if os.getpid() != self._pid:
            raise LedgerForked(
                "a forked child used the ledger of its parent", "open the ledger again in the child process"
            )
        with self._gate:
            if self._closed or self._failure is not None:
                raise self._closed_error()
            self._queue.put(item)

    def _closed_error(self) -> LedgerError:
        if self._failure is None:
            return LedgerClosed("the ledger is closed", "open it again")
        closed = LedgerClosed(f"the ledger was closed by a failure: {self._failure.what}", self._failure.remedy)
        closed.__cause__ = self._failure
        return closed

    def _serve(self) -> None:
        while (first := self._queue.get()) is not _STOP:
            batch = [first]
            stop = self._write(batch)
            _tell(batch)
            if stop:
                return

    def _write(self, batch: list[_Item]) -> bool:
        """Write the batch, which takes in what arrives meanwhile; says whether the scribe was asked to stop."""
        if self._failure is not None:
            _fail_all(batch, self._closed_error())
            return False
        try:
            transaction = self._desk.begin()
        except BaseException as problem:
            self._desk.leave()
            _fail_all(batch, as_failure(problem, "no write transaction could be opened"))
            return False
        try:
            return self._write_inside(transaction, batch)
        finally:
            self._desk.leave()

    def _run_all(self, transaction: Transaction, batch: list[_Item]) -> bool:
        # What arrives while we stand at the turnstile or run the others rides along: measured with four saturated
        # processes, a turn was else often spent on the one piece of work that had begun to wait.
        begun, stop = 0, self._take_more(batch)
        if len(batch) == 1:
            begun = 1
            if not self._run_alone(transaction, batch[0]):
                return stop
            stop = stop or self._take_more(batch)
        while begun < len(batch):
            fresh, begun = batch[begun:], len(batch)
            self._run_fresh(transaction, fresh)
            stop = stop or self._take_more(batch)
        return stop

    def _take_more(self, batch: list[_Item]) -> bool:
        take = self._queue.get_nowait
        while len(batch) < BATCH_MAX:
            try:
                item = take()
            except queue.Empty:
                return False
            if item is _STOP:
                return True
            batch.append(item)
        return False

    def _run_fresh(self, transaction: Transaction, items: list[_Item]) -> None:
        """All of these were asked for before any of them is answered, so that their order is ours to choose."""
        groups: dict[Any, list[_Item]] = {}
        for item in items:
            together = getattr(item.work, "together", None)
            if together is None:
                self._run_one(transaction, item)
            else:
                groups.setdefault(together, []).append(item)
        for together, group in groups.items():
            if len(group) == 1 or not self._run_group(transaction, together, group):
                for item in group:
                    self._run_one(transaction, item)

    def _run_group(self, transaction: Transaction, together: Callable[..., list[Any]], group: list[_Item]) -> bool:
        execute = transaction.execute
        execute("SAVEPOINT work")
        try:
            results = together(transaction, [item.work for item in group])
        except BaseException:
            # Each of them is done by itself then, and meets its own error.
            if not self._desk.connection().in_transaction:
                raise
            transaction.forget_heads()
            execute("ROLLBACK TO work")
            execute("RELEASE work")
            return False
        execute("RELEASE work")
        for item, result in zip(group, results, strict=True):
            item.result = result
        return True

    def _write_inside(self, transaction: Transaction, batch: list[_Item]) -> bool:
        stop = False
        try:
            stop = self._run_all(transaction, batch)
            if not self._desk.connection().in_transaction:
                return stop
            number = self._desk.mark(transaction)
            crashpoint("scribe.commit.before")
        except BaseException as problem:
            self._stop_working(batch, as_failure(problem, "a batch was lost before its commit"))
            return stop
        try:
            transaction.execute("COMMIT")
        except BaseException as problem:
            self._commit_failed(batch, number, problem)
            return stop
        crashpoint("scribe.commit.after")
        try:
            if self._desk.is_checkpoint_due():
                # The checkpoint is nothing that they wait for; while the disk is at it, they prepare their next.
                _tell(batch)
                batch.clear()
            self._desk.committed()
        except BaseException as problem:
            # The batch is durable; its callers are told so. Nothing more is written.
            self._failure = as_failure(problem, "a checkpoint failed")
        return stop

    def _run_one(self, transaction: Transaction, item: _Item) -> None:
        execute = transaction.execute
        execute("SAVEPOINT work")
        if not self._succeeds(transaction, item):
            execute("ROLLBACK TO work")
        execute("RELEASE work")

    def _run_alone(self, transaction: Transaction, item: _Item) -> bool:
        """The first of a transaction needs no savepoint: what it raised ends the transaction, which held nothing else.

        One caller after the other writes so, and each statement less is felt.
        """
        if not self._succeeds(transaction, item):
            transaction.execute("ROLLBACK")
            return False
        if not self._desk.connection().in_transaction:
            raise LedgerFailed("a transaction was gone before its commit", "nothing of it is written; resume")
        return True

    def _succeeds(self, transaction: Transaction, item: _Item) -> bool:
        try:
            item.result = item.work(transaction)
        except BaseException as problem:
            # A full disk or an I/O error rolls back everything, not just the savepoint.
            if not self._desk.connection().in_transaction:
                raise
            item.error = as_failure(problem, "a statement failed") if isinstance(problem, StatementError) else problem
            transaction.forget_heads()
            return False
        return True

    def _commit_failed(self, batch: list[_Item], number: int, problem: BaseException) -> None:
        failure = as_failure(problem, "a commit failed")
        try:
            durable = self._desk.look_again(number)
        except BaseException as second:
            unknown = CommitUnknown(
                f"a commit failed ({first_line(problem)}), and whether it is durable could not be read "
                f"({first_line(second)})",
                f"{remedy_of(problem)}: what was asked is looked for again",
            )
            unknown.__cause__ = problem
            self._stop_working(batch, unknown)
            return
        if durable:
            self._failure = failure
            logger.error("a failed commit was durable", extra={"event": "scribe.commit_durable", "batch": number})
        else:
            self._stop_working(batch, failure)

    def _stop_working(self, batch: list[_Item], failure: LedgerError) -> None:
        self._failure = failure
        logger.error("the scribe stops", extra={"event": "scribe.stopped", "code": failure.code})
        _fail_all(batch, failure)


def _fail_all(batch: list[_Item], failure: LedgerError) -> None:
    for item in batch:
        if item.error is None:
            item.error, item.result = failure, None


def _tell(batch: list[_Item]) -> None:
    """Wake every caller; one call into each event loop, whatever the size of the batch."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
    for item in batch:
        if item.loop is not None:
            by_loop.setdefault(item.loop, []).append(item)
        else:
            item.done = True
            cast("Future[None]", item.future).set_result(None)
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake, items)
        except RuntimeError:
            logger.warning("a caller's loop is closed", extra={"event": "scribe.loop_closed", "count": len(items)})


def _wake(items: list[_Item]) -> None:
    for item in items:
        item.done = True
        waiter = cast("asyncio.Future[None]", item.waiter)
        if not waiter.done():
            waiter.set_result(None)
