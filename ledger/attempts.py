"""The life of an attempt: two commits a call.

`begin` commits claim, attempt, reservation and intent, before anything is sent. `observe`, `refuse`, `fail`, `lose` and
`keep_late` commit what became of it. Each is one piece of work for the scribe, and each appends one event to the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, update

from . import budgets
from .artifacts import record
from .canonical import JsonValue
from .crashpoints import crashpoint
from .errors import TransitionRefused
from .lease_guard import dispatch_under
from .records import Artifact, Begun, DispatchFacts, DispatchKey, Held, Hold, Intent, Waiting
from .schema import attempts, calls, dispatches, observations, slots
from .statements import hot, hot_insert
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

_SLOT = (slots.c.run_key == bindparam("run")) & (slots.c.slot_no == bindparam("slot"))
_CLAIM = hot(
    update(slots)
    .ordered_values(
        (slots.c.state, bindparam("new")), (slots.c.attempts, slots.c.attempts + bindparam("one"))
    )
    .where(_SLOT, slots.c.state == bindparam("old"), slots.c.next_step == bindparam("step"))
    .returning(slots.c.attempts),
    "new", "one", "run", "slot", "old", "step",
)  # fmt: skip
_END_SLOT = hot(
    update(slots)
    .ordered_values(
        (slots.c.state, bindparam("new")),
        (slots.c.selected_attempt, bindparam("selected")),
        (slots.c.next_step, bindparam("step")),
        (slots.c.not_before_us, bindparam("not_before")),
        (slots.c.reason, bindparam("why")),
        (slots.c.suspect, bindparam("suspicion")),
    )
    .where(_SLOT, slots.c.state == bindparam("old"), slots.c.attempts == bindparam("attempt")),
    "new", "selected", "step", "not_before", "why", "suspicion", "run", "slot", "old", "attempt",
)  # fmt: skip
_ADD_ATTEMPT = hot_insert(
    attempts, "run_key", "slot_no", "attempt_no", "state", "worker_id", "fingerprint", "solitary", "began_us"
)
_ATTEMPT = (
    (attempts.c.run_key == bindparam("run"))
    & (attempts.c.slot_no == bindparam("slot"))
    & (attempts.c.attempt_no == bindparam("attempt"))
    & (attempts.c.state == bindparam("old"))
)
_MOVE_ATTEMPT = hot(
    update(attempts)
    .ordered_values(
        (attempts.c.state, bindparam("new")),
        (attempts.c.ended_us, bindparam("ended")),
        (attempts.c.reason, bindparam("why")),
        (attempts.c.message, bindparam("said")),
    )
    .where(_ATTEMPT),
    "new", "ended", "why", "said", "run", "slot", "attempt", "old",
)  # fmt: skip
_ADD_CALL = hot_insert(
    calls,
    "call_id", "run_key", "owner", "slot_no", "attempt_no", "head", "payload", "payload_artifact", "payload_digest",
    "payload_size", "if_unknown", "key_until_us", "fence", "intended_us",
)  # fmt: skip
_ADD_DISPATCH = hot_insert(dispatches, "call_id", "dispatch_no", "run_key", "state", "worker_id", "intended_us")
_END_DISPATCH = hot(
    update(dispatches)
    .ordered_values(
        (dispatches.c.state, bindparam("new")),
        (dispatches.c.ended_us, bindparam("ended")),
        (dispatches.c.duration_us, bindparam("took")),
        (dispatches.c.bytes_sent, bindparam("sent")),
        (dispatches.c.wire_sends, bindparam("sends")),
        (dispatches.c.status, bindparam("code")),
        (dispatches.c.reason, bindparam("why")),
        (dispatches.c.message, bindparam("said")),
        (dispatches.c.settled_by, bindparam("by")),
        (dispatches.c.raw, bindparam("body")),
        (dispatches.c.raw_artifact, bindparam("file")),
        (dispatches.c.raw_cut, bindparam("cut")),
        (dispatches.c.retry_after_us, bindparam("retry")),
        (dispatches.c.tokens_in, bindparam("t_in")),
        (dispatches.c.tokens_out, bindparam("t_out")),
        (dispatches.c.cost_nanousd, bindparam("cost")),
        (dispatches.c.usage, bindparam("used")),
    )
    .where(
        (dispatches.c.call_id == bindparam("call"))
        & (dispatches.c.dispatch_no == bindparam("dispatch"))
        & (dispatches.c.state == bindparam("old"))
    ),
    "new", "ended", "took", "sent", "sends", "code", "why", "said", "by", "body", "file", "cut", "retry", "t_in",
    "t_out", "cost", "used", "call", "dispatch", "old",
)  # fmt: skip
_ATTEMPT_AND_DISPATCH = (
    "SELECT a.state, d.state FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
    " JOIN attempts a ON a.run_key = c.run_key AND a.slot_no = c.slot_no AND a.attempt_no = c.attempt_no"
    " WHERE d.call_id = ? AND d.dispatch_no = ?"
)
_HAS_UNKNOWN = (
    "SELECT EXISTS (SELECT 1 FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt' AND d.state = 'unknown')"
)
_ADD_OBSERVATION = hot_insert(
    observations,
    "run_key", "slot_no", "attempt_no", "call_id", "dispatch_no", "answer", "answer_artifact", "answer_digest",
    "evidence", "flags", "source", "observed_us",
)  # fmt: skip


def begin(tx: Transaction, intent: Intent) -> Begun:
    """Claim the slot, number a new attempt, reserve, and record the intent of its first dispatch.

    Raises TransitionRefused when the slot does not wait for a new attempt (not even when it waits to resend or to ask
    for its last call), BudgetExhausted when a hold does not fit, and LeaseLost when a device is not held any more; then
    nothing of it stays.
    """
    run_key, slot_no, now = intent.run_key, intent.slot_no, tx.now_us
    claimed = tx.rows(_CLAIM, ("in_flight", 1, run_key, slot_no, "pending", "new"))
    if not claimed:
        raise _not_claimed(slot_no)
    attempt_no = claimed[0][0]
    key = DispatchKey(run_key, slot_no, attempt_no, intent.call_id, 1, intent.holds)
    budgets.reserve(tx, run_key, intent.holds)
    execute = tx.execute
    execute(
        _ADD_ATTEMPT,
        (run_key, slot_no, attempt_no, "running", tx.worker_id, intent.fingerprint, int(intent.solitary), now),
    )
    execute(
        _ADD_CALL,
        (intent.call_id, run_key, "attempt", slot_no, attempt_no, intent.head, intent.payload,
         _recorded(tx, intent.payload_artifact), intent.payload_digest, intent.payload_size, intent.if_unknown,
         intent.key_until_us, None if intent.held is None else intent.held.fence, now),
    )  # fmt: skip
    if intent.held is not None:
        dispatch_under(tx, key, intent.held)
    execute(_ADD_DISPATCH, (intent.call_id, 1, run_key, "intended", tx.worker_id, now))
    budgets.record_reservations(tx, key)
    tx.event(run_key, "dispatch.intended", {
        "slot": slot_no, "attempt": attempt_no, "call": intent.call_id, "dispatch": 1,
        "payload": intent.payload_digest, "held": _amounts(intent.holds), **_under(intent.held),
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


def dispatch_again(tx: Transaction, key: DispatchKey, holds: tuple[Hold, ...], *, held: Held | None = None) -> Begun:
    """Intend the next dispatch of the same call in the same attempt, after one that was refused or, resent, unknown.

    Raises TransitionRefused when the attempt does not run or that dispatch is still under way, and LeaseLost when a
    device is not held any more.
    """
    states = tx.row(_ATTEMPT_AND_DISPATCH, (key.call_id, key.dispatch_no))
    if states is None or states[0] != "running" or states[1] not in ("refused", "unknown"):
        raise TransitionRefused(
            f"dispatch {key.dispatch_no} of call {key.call_id} cannot be followed by another",
            "look at it with `tallystick show`", "dispatch", "intended",
        )  # fmt: skip
    budgets.reserve(tx, key.run_key, holds)
    again = DispatchKey(key.run_key, key.slot_no, key.attempt_no, key.call_id, key.dispatch_no + 1, holds)
    if held is not None:
        dispatch_under(tx, again, held)
    _intend(tx, again, held)
    return Begun(again, tx.now_us)


def reopen(
    tx: Transaction,
    key: DispatchKey,
    holds: tuple[Hold, ...],
    *,
    solitary: bool = False,
    held: Held | None = None,
) -> Begun:
    """Go on with a slot's newest attempt by sending its call's stored bytes again (``if_unknown = "resend"``)."""
    tx.move("slot", "in_flight",
            "UPDATE slots SET state = 'in_flight' WHERE run_key = ? AND slot_no = ? AND state = 'pending'"
            " AND attempts = ? AND next_step = 'resend'",
            (key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    tx.move("attempt", "running",
            "UPDATE attempts SET state = 'running', worker_id = ?, ended_us = NULL, solitary = ?"
            " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'unknown'",
            (tx.worker_id, int(solitary), key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    return dispatch_again(tx, key, holds, held=held)


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
    return bool(tx.row(_HAS_UNKNOWN, (key.run_key, key.slot_no, key.attempt_no))[0])


def stay_unknown(
    tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None, suspect: bool = False
) -> SlotState:
    """End a running attempt as unknown because an earlier dispatch of it is; its last one is settled already."""
    move_attempt(tx, key, AttemptState.UNKNOWN, AttemptState.RUNNING, facts)
    state = SlotState.PENDING if waiting else SlotState.UNKNOWN
    _end_slot(tx, key, state, waiting=waiting, reason=facts.reason, suspect=suspect)
    # A later settlement overwrites these columns; a report of this moment needs them.
    record_event(tx, key, "attempt.unknown", facts, {
        "next": waiting.step if waiting else "decide", "message": facts.message, "bytes_sent": facts.bytes_sent,
        "duration_us": facts.duration_us, "status": facts.status,
    })  # fmt: skip
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
        _ADD_OBSERVATION,
        (key.run_key, key.slot_no, key.attempt_no, key.call_id, key.dispatch_no, text, file, answer_digest, evidence,
         flags, source, tx.now_us),
    )  # fmt: skip


def _recorded(tx: Transaction, artifact: Artifact | None) -> str | None:
    return None if artifact is None else record(tx, artifact)


def _intend(tx: Transaction, key: DispatchKey, held: Held | None) -> None:
    tx.execute(_ADD_DISPATCH, (key.call_id, key.dispatch_no, key.run_key, "intended", tx.worker_id, tx.now_us))
    budgets.record_reservations(tx, key)
    tx.event(key.run_key, "dispatch.intended", {
        "slot": key.slot_no, "attempt": key.attempt_no, "call": key.call_id, "dispatch": key.dispatch_no,
        "held": _amounts(key.holds), **_under(held),
    })  # fmt: skip
    crashpoint("dispatch.intent.inside")


def end_dispatch(tx: Transaction, key: DispatchKey, facts: DispatchFacts, old: DispatchState) -> None:
    tx.move(
        "dispatch", facts.state, _END_DISPATCH,
        (facts.state, tx.now_us, facts.duration_us, facts.bytes_sent, facts.wire_sends, facts.status, facts.reason,
         facts.message, facts.settled_by, facts.raw, _recorded(tx, facts.raw_artifact), int(facts.raw_cut),
         facts.retry_after_us, facts.tokens_in,
         facts.tokens_out, facts.cost_nanousd, facts.usage, key.call_id, key.dispatch_no, old),
    )  # fmt: skip


def move_attempt(tx: Transaction, key: DispatchKey, new: AttemptState, old: AttemptState, facts: DispatchFacts) -> None:
    tx.move("attempt", new, _MOVE_ATTEMPT,
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
    tx.move("slot", new, _END_SLOT,
            (new, key.attempt_no if selected else None, step, not_before, reason, int(suspect), key.run_key,
             key.slot_no, "in_flight", key.attempt_no))  # fmt: skip


def record_event(
    tx: Transaction, key: DispatchKey, kind: str, facts: DispatchFacts, more: dict[str, str | int | None] | None = None
) -> None:
    tx.event(key.run_key, kind, {
        "slot": key.slot_no, "attempt": key.attempt_no, "call": key.call_id, "dispatch": key.dispatch_no,
        "reason": facts.reason, "by": facts.settled_by, **(more or {}),
    })  # fmt: skip


def _under(held: Held | None) -> dict[str, JsonValue]:
    return {} if held is None else {"fence": held.fence, "leases": list(held.leases)}


def _amounts(holds: Sequence[Hold]) -> dict[str, int]:
    return {str(hold.budget_no): hold.amount for hold in holds}


def fail_unprepared(
    tx: Transaction, run_key: int, slot_no: int, *, fingerprint: str, reason: str, message: str
) -> None:
    """A case from which no request can be made: a failed attempt without any call, and a failed slot."""
    claimed = tx.rows(_CLAIM, ("in_flight", 1, run_key, slot_no, "pending", "new"))
    if not claimed:
        raise _not_claimed(slot_no)
    key = DispatchKey(run_key, slot_no, claimed[0][0], "", 0)
    tx.execute(_ADD_ATTEMPT, (run_key, slot_no, key.attempt_no, "running", tx.worker_id, fingerprint, 0, tx.now_us))
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
