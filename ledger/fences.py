"""The number that rises with each new holder of a resource, and never falls."""

from __future__ import annotations

from typing import Final

from .transaction import Transaction

__all__ = ["high_water", "next_fence"]

_RAISE: Final = (
    "INSERT INTO fences (resource, high_water) VALUES (?, ? + 1)"
    " ON CONFLICT (resource) DO UPDATE SET high_water = max(high_water, ?) + 1 RETURNING high_water"
)


def next_fence(tx: Transaction, resource: str, *, seen: int = 0) -> int:
    """One more than the highest that this ledger has given and than ``seen``, which is remembered as the highest."""
    fence: int = tx.rows(_RAISE, (resource, seen, seen))[0][0]
    return fence


def high_water(tx: Transaction, resource: str) -> int:
    """The highest fence that this ledger has given for the resource; 0 where there was none."""
    row = tx.row("SELECT high_water FROM fences WHERE resource = ?", (resource,))
    return 0 if row is None else int(row[0])
