"""Who may go on with a run: one ledger, by the run's custody and its epoch.

A copy can be read, judged and compared; to go on with it, this ledger *adopts* it, with a reason and a higher epoch. A
run that is *moved* is nobody's to continue until its snapshot is taken in. None of this can prove that nobody else goes
on as well: that takes the word of whoever gives the reason. What is unknown stays so, and fences never fall.
"""

from __future__ import annotations

from typing import Final

import attrs

from .errors import ContentsLeftOut, CustodyElsewhere, UsageError
from .ledger import Ledger, Reader
from .ledger_place import is_displaced, known_identity
from .run_reads import RunRow
from .states import CustodyState
from .transaction import Transaction

__all__ = [
    "LOCAL_FROM",
    "as_found",
    "elsewhere",
    "next_number",
    "refuse_moved_away",
    "require_held",
    "require_judgeable",
    "unfinished_copies",
]

LOCAL_FROM: Final = 1001
"""Evaluations of a copy, and their budgets, are numbered from here on: so they stay beside those that the run gets
where it is held, when a later snapshot brings them."""
_NO_END: Final = 2**62
_NEWEST: Final = {
    "evaluations": (
        "SELECT max(evaluation_no) FROM evaluations WHERE run_key = ? AND evaluation_no >= ? AND evaluation_no < ?"
    ),
    "budgets": "SELECT max(budget_no) FROM budgets WHERE run_key = ? AND budget_no >= ? AND budget_no < ?",
}


def as_found(ledger: Ledger, reader: Reader, run: RunRow) -> RunRow:
    """The run with the custody that it will have as soon as somebody writes: a copied file makes copies of its runs."""
    if run.custody == CustodyState.HELD and is_displaced(reader, ledger.path):
        return attrs.evolve(run, custody=CustodyState.COPY.value)
    return run


def require_held(reader: Reader | Transaction, run_key: int) -> None:
    """Raise CustodyElsewhere unless the run is this ledger's to continue, and to decide on."""
    run_id, custody = reader.row("SELECT run_id, custody FROM runs WHERE run_key = ?", (run_key,))
    if custody != CustodyState.HELD:
        raise elsewhere(reader, run_id, custody)


def refuse_moved_away(reader: Reader, work_order_digest: str) -> None:
    """Raise CustodyElsewhere where the newest run of that very work order was moved away: a new one would pay again."""
    row = reader.row(
        "SELECT run_id, custody FROM runs WHERE work_order_digest = ? AND state NOT IN ('planning', 'importing')"
        " ORDER BY run_key DESC LIMIT 1", (work_order_digest,),
    )  # fmt: skip
    if row is not None and row[1] in (CustodyState.MOVING, CustodyState.MOVED):
        raise elsewhere(reader, *row)


def require_judgeable(tx: Transaction, run_key: int, evaluation_no: int | None = None) -> None:
    """Raise where an evaluation (None: a new one) may not be made here.

    ContentsLeftOut where the snapshot that brought the run left something out, CustodyElsewhere where the evaluation
    came with a copy.
    """
    run_id, custody, left_out = tx.row("SELECT run_id, custody, left_out FROM runs WHERE run_key = ?", (run_key,))
    if left_out is not None:
        raise ContentsLeftOut(
            f"run {run_id} came without all of its contents, and cannot be judged here",
            "import a snapshot that was exported without --slots and --redact", run_id,
        )  # fmt: skip
    if custody != CustodyState.HELD and evaluation_no is not None and evaluation_no < LOCAL_FROM:
        raise elsewhere(tx, run_id, custody)


def next_number(tx: Transaction, run_key: int, table: str) -> int:
    """The number of the run's next evaluation or budget (``table`` is ``evaluations`` or ``budgets``)."""
    is_held = tx.row("SELECT custody = 'held' FROM runs WHERE run_key = ?", (run_key,))[0]
    begins, ends = (1, LOCAL_FROM) if is_held else (LOCAL_FROM, _NO_END)
    newest = tx.row(_NEWEST[table], (run_key, begins, ends))[0]
    number = begins if newest is None else int(newest) + 1
    if is_held and number >= LOCAL_FROM:
        raise UsageError(f"the run has {LOCAL_FROM - 1} {table} already", "make a new run of it")
    return number


def unfinished_copies(reader: Reader) -> list[str]:
    """The runs that wait for somebody to go on with them and are copies here, oldest first."""
    return [row[0] for row in reader.rows("SELECT run_id FROM runs WHERE custody = 'copy' AND state = 'open'"
                                          " AND left_out IS NULL ORDER BY run_key")]  # fmt: skip


def elsewhere(reader: Reader | Transaction, run_id: str, custody: str) -> CustodyElsewhere:
    """The error for a run that is not this ledger's; says how it came about and what to do."""
    adopt_it = f"or take it over: `tallystick adopt {run_id[:12]} --reason TEXT`"
    if custody == CustodyState.COPY:
        why, remedy = _why_copy(reader, run_id), f"go on with it where it is held, {adopt_it}"
    elif custody == CustodyState.MOVING:
        why = f"run {run_id} is being moved away"
        remedy = f"finish the move (`tallystick export {run_id[:12]} --move -o FILE`), {adopt_it}"
    else:
        why = f"run {run_id} was moved away: its snapshot may go on with it, this ledger may not"
        remedy = f"go on with it where the snapshot was imported, {adopt_it}"
    return CustodyElsewhere(why, remedy, run_id)


def _why_copy(reader: Reader | Transaction, run_id: str) -> str:
    known = known_identity(reader)
    brought = reader.row("SELECT 1 FROM imports i JOIN runs r ON r.run_key = i.run_key WHERE r.run_id = ?", (run_id,))
    if brought is None and known is not None and known.copied_from:
        return f"run {run_id} is a copy: this ledger's file was copied, restored or moved to another disk"
    return f"run {run_id} is a copy, and not this ledger's to continue"
