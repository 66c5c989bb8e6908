"""Moving a copy forward: a later snapshot of a run that is here brings what happened since.

What differs is put aside in the snapshot's own scratch rows, outside every transaction; the transaction that shows it
copies that by SQLite itself and does nothing else, so that it takes as long as the difference is large (its figures
are in decision 12). Evaluations that were made here stay: their events follow the run's new ones.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
from sqlalchemy import Table

from .bulk import SOURCE
from .custody import LOCAL_FROM
from .errors import RunBusy, SnapshotInvalid
from .history import history_at
from .history_budgets import budgets_by_replay
from .holders import dead_leases, let_go_of_run
from .ledger import Ledger, Reader
from .schema_rules import NEVER_CHANGED
from .snapshot_compare import Comparison, is_local
from .snapshot_format import RunEntry
from .snapshot_tables import RUN_TABLES, columns_of, key_of, rows_between, rows_of_run
from .snapshot_verify import VerifiedSnapshot
from .transaction import Transaction

__all__ = ["Forward", "prepare_forward"]

_ROWS_PER_VIEW: Final = 20_000
_SEPARATE: Final = ("runs", "events")
_THEN: Final = "import again"
_LOCAL_SPENDING: Final = (
    "SELECT 1 FROM calls c JOIN reservations s ON s.call_id = c.call_id"
    " WHERE c.owner = 'judgment' AND c.run_key = ? AND c.evaluation_no >= ? LIMIT 1"
)
"""A local evaluation's call that holds or has used something of a budget."""


@attrs.frozen
class Forward:
    """What is new of a run, put aside; ``dead`` are leases whose holders are proven dead."""

    snapshot: VerifiedSnapshot
    entry: RunEntry
    comparison: Comparison
    run_key: int
    dead: tuple[str, ...]

    def apply(self, tx: Transaction) -> None:
        """Write it, inside `BulkWriter.show`; raises RunBusy when the run has changed since it was compared."""
        self._refuse_changed(tx)
        # Deleting and writing anew is what the rules allow of a run that is hidden; nobody sees it so.
        tx.move("run", "importing", "UPDATE runs SET state = 'importing' WHERE run_key = ?", (self.run_key,))
        local = self._take_local_events(tx)
        for table in RUN_TABLES:
            if table.name not in _SEPARATE:
                self._write(tx, table)
        self._add_events(tx, local)
        self._update_run(tx)
        if local:
            self._mend_local(tx)

    def _refuse_changed(self, tx: Transaction) -> None:
        number, digest = tx.row(
            "SELECT event_no, hash FROM events WHERE run_key = ? ORDER BY event_no DESC LIMIT 1", (self.run_key,)
        )
        let_go_of_run(tx, self.run_key, self.dead, then=_THEN)
        if (number, bytes(digest)) != (self.comparison.ours, self.comparison.newest_hash):
            raise RunBusy(
                f"run {self.entry.run} has changed while its snapshot was compared", _THEN, self.entry.run,
                "another process",
            )  # fmt: skip

    def _write(self, tx: Transaction, table: Table) -> None:
        names = ", ".join(columns_of(table))
        tx.change(
            f"INSERT OR REPLACE INTO main.{table.name} (run_key, {names}) SELECT ?, {names}"
            f" FROM {SOURCE}.{_aside(table, self.run_key)}", (self.run_key,),
        )  # fmt: skip

    def _take_local_events(self, tx: Transaction) -> list[tuple[str, int, str]]:
        found = tx.rows(
            "SELECT kind, at_us, body FROM events WHERE run_key = ? AND event_no > ? ORDER BY event_no",
            (self.run_key, self.comparison.shared),
        )
        tx.change("DELETE FROM events WHERE run_key = ? AND event_no > ?", (self.run_key, self.comparison.shared))
        tx.forget_heads()
        return found

    def _add_events(self, tx: Transaction, local: list[tuple[str, int, str]]) -> None:
        table = next(table for table in RUN_TABLES if table.name == "events")
        names = ", ".join(columns_of(table))
        tx.change(
            f"INSERT INTO main.events (run_key, {names}) SELECT ?, {names} FROM {SOURCE}.events"
            " WHERE run_key = ? AND event_no > ? ORDER BY event_no",
            (self.run_key, self.snapshot.run_key(self.entry), self.comparison.shared),
        )
        tx.forget_heads()
        now_us = tx.now_us
        for kind, at_us, body in local:
            # The set of a local evaluation ends at a shared event: the run's own events after it are not the same now.
            tx.now_us = at_us
            tx.event(self.run_key, kind, _with_shared_set(kind, json.loads(body), self.comparison.shared))
        tx.now_us = now_us

    def _update_run(self, tx: Transaction) -> None:
        names = columns_of(RUN_TABLES[0])
        row = self.snapshot.rows.row(rows_of_run(RUN_TABLES[0], self.snapshot.run_key(self.entry)))
        values = {**dict(zip(names, row, strict=True)), "custody": self.comparison.custody,
                  "custody_epoch": self.comparison.epoch}  # fmt: skip
        changes = ", ".join(f"{name} = ?" for name in values)
        tx.change(f"UPDATE runs SET {changes} WHERE run_key = ?", (*values.values(), self.run_key))

    def _mend_local(self, tx: Transaction) -> None:
        """What local evaluations share with the run: the ends of their sets, and the sums of budgets."""
        shared = self.comparison.shared
        tx.change(
            "UPDATE evaluations SET set_at_event = min(set_at_event, ?), set_read_to = min(set_read_to, ?)"
            " WHERE run_key = ? AND evaluation_no >= ?", (shared, shared, self.run_key, LOCAL_FROM),
        )  # fmt: skip
        if tx.row(_LOCAL_SPENDING, (self.run_key, LOCAL_FROM)) is None:
            return  # going through the whole history takes longer than all the rest
        reader = Reader(tx.cursor.connection, self.snapshot.rows.artifacts)
        for state in budgets_by_replay(reader, history_at(reader, self.run_key)):
            tx.change(
                "UPDATE budgets SET held = ?1, settled = ?2, unknown_uses = ?3, overrun = CASE kind WHEN 'hard'"
                " THEN max(?4, ?1 + ?2 - limit_amount) ELSE ?4 END WHERE run_key = ?5 AND budget_no = ?6",
                (state.held, state.settled, state.unknown_uses, state.overrun, self.run_key, state.plan.budget_no),
            )  # fmt: skip


@contextlib.contextmanager
def prepare_forward(
    ledger: Ledger, snapshot: VerifiedSnapshot, entry: RunEntry, comparison: Comparison
) -> Iterator[Forward]:
    """Put aside what is new of the run; raises RunBusy and SnapshotInvalid."""
    assert comparison.run_key is not None
    run_key, their_key = comparison.run_key, snapshot.run_key(entry)
    tables = [table for table in RUN_TABLES if table.name not in _SEPARATE]
    try:
        dead = dead_leases(ledger, run_key, then=_THEN)
        for table in tables:
            new = _new_rows(ledger, snapshot, table, (run_key, their_key))
            snapshot.scratch.keep_aside(_aside(table, run_key), table.name, columns_of(table), new)
        yield Forward(snapshot, entry, comparison, run_key, dead)
    finally:
        for table in tables:
            snapshot.scratch.forget(_aside(table, run_key))


def _new_rows(
    ledger: Ledger, snapshot: VerifiedSnapshot, table: Table, run_keys: tuple[int, int]
) -> Iterator[tuple[Any, ...]]:
    """The rows that are not here as they are there, in the order of their keys.

    Each stretch is looked at in a view of its own: a long one would be ended where others write. That the run has not
    changed from the first to the last is found out by its newest event, when all of this is shown.
    """
    first: tuple[Any, ...] = ()
    for last in snapshot.scratch.stretches(table.name, key_of(table), run_keys[1], _ROWS_PER_VIEW):
        ours, theirs = (rows_between(table, run_key, is_first=not first) for run_key in run_keys)
        with ledger.reading() as reader:
            mine = reader.each(ours, (*first, *last))
            yield from _other_rows(table, mine, snapshot.rows.each(theirs, (*first, *last)))
        first = last


def _other_rows(
    table: Table, mine: Iterator[tuple[Any, ...]], others: Iterator[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """Those of the others that are not among mine; both in the order of their keys."""
    names = columns_of(table)
    places = [names.index(name) for name in key_of(table)]
    next_mine = next(mine, None)
    for row in others:
        key = [row[place] for place in places]
        while next_mine is not None and [next_mine[place] for place in places] < key:
            next_mine = next(mine, None)
        is_here = next_mine is not None and [next_mine[place] for place in places] == key
        if is_here and next_mine == row:
            continue
        if is_here and table.name in NEVER_CHANGED:
            raise _changed(table.name, key)
        yield row


def _aside(table: Table, run_key: int) -> str:
    return f"aside_{table.name}_{run_key}"


def _with_shared_set(kind: str, body: dict[str, Any], shared: int) -> dict[str, Any]:
    assert is_local(kind, body)
    return {**body, "set_at": min(body["set_at"], shared)} if "set_at" in body else body


def _changed(table: str, key: list[Any]) -> SnapshotInvalid:
    place = f"{table} {'/'.join(map(str, key))}"
    return SnapshotInvalid(
        f"the snapshot tells otherwise of {place} than this ledger, where that is never changed",
        "import it into a ledger of its own, or one that was exported without --slots and --redact", place=place,
    )  # fmt: skip
