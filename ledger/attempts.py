"""The life of an attempt: two commits a call.

`begin` commits claim, attempt, reservation and intent, before anything is sent. `observe`, `refuse`, `fail`, `lose` and
`keep_late` commit what became of it. Each is one piece of work for the scribe, and each appends one event to the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import budgets
from .artifacts import record
from .attempt_statements import (
    ADD_ATTEMPT,
    ADD_CALL,
    ADD_DISPATCH,
    ADD_OBSERVATION,
    ATTEMPT_AND_DISPATCH,
    CLAIM,
    END_DISPATCH,
    END_SLOT,
    HAS_UNKNOWN,
    MOVE_ATTEMPT,
)
from .canonical import JsonValue
from .crashpoints import crashpoint
from .errors import TransitionRefused
from .records import Artifact, Begun, DispatchFacts, DispatchKey, Hold, Intent, Waiting
from .states import AttemptState, DispatchState, NextStep, SlotState
from .transaction import Transaction

__all__ = [
    "add_observation",
    "begin",
    "dispatch_again",
    "end_dispatch",
    "end_failed",
    "fail",
    "fail_unprepared",
    "give_back",
    "give_up",
    "held_amounts",
    "is_unknown",
    "leave_unknown",
    "lose",
    "move_attempt",
    "observe",
    "postpone",
    "record_event",
    "refuse",
    "reopen",
    "resendable",
    "stay_unknown",
    "tries_spent",
]


def begin(tx: Transaction, intent: Intent) -> Begun:
    """Claim the slot, number a new attempt, reserve, and record the intent of its first dispatch.

    Raises TransitionRefused when the slot does not wait for a new attempt (not even when it waits to resend or to ask
    for its last call) and BudgetExhausted when a hold does not fit; then nothing of it stays.
    """
    run_key, slot_no, now = intent.run_key, intent.slot_no, tx.now_us
    claimed = tx.rows(CLAIM, ("in_flight", 1, run_key, slot_no, "pending", "new"))
    if not claimed:
        raise _not_claimed(slot_no)
    attempt_no = claimed[0][0]
    key = DispatchKey(run_key, slot_no, attempt_no, intent.call_id, 1, intent.holds)
    budgets.reserve(tx, run_key, intent.holds)
    execute = tx.execute
    execute(
        ADD_ATTEMPT,
        (run_key, slot_no, attempt_no, "running", tx.worker_id, intent.fingerprint, int(intent.solitary), now),
    )
    execute(
        ADD_CALL,
        (intent.call_id, run_key, "attempt", slot_no, attempt_no, intent.head, intent.payload,
         _recorded(tx, intent.payload_artifact), intent.payload_digest, intent.payload_size, intent.if_unknown,
         intent.key_until_us, intent.fence, now),
    )  # fmt: skip
    execute(ADD_DISPATCH, (intent.call_id, 1, run_key, "intended", tx.worker_id, now))
    budgets.record_reservations(tx, key)
    tx.event(run_key, "dispatch.intended", {
        "slot": slot_no, "attempt": attempt_no, "call": intent.call_id, "dispatch": 1,
        "payload": intent.payload_digest, "held": held_amounts(intent.holds),
    })  # fmt: skip
    crashpoint("dispatch.intent.inside")
    return Begun(key, now)


def _not_claimed(slot_no: int) -> TransitionRefused:
    return TransitionRefused(
        f"slot {slot_no} is not pending for a new attempt",
        "somebody else has claimed or settled it",
        "slot",
        "in_flight",
    )


def dispatch_again(tx: Transaction, key: DispatchKey, holds: tuple[Hold, ...]) -> Begun:
    """Intend the next dispatch of the same call in the same attempt, after one that was refused or, resent, unknown.

    Raises TransitionRefused when the attempt does not run or that dispatch is still under way.
    """
    states = tx.row(ATTEMPT_AND_DISPATCH, (key.call_id, key.dispatch_no))
    if states is None or states[0] != "running" or states[1] not in ("refused", "unknown"):
        raise TransitionRefused(
            f"dispatch {key.dispatch_no} of call {key.call_id} cannot be followed by another",
            "look at it with `tallystick show`", "dispatch", "intended",
        )  # fmt: skip
    budgets.reserve(tx, key.run_key, holds)
    again = DispatchKey(key.run_key, key.slot_no, key.attempt_no, key.call_id, key.dispatch_no + 1, holds)
    _intend(tx, again)
    return Begun(again, tx.now_us)


def reopen(tx: Transaction, key: DispatchKey, holds: tuple[Hold, ...], *, solitary: bool = False) -> Begun:
    """Go on with a slot's newest attempt by sending its call's stored bytes again (``if_unknown = "resend"``)."""
    tx.move("slot", "in_flight",
            "UPDATE slots SET state = 'in_flight' WHERE run_key = ? AND slot_no = ? AND state = 'pending'"
            " AND attempts = ? AND next_step = 'resend'",
            (key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    tx.move("attempt", "running",
            "UPDATE attempts SET state = 'running', worker_id = ?, ended_us = NULL, solitary = ?"
            " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'unknown'",
            (tx.worker_id, int(solitary), key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    return dispatch_again(tx, key, holds)


def observe(
    tx: Transaction,
    key: DispatchKey,
    facts: DispatchFacts,
    *,
    answer: str | Artifact,
    answer_digest: str,
    evidence: str = "{}",
    flags: str = "[]",
) -> None:
    """A whole answer in time: settle it, keep the observation, select it.

    ``answer`` is canonical JSON text, or the artifact that holds it (`artifacts.stored_answer`).
    """
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    budgets.settle(tx, key, facts)
    move_attempt(tx, key, AttemptState.OBSERVED, AttemptState.RUNNING, facts)
    add_observation(tx, key, answer=answer, answer_digest=answer_digest, evidence=evidence, flags=flags, source="wire")
    _end_slot(tx, key, SlotState.SELECTED, selected=True)
    record_event(tx, key, "attempt.observed", facts, {"answer": answer_digest})
    crashpoint("dispatch.outcome.inside")


def refuse(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    """Proven not to have been done; the attempt goes on, its call may be dispatched again."""
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    budgets.settle_refused(tx, key, sends=facts.used("dispatches") or 1 if facts.charged else 0)
    record_event(tx, key, "dispatch.refused", facts)


def give_back(
    tx: Transaction, key: DispatchKey, waiting: Waiting | None, *, reason: str, message: str = ""
) -> SlotState:
    """End an attempt whose last dispatch was proven not to have been done, and return what became of its slot.

    The slot waits again, perhaps not before an instant; without ``waiting`` it is unavailable: tried often enough.
    Where an earlier dispatch of the attempt is unknown (this one was its resend), the attempt is unknown as before:
    then the same bytes wait to be sent again, or an operator decides, and never a new request follows.
    """
    facts = DispatchFacts(DispatchState.REFUSED, reason, message)
    if is_unknown(tx, key):
        resend = None if waiting is None else Waiting(NextStep.RESEND, waiting.not_before_us)
        return stay_unknown(tx, key, facts, waiting=resend)
    move_attempt(tx, key, AttemptState.GIVEN_BACK, AttemptState.RUNNING, facts)
    state = SlotState.PENDING if waiting else SlotState.UNAVAILABLE
    _end_slot(tx, key, state, waiting=waiting, reason=reason)
    record_event(tx, key, "attempt.given_back", facts, {"not_before": waiting.not_before_us if waiting else -1})
    return state


def is_unknown(tx: Transaction, key: DispatchKey) -> bool:
    """Whether some dispatch of the attempt has an unknown outcome."""
    return bool(tx.row(HAS_UNKNOWN, (key.run_key, key.slot_no, key.attempt_no))[0])


def stay_unknown(
    tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None, suspect: bool = False
) -> SlotState:
    """End a running attempt as unknown because an earlier dispatch of it is; its last one is settled already."""
    move_attempt(tx, key, AttemptState.UNKNOWN, AttemptState.RUNNING, facts)
    state = SlotState.PENDING if waiting else SlotState.UNKNOWN
    _end_slot(tx, key, state, waiting=waiting, reason=facts.reason, suspect=suspect)
    record_event(tx, key, "attempt.unknown", facts, {"next": waiting.step if waiting else "decide"})
    return state


def fail(tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None) -> None:
    """An answer that is an error: settle it; the slot waits for another attempt, or has failed.

    Where nothing was sent (the request could not be written, the program could not be started) nothing is charged.
    """
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    if facts.charged:
        budgets.settle(tx, key, facts)
    else:
        budgets.release(tx, key)
    end_failed(tx, key, facts, waiting=waiting)


def end_failed(tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None) -> None:
    """End a running attempt as failed, its last dispatch being settled already."""
    move_attempt(tx, key, AttemptState.FAILED, AttemptState.RUNNING, facts)
    _end_slot(tx, key, SlotState.PENDING if waiting else SlotState.FAILED, waiting=waiting, reason=facts.reason)
    record_event(tx, key, "attempt.failed", facts, {"again": waiting is not None})


def lose(
    tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None, suspect: bool = False
) -> None:
    """Bytes may have left and no whole answer came: unknown, and its holds stay held.

    ``waiting`` is what `if_unknown` allows to follow; without it the slot itself is unknown until it is settled.
    """
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    stay_unknown(tx, key, facts, waiting=waiting, suspect=suspect)


def add_observation(
    tx: Transaction,
    key: DispatchKey,
    *,
    answer: str | Artifact,
    answer_digest: str,
    evidence: str = "{}",
    flags: str = "[]",
    source: str,
) -> None:
    """Keep an answer with its attempt; ``source`` is ``wire``, ``late``, ``query`` or ``operator``."""
    text, file = (answer, None) if isinstance(answer, str) else (None, _recorded(tx, answer))
    tx.execute(
        ADD_OBSERVATION,
        (key.run_key, key.slot_no, key.attempt_no, key.call_id, key.dispatch_no, text, file, answer_digest, evidence,
         flags, source, tx.now_us),
    )  # fmt: skip


def _recorded(tx: Transaction, artifact: Artifact | None) -> str | None:
    return None if artifact is None else record(tx, artifact)


def _intend(tx: Transaction, key: DispatchKey) -> None:
    tx.execute(ADD_DISPATCH, (key.call_id, key.dispatch_no, key.run_key, "intended", tx.worker_id, tx.now_us))
    budgets.record_reservations(tx, key)
    tx.event(key.run_key, "dispatch.intended", {
        "slot": key.slot_no, "attempt": key.attempt_no, "call": key.call_id, "dispatch": key.dispatch_no,
        "held": held_amounts(key.holds),
    })  # fmt: skip
    crashpoint("dispatch.intent.inside")


def end_dispatch(tx: Transaction, key: DispatchKey, facts: DispatchFacts, old: DispatchState) -> None:
    tx.move(
        "dispatch", facts.state, END_DISPATCH,
        (facts.state, tx.now_us, facts.duration_us, facts.bytes_sent, facts.wire_sends, facts.status, facts.reason,
         facts.message, facts.settled_by, facts.raw, _recorded(tx, facts.raw_artifact), int(facts.raw_cut),
         facts.retry_after_us, facts.tokens_in,
         facts.tokens_out, facts.cost_nanousd, facts.usage, key.call_id, key.dispatch_no, old),
    )  # fmt: skip


def move_attempt(tx: Transaction, key: DispatchKey, new: AttemptState, old: AttemptState, facts: DispatchFacts) -> None:
    tx.move("attempt", new, MOVE_ATTEMPT,
            (new, tx.now_us, facts.reason, facts.message, key.run_key, key.slot_no, key.attempt_no, old))  # fmt: skip


def _end_slot(
    tx: Transaction,
    key: DispatchKey,
    new: SlotState,
    *,
    selected: bool = False,
    waiting: Waiting | None = None,
    reason: str | None = None,
    suspect: bool = False,
) -> None:
    step, not_before = (waiting.step, waiting.not_before_us) if waiting else (NextStep.NEW, 0)
    tx.move("slot", new, END_SLOT,
            (new, key.attempt_no if selected else None, step, not_before, reason, int(suspect), key.run_key,
             key.slot_no, "in_flight", key.attempt_no))  # fmt: skip


def record_event(
    tx: Transaction, key: DispatchKey, kind: str, facts: DispatchFacts, more: dict[str, str | int] | None = None
) -> None:
    tx.event(key.run_key, kind, {
        "slot": key.slot_no, "attempt": key.attempt_no, "call": key.call_id, "dispatch": key.dispatch_no,
        "reason": facts.reason, "by": facts.settled_by, **(more or {}),
    })  # fmt: skip


def held_amounts(holds: Sequence[Hold]) -> dict[str, JsonValue]:
    """What an event says of the holds of a dispatch."""
    return {str(hold.budget_no): hold.amount for hold in holds}


def fail_unprepared(
    tx: Transaction, run_key: int, slot_no: int, *, fingerprint: str, reason: str, message: str
) -> None:
    """A case from which no request can be made: a failed attempt without any call, and a failed slot."""
    claimed = tx.rows(CLAIM, ("in_flight", 1, run_key, slot_no, "pending", "new"))
    if not claimed:
        raise _not_claimed(slot_no)
    key = DispatchKey(run_key, slot_no, claimed[0][0], "", 0)
    tx.execute(ADD_ATTEMPT, (run_key, slot_no, key.attempt_no, "running", tx.worker_id, fingerprint, 0, tx.now_us))
    end_failed(tx, key, DispatchFacts(DispatchState.FAILED, reason, message), waiting=None)


def postpone(tx: Transaction, run_key: int, slot_no: int, *, not_before_us: int) -> None:
    """Let a waiting slot wait longer; its next step stays."""
    tx.change(
        "UPDATE slots SET not_before_us = ?, suspect = 0 WHERE run_key = ? AND slot_no = ? AND state = 'pending'",
        (not_before_us, run_key, slot_no),
    )


def give_up(tx: Transaction, run_key: int, slot_no: int, *, reason: str) -> SlotState:
    """A waiting slot of which nothing is unknown and that was tried often enough."""
    tx.move(
        "slot",
        "unavailable",
        "UPDATE slots SET state = 'unavailable', reason = ?, not_before_us = 0, suspect = 0"
        " WHERE run_key = ? AND slot_no = ? AND state = 'pending' AND next_step = 'new'",
        (reason, run_key, slot_no),
    )
    tx.event(run_key, "slot.unavailable", {"slot": slot_no, "reason": reason})
    return SlotState.UNAVAILABLE


def leave_unknown(tx: Transaction, run_key: int, slot_no: int, *, reason: str) -> None:
    """A waiting slot whose resends or queries are used up: from here an operator decides."""
    tx.move(
        "slot",
        "unknown",
        "UPDATE slots SET state = 'unknown', reason = ?, next_step = 'new', not_before_us = 0, suspect = 0"
        " WHERE run_key = ? AND slot_no = ? AND state = 'pending' AND next_step <> 'new'",
        (reason, run_key, slot_no),
    )
    tx.event(run_key, "slot.unknown", {"slot": slot_no, "reason": reason})


def tries_spent(tx: Transaction, run_key: int, slot_no: int) -> int:
    """How many ended attempts count against ``attempts_max``: a death of ours is not the target's fault."""
    count: int = tx.row(
        "SELECT count(*) FROM attempts WHERE run_key = ? AND slot_no = ?"
        " AND state IN ('failed', 'unknown', 'late', 'given_back', 'not_landed', 'abandoned')"
        " AND coalesce(reason, '') NOT IN ('coordinator.died', 'stopped', 'cancelled')",
        (run_key, slot_no),
    )[0]
    return count


def resendable(tx: Transaction, call_id: str) -> tuple[int | None, bool]:
    """Until when the call's idempotency key holds (None: for ever), and whether its bytes are kept."""
    until, stored = tx.row(
        "SELECT key_until_us, coalesce(payload, payload_artifact) IS NOT NULL FROM calls WHERE call_id = ?", (call_id,)
    )
    return until, bool(stored)
