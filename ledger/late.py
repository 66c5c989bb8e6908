"""A whole answer that comes after its attempt has ended: evidence of that attempt, paid for, never anything else."""

from __future__ import annotations

import attrs

from . import budgets
from .attempt_rows import add_observation, end_dispatch, move_attempt, record_event
from .contamination import touched_late
from .open_calls import calls_of
from .records import Artifact, DispatchFacts, DispatchKey
from .standing import where_it_stands
from .states import AttemptState, DispatchState
from .transaction import Transaction
from .turns import AskedTurn, asked_turn

__all__ = ["keep_late"]


def keep_late(
    tx: Transaction,
    key: DispatchKey,
    facts: DispatchFacts,
    *,
    answer: str | Artifact,
    answer_digest: str,
    evidence: str = "{}",
    flags: str = "[]",
) -> bool:
    """A whole answer after its attempt had ended: charge its usage and keep it as evidence of that attempt only.

    Returns False, changing nothing, when the outcome was settled otherwise in the meantime.
    """
    row = tx.row("SELECT state FROM dispatches WHERE call_id = ? AND dispatch_no = ?", (key.call_id, key.dispatch_no))
    if row is None or row[0] != DispatchState.UNKNOWN:
        return False
    held = DispatchKey(key.run_key, key.slot_no, key.attempt_no, key.call_id, key.dispatch_no,
                       budgets.holds_of(tx, key.call_id, key.dispatch_no))  # fmt: skip
    asked = asked_turn(tx, held)
    if asked is not None:
        _keep_late_turn(tx, held, _with_raw(facts, answer), asked)
    else:
        _keep_late_answer(tx, held, facts, answer, answer_digest, evidence, flags)
    record_event(tx, held, "dispatch.late", facts, {"answer": answer_digest, **where_it_stands(tx, held)})
    touched_late(tx, key.call_id, answered_now=True)
    return True


def _keep_late_answer(
    tx: Transaction,
    held: DispatchKey,
    facts: DispatchFacts,
    answer: str | Artifact,
    answer_digest: str,
    evidence: str,
    flags: str,
) -> None:
    is_settled = _is_last_unknown(tx, held)
    end_dispatch(tx, held, facts if is_settled else _with_raw(facts, answer), DispatchState.UNKNOWN)
    budgets.settle(tx, held, facts)
    if is_settled:
        move_attempt(tx, held, AttemptState.LATE, AttemptState.UNKNOWN, attrs.evolve(facts, reason="late"))
        add_observation(
            tx, held, answer=answer, answer_digest=answer_digest, evidence=evidence, flags=flags, source="late"
        )
        _end_waiting(tx, held, "failed")
    else:
        _end_waiting(tx, held, "unknown")


def _keep_late_turn(tx: Transaction, held: DispatchKey, facts: DispatchFacts, asked: AskedTurn) -> None:
    """The late answer of a turn stays with its own dispatch: it is no observation, and never another turn's answer.

    What the conversation waits for is touched only where this was it.
    """
    end_dispatch(tx, held, facts, DispatchState.UNKNOWN)
    budgets.settle(tx, held, facts)
    calls = calls_of(tx, held.run_key, held.slot_no, held.attempt_no)
    if asked.is_current:
        if not calls.open:
            _end_unknown(tx, held, AttemptState.LATE)
        _end_waiting(tx, held, "unknown" if calls.open else "failed")
    elif not calls.has_unknown:
        _end_unknown(tx, held, AttemptState.INTERRUPTED)


def _end_unknown(tx: Transaction, key: DispatchKey, state: AttemptState) -> None:
    """Nothing keeps the attempt unknown any more; one that runs is left to its runner."""
    tx.change(
        "UPDATE attempts SET state = ?, ended_us = ?, reason = 'late'"
        " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'unknown'",
        (state, tx.now_us, key.run_key, key.slot_no, key.attempt_no),
    )


def _is_last_unknown(tx: Transaction, key: DispatchKey) -> bool:
    """Whether the attempt is unknown because of this dispatch alone."""
    return bool(
        tx.row(
            "SELECT a.state = 'unknown' AND NOT EXISTS (SELECT 1"
            " FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
            " WHERE c.run_key = a.run_key AND c.slot_no = a.slot_no AND c.attempt_no = a.attempt_no"
            " AND d.state IN ('unknown', 'intended') AND NOT (d.call_id = ? AND d.dispatch_no = ?))"
            " FROM attempts a WHERE a.run_key = ? AND a.slot_no = ? AND a.attempt_no = ?",
            (key.call_id, key.dispatch_no, key.run_key, key.slot_no, key.attempt_no),
        )[0]
    )


def _with_raw(facts: DispatchFacts, answer: str | Artifact) -> DispatchFacts:
    # The attempt has an observation of its own, or may get one: this answer is kept with its dispatch.
    if facts.raw is not None or facts.raw_artifact is not None:
        return facts
    if isinstance(answer, str):
        return attrs.evolve(facts, raw=answer.encode())
    return attrs.evolve(facts, raw_artifact=answer)


def _end_waiting(tx: Transaction, key: DispatchKey, state: str) -> None:
    """Nothing is left to resend or to ask for: an answer is known, and it came too late.

    The slot has failed, or stays unknown while another send of the attempt is. One that was to be asked anew anyway
    (`repeat`) goes on.
    """
    tx.change(
        "UPDATE slots SET state = ?, reason = 'late', next_step = 'new', not_before_us = 0, suspect = 0"
        " WHERE run_key = ? AND slot_no = ? AND attempts = ?"
        " AND (state = 'unknown' OR (state = 'pending' AND next_step <> 'new'))",
        (state, key.run_key, key.slot_no, key.attempt_no),
    )
