"""Dispatches that are under way, and the watch that none outlives its deadline.

A target keeps its own deadline. The watch is for those that do not: it cancels an overdue dispatch after a little
slack, and when the target swallows even that, it lets go of it, so that one wedged target never holds up the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import attrs

from ..ledger.records import DispatchKey
from .protocols import WireProgress

__all__ = ["Flight", "FlightWatch"]

CANCEL_SLACK_SECONDS: Final = 1.0
ABANDON_SLACK_SECONDS: Final = 6.0
_LOOK_SECONDS: Final = 0.2


@attrs.define(eq=False)
class Flight:
    """One dispatch under way, on a device under its ``tenure``.

    ``broken_off`` is why it was cancelled by us, empty while it was not.
    """

    key: DispatchKey
    task: asyncio.Task[object]
    progress: WireProgress
    began: float
    deadline: float
    tenure: object = None
    broken_off: str = ""
    is_abandoned: bool = False

    def break_off(self, reason: str) -> None:
        """Cancel the dispatch, once."""
        if not self.broken_off:
            self.broken_off = reason
            self.task.cancel()


class FlightWatch:
    """All flights of a coordinator, and a task that looks after them."""

    def __init__(self, *, abandon: Callable[[Flight], None]) -> None:
        self._flights: set[Flight] = set()
        self._abandon = abandon
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._flights)

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="tallystick-flight-watch")

    def add(self, flight: Flight) -> None:
        """A dispatch begins."""
        self._flights.add(flight)

    def remove(self, flight: Flight) -> None:
        """A dispatch has ended; idempotent."""
        self._flights.discard(flight)

    def break_off_all(self, reason: str) -> None:
        """Cancel every dispatch that is under way."""
        for flight in list(self._flights):
            flight.break_off(reason)

    def break_off_under(self, tenure: object, reason: str) -> None:
        """Cancel what is under way under a hold of devices that is lost."""
        for flight in list(self._flights):
            if flight.tenure is tenure:
                flight.break_off(reason)

    def abandon_all(self) -> None:
        """Let go of every dispatch that is still under way."""
        for flight in list(self._flights):
            self._let_go(flight)

    async def stop(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            for flight in list(self._flights):
                if now > flight.deadline + ABANDON_SLACK_SECONDS:
                    self._let_go(flight)
                elif now > flight.deadline + CANCEL_SLACK_SECONDS:
                    flight.break_off("deadline")

    def _let_go(self, flight: Flight) -> None:
        if not flight.is_abandoned:
            flight.is_abandoned = True
            self._flights.discard(flight)
            self._abandon(flight)
