"""Instants as people and ``--json`` read them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["instant"]


def instant(us: int) -> str:
    """Microseconds since the epoch as UTC in ISO 8601, to the millisecond."""
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
