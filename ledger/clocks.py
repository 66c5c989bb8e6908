"""Time, injected: instants for records, boot time for leases, and nothing that a stepped wall clock can bend."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

import attrs

__all__ = ["Clock", "SystemClock", "instant", "microseconds"]


class Clock(Protocol):
    """What the ledger asks of time."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC; may be stepped by an operator."""

    def boot_ns(self) -> int:
        """Nanoseconds since boot, suspend included; never steps."""


@attrs.frozen
class SystemClock:
    """The machine's clocks (`CLOCK_REALTIME`, `CLOCK_BOOTTIME`; monotonic where there is no boot time)."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def boot_ns(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def instant(value_us: int) -> datetime:
    """The stored microseconds as an aware UTC instant."""
    return datetime.fromtimestamp(value_us / 1_000_000, tz=UTC)


def microseconds(value: datetime) -> int:
    """An aware instant as the microseconds that the ledger stores; raises ValueError for a naive one."""
    if value.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return round(value.timestamp() * 1_000_000)
