"""What the leases of devices take and give: plain frozen rows."""

from __future__ import annotations

import functools
from typing import Final

import attrs

from .processes import boot_id, host_id
from .states import LeaseState

__all__ = [
    "LEASE_LOST",
    "RESOURCES_MAX",
    "RESOURCE_LENGTH_MAX",
    "Blocked",
    "DeviceAsk",
    "Granted",
    "Lease",
    "Obstacle",
    "has_expired",
    "this_boot",
    "this_host",
]

RESOURCES_MAX: Final = 64
RESOURCE_LENGTH_MAX: Final = 200
LEASE_LOST: Final = "lease.lost"
"""The reason of a dispatch that was in flight under a lease when that went to somebody else."""


@attrs.frozen
class DeviceAsk:
    """One device of a set. ``resource`` is its stable identity (``atlas:SN-0042``), never an address.

    Only a device that ``compares_fences`` is taken over from a holder that is frozen and not proven dead.
    """

    resource: str
    kind: str
    compares_fences: bool
    lease_ms: int = 30_000


@attrs.frozen
class Lease:
    """One device that is held; ``fence`` goes with every request to it."""

    lease_id: str
    resource: str
    fence: int


@attrs.frozen
class Granted:
    """A set that is held, in the order of its resources. It is lost once boot time has passed ``expires_boot_ns``."""

    set_id: str
    leases: tuple[Lease, ...]
    expires_boot_ns: int
    replaced: tuple[str, ...] = ()
    """The leases of dead or frozen holders that were taken over."""

    def lease(self, resource: str) -> Lease:
        """The lease of that device; KeyError when it is not of the set."""
        for lease in self.leases:
            if lease.resource == resource:
                return lease
        raise KeyError(resource)


@attrs.frozen
class Obstacle:
    """Who is in the way: a holder (``held``), an older set in line (``waiting``), or an operator (``quarantined``)."""

    resource: str
    state: LeaseState
    lease_id: str
    set_id: str | None
    worker_id: str | None
    run_key: int | None
    since_us: int
    reason: str | None = None


@attrs.frozen
class Blocked:
    """The set has to wait, and nothing of it is held."""

    set_id: str
    obstacles: tuple[Obstacle, ...]

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The devices that an operator must look at first: waiting for them has no end of its own."""
        return tuple(one.resource for one in self.obstacles if one.state is LeaseState.QUARANTINED)


def has_expired(boot: str | None, expires_boot_ns: int | None, now_boot_ns: int, *, host: str | None = None) -> bool:
    """Whether a lease has run out, by boot time alone: no wall clock frees it or keeps it alive.

    ``host`` is its worker's, where that may be another: that one's boot time means nothing here, and nothing runs out.
    """
    if host is not None and host != this_host():
        return False
    return boot != this_boot() or expires_boot_ns is None or now_boot_ns > expires_boot_ns


@functools.cache
def this_boot() -> str:
    """The kernel's id of this boot, which no process outlives."""
    return boot_id()


@functools.cache
def this_host() -> str:
    """The id of this host."""
    return host_id()
