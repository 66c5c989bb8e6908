"""Views of a ledger one after another, for a reading that is pinned to an event and takes long.

One view must not be held for long: it keeps the write-ahead log growing while a run goes on, and is ended then
(`readers`). What is pinned to an event does not need one: between two pieces it may go on with a newer view, as long as
it learns what has happened since and leaves that out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from .ledger import Ledger
from .readers import READING_SECONDS_MAX, Reader

__all__ = ["RENEWED_SECONDS", "Views"]

RENEWED_SECONDS: Final = READING_SECONDS_MAX / 4
"""The age from which on a view is left for a newer one."""


class Views:
    """The present view of a ledger; used by one thread at a time. Make one with `Views.of`."""

    def __init__(self, ledger: Ledger, *, seconds_max: float, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._seconds_max = seconds_max
        self._clock = clock
        self._stack = contextlib.ExitStack()
        self._began = clock()
        self._present = self._stack.enter_context(ledger.reading())
        self.on_renewal: list[Callable[[Reader], None]] = []

    @classmethod
    @contextlib.contextmanager
    def of(
        cls, ledger: Ledger, *, seconds_max: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[Views]:
        """Views of that ledger, the last of which is closed at the end."""
        views = cls(ledger, seconds_max=RENEWED_SECONDS if seconds_max is None else seconds_max, clock=clock)
        try:
            yield views
        finally:
            views._stack.close()

    @property
    def reader(self) -> Reader:
        """The present view; it may be another one after the next `turn`."""
        return self._present

    def turn(self) -> Reader:
        """Between two pieces, with no query open: the present view, or a newer one where it is old.

        Whoever reads is told of a newer one first, by the functions in ``on_renewal``.
        """
        if self._clock() - self._began > self._seconds_max:
            self._stack.close()
            self._began = self._clock()
            self._present = self._stack.enter_context(self._ledger.reading())
            for told in self.on_renewal:
                told(self._present)
        return self._present
