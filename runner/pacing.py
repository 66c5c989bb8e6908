"""When the next dispatch may begin: the work order's rate, and what a target asked for by ``Retry-After``."""

from __future__ import annotations

import math
import time

from .stopping import StopSwitch

__all__ = ["Pace"]


class Pace:
    """Spaces dispatches out evenly and holds a variant back until an instant; belongs to one loop."""

    def __init__(self, rate_per_second: float | None, stop: StopSwitch) -> None:
        self._gap = 0.0 if rate_per_second is None else 1.0 / rate_per_second
        self._next = 0.0
        self._held_until: dict[int, float] = {}
        self._stop = stop

    def hold(self, variant_no: int, seconds: float) -> None:
        """No dispatch of the variant begins for that long; a longer hold stays."""
        until = time.monotonic() + seconds
        self._held_until[variant_no] = max(self._held_until.get(variant_no, 0.0), until)

    def held_back(self) -> dict[int, float]:
        """The variants that are held back now, and for how many seconds still."""
        if not self._held_until:
            return {}
        now = time.monotonic()
        for variant_no in [number for number, until in self._held_until.items() if until <= now]:
            del self._held_until[variant_no]
        return {number: until - now for number, until in self._held_until.items()}

    async def turn(self, variant_no: int, *, before: float = math.inf) -> bool:
        """Wait for the next dispatch's turn.

        False when asked to stop meanwhile, when the variant is held back, or when the turn comes after ``before`` (as
        `time.monotonic` tells it); then no turn is used up.
        """
        if self._held_until and variant_no in self.held_back():
            return False
        if self._gap:
            now = time.monotonic()
            begin = max(now, self._next)
            if begin > before:
                return False
            self._next = begin + self._gap
            if begin > now and not await self._stop.sleep(begin - now):
                return False
        return not self._stop.is_asked
