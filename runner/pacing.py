"""When the next dispatch may begin: the work order's rate, and what a target asked for by ``Retry-After``."""

from __future__ import annotations

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

    def wait_seconds(self, variant_no: int) -> float:
        """How long the variant is held back still."""
        until = self._held_until.get(variant_no)
        return 0.0 if until is None else max(0.0, until - time.monotonic())

    async def turn(self, variant_no: int) -> bool:
        """Wait for the next dispatch's turn; False when asked to stop meanwhile."""
        if not self._gap and variant_no not in self._held_until:
            return not self._stop.is_asked
        wait = self.wait_seconds(variant_no)
        if self._gap:
            now = time.monotonic()
            begin = max(now + wait, self._next)
            self._next = begin + self._gap
            wait = begin - now
        if wait > 0 and not await self._stop.sleep(wait):
            return False
        return not self._stop.is_asked
