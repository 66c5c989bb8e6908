"""Renewing what is held from a thread of its own, so that an event loop that is blocked does not lose its devices."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import attrs

from ..ledger import leases
from ..ledger.errors import LeaseLost, LedgerError, TallystickError
from ..ledger.host_claims import HostClaims
from ..ledger.ledger import Ledger
from .tenures import DeviceTenure

__all__ = ["LEASE_PARTS", "LeaseThread"]

logger = logging.getLogger(__name__)

LEASE_PARTS: Final = 3
"""A lease is renewed after each such part of it, so that a renewal that comes late by one part loses nothing."""

_STEP_SECONDS: Final = 1.0
"""A wall clock that goes wrong by less between two renewals was slewed; one by more was stepped."""


@attrs.define(eq=False)
class _Watched:
    tenure: DeviceTenure
    every_seconds: float
    due: float


class LeaseThread:
    """Renews tenures after each third of their lease, and tells the loop of a loss. Belongs to one session.

    ``on_lost`` is called on the loop. What blocks every thread of the process for longer than the lease (an extension
    that keeps the interpreter lock, a stopped process) loses it all the same; that is what leases are for.
    """

    def __init__(
        self,
        ledger: Ledger,
        claims: HostClaims,
        *,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[DeviceTenure], None],
    ) -> None:
        self._ledger = ledger
        self._claims = claims
        self._loop = loop
        self._on_lost = on_lost
        self._watched: dict[str, _Watched] = {}
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._offset_seconds = self._wall_clock_offset()

    def watch(self, tenure: DeviceTenure, *, lease_seconds: float) -> None:
        """Renew it from now on."""
        every = lease_seconds / LEASE_PARTS
        with self._change:
            self._watched[tenure.set_id] = _Watched(tenure, every, time.monotonic() + every)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tallystick-leases", daemon=True)
                self._thread.start()
            self._change.notify()

    def forget(self, tenure: DeviceTenure) -> None:
        """Renew it no more; idempotent. A renewal that is under way is not waited for."""
        with self._change:
            self._watched.pop(tenure.set_id, None)

    def stop(self) -> None:
        """End the thread; a renewal that is under way may outlast this and changes nothing that is given back."""
        with self._change:
            self._stopped = True
            self._change.notify()

    def _serve(self) -> None:
        while (watched := self._next()) is not None:
            self._renew(watched)

    def _next(self) -> _Watched | None:
        """The next that is due, waited for; None at the end."""
        with self._change:
            while not self._stopped:
                first = min(self._watched.values(), key=lambda one: one.due, default=None)
                left = None if first is None else first.due - time.monotonic()
                if first is not None and left is not None and left <= 0:
                    first.due = time.monotonic() + first.every_seconds
                    return first
                self._change.wait(left)
        return None

    def _renew(self, watched: _Watched) -> None:
        self._look_at_the_clock()
        tenure = watched.tenure
        try:
            expires = self._ledger.write(lambda tx: leases.renew(tx, tenure.set_id))
            self._claims.renew(tenure.set_id)
        except LeaseLost as loss:
            self._tell(watched, loss)
        except (TallystickError, OSError) as problem:
            self._tell(watched, _not_renewed(tenure, problem))
        else:
            tenure.renewed(expires)

    def _look_at_the_clock(self) -> None:
        """No lease goes by the wall clock; whoever reads instants in the ledger has to know that it was stepped."""
        before, self._offset_seconds = self._offset_seconds, self._wall_clock_offset()
        step = self._offset_seconds - before
        if abs(step) >= _STEP_SECONDS:
            logger.warning("the wall clock was stepped", extra={"event": "clock.stepped", "seconds": round(step, 3)})

    def _wall_clock_offset(self) -> float:
        clock = self._ledger.clock
        return (clock.now_us() - clock.boot_ns() // 1000) / 1e6

    def _tell(self, watched: _Watched, loss: LeaseLost) -> None:
        tenure = watched.tenure
        with self._change:
            if self._watched.pop(tenure.set_id, None) is not watched:
                return  # given back meanwhile, in good order
        logger.warning("a lease is lost", extra={"event": "lease.lost", "resources": tenure.resources})
        tenure.lost(loss)
        try:
            self._loop.call_soon_threadsafe(self._on_lost, tenure)
        except RuntimeError:
            return  # the loop is closed: its session is over


def _not_renewed(tenure: DeviceTenure, problem: Exception) -> LeaseLost:
    first = tenure.resources[0]
    remedy = problem.remedy if isinstance(problem, LedgerError) else "look after the ledger's disk, then resume"
    loss = LeaseLost(f"the lease of {first} could not be renewed ({problem})", remedy, first)
    loss.__cause__ = problem
    return loss
