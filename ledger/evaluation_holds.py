"""One coordinator an evaluation, and what it finds when it takes one over from a dead one.

As with runs (`coordinators`): the lease is taken by compare-and-set on the one that was seen held, a holder is replaced
when, and only when, its process is proven dead, and what it left is classified in the same transaction.
"""

from __future__ import annotations

from typing import Final

import attrs

from . import budgets
from .attempt_rows import end_dispatch
from .crashpoints import crashpoint
from .custody import require_judgeable
from .errors import EvaluationBusy
from .evaluations import EvaluationRow
from .holders import Holder, holder_of
from .judgments import add_judgments
from .ledger import Ledger
from .processes import boot_id
from .records import DispatchFacts, DispatchKey, JudgmentRow
from .schema import leases
from .statements import hot_insert
from .states import DispatchState, IfUnknown
from .transaction import Transaction
from .verdicts import NoVerdictReason

__all__ = [
    "SOLITARY_DEATHS_MAX",
    "EvaluationHold",
    "RecoveredJudgments",
    "leave_evaluation",
    "left_under_way",
    "open_evaluation",
    "recover_judgments",
]

SOLITARY_DEATHS_MAX: Final = 3

_ADD_LEASE = hot_insert(
    leases, "lease_id", "resource", "state", "worker_id", "run_key", "fence", "asked_us", "since_us", "boot_id"
)
_KILLED: Final = "the process died {deaths} times while this was the only judgment under way"


@attrs.frozen
class RecoveredJudgments:
    """What a dead process left under way: judgments that wait again, that are undecided, that are given up."""

    dead_worker: str = ""
    again: int = 0
    undecided: int = 0
    parked: int = 0


@attrs.frozen
class EvaluationHold:
    """This process's hold of an evaluation."""

    evaluation: EvaluationRow
    lease_id: str
    fence: int
    recovered: RecoveredJudgments


def open_evaluation(
    ledger: Ledger, evaluation: EvaluationRow, *, solitary_deaths_max: int = SOLITARY_DEATHS_MAX
) -> EvaluationHold:
    """Become the evaluation's coordinator and recover what a dead one left.

    Raises EvaluationBusy while a live process (or one that cannot be proven dead from here) holds it, and
    CustodyElsewhere for an evaluation that came with a copy.
    """
    holder = holder_of(ledger, _resource(evaluation.evaluation_id))
    if holder is not None and not holder.dead:
        raise _busy(evaluation, holder)
    hold = ledger.write(lambda tx: _take(tx, evaluation, holder, solitary_deaths_max))
    crashpoint("evaluation.opened")
    return hold


def leave_evaluation(tx: Transaction, hold: EvaluationHold, *, reason: str) -> bool:
    """Give the evaluation back, and end it when every judgment of its set is given; says whether it is ended."""
    row = hold.evaluation
    ended = _end_when_whole(tx, row)
    tx.change("UPDATE leases SET state = 'released', ended_us = ?, reason = ? WHERE lease_id = ? AND state = 'held'",
              (tx.now_us, reason, hold.lease_id))  # fmt: skip
    tx.event(row.run_key, "evaluation.left", {
        "evaluation": row.evaluation_no, "worker": tx.worker_id, "reason": reason, "ended": ended,
    })  # fmt: skip
    return ended


def recover_judgments(
    tx: Transaction, run_key: int, evaluation_no: int, *, dead_worker: str, solitary_deaths_max: int
) -> RecoveredJudgments:
    """Classify every judgment that somebody was at; the caller knows that nobody is at one now.

    Those that wait again are suspects: a death is charged only to one that was alone, and after so many it is given up;
    ``solitary_deaths_max`` 0 charges none with it.
    """
    left = tx.rows(
        "SELECT judge_no, slot_no, attempt_no, sample_no, solitary, solitary_deaths FROM judgments"
        " INDEXED BY judgments_open WHERE run_key = ? AND evaluation_no = ? AND state = 'judging'"
        " AND state IN ('pending', 'judging') ORDER BY judge_no, slot_no, sample_no",
        (run_key, evaluation_no),
    )
    counts = {"again": 0, "undecided": 0, "parked": 0}
    for judge_no, slot_no, attempt_no, sample_no, solitary, deaths in left:
        deaths += int(bool(solitary) and len(left) == 1 and solitary_deaths_max > 0)
        is_deadly = 0 < solitary_deaths_max <= deaths
        row = JudgmentRow(judge_no, slot_no, attempt_no, sample_no=sample_no)
        counts[_recover_one(tx, run_key, evaluation_no, row, deaths, is_deadly)] += 1
    if left:
        tx.event(run_key, "evaluation.recovered", {"evaluation": evaluation_no, "worker": dead_worker, **counts})
    return RecoveredJudgments(dead_worker, **counts)


def left_under_way(tx: Transaction, run_key: int) -> tuple[int, ...]:
    """The run's evaluations, its own among them, of which a judgment is under way and which no process holds.

    The caller knows of the run's own that nobody is at it: whoever executes the run holds that, too.
    """
    rows = tx.rows(
        "SELECT DISTINCT j.evaluation_no FROM judgments j INDEXED BY judgments_open WHERE j.run_key = ?"
        " AND j.state = 'judging' AND j.state IN ('pending', 'judging') AND NOT EXISTS (SELECT 1 FROM evaluations e"
        " JOIN leases l ON l.resource = 'evaluation:' || e.evaluation_id AND l.state = 'held'"
        " WHERE e.run_key = j.run_key AND e.evaluation_no = j.evaluation_no) ORDER BY j.evaluation_no",
        (run_key,),
    )
    return tuple(row[0] for row in rows)


def _recover_one(
    tx: Transaction, run_key: int, evaluation_no: int, row: JudgmentRow, deaths: int, is_deadly: bool
) -> str:
    place = (run_key, evaluation_no, row.judge_no, row.slot_no, row.attempt_no, row.sample_no)
    if_unknown = _lose_newest(tx, place)
    parked = is_deadly and if_unknown is not IfUnknown.KEEP
    if if_unknown is IfUnknown.KEEP or parked:
        reason = NoVerdictReason.JUDGE_ERROR if parked else NoVerdictReason.UNKNOWN_OUTCOME
        why = _KILLED.format(deaths=deaths) if parked else "the process died while the judge's call was under way"
        add_judgments(tx, run_key, evaluation_no, [attrs.evolve(row, reason=reason, explanation=why)])
        return "parked" if parked else "undecided"
    tx.move("judgment", "pending",
            "UPDATE judgments SET state = 'pending', suspect = 1, solitary = 0, solitary_deaths = ?"
            " WHERE run_key = ? AND evaluation_no = ? AND judge_no = ? AND slot_no = ? AND attempt_no = ?"
            " AND sample_no = ? AND state = 'judging'", (deaths, *place))  # fmt: skip
    return "again"


def _lose_newest(tx: Transaction, place: tuple[int, ...]) -> IfUnknown | None:
    """Call the judgment's open dispatch unknown; says what may follow, None where none was open."""
    row = tx.row(
        "SELECT c.call_id, d.dispatch_no, c.if_unknown FROM calls c INDEXED BY calls_of_judgment"
        " JOIN dispatches d ON d.call_id = c.call_id WHERE c.run_key = ? AND c.evaluation_no = ? AND c.judge_no = ?"
        " AND c.slot_no = ? AND c.attempt_no = ? AND c.sample_no = ? AND c.owner = 'judgment'"
        " AND d.state = 'intended' ORDER BY c.position DESC, d.dispatch_no DESC LIMIT 1",
        place,
    )
    if row is None:
        return None
    run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no = place
    call_id, dispatch_no, if_unknown = row
    key = DispatchKey(run_key, slot_no, attempt_no, call_id, dispatch_no, budgets.holds_of(tx, call_id, dispatch_no))
    facts = DispatchFacts(
        DispatchState.UNKNOWN, "coordinator.died", "the process died before an outcome was committed",
        settled_by="recovery",
    )  # fmt: skip
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    tx.event(run_key, "judgment.call_ended", {
        "evaluation": evaluation_no, "judge": judge_no, "slot": slot_no, "attempt": attempt_no, "sample": sample_no,
        "call": call_id, "dispatch": dispatch_no, "state": facts.state, "reason": facts.reason,
        "message": facts.message, "by": facts.settled_by, "again": if_unknown != IfUnknown.KEEP,
    })  # fmt: skip
    return IfUnknown(if_unknown)


def _take(
    tx: Transaction, evaluation: EvaluationRow, holder: Holder | None, solitary_deaths_max: int
) -> EvaluationHold:
    require_judgeable(tx, evaluation.run_key, evaluation.evaluation_no)
    resource = _resource(evaluation.evaluation_id)
    if holder is not None:
        taken = tx.change("UPDATE leases SET state = 'lost', ended_us = ?, reason = 'its process died'"
                          " WHERE lease_id = ? AND state = 'held'", (tx.now_us, holder.lease_id))  # fmt: skip
        if not taken:
            raise _busy(evaluation, None)
        tx.change("UPDATE workers SET ended_us = ?, end_reason = 'died' WHERE worker_id = ? AND ended_us IS NULL",
                  (tx.now_us, holder.worker_id))  # fmt: skip
    elif tx.row("SELECT 1 FROM leases WHERE resource = ? AND state = 'held'", (resource,)):
        raise _busy(evaluation, None)
    tx.execute("INSERT INTO fences (resource, high_water) VALUES (?, 1)"
               " ON CONFLICT (resource) DO UPDATE SET high_water = high_water + 1", (resource,))  # fmt: skip
    fence: int = tx.row("SELECT high_water FROM fences WHERE resource = ?", (resource,))[0]
    lease_id = tx.ids.next()
    tx.execute(
        _ADD_LEASE,
        (lease_id, resource, "held", tx.worker_id, evaluation.run_key, fence, tx.now_us, tx.now_us, boot_id()),
    )
    tx.event(evaluation.run_key, "evaluation.opened", {
        "evaluation": evaluation.evaluation_no, "worker": tx.worker_id, "fence": fence, "lease": lease_id,
    })  # fmt: skip
    recovered = recover_judgments(
        tx, evaluation.run_key, evaluation.evaluation_no, dead_worker=holder.worker_id if holder else "",
        solitary_deaths_max=solitary_deaths_max,
    )  # fmt: skip
    return EvaluationHold(evaluation, lease_id, fence, recovered)


def _end_when_whole(tx: Transaction, row: EvaluationRow) -> bool:
    is_whole = not tx.row(
        "SELECT EXISTS (SELECT 1 FROM judgments INDEXED BY judgments_open WHERE run_key = ? AND evaluation_no = ?"
        " AND state IN ('pending', 'judging')) OR EXISTS (SELECT 1 FROM evaluations WHERE run_key = ?"
        " AND evaluation_no = ? AND set_read_to < set_at_event)",
        (row.run_key, row.evaluation_no, row.run_key, row.evaluation_no),
    )[0]
    if is_whole:
        tx.change("UPDATE evaluations SET ended_us = ? WHERE run_key = ? AND evaluation_no = ? AND ended_us IS NULL",
                  (tx.now_us, row.run_key, row.evaluation_no))  # fmt: skip
    return is_whole


def _resource(evaluation_id: str) -> str:
    return f"evaluation:{evaluation_id}"


def _busy(evaluation: EvaluationRow, holder: Holder | None) -> EvaluationBusy:
    who = f"process {holder.identity.pid} (worker {holder.worker_id})" if holder else "another process"
    return EvaluationBusy(
        f"evaluation {evaluation.evaluation_id} is being made by {who}", "wait for it, or stop that process",
        evaluation.evaluation_id, who,
    )  # fmt: skip
