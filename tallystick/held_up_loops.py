"""The event loops whose threads wait, and so do not go on, until what was begun with their context has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import attrs

__all__ = ["held_up_loops", "holding_up_the_loop", "running_loop"]


@attrs.define(eq=False)
class _HoldUp:
    """A loop whose thread waits for other threads; tasks that were begun then may outlive it."""

    loop: asyncio.AbstractEventLoop
    is_over: bool = False


_HELD_UP: Final[ContextVar[tuple[_HoldUp, ...]]] = ContextVar("tallystick_held_up_loops", default=())


@contextmanager
def holding_up_the_loop() -> Iterator[None]:
    """While this thread waits for threads that were begun with its context, whose waits are its loop's."""
    loop = running_loop()
    if loop is None:
        yield
        return
    hold_up = _HoldUp(loop)
    token = _HELD_UP.set((*_HELD_UP.get(), hold_up))
    try:
        yield
    finally:
        hold_up.is_over = True
        _HELD_UP.reset(token)


def held_up_loops() -> list[asyncio.AbstractEventLoop]:
    """Those that wait for this thread or task, the outermost first; not the one that runs it."""
    return [hold_up.loop for hold_up in _HELD_UP.get() if not hold_up.is_over]


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The one of this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
