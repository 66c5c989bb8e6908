"""Taking a snapshot in: verified completely, written hidden in bounded batches, shown by one flip.

A kill before the flip leaves rows that nobody sees, and the next import removes them; a kill after it leaves a complete
import. Taking the same snapshot in again changes nothing. A run that is here already is moved forward in the flip.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
from sqlalchemy import Table

from .bulk import SOURCE, BulkWriter
from .crashpoints import crashpoint
from .custody_changes import lose_custody
from .driver import DatabaseError
from .errors import CommitUnknown, LedgerError, RunBusy, SnapshotDiverged, SnapshotInvalid
from .import_care import discard_half_imported, discard_run, import_folder
from .ledger import Ledger, Reader
from .ledger_place import ledger_id
from .schema import imports
from .snapshot_compare import Became, Comparison, compare
from .snapshot_format import RunEntry, rows_member
from .snapshot_forward import Forward, prepare_forward
from .snapshot_tables import (
    RUN_TABLES,
    SHARED_TABLES,
    columns_of,
    copy_stretch,
    insert_into,
    key_of,
    rows_of_run,
    rows_of_shared,
)
from .snapshot_verify import VerifiedSnapshot, verified
from .statements import hot_insert
from .states import CustodyState
from .transaction import Transaction

__all__ = ["Imported", "ImportedRun", "import_snapshot"]

_ROWS_PER_BATCH: Final = 5_000
_COPIED_PER_BATCH: Final = 20_000
_BYTES_PER_BATCH: Final = 8 << 20
_TRIES: Final = 3
_ADD_IMPORT = hot_insert(imports, "import_id", "state", "snapshot_digest", "run_key", "worker_id", "began_us")


@attrs.frozen
class ImportedRun:
    """What an import made of a run: from which event to which, and whose it is here now."""

    run_id: str
    name: str
    became: Became
    event_before: int
    event_no: int
    custody: CustodyState
    epoch: int


@attrs.frozen
class Imported:
    """A snapshot that was taken in; ``runs`` in the order of their ids."""

    path: Path
    digest: str
    runs: tuple[ImportedRun, ...]

    @property
    def changed(self) -> bool:
        """Whether anything was new here."""
        return any(run.became is not Became.UNCHANGED for run in self.runs)


@attrs.frozen
class _Hidden:
    """A run that is being written and not shown yet."""

    import_id: str
    run_key: int
    entry: RunEntry
    comparison: Comparison


def import_snapshot(ledger: Ledger, path: Path) -> Imported:
    """Take the snapshot in: everything that its manifest names, or nothing.

    Raises SnapshotInvalid, SnapshotNewer, SnapshotDiverged, RunBusy (a run that is executed here, or that another
    process is taking in) and LedgerFailed; what readers see is unchanged then.
    """
    discard_half_imported(ledger)
    with import_folder(ledger) as folder, verified(path, folder) as snapshot:
        with ledger.reading() as reader:
            found = [_compare(ledger, reader, snapshot, entry) for entry in snapshot.manifest.runs]
        if any(one.became is not Became.UNCHANGED for one in found):
            _take_in(ledger, snapshot, found)
    return Imported(path, snapshot.manifest.digest, tuple(map(_told, snapshot.manifest.runs, found)))


def _compare(ledger: Ledger, reader: Reader, snapshot: VerifiedSnapshot, entry: RunEntry) -> Comparison:
    try:
        return compare(reader, entry, snapshot.rows, snapshot.run_key(entry))
    except SnapshotDiverged as problem:
        # It was adopted elsewhere, and went on here as well: what happened here stays, and nothing more may.
        if lose_custody(ledger, entry.run, epoch=entry.epoch, snapshot=snapshot.manifest.digest):
            raise SnapshotDiverged(
                f"{problem.what}; it was taken over there with epoch {entry.epoch}, so it goes on here no more",
                problem.remedy, problem.run_id, problem.event_no,
            ) from problem  # fmt: skip
        raise


def _told(entry: RunEntry, found: Comparison) -> ImportedRun:
    now = found.ours if found.became is Became.UNCHANGED else found.ours - found.shared + entry.event_no
    return ImportedRun(entry.run, entry.name, found.became, found.ours, now, found.custody, found.epoch)


def _take_in(ledger: Ledger, snapshot: VerifiedSnapshot, found: list[Comparison]) -> None:
    snapshot.artifacts.take_over(ledger.artifacts)
    _write_shared(ledger, snapshot)
    hidden: list[_Hidden] = []
    try:
        for entry, comparison in zip(snapshot.manifest.runs, found, strict=True):
            if comparison.became is Became.NEW:
                hidden.append(_write_run(ledger, snapshot, entry, comparison, hidden))
        _flip(ledger, snapshot, found, hidden)
    except BaseException as problem:
        if ledger.failure is None and not isinstance(problem, CommitUnknown):
            with contextlib.suppress(LedgerError):  # what is left there is removed by the next import
                for run in hidden:
                    discard_run(ledger, run.import_id, run.run_key)
        if isinstance(problem, DatabaseError):
            raise _collides(snapshot, problem) from problem
        raise
    crashpoint("import.flipped")


def _write_shared(ledger: Ledger, snapshot: VerifiedSnapshot) -> None:
    """What runs refer to: it harms nobody to know it, so it needs no hiding."""
    keys = list(range(1, len(snapshot.manifest.runs) + 1))
    for table in SHARED_TABLES:
        sql, fixed = insert_into(table, created_us=ledger.clock.now_us())
        _write_rows(ledger, f"{sql} {_ON_CONFLICT[table.name]}", fixed, snapshot.rows.each(rows_of_shared(table, keys)))
    _refuse_other_qualifications(ledger, snapshot)


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


def _refuse_other_qualifications(ledger: Ledger, snapshot: VerifiedSnapshot) -> None:
    sql = "SELECT * FROM qualifications WHERE qualification_id = ?"
    with ledger.reading() as reader:
        for row in snapshot.rows.each("SELECT * FROM qualifications"):
            if (ours := reader.row(sql, (row[0],))) != row:
                raise SnapshotInvalid(
                    f"the snapshot {snapshot.path} has another qualification {row[0]} than this ledger: {ours}",
                    "one of both was changed: trust neither", str(snapshot.path), f"qualification {row[0]}",
                )  # fmt: skip


def _write_run(
    ledger: Ledger, snapshot: VerifiedSnapshot, entry: RunEntry, comparison: Comparison, hidden: list[_Hidden]
) -> _Hidden:
    their_key = snapshot.run_key(entry)
    row = snapshot.rows.row(rows_of_run(RUN_TABLES[0], their_key))
    import_id, run_key = ledger.write(lambda tx: _add_head(tx, snapshot, row))
    made = _Hidden(import_id, run_key, entry, comparison)
    try:
        with ledger.bulk(snapshot.scratch.path) as writer:
            for table in RUN_TABLES[1:]:
                _copy_rows(writer, snapshot, entry, table, (run_key, their_key))
    except BaseException:
        hidden.append(made)  # what is there of it goes with the others
        raise
    return made


def _add_head(tx: Transaction, snapshot: VerifiedSnapshot, row: tuple[Any, ...]) -> tuple[str, int]:
    names = columns_of(RUN_TABLES[0])
    values = {**dict(zip(names, row, strict=True)), "state": "importing", "custody": "copy"}
    other = tx.row("SELECT i.worker_id FROM runs r LEFT JOIN imports i ON i.run_key = r.run_key WHERE r.run_id = ?",
                   (values["run_id"],))  # fmt: skip
    if other is not None:
        raise RunBusy(
            f"run {values['run_id']} is being taken in by another process (worker {other[0]})",
            "wait for it, then import again", values["run_id"], str(other[0]),
        )  # fmt: skip
    marks = ", ".join("?" * len(values))
    tx.execute(f"INSERT INTO runs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
    run_key: int = tx.row("SELECT run_key FROM runs WHERE run_id = ?", (values["run_id"],))[0]
    import_id = tx.ids.next()
    tx.execute(_ADD_IMPORT, (import_id, "receiving", snapshot.manifest.digest, run_key, tx.worker_id, tx.now_us))
    return import_id, run_key


def _copy_rows(
    writer: BulkWriter, snapshot: VerifiedSnapshot, entry: RunEntry, table: Table, run_keys: tuple[int, int]
) -> None:
    """A table in the order of its keys, in batches of about as many bytes."""
    ours, theirs = run_keys
    start = rows_member(table.name, 1, entry.run)[: -len("0001.jsonl")]
    count = max(1, entry.rows.get(table.name, 0))
    size = sum(member.size for member in snapshot.manifest.members if member.name.startswith(start))
    size += count * entry.same_size(table.name)
    each = max(1, min(_COPIED_PER_BATCH, _BYTES_PER_BATCH * count // max(1, size)))
    first: tuple[Any, ...] | None = None
    for last in snapshot.scratch.stretches(table.name, key_of(table), theirs, each):
        sql = copy_stretch(table, SOURCE, run_key=ours, is_first=first is None)
        writer.write(sql, (theirs, *(first or ()), *last))
        crashpoint("import.batch")
        first = last


def _write_rows(ledger: Ledger, sql: str, fixed: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> None:
    for batch in _batches(rows):
        values = [(*fixed, *row) for row in batch]
        ledger.write(lambda tx, values=values: tx.cursor.executemany(sql, values))  # type: ignore[misc]
        crashpoint("import.batch")


def _batches(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Rows by the thousand, fewer where they are large."""
    while block := list(itertools.islice(rows, 100)):
        batch, size = block, _size(block)
        while len(batch) < _ROWS_PER_BATCH and size < _BYTES_PER_BATCH:
            block = list(itertools.islice(rows, 100))
            if not block:
                break
            batch += block
            size += _size(block)
        yield batch


def _size(rows: list[tuple[Any, ...]]) -> int:
    return sum(len(value) for row in rows for value in row if type(value) is str or type(value) is bytes)


def _flip(ledger: Ledger, snapshot: VerifiedSnapshot, found: list[Comparison], hidden: list[_Hidden]) -> None:
    """One transaction in which everything of the snapshot is there, or nothing."""
    with contextlib.ExitStack() as stack:
        forwards = [
            stack.enter_context(prepare_forward(ledger, snapshot, entry, one))
            for entry, one in zip(snapshot.manifest.runs, found, strict=True)
            if one.became is Became.FORWARD
        ]
        taken = [
            (entry, one) for entry, one in zip(snapshot.manifest.runs, found, strict=True) if one.became is Became.HELD
        ]
        if not forwards:
            ledger.write(lambda tx: _show_all(tx, snapshot, hidden, forwards, taken))
            return
        crashpoint("forward.prepared")
        with ledger.bulk(snapshot.scratch.path) as writer:
            writer.show(lambda tx: _show_all(tx, snapshot, hidden, forwards, taken))


def _show_all(
    tx: Transaction,
    snapshot: VerifiedSnapshot,
    hidden: list[_Hidden],
    forwards: list[Forward],
    taken: list[tuple[RunEntry, Comparison]],
) -> None:
    for run in hidden:
        tx.move("run", run.entry.state,
                "UPDATE runs SET state = ?, custody = ?, custody_epoch = ? WHERE run_key = ? AND state = 'importing'",
                (run.entry.state, run.comparison.custody, run.comparison.epoch, run.run_key))  # fmt: skip
        tx.move("import", "complete", "UPDATE imports SET state = 'complete', ended_us = ? WHERE import_id = ?"
                " AND state = 'receiving'", (tx.now_us, run.import_id))  # fmt: skip
        if run.entry.custody == "move":
            _tell_taken(tx, run.run_key, run.entry, snapshot)
    for forward in forwards:
        forward.apply(tx)
        crashpoint("forward.inside")
        _add_complete(tx, snapshot, forward.run_key)
        if forward.comparison.custody is CustodyState.HELD and forward.entry.custody == "move":
            _tell_taken(tx, forward.run_key, forward.entry, snapshot)
    for entry, one in taken:
        tx.move("run", "held", "UPDATE runs SET custody = 'held', custody_epoch = ? WHERE run_key = ?"
                " AND custody = 'copy'", (one.epoch, one.run_key))  # fmt: skip
        assert one.run_key is not None
        _add_complete(tx, snapshot, one.run_key)
        _tell_taken(tx, one.run_key, entry, snapshot)


def _add_complete(tx: Transaction, snapshot: VerifiedSnapshot, run_key: int) -> None:
    import_id = tx.ids.next()
    tx.execute(_ADD_IMPORT, (import_id, "receiving", snapshot.manifest.digest, run_key, tx.worker_id, tx.now_us))
    tx.move("import", "complete", "UPDATE imports SET state = 'complete', ended_us = ? WHERE import_id = ?",
            (tx.now_us, import_id))  # fmt: skip


def _tell_taken(tx: Transaction, run_key: int, entry: RunEntry, snapshot: VerifiedSnapshot) -> None:
    tx.event(run_key, "run.taken_over", {
        "epoch": entry.epoch, "ledger": ledger_id(tx), "snapshot": snapshot.manifest.digest,
    })  # fmt: skip


def _collides(snapshot: VerifiedSnapshot, problem: Exception) -> SnapshotInvalid:
    first = str(problem).splitlines()[0]
    return SnapshotInvalid(
        f"the snapshot {snapshot.path} does not go with what this ledger holds: {first}",
        "something in it bears the id of something else here: trust neither it nor whoever made it",
        str(snapshot.path), first,
    )  # fmt: skip
