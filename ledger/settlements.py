"""Settling an unknown outcome: by an operator's word, or by what the target answered to a query.

Whatever settles it, an answer selects its slot only when its attempt is the slot's newest; otherwise it is kept as late
evidence. Who settled it, how and why stands in ``settlements`` for ever.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from . import budgets
from .artifacts import record
from .contamination import touched_late
from .errors import TransitionRefused
from .moves import add_observation
from .records import Artifact, DispatchFacts, DispatchKey
from .schema import settlements
from .standing import where_it_stands
from .statements import hot_insert
from .states import AttemptState, DispatchState, NextStep, SlotState
from .transaction import Transaction

__all__ = ["Decision", "Settlement", "settle_unknown"]

_ADD_SETTLEMENT = hot_insert(
    settlements, "call_id", "dispatch_no", "run_key", "decision", "made_by", "reason", "made_us"
)


class Decision(StrEnum):
    """What became of an unknown dispatch, as far as is now known."""

    LANDED = "landed"  # it was done, and this is its answer
    FAILED = "failed"  # it was done, and its answer is an error
    NOT_LANDED = "not_landed"  # it was not done and never will be
    GIVE_UP = "give_up"  # nobody will ever know; its bound counts as spent


@attrs.frozen
class Settlement:
    """A decision on one dispatch; ``facts`` hold its usage, ``answer`` (of LANDED) is what `attempts.observe` takes."""

    call_id: str
    dispatch_no: int
    decision: Decision
    made_by: str
    reason: str
    facts: DispatchFacts = DispatchFacts(DispatchState.ANSWERED)
    answer: str | Artifact | None = None
    answer_digest: str = ""
    evidence: str = "{}"
    flags: str = "[]"


def settle_unknown(tx: Transaction, settlement: Settlement) -> SlotState:
    """Apply the decision and return what became of the slot.

    Raises TransitionRefused when the dispatch is not unknown any more; nothing is changed then.
    """
    row = tx.row(
        "SELECT c.run_key, c.slot_no, c.attempt_no, d.state FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
        " WHERE c.call_id = ? AND d.dispatch_no = ?",
        (settlement.call_id, settlement.dispatch_no),
    )
    if row is None or row[3] != DispatchState.UNKNOWN:
        raise TransitionRefused(
            f"dispatch {settlement.dispatch_no} of call {settlement.call_id} is not unknown",
            "list what is unknown with `tallystick reconcile RUN`", "dispatch", settlement.decision,
        )  # fmt: skip
    run_key, slot_no, attempt_no, _ = row
    holds = budgets.holds_of(tx, settlement.call_id, settlement.dispatch_no)
    key = DispatchKey(run_key, slot_no, attempt_no, settlement.call_id, settlement.dispatch_no, holds)
    tx.execute(
        _ADD_SETTLEMENT,
        (key.call_id, key.dispatch_no, run_key, settlement.decision, settlement.made_by, settlement.reason, tx.now_us),
    )
    _settle_money(tx, key, settlement)
    state = _settle_attempt(tx, key, settlement)
    _reopen_run(tx, run_key, state)
    tx.event(run_key, "dispatch.settled", {
        "slot": slot_no, "attempt": attempt_no, "call": key.call_id, "dispatch": key.dispatch_no,
        "decision": settlement.decision, "by": settlement.made_by, "reason": settlement.reason,
        **where_it_stands(tx, key),
    })  # fmt: skip
    if settlement.decision in (Decision.LANDED, Decision.FAILED):
        touched_late(tx, key.call_id, answered_now=False)
    return state


def _settle_money(tx: Transaction, key: DispatchKey, settlement: Settlement) -> None:
    match settlement.decision:
        case Decision.LANDED | Decision.FAILED:
            budgets.settle(tx, key, settlement.facts)
        case Decision.NOT_LANDED:
            budgets.release(tx, key)
        case Decision.GIVE_UP:
            budgets.settle_at_bound(tx, key)


def _settle_attempt(tx: Transaction, key: DispatchKey, settlement: Settlement) -> SlotState:
    newest, state, step = tx.row("SELECT attempts, state, next_step FROM slots WHERE run_key = ? AND slot_no = ?",
                                 (key.run_key, key.slot_no))  # fmt: skip
    is_open = newest == key.attempt_no and state in (SlotState.UNKNOWN, SlotState.PENDING)
    # A slot that already waits for a new attempt (`repeat`) does so whatever became of the one before.
    goes_on = state == SlotState.PENDING and step == NextStep.NEW
    match settlement.decision:
        case Decision.LANDED:
            return _landed(tx, key, settlement, SlotState(state), is_open=is_open)
        case Decision.FAILED:
            _end(tx, key, settlement, DispatchState.FAILED, AttemptState.FAILED)
            return _slot(
                tx, key, SlotState(state), is_open=is_open and not goes_on, wanted=SlotState.FAILED,
                reason=settlement.facts.reason,
            )  # fmt: skip
        case Decision.NOT_LANDED:
            return _not_landed(tx, key, settlement, SlotState(state), is_open=is_open and not goes_on)
        case Decision.GIVE_UP:
            _end(tx, key, settlement, DispatchState.ABANDONED, AttemptState.ABANDONED)
            return _slot(
                tx, key, SlotState(state), is_open=is_open and not goes_on, wanted=SlotState.FAILED, reason="given_up"
            )


def _not_landed(
    tx: Transaction, key: DispatchKey, settlement: Settlement, state: SlotState, *, is_open: bool
) -> SlotState:
    """Only where no dispatch of the attempt was done, or may have been, its case is asked anew."""
    sibling = tx.row(
        "SELECT d.state, d.reason FROM dispatches d JOIN calls c ON c.call_id = d.call_id WHERE c.run_key = ?"
        " AND c.slot_no = ? AND c.attempt_no = ? AND d.state IN ('failed', 'abandoned', 'late')"
        " ORDER BY c.position DESC, d.dispatch_no DESC LIMIT 1",
        (key.run_key, key.slot_no, key.attempt_no),
    )
    if sibling is not None:
        _end(tx, key, settlement, DispatchState.REFUSED, AttemptState(sibling[0]))
        return _slot(tx, key, state, is_open=is_open, wanted=SlotState.FAILED, reason=sibling[1])
    _end(tx, key, settlement, DispatchState.REFUSED, AttemptState.NOT_LANDED)
    wanted = SlotState.CANCELLED if _is_given_up(tx, key.run_key) else SlotState.PENDING
    return _slot(tx, key, state, is_open=is_open, wanted=wanted, reason="not_landed")


def _is_given_up(tx: Transaction, run_key: int) -> bool:
    return bool(tx.row("SELECT state = 'cancelled' FROM runs WHERE run_key = ?", (run_key,))[0])


def _landed(tx: Transaction, key: DispatchKey, settlement: Settlement, state: SlotState, *, is_open: bool) -> SlotState:
    if settlement.answer is None:
        raise ValueError("a landed dispatch needs its answer")
    dispatch_state = DispatchState.ANSWERED if is_open else DispatchState.LATE
    attempt_state = AttemptState.OBSERVED if is_open else AttemptState.LATE
    if not _end(tx, key, settlement, dispatch_state, attempt_state):
        _keep_answer(tx, key, settlement.answer)
        return state
    source = settlement.made_by if settlement.made_by == "query" else "operator"
    add_observation(
        tx, key, answer=settlement.answer, answer_digest=settlement.answer_digest, evidence=settlement.evidence,
        flags=settlement.flags, source=source if is_open else "late",
    )  # fmt: skip
    if not is_open:
        return state
    tx.move("slot", "selected",
            "UPDATE slots SET state = 'selected', selected_attempt = ?, reason = NULL, next_step = 'new',"
            " not_before_us = 0, suspect = 0"
            " WHERE run_key = ? AND slot_no = ? AND attempts = ? AND state IN ('unknown', 'pending')",
            (key.attempt_no, key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    return SlotState.SELECTED


def _keep_answer(tx: Transaction, key: DispatchKey, answer: str | Artifact) -> None:
    """The attempt has ended otherwise, by another dispatch of it: the answer stays as evidence of its own dispatch."""
    kept = (answer.encode(), None) if isinstance(answer, str) else (None, record(tx, answer))
    tx.change(
        "UPDATE dispatches SET raw = ?, raw_artifact = ?"
        " WHERE call_id = ? AND dispatch_no = ? AND raw IS NULL AND raw_artifact IS NULL",
        (*kept, key.call_id, key.dispatch_no),
    )


def _end(
    tx: Transaction, key: DispatchKey, settlement: Settlement, dispatch: DispatchState, attempt: AttemptState
) -> bool:
    facts = settlement.facts
    tx.move(
        "dispatch", dispatch,
        "UPDATE dispatches SET state = ?, ended_us = ?, settled_by = ?, reason = ?, message = ?, status = ?,"
        " tokens_in = ?, tokens_out = ?, cost_nanousd = ?, usage = ?, raw = coalesce(?, raw),"
        " raw_artifact = coalesce(?, raw_artifact)"
        " WHERE call_id = ? AND dispatch_no = ? AND state = 'unknown'",
        (dispatch, tx.now_us, settlement.made_by, facts.reason or settlement.decision, facts.message, facts.status,
         facts.tokens_in, facts.tokens_out, facts.cost_nanousd, facts.usage, facts.raw,
         facts.raw_artifact and record(tx, facts.raw_artifact), key.call_id, key.dispatch_no),
    )  # fmt: skip
    others = tx.row(
        "SELECT count(*) FROM dispatches d JOIN calls c ON c.call_id = d.call_id WHERE c.run_key = ? AND c.slot_no = ?"
        " AND c.attempt_no = ? AND d.state IN ('unknown', 'intended')",
        (key.run_key, key.slot_no, key.attempt_no),
    )[0]
    if others and attempt is not AttemptState.OBSERVED:
        return False  # another dispatch of the same attempt is still unknown, and so is the attempt
    return bool(
        tx.change(
            "UPDATE attempts SET state = ?, ended_us = ?, reason = ?"
            " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'unknown'",
            (attempt, tx.now_us, settlement.decision, key.run_key, key.slot_no, key.attempt_no),
        )
    )


def _slot(
    tx: Transaction, key: DispatchKey, state: SlotState, *, is_open: bool, wanted: SlotState, reason: str
) -> SlotState:
    attempt = tx.row("SELECT state FROM attempts WHERE run_key = ? AND slot_no = ? AND attempt_no = ?",
                     (key.run_key, key.slot_no, key.attempt_no))[0]  # fmt: skip
    if not is_open or attempt == AttemptState.UNKNOWN:
        return state
    tx.move("slot", wanted,
            "UPDATE slots SET state = ?, reason = ?, next_step = ?, not_before_us = 0"
            " WHERE run_key = ? AND slot_no = ? AND attempts = ? AND state IN ('unknown', 'pending')",
            (wanted, reason, NextStep.NEW, key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    return wanted


def _reopen_run(tx: Transaction, run_key: int, state: SlotState) -> None:
    """What waits again, and an answer that no judge has seen yet, let an ended run go on."""
    goes_on = state is SlotState.PENDING or (
        state is SlotState.SELECTED
        and tx.row("SELECT EXISTS (SELECT 1 FROM evaluation_judges WHERE run_key = ?)", (run_key,))[0]
    )
    if goes_on:
        tx.change(
            "UPDATE runs SET state = 'open', ended_us = NULL WHERE run_key = ? AND state = 'finished'", (run_key,)
        )
