"""Settling an unknown outcome: by an operator's word, or by what the target answered to a query.

Whatever settles it, an answer selects its slot only when its attempt is the slot's newest; otherwise it is kept as late
evidence. Who settled it, how and why stands in ``settlements`` for ever.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from . import budgets
from .artifacts import record
from .attempt_rows import add_observation, take_up_again
from .contamination import touched_late
from .custody import require_held
from .errors import TransitionRefused
from .inner_calls import is_inner
from .open_calls import calls_of
from .records import Artifact, DispatchFacts, DispatchKey
from .reopening import reopen_run
from .schema import settlements
from .standing import where_it_stands
from .statements import hot_insert
from .states import AttemptState, DispatchState, NextStep, SlotState
from .transaction import Transaction
from .turns import AskedTurn, TurnAnswer, add_turn, asked_turn

__all__ = ["Decision", "Settlement", "settle_and_go_on", "settle_unknown"]

_ADD_SETTLEMENT = hot_insert(
    settlements, "call_id", "dispatch_no", "run_key", "decision", "made_by", "reason", "made_us"
)

_TOLD = (
    "SELECT tokens_in, tokens_out, cost_nanousd, usage, told ->> '$.seen.tokens_out', told ->> '$.seen.cost_nanousd'"
    " FROM (SELECT *, iif(json_valid(usage), usage, NULL) told FROM dispatches WHERE call_id = ? AND dispatch_no = ?)"
)


class Decision(StrEnum):
    """What became of an unknown dispatch, as far as is now known."""

    LANDED = "landed"  # it was done, and this is its answer
    FAILED = "failed"  # it was done, and its answer is an error
    NOT_LANDED = "not_landed"  # it was not done and never will be
    GIVE_UP = "give_up"  # nobody will ever know; its bound counts as spent


@attrs.frozen
class Settlement:
    """A decision on one dispatch; ``facts`` hold its usage, ``answer`` (of LANDED) is what `attempts.observe` takes.

    ``checkpoint`` belongs to the answer of a conversation's turn.
    """

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
    checkpoint: Artifact | None = None


def settle_unknown(tx: Transaction, settlement: Settlement) -> SlotState:
    """Apply the decision and return what became of the slot.

    The answer of a conversation's turn commits the turn, and the slot waits to go on from there. Raises
    TransitionRefused when the dispatch is not unknown any more; nothing is changed then.
    """
    settlement = _with_what_was_told(tx, settlement)
    key = _taken(tx, settlement)
    state = _settle_attempt(tx, key, settlement)
    _reopen_run(tx, key.run_key, state)
    _tell(tx, key, settlement)
    return state


def settle_and_go_on(tx: Transaction, settlement: Settlement, *, solitary: bool = False) -> None:
    """Apply what a query proved of a conversation's turn, LANDED or NOT_LANDED, and let the same attempt run again.

    For a slot that waits to ask for that very call. Raises TransitionRefused when it does not, or when the dispatch is
    not unknown any more; nothing is changed then.
    """
    settlement = _with_what_was_told(tx, settlement)
    key = _taken(tx, settlement)
    asked = asked_turn(tx, key)
    if asked is None or not asked.is_current:
        raise TransitionRefused(
            f"call {key.call_id} is not what its conversation waits for",
            "look at its case: `tallystick show RUN CASE`", "attempt", "running",
        )  # fmt: skip
    take_up_again(tx, key, NextStep.QUERY, solitary=solitary)
    landed = settlement.decision is Decision.LANDED
    if landed:
        add_turn(tx, key, _answer_of(settlement, asked))
    _end_dispatch(tx, key, settlement, DispatchState.ANSWERED if landed else DispatchState.REFUSED)
    _tell(tx, key, settlement)


def _taken(tx: Transaction, settlement: Settlement) -> DispatchKey:
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
    require_held(tx, run_key)
    holds = budgets.holds_of(tx, settlement.call_id, settlement.dispatch_no)
    key = DispatchKey(run_key, slot_no, attempt_no, settlement.call_id, settlement.dispatch_no, holds)
    tx.execute(
        _ADD_SETTLEMENT,
        (key.call_id, key.dispatch_no, run_key, settlement.decision, settlement.made_by, settlement.reason, tx.now_us),
    )
    _settle_money(tx, key, settlement)
    return key


def _tell(tx: Transaction, key: DispatchKey, settlement: Settlement) -> None:
    tx.event(key.run_key, "dispatch.settled", {
        "slot": key.slot_no, "attempt": key.attempt_no, "call": key.call_id, "dispatch": key.dispatch_no,
        "decision": settlement.decision, "by": settlement.made_by, "reason": settlement.reason,
        **where_it_stands(tx, key),
    })  # fmt: skip
    if settlement.decision in (Decision.LANDED, Decision.FAILED):
        touched_late(tx, key.call_id, answered_now=False)


def _settle_money(tx: Transaction, key: DispatchKey, settlement: Settlement) -> None:
    match settlement.decision:
        case Decision.LANDED | Decision.FAILED:
            budgets.settle(tx, key, settlement.facts)
        case Decision.NOT_LANDED:
            budgets.release(tx, key)
        case Decision.GIVE_UP:
            budgets.settle_at_bound(tx, key, settlement.facts)


def _with_what_was_told(tx: Transaction, settlement: Settlement) -> Settlement:
    """The same with what the dispatch had told of its use before it broke off, where whoever settles it tells nothing.

    What is proven not to have been done has used nothing.
    """
    facts = settlement.facts
    said = (facts.tokens_in, facts.tokens_out, facts.cost_nanousd, facts.usage)
    is_told = settlement.decision is not Decision.GIVE_UP and any(one is not None for one in said)
    told = tx.row(_TOLD, (settlement.call_id, settlement.dispatch_no))
    if settlement.decision is Decision.NOT_LANDED or told is None or is_told:
        return settlement
    tokens_in, tokens_out, cost, usage, out_seen, cost_seen = told
    facts = attrs.evolve(
        facts, tokens_in=tokens_in, tokens_out=tokens_out, cost_nanousd=cost, usage=usage,
        tokens_out_seen=_seen(out_seen), cost_nanousd_seen=_seen(cost_seen),
    )  # fmt: skip
    return attrs.evolve(settlement, facts=facts)


def _seen(told: object) -> int | None:
    return told if isinstance(told, int) and told >= 0 else None  # another program may have written it


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
    """Only where no dispatch of the call was done, or may have been, it is asked anew."""
    sibling = tx.row(
        "SELECT state, reason FROM dispatches WHERE call_id = ? AND state IN ('failed', 'abandoned', 'late')"
        " ORDER BY dispatch_no DESC LIMIT 1",
        (key.call_id,),
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
    if is_inner(tx, key.call_id):
        return _inner_landed(tx, key, settlement, settlement.answer, state, is_open=is_open)
    asked = asked_turn(tx, key)
    if asked is not None:
        return _turn_landed(tx, key, settlement, asked, state, is_open=is_open)
    dispatch_state = DispatchState.ANSWERED if is_open else DispatchState.LATE
    attempt_state = AttemptState.OBSERVED if is_open else AttemptState.LATE
    if not _end(tx, key, settlement, dispatch_state, attempt_state):
        _keep_answer(tx, key, settlement.answer)
        return state
    add_observation(
        tx, key, answer=settlement.answer, answer_digest=settlement.answer_digest, evidence=settlement.evidence,
        flags=settlement.flags, source=_source(settlement) if is_open else "late",
    )  # fmt: skip
    if not is_open:
        return state
    tx.move("slot", "selected",
            "UPDATE slots SET state = 'selected', selected_attempt = ?, reason = NULL, next_step = 'new',"
            " not_before_us = 0, suspect = 0"
            " WHERE run_key = ? AND slot_no = ? AND attempts = ? AND state IN ('unknown', 'pending')",
            (key.attempt_no, key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    return SlotState.SELECTED


def _turn_landed(
    tx: Transaction, key: DispatchKey, settlement: Settlement, asked: AskedTurn, state: SlotState, *, is_open: bool
) -> SlotState:
    """The answer of a turn: the conversation goes on from it where it waits for that; else it is evidence."""
    assert settlement.answer is not None
    if not (is_open and asked.is_current):
        _end(tx, key, settlement, DispatchState.LATE, AttemptState.INTERRUPTED if is_open else AttemptState.LATE)
        _keep_answer(tx, key, settlement.answer)
        return state
    add_turn(tx, key, _answer_of(settlement, asked))
    _end(tx, key, settlement, DispatchState.ANSWERED, AttemptState.INTERRUPTED)
    wanted = SlotState.CANCELLED if _is_given_up(tx, key.run_key) else SlotState.PENDING
    return _slot(tx, key, state, is_open=True, wanted=wanted, reason="landed")


def _inner_landed(
    tx: Transaction,
    key: DispatchKey,
    settlement: Settlement,
    answer: str | Artifact,
    state: SlotState,
    *,
    is_open: bool,
) -> SlotState:
    """The answer to a request of the target's own: a new attempt replays it; too late for that, it is evidence."""
    _keep_answer(tx, key, answer)
    if not is_open:
        _end(tx, key, settlement, DispatchState.LATE, AttemptState.LATE)
        return state
    _end(tx, key, settlement, DispatchState.ANSWERED, AttemptState.INTERRUPTED)
    wanted = SlotState.CANCELLED if _is_given_up(tx, key.run_key) else SlotState.PENDING
    return _slot(tx, key, state, is_open=True, wanted=wanted, reason="landed")


def _answer_of(settlement: Settlement, asked: AskedTurn) -> TurnAnswer:
    assert settlement.answer is not None
    return TurnAnswer(
        asked.turn, asked.message, settlement.answer, settlement.answer_digest, settlement.evidence, settlement.flags,
        _source(settlement), settlement.checkpoint, asked.is_replay,
    )  # fmt: skip


def _source(settlement: Settlement) -> str:
    return settlement.made_by if settlement.made_by == "query" else "operator"


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
    """End the dispatch, and the attempt with it unless something else of it is unknown; says whether it ended."""
    _end_dispatch(tx, key, settlement, dispatch)
    calls = calls_of(tx, key.run_key, key.slot_no, key.attempt_no)
    # A call that was sent twice and answered once is in question no more, but the attempt has not ended in knowledge.
    is_whole = not calls.has_unknown or attempt not in (AttemptState.NOT_LANDED, AttemptState.INTERRUPTED)
    if attempt is not AttemptState.OBSERVED and (calls.open or not is_whole):
        return False
    return bool(
        tx.change(
            "UPDATE attempts SET state = ?, ended_us = ?, reason = ?"
            " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'unknown'",
            (attempt, tx.now_us, settlement.decision, key.run_key, key.slot_no, key.attempt_no),
        )
    )


def _end_dispatch(tx: Transaction, key: DispatchKey, settlement: Settlement, dispatch: DispatchState) -> None:
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


def _slot(
    tx: Transaction, key: DispatchKey, state: SlotState, *, is_open: bool, wanted: SlotState, reason: str
) -> SlotState:
    if not is_open or calls_of(tx, key.run_key, key.slot_no, key.attempt_no).open:
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
        reopen_run(tx, run_key)
