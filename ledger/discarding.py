"""Deleting many rows of a run that was never shown, in a ledger that has many others.

For each row that goes, the database looks whether something still refers to it. Where no index leads there it goes
through the whole table: six minutes for 20,000 attempts beside 40,000 calls. So the index that a batch needs is there
for as long as the batch takes, within its transaction, and costs nobody else anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .transaction import Transaction

__all__ = ["delete_batch"]

_LOOKED_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "attempts": ("calls (run_key, slot_no, attempt_no)",),
    "calls": ("observations (call_id)", "judgments (call_id)", "turns (call_id)"),
}


def delete_batch(tx: Transaction, table: str, sql: str, values: tuple[Any, ...]) -> int:
    """Run the DELETE of rows of ``table`` and return how many they were; call it only where there may be some."""
    looked_for = _LOOKED_FOR.get(table, ())
    for number, columns in enumerate(looked_for):
        tx.execute(f"CREATE INDEX discarding_{number} ON {columns}")
    count = tx.change(sql, values)
    for number in range(len(looked_for)):
        tx.execute(f"DROP INDEX discarding_{number}")
    return count
