"""Waiting for work that cannot be stopped: until it ends, its deadline passes, or the waiter is cancelled.

`TaskCalls` runs coroutines, `ThreadCalls` blocking functions. Work that is given up goes on by itself, is not waited
for any more, and reports the answer that it may yet come to.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from ..ledger.states import DispatchState
from ..runner.protocols import Outcome
from .threads import Threads

__all__ = ["Calls", "TaskCalls", "ThreadCalls", "TooManyOverdue"]

Late = Callable[[Outcome], None]

_OVERDUE_MAX: Final = 256
_CLOSE_SECONDS: Final = 1.0
_CANCELS_MAX: Final = 5


class TooManyOverdue(Exception):
    """So much work that was given up is still going on that none more is begun."""


class Calls(Protocol):
    """Both kinds of waiting; ``None`` means that the deadline passed. The work itself raises nothing.

    ``overdue`` counts what was given up and may yet come to an answer.
    """

    @property
    def overdue(self) -> int: ...

    async def call(self, work: Callable[[], Any], *, deadline_seconds: float, late: Late) -> Outcome | None: ...

    async def close(self) -> None: ...


class TaskCalls:
    """Each coroutine in a task of its own, so that one that swallows its cancellation holds up nobody."""

    def __init__(self) -> None:
        self._left: set[asyncio.Task[Outcome]] = set()

    @property
    def overdue(self) -> int:
        return 0  # a coroutine is cancelled; one that answers even so is heard, and not waited for

    async def call(
        self, work: Callable[[], Coroutine[Any, Any, Outcome]], *, deadline_seconds: float, late: Late
    ) -> Outcome | None:
        _refuse_more(len(self._left))
        loop = asyncio.get_running_loop()
        task = loop.create_task(work())
        over: asyncio.Future[None] = loop.create_future()
        task.add_done_callback(lambda ended: _end(over))
        timer = loop.call_later(deadline_seconds, _end, over)
        try:
            await over
        except asyncio.CancelledError:
            if task.done() and not task.cancelled():
                _report(task.result(), late)  # it had come, and the waiter was cancelled before it could look
            raise
        finally:
            timer.cancel()
            if not task.done():
                self._leave(task, late)
        return task.result() if task.done() else None

    def _leave(self, task: asyncio.Task[Outcome], late: Late) -> None:
        def ended(task: asyncio.Task[Outcome]) -> None:
            self._left.discard(task)
            if not task.cancelled() and task.exception() is None:
                _report(task.result(), late)

        self._left.add(task)
        task.add_done_callback(ended)
        task.cancel()

    async def close(self) -> None:
        """Cancel what was left, some times over; what goes on even so is no longer the loop's to wait for."""
        for _ in range(_CANCELS_MAX):
            if not self._left:
                return
            for task in self._left:
                task.cancel()
            await asyncio.wait(self._left, timeout=_CLOSE_SECONDS / _CANCELS_MAX)
        for task in self._left:
            # asyncio.run() ends only when every task that it knows has ended; asyncio documents this for such cases.
            asyncio.tasks._unregister_task(task)
        self._left.clear()


class ThreadCalls:
    """Each function on a daemon thread; an overdue one takes no thread away from the others."""

    def __init__(self) -> None:
        self._threads = Threads("tallystick-target")
        self.overdue = 0

    async def call(self, work: Callable[[], Outcome], *, deadline_seconds: float, late: Late) -> Outcome | None:
        _refuse_more(self.overdue)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Outcome | None] = loop.create_future()
        context = contextvars.copy_context()

        def arrive(outcome: Outcome) -> None:
            if not over.done():
                over.set_result(outcome)
                return
            self.overdue -= 1
            late(outcome)  # an error too, so that nobody waits for an answer

        def job() -> None:
            outcome = context.run(work)
            try:
                loop.call_soon_threadsafe(arrive, outcome)
            except RuntimeError:
                late(outcome)  # the loop has ended

        self._threads.submit(job)
        timer = loop.call_later(deadline_seconds, _end, over)
        try:
            outcome = await over
        except asyncio.CancelledError:
            arrived = over.result() if over.done() and not over.cancelled() else None
            if arrived is None:
                self.overdue += 1
            else:
                _report(arrived, late)  # it had come, and the waiter was cancelled before it could look
            raise
        finally:
            timer.cancel()
        if outcome is None:
            self.overdue += 1
        return outcome

    async def close(self) -> None:
        self._threads.close()


def _refuse_more(overdue: int) -> None:
    if overdue >= _OVERDUE_MAX:
        raise TooManyOverdue(f"{overdue} calls that passed their deadline are still going on")


def _end(over: asyncio.Future[Any]) -> None:
    if not over.done():
        over.set_result(None)


def _report(outcome: Outcome, late: Late) -> None:
    if outcome.state is DispatchState.ANSWERED:
        late(outcome)
