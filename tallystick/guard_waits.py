"""Who of this process is at which key of a guard and waits for which other one, so that nobody waits for ever.

Who waits is told by the call that it is inside of (its context: of tasks, of `asyncio.to_thread`, of the threads of
`Guard.map`; a thread that was started otherwise is not known to be inside) and by the event loops that it holds up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import attrs

from .held_up_loops import held_up_loops, running_loop
from .ledger.canonical import printable
from .ledger.errors import UsageError
from .runner.errors import GuardDeadlock
from .runner.guard_runs import GuardRun

__all__ = ["LongWait", "claim", "inside", "leave", "refuse_own", "waiting"]

logger = logging.getLogger(__name__)

_NAMED_MAX: Final = 6
_LONG_SECONDS: Final = 10.0
_Held = tuple[GuardRun, str]


@attrs.frozen(eq=False)
class _Holder:
    """One hold of a key, with the loop that it needs to go on, and the thread that it is made on."""

    loop: asyncio.AbstractEventLoop | None
    thread: str


# A hold, or a loop that a blocking call keeps from going on: either waits for the keys that it is entered for.
_Waiter = _Holder | asyncio.AbstractEventLoop

_LOCK: Final = threading.Lock()
_HOLDERS: Final[dict[_Held, _Holder]] = {}
_WANTED: Final[defaultdict[_Waiter, list[_Held]]] = defaultdict(list)
_INSIDE: Final[ContextVar[tuple[_Holder, ...]]] = ContextVar("tallystick_guard_inside", default=())


def claim(run: GuardRun, key: str, *, is_async: bool = False) -> bool:
    """Whether nobody else of this process is at the key; then it is this caller's until `leave`."""
    if not run.claim(key):
        return False
    with _LOCK:
        _HOLDERS[run, key] = _Holder(asyncio.get_running_loop() if is_async else None, threading.current_thread().name)
    return True


def leave(run: GuardRun, key: str) -> None:
    with _LOCK:
        _HOLDERS.pop((run, key), None)
    run.leave(key)


@contextmanager
def inside(run: GuardRun, key: str) -> Iterator[None]:
    """While the function of a key that was claimed is called."""
    token = _INSIDE.set((*_INSIDE.get(), _HOLDERS[run, key]))
    try:
        yield
    finally:
        _INSIDE.reset(token)


def refuse_own(run: GuardRun, key: str) -> None:
    """Raises UsageError where the key's own call, which goes on still, is what asks for it."""
    if _HOLDERS.get((run, key)) in _INSIDE.get():
        raise UsageError(f'key "{key}" is asked for inside of its own call', "give the inner call another key")


@contextmanager
def waiting(run: GuardRun, key: str, *, is_async: bool = False) -> Iterator[None]:
    """While the key of another call is waited for; raises GuardDeadlock where that call waits for this caller."""
    wanted = (run, key)
    waiters: tuple[_Waiter, ...] = (*_INSIDE.get(), *_loops_that_wait(is_async=is_async))
    with _LOCK:
        _refuse_circle(waiters, wanted)
        for waiter in waiters:
            _WANTED[waiter].append(wanted)
    try:
        yield
    finally:
        with _LOCK:
            for waiter in waiters:
                _WANTED[waiter].remove(wanted)
                if not _WANTED[waiter]:
                    del _WANTED[waiter]


class LongWait:
    """Says once of a wait that it takes long, and for what; in the log alone, as it may well be an honest one.

    A thread that was started without the context of its call may wait for ever, and nobody can tell.
    """

    def __init__(self, run: GuardRun, key: str) -> None:
        self._wanted = (run, key)
        self._until = time.monotonic() + _LONG_SECONDS

    def look(self) -> None:
        """To be called again and again while it lasts."""
        if time.monotonic() < self._until:
            return
        self._until = math.inf
        run, key = self._wanted
        holder = _HOLDERS.get(self._wanted)
        logger.info(
            'the key "%s" has been waited for for %g s: its call goes on, on the thread %s', printable(key),
            _LONG_SECONDS, "that is over" if holder is None else holder.thread,
            extra={"event": "guard.waits", "run": run.coordinator.run_id, "key": key},
        )  # fmt: skip


def _refuse_circle(waiters: tuple[_Waiter, ...], wanted: _Held) -> None:
    """The last wait of a circle finds it: those before it are entered, and who holds a key before it can wait."""
    ways: dict[_Held, tuple[_Held, ...]] = {wanted: (wanted,)}
    left = [wanted]
    while left:
        held = left.pop()
        holder = _HOLDERS.get(held)
        if holder is None:
            continue
        if holder in waiters:
            raise _of_each_other(ways[held])
        if holder.loop is not None and holder.loop in waiters:
            raise _of_a_loop(ways[held])
        for waiter in (holder, holder.loop):
            for after in _WANTED.get(waiter, ()) if waiter is not None else ():
                if after not in ways:
                    ways[after] = (*ways[held], after)
                    left.append(after)


def _of_each_other(way: tuple[_Held, ...]) -> GuardDeadlock:
    wanted, own = way[0][1], way[-1][1]
    return GuardDeadlock(
        f'key "{wanted}" is asked for inside of key "{own}", which its own call waits for{_by_way_of(way[1:-1])}',
        "make the inner call outside of the outer one, or ask for keys in one order everywhere", wanted,
    )  # fmt: skip


def _of_a_loop(way: tuple[_Held, ...]) -> GuardDeadlock:
    wanted = way[0][1]
    return GuardDeadlock(
        f'key "{wanted}" waits for a task of an event loop that is held up until this call ends{_by_way_of(way[1:])}',
        "make the blocking call there by `await asyncio.to_thread(guard.call, …)`, or await an async one", wanted,
    )  # fmt: skip


def _by_way_of(way: tuple[_Held, ...]) -> str:
    named = ", ".join(f'"{key}"' for _, key in way[:_NAMED_MAX])
    more = f" and {len(way) - _NAMED_MAX} more" if len(way) > _NAMED_MAX else ""
    return f", by way of {named}{more}" if way else ""


def _loops_that_wait(*, is_async: bool) -> set[asyncio.AbstractEventLoop]:
    """Those that do not go on while this caller waits: a loop goes on while a task of its own does."""
    own = running_loop()
    around = {loop for loop in held_up_loops() if loop is not own}
    return around if is_async or own is None else {*around, own}
