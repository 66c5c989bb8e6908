"""A coroutine from blocking code: here, or beside the loop that runs in this thread, as in a notebook."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from .held_up_loops import holding_up_the_loop, running_loop

__all__ = ["blocking"]

T = TypeVar("T")


def blocking(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run to the end here, or in a thread of its own where this thread's loop is running.

    An interrupt cancels it, and goes on once it has ended, so that nothing is left behind that pays; a second one
    leaves at once.
    """
    return asyncio.run(make()) if running_loop() is None else _Beside(make).result()


class _Beside(Generic[T]):
    """A coroutine on a loop of its own in another thread."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._outcome: Future[T] = Future()
        self._first = threading.Lock()  # taken once: by the work, or by a caller that leaves before there is any
        self._has_begun = threading.Event()
        self._has_ended = threading.Event()
        self._task: asyncio.Task[Any] | None = None

    def result(self) -> T:
        with holding_up_the_loop():
            thread = threading.Thread(target=copy_context().run, args=(self._work,), name="tallystick-run")
            try:
                thread.start()
                # Not by join: CPython takes a thread whose join was interrupted for one that has ended.
                self._has_ended.wait()
            except BaseException:
                # Not by the thread's `ident`: an interrupted start leaves none, though the thread may go on.
                if not self._first.acquire(blocking=False):
                    self._cancel()
                    self._has_ended.wait()
                raise
        return self._outcome.result()

    def _work(self) -> None:
        if not self._first.acquire(blocking=False):
            return
        try:
            self._outcome.set_result(asyncio.run(self._main()))
        except BaseException as problem:  # noqa: BLE001 - carried over to the caller's thread
            self._outcome.set_exception(problem)
        finally:
            self._has_begun.set()
            self._has_ended.set()

    async def _main(self) -> T:
        self._task = asyncio.current_task()
        self._has_begun.set()
        return await self._make()

    def _cancel(self) -> None:
        self._has_begun.wait()
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended meanwhile
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
