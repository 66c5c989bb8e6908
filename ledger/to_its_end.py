"""Waiting for what must not be left half done, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["to_its_end"]

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns or raises; a cancellation, however often, goes on once the work is over.

    Nobody else ends that wait: for work that is bounded by itself, as a commit is by the disk. `asyncio.shield` would
    let its caller go before the commit, who then reads the ledger as it was.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and not task.cancelled() and task.exception() is None:
        raise asyncio.CancelledError
    return task.result()
