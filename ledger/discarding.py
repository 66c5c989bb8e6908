"""Deleting many rows of a run that was never shown, in a ledger that has many others.

For each row that goes, the database looks whether something still refers to it. Where no index leads there it goes
through the whole table: six minutes for 20,000 attempts beside 40,000 calls. So the index that a batch needs is there
for as long as the batch takes, within its transaction, and costs nobody else anything.

Two processes may find the same leftover and remove it at once. The number of a run that is gone is given to the next
one: each batch first looks that what it deletes is still what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from .transaction import Transaction

__all__ = ["Hidden", "delete_batch", "half_imported", "half_planned"]

_LOOKED_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "attempts": ("calls (run_key, slot_no, attempt_no)",),
    "calls": ("observations (call_id)", "judgments (call_id)", "turns (call_id)"),
}


@attrs.frozen
class Hidden:
    """A run that was never shown, by what no other run will ever have."""

    _sql: str
    _values: tuple[Any, ...]

    def is_there(self, tx: Transaction) -> bool:
        """Whether nobody else has removed it meanwhile."""
        return tx.row(self._sql, self._values) is not None


def half_planned(run_id: str) -> Hidden:
    """A run that is being planned, or was."""
    return Hidden("SELECT 1 FROM runs WHERE run_id = ? AND state = 'planning'", (run_id,))


def half_imported(import_id: str) -> Hidden:
    """A run that is being imported, or was; the same run may be imported again under the same number."""
    return Hidden("SELECT 1 FROM imports WHERE import_id = ? AND state = 'receiving'", (import_id,))


def delete_batch(tx: Transaction, table: str, sql: str, values: tuple[Any, ...], *, of: Hidden) -> int:
    """Run the DELETE of rows of ``table``, whose first value is their run's key, and return how many they were."""
    looked_for = _LOOKED_FOR.get(table, ())
    if not of.is_there(tx):
        return 0
    if looked_for and tx.row(f"SELECT 1 FROM {table} WHERE run_key = ? LIMIT 1", values[:1]) is None:
        return 0  # an index for nothing is made of every run's rows
    for number, columns in enumerate(looked_for):
        tx.execute(f"CREATE INDEX discarding_{number} ON {columns}")
    count = tx.change(sql, values)
    for number in range(len(looked_for)):
        tx.execute(f"DROP INDEX discarding_{number}")
    return count
