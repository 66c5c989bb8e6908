"""Instants as people and ``--json`` read them."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

__all__ = ["instant"]


def instant(us: int) -> str:
    """Microseconds since the epoch as UTC in ISO 8601, to the millisecond."""
    seconds, rest = divmod(us, 1_000_000)
    return f"{_second(seconds)}.{rest // 1000:03d}Z"


@lru_cache(maxsize=1024)  # a list of attempts has most seconds several times
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
