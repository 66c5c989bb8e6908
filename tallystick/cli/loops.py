"""An event loop for one session that ends even when tasks of a target do not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from .settings import Settings

__all__ = ["run_to_end"]

T = TypeVar("T")

_REST_SECONDS: Final = 1.0


def run_to_end(settings: Settings, main: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. Tasks that swallow every cancellation are left, and the settings say so.

    `asyncio.run` would wait for such tasks for ever.
    """
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        settings.is_wedged |= _end_rest(loop)
        asyncio.set_event_loop(None)


def _end_rest(loop: asyncio.AbstractEventLoop) -> bool:
    loop.set_exception_handler(_say_all_but_left_tasks)
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.wait(rest, timeout=_REST_SECONDS))
    if any(not task.done() for task in rest):
        return True  # closing the loop under them would make them raise where nobody listens
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    return False


def _say_all_but_left_tasks(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # A target's task that outlived its call was given up and recorded long before the interpreter finds it pending.
    if "Task was destroyed but it is pending" not in str(context.get("message")):
        loop.default_exception_handler(context)
