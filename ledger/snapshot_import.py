"""Taking a snapshot in: verified completely, written hidden in bounded batches, shown by one flip.

A kill before the flip leaves rows that nobody sees, and the next import removes them; a kill after it leaves a complete
import. Taking the same snapshot in again changes nothing. A run that is here already is moved forward in the flip.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import attrs
from sqlalchemy import Table

from .bulk import SOURCE, BulkWriter
from .crashpoints import crashpoint
from .custody_changes import lose_custody
from .driver import DatabaseError
from .errors import CommitUnknown, LedgerError, RunBusy, SnapshotDiverged, SnapshotInvalid
from .failures import is_of_file
from .import_care import discard_half_imported, discard_run, import_folder
from .ledger import Ledger, Reader
from .ledger_place import ledger_id
from .schema import imports
from .snapshot_compare import Became, Comparison, compare
from .snapshot_format import RunEntry, rows_member
from .snapshot_forward import Forward, prepare_forward
from .snapshot_shared import BYTES_PER_BATCH, SharedRows
from .snapshot_tables import RUN_TABLES, columns_of, copy_stretch, key_of, rows_of_run
from .snapshot_verify import VerifiedSnapshot, verified
from .statements import hot_insert
from .states import CustodyState
from .transaction import Transaction

__all__ = ["Imported", "ImportedRun", "import_snapshot"]

_COPIED_PER_BATCH: Final = 20_000
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
    hidden: list[_Hidden] = []
    try:
        with snapshot.artifacts.taking_over(ledger.artifacts) as in_place:
            shared = SharedRows(ledger, snapshot, in_place)
            shared.write()
            for entry, comparison in zip(snapshot.manifest.runs, found, strict=True):
                if comparison.became is Became.NEW:
                    hidden.append(_write_run(shared, entry, comparison, hidden))
            shared.write_artifacts()
        _flip(ledger, snapshot, found, hidden)
    except BaseException as problem:
        if ledger.failure is None and not isinstance(problem, CommitUnknown):
            with contextlib.suppress(LedgerError):  # what is left there is removed by the next import
                for run in hidden:
                    discard_run(ledger, run.import_id, run.run_key)
        if isinstance(problem, DatabaseError) and not is_of_file(problem):
            raise _collides(snapshot, problem) from problem
        raise
    crashpoint("import.flipped")


def _write_run(shared: SharedRows, entry: RunEntry, comparison: Comparison, hidden: list[_Hidden]) -> _Hidden:
    ledger, snapshot = shared.ledger, shared.snapshot
    their_key = snapshot.run_key(entry)
    row = snapshot.rows.row(rows_of_run(RUN_TABLES[0], their_key))
    import_id, run_key = ledger.write(lambda tx: _add_head(tx, snapshot, row))
    made = _Hidden(import_id, run_key, entry, comparison)
    try:
        with ledger.bulk(snapshot.scratch.path) as writer:
            for table in RUN_TABLES[1:]:
                if shared.needed_by(table):
                    shared.write_artifacts()
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
    each = max(1, min(_COPIED_PER_BATCH, BYTES_PER_BATCH * count // max(1, size)))
    first: tuple[Any, ...] | None = None
    for last in snapshot.scratch.stretches(table.name, key_of(table), theirs, each):
        sql = copy_stretch(table, SOURCE, run_key=ours, is_first=first is None)
        writer.write(sql, (theirs, *(first or ()), *last))
        crashpoint("import.batch")
        first = last


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
