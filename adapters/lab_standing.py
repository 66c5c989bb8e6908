"""How a device stands, whichever of a run's targets speaks with it: two variants on one device are two targets."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol
from weakref import WeakKeyDictionary

import attrs

from ..runner.device_protocols import Tenure

__all__ = ["Speaker", "Standing", "standing_of"]


class Speaker(Protocol):
    """A target that may have a connection to the device."""

    async def leave(self) -> None:
        """Give the connection back."""


@attrs.define(eq=False)
class Standing:
    """What all targets of one tenure have to know of a device.

    ``is_to_be_reset``: nobody knows what its sessions hold. ``speaker`` is the target that spoke with it last.
    """

    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    is_to_be_reset: bool = False
    speaker: Speaker | None = None
    _lost_at: float | None = None

    @property
    def is_in_step(self) -> bool:
        """Whether nothing of an earlier exchange can be taken for the next answer."""
        return self._lost_at is None

    def lose_step(self) -> None:
        """Something may still come, or go on."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()

    def regain_step(self) -> None:
        """Nothing comes any more."""
        self._lost_at = None

    def left(self, seconds: float) -> float:
        """What is left of a time that began when the step was lost.

        So a proof that takes longer than an attempt's deadline is not begun anew, in vain, by each attempt.
        """
        return seconds if self._lost_at is None else max(0.0, self._lost_at + seconds - time.monotonic())


_STANDINGS: WeakKeyDictionary[Tenure, dict[str, Standing]] = WeakKeyDictionary()


def standing_of(tenure: Tenure, resource: str) -> Standing:
    """The same for every target that is given this tenure."""
    return _STANDINGS.setdefault(tenure, {}).setdefault(resource, Standing())
