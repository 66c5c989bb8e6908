"""Writing what the runs of a snapshot refer to beyond themselves. It harms nobody to know it, so it needs no hiding.

Large artifacts are brought to their places meanwhile, which takes a sync for each of some hundred folders; their rows
are written once that is done, and before any row that refers to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
from sqlalchemy import Table

from .crashpoints import crashpoint
from .errors import SnapshotInvalid
from .ledger import Ledger
from .snapshot_tables import SHARED_TABLES, insert_into, rows_of_shared
from .snapshot_verify import VerifiedSnapshot

__all__ = ["BYTES_PER_BATCH", "SharedRows"]

_ROWS_PER_BATCH: Final = 5_000
BYTES_PER_BATCH: Final = 8 << 20
_ON_CONFLICT: Final = {
    # A worker of this ledger is known better here; one that a snapshot brought may have ended since.
    "workers": (
        "ON CONFLICT (worker_id) DO UPDATE SET ended_us = excluded.ended_us, end_reason = excluded.end_reason"
        " WHERE workers.host = '' AND workers.ended_us IS NULL"
    ),
    "qualifications": "ON CONFLICT (qualification_id) DO NOTHING",
    "artifacts": "ON CONFLICT (digest) DO NOTHING",
    # Fences never fall.
    "fences": "ON CONFLICT (resource) DO UPDATE SET high_water = max(high_water, excluded.high_water)",
}


@attrs.define
class SharedRows:
    """``in_place`` waits until the files of the large artifacts are where the ledger keeps them, durably."""

    ledger: Ledger
    snapshot: VerifiedSnapshot
    in_place: Callable[[], object]
    _has_artifacts: bool = attrs.field(default=False, init=False)

    def write(self) -> None:
        """Write all but the artifacts; raises SnapshotInvalid where a qualification is another one here."""
        for table in SHARED_TABLES:
            if table.name != "artifacts":
                self._write(table)
        _refuse_other_qualifications(self.ledger, self.snapshot)

    def write_artifacts(self) -> None:
        """Wait for the files, then write their rows and those of the small ones; done once, however often asked."""
        if not self._has_artifacts:
            self.in_place()
            self._write(next(table for table in SHARED_TABLES if table.name == "artifacts"))
            self._has_artifacts = True

    def needed_by(self, table: Table) -> bool:
        """Whether rows of the table refer to artifacts."""
        return any(key.column.table.name == "artifacts" for key in table.foreign_keys)

    def _write(self, table: Table) -> None:
        insert, fixed = insert_into(table, created_us=self.ledger.clock.now_us())
        sql = f"{insert} {_ON_CONFLICT[table.name]}"
        # But for workers, nothing is there that no row refers to: that was verified.
        keys = range(1, len(self.snapshot.manifest.runs) + 1) if table.name == "workers" else None
        for batch in _batches(self.snapshot.rows.each(rows_of_shared(table, keys))):
            values = [(*fixed, *row) for row in batch]
            self.ledger.write(lambda tx, values=values: tx.cursor.executemany(sql, values))  # type: ignore[misc]
            crashpoint("import.batch")


def _batches(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Rows by the thousand, fewer where they are large."""
    while block := list(itertools.islice(rows, 100)):
        batch, size = block, _size(block)
        while len(batch) < _ROWS_PER_BATCH and size < BYTES_PER_BATCH:
            block = list(itertools.islice(rows, 100))
            if not block:
                break
            batch += block
            size += _size(block)
        yield batch


def _size(rows: list[tuple[Any, ...]]) -> int:
    return sum(len(value) for row in rows for value in row if type(value) is str or type(value) is bytes)


def _refuse_other_qualifications(ledger: Ledger, snapshot: VerifiedSnapshot) -> None:
    sql = "SELECT * FROM qualifications WHERE qualification_id = ?"
    with ledger.reading() as reader:
        for row in snapshot.rows.each("SELECT * FROM qualifications"):
            if (ours := reader.row(sql, (row[0],))) != row:
                raise SnapshotInvalid(
                    f"the snapshot {snapshot.path} has another qualification {row[0]} than this ledger: {ours}",
                    "one of both was changed: trust neither", str(snapshot.path), f"qualification {row[0]}",
                )  # fmt: skip
