"""A GeneratorExit that an adapter's code raises, told from one that closes the coroutine of whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["go_if_closed"]


def go_if_closed(problem: BaseException, task: asyncio.Task[Any] | None) -> None:
    """Raise a GeneratorExit again that closes the coroutine: it may wait for nothing any more.

    ``task`` is the one that the coroutine ran in before it waited. What is raised inside comes up in that very task; a
    coroutine is closed from outside of it, by another task or after the loop's end.
    """
    if isinstance(problem, GeneratorExit) and _current() is not task:
        raise problem


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
