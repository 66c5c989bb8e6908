"""Daemon threads for blocking functions.

The standard library's pool joins its threads when a process ends, and so one function that never returns would keep
the process for ever. These are daemons; an overdue one is given up, and its place is taken by a new one.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["Threads"]

_IDLE_SECONDS: Final = 10.0
Job = Callable[[], None]


class Threads:
    """Runs each job at once, on an idle thread or a new one; how many run at a time is for the caller to bound.

    A job must not raise. `submit` may be called from one thread only, the event loop's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[_Worker] = deque()

    def submit(self, job: Job) -> None:
        """Run the job; raises RuntimeError where the machine has no thread left."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker(self._name, self._idle)
            worker.start()
        worker.jobs.put(job)

    def close(self) -> None:
        """End the idle threads; busy ones end with their job and an idle time."""
        while self._idle:
            self._idle.pop().jobs.put(None)


class _Worker(threading.Thread):
    def __init__(self, name: str, idle: deque[_Worker]) -> None:
        super().__init__(name=name, daemon=True)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = idle

    def run(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # an answer must not live as long as its thread
            self._idle.append(self)

    def _next(self) -> Job | None:
        while True:
            try:
                return self.jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(self)
                except ValueError:
                    continue  # taken from the idle ones a moment ago: a job is on its way
                return None
