"""How a device stands, whichever of a run's targets speaks with it: two variants on one device are two targets."""

from __future__ import annotations

import asyncio
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

    ``is_in_step``: nothing of an earlier exchange can be taken for the next answer. ``is_to_be_reset``: nobody knows
    what its sessions hold. ``speaker`` is the target that spoke with it last.
    """

    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    is_in_step: bool = True
    is_to_be_reset: bool = False
    speaker: Speaker | None = None


_STANDINGS: WeakKeyDictionary[Tenure, dict[str, Standing]] = WeakKeyDictionary()


def standing_of(tenure: Tenure, resource: str) -> Standing:
    """The same for every target that is given this tenure."""
    return _STANDINGS.setdefault(tenure, {}).setdefault(resource, Standing())
