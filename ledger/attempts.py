"""The life of an attempt: two commits a call.

`begin` commits claim, attempt, reservation and intent, before anything is sent. `observe`, `refuse`, `fail`, `lose` and
`keep_late` commit what became of it. Each is one piece of work for the scribe, and each appends one event to the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import budgets
from .attempt_rows import (
    add_attempt,
    add_observation,
    claim,
    end_dispatch,
    end_slot,
    move_attempt,
    record_event,
    recorded,
    take_up_again,
)
from .canonical import JsonValue
from .crashpoints import crashpoint
from .errors import TransitionRefused
from .lease_guard import dispatch_under
from .ledger import Reader
from .records import Artifact, Begun, DispatchFacts, DispatchKey, Held, Hold, Intent, Waiting
from .schema import calls, dispatches
from .statements import hot_insert
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
    "intend_call",
    "leave_unknown",
    "lose",
    "move_attempt",
    "observe",
    "postpone",
    "record_event",
    "record_unknown",
    "refuse",
    "reopen",
    "resendable",
    "stay_unknown",
    "tries_spent",
    "unknown_sends",
]

_ADD_CALL = hot_insert(
    calls,
    "call_id", "run_key", "owner", "slot_no", "attempt_no", "position", "head", "payload", "payload_artifact",
    "payload_digest", "payload_size", "if_unknown", "key_until_us", "fence", "intended_us",
)  # fmt: skip
_ADD_ROLE_CALL = hot_insert(
    calls,
    "call_id", "run_key", "owner", "slot_no", "attempt_no", "position", "head", "payload", "payload_artifact",
    "payload_digest", "payload_size", "if_unknown", "key_until_us", "fence", "intended_us", "role",
)  # fmt: skip
_ADD_DISPATCH = hot_insert(
    dispatches, "call_id", "dispatch_no", "run_key", "state", "worker_id", "intended_us", "replay"
)
_ATTEMPT_AND_DISPATCH = (
    "SELECT a.state, d.state, d.replay FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
    " JOIN attempts a ON a.run_key = c.run_key AND a.slot_no = c.slot_no AND a.attempt_no = c.attempt_no"
    " WHERE d.call_id = ? AND d.dispatch_no = ?"
)
_UNKNOWN_SENDS = (
    "SELECT coalesce(max(c.call_id = ?), 0), count(*) > 0 FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt' AND d.state = 'unknown'"
)


def begin(tx: Transaction, intent: Intent) -> Begun:
    """Claim the slot, number a new attempt, reserve, and record the intent of its first dispatch.

    Raises TransitionRefused when the slot does not wait for a new attempt (not even when it waits to resend or to ask
    for its last call), BudgetExhausted when a hold does not fit, and LeaseLost when a device is not held any more; then
    nothing of it stays.
    """
    run_key, slot_no = intent.run_key, intent.slot_no
    attempt_no = claim(tx, run_key, slot_no)
    budgets.reserve(tx, run_key, intent.holds)
    add_attempt(tx, run_key, slot_no, attempt_no, fingerprint=intent.fingerprint, solitary=intent.solitary)
    return intend_call(tx, intent, attempt_no)


def intend_call(
    tx: Transaction, intent: Intent, attempt_no: int, *, position: int = 1, is_replay: bool = False, role: str = ""
) -> Begun:
    """Record a call of an attempt with the intent of its first dispatch; its holds are reserved already.

    Whether the attempt may have one is the caller's to know (`begin`, `attempt_calls.further_call`).
    """
    run_key, slot_no, now, execute = intent.run_key, intent.slot_no, tx.now_us, tx.execute
    key = DispatchKey(run_key, slot_no, attempt_no, intent.call_id, 1, intent.holds)
    row = (
        intent.call_id, run_key, "attempt", slot_no, attempt_no, position, intent.head, intent.payload,
        recorded(tx, intent.payload_artifact), intent.payload_digest, intent.payload_size, intent.if_unknown,
        intent.key_until_us, None if intent.held is None else intent.held.fence, now,
    )  # fmt: skip
    if role:
        execute(_ADD_ROLE_CALL, (*row, role))
    else:
        execute(_ADD_CALL, row)
    if intent.held is not None:
        dispatch_under(tx, key, intent.held)
    execute(_ADD_DISPATCH, (intent.call_id, 1, run_key, "intended", tx.worker_id, now, int(is_replay)))
    budgets.record_reservations(tx, key)
    tx.event(run_key, "dispatch.intended", {
        "slot": slot_no, "attempt": attempt_no, "call": intent.call_id, "dispatch": 1,
        "payload": intent.payload_digest, "held": held_amounts(intent.holds), **_under(intent.held),
    })  # fmt: skip
    crashpoint("dispatch.intent.inside")
    return Begun(key, now)


def dispatch_again(tx: Transaction, key: DispatchKey, holds: tuple[Hold, ...], *, held: Held | None = None) -> Begun:
    """Intend the next dispatch of the same call in the same attempt, after one that was refused or, resent, unknown.

    A resend may also follow one that somebody has settled as failed or given up while an earlier one stays unknown.
    Raises TransitionRefused when the attempt does not run or that dispatch is still under way, and LeaseLost when a
    device is not held any more.
    """
    states = tx.row(_ATTEMPT_AND_DISPATCH, (key.call_id, key.dispatch_no))
    if states is None or states[0] != "running" or not _may_be_followed(tx, key, states[1]):
        raise TransitionRefused(
            f"dispatch {key.dispatch_no} of call {key.call_id} cannot be followed by another",
            "look at its case: `tallystick show RUN CASE`", "dispatch", "intended",
        )  # fmt: skip
    budgets.reserve(tx, key.run_key, holds)
    again = DispatchKey(key.run_key, key.slot_no, key.attempt_no, key.call_id, key.dispatch_no + 1, holds)
    if held is not None:
        dispatch_under(tx, again, held)
    _intend(tx, again, held, is_replay=states[2])
    return Begun(again, tx.now_us)


def _may_be_followed(tx: Transaction, key: DispatchKey, state: str) -> bool:
    return state in ("refused", "unknown") or (state in ("failed", "abandoned") and unknown_sends(tx, key)[0])


def reopen(
    tx: Transaction,
    key: DispatchKey,
    holds: tuple[Hold, ...],
    *,
    solitary: bool = False,
    held: Held | None = None,
) -> Begun:
    """Go on with a slot's newest attempt by sending its call's stored bytes again (``if_unknown = "resend"``)."""
    take_up_again(tx, key, NextStep.RESEND, solitary=solitary)
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
    end_slot(tx, key, SlotState.SELECTED, selected=True)
    record_event(tx, key, "attempt.observed", facts, {"answer": answer_digest})
    crashpoint("dispatch.outcome.inside")


def refuse(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    """Proven not to have been done; the attempt goes on, its call may be dispatched again."""
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    budgets.settle_refused(tx, key, facts)
    record_event(tx, key, "dispatch.refused", facts)


def give_back(
    tx: Transaction, key: DispatchKey, waiting: Waiting | None, *, reason: str, message: str = ""
) -> SlotState:
    """End an attempt whose last dispatch was proven not to have been done, and return what became of its slot.

    The slot waits again, perhaps not before an instant; without ``waiting`` it is unavailable: tried often enough.
    Where an earlier dispatch of that call is unknown (this one was its resend), the attempt is unknown as before: then
    the same bytes wait to be sent again, or an operator decides, and never a new request follows. An earlier *call* of
    the attempt that was sent twice and answered once leaves the attempt unknown, and stands in the way of nothing.
    """
    facts = DispatchFacts(DispatchState.REFUSED, reason, message)
    of_call, of_attempt = unknown_sends(tx, key)
    if of_call:
        resend = None if waiting is None else Waiting(NextStep.RESEND, waiting.not_before_us)
        return stay_unknown(tx, key, facts, waiting=resend)
    ended = AttemptState.UNKNOWN if of_attempt else AttemptState.GIVEN_BACK
    move_attempt(tx, key, ended, AttemptState.RUNNING, facts)
    state = SlotState.PENDING if waiting else SlotState.UNAVAILABLE
    end_slot(tx, key, state, waiting=waiting, reason=reason)
    record_event(tx, key, "attempt.given_back", facts, {
        "not_before": waiting.not_before_us if waiting else -1, "attempt_state": ended, "message": message,
    })  # fmt: skip
    return state


def unknown_sends(tx: Transaction, key: DispatchKey) -> tuple[bool, bool]:
    """Whether some dispatch of the call, and of the whole attempt, has an unknown outcome."""
    of_call, of_attempt = tx.row(_UNKNOWN_SENDS, (key.call_id, key.run_key, key.slot_no, key.attempt_no))
    return bool(of_call), bool(of_attempt)


def stay_unknown(
    tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None, suspect: bool = False
) -> SlotState:
    """End a running attempt as unknown because an earlier dispatch of it is; its last one is settled already."""
    move_attempt(tx, key, AttemptState.UNKNOWN, AttemptState.RUNNING, facts)
    state = SlotState.PENDING if waiting else SlotState.UNKNOWN
    end_slot(tx, key, state, waiting=waiting, reason=facts.reason, suspect=suspect)
    record_unknown(tx, key, facts, waiting)
    return state


def record_unknown(tx: Transaction, key: DispatchKey, facts: DispatchFacts, waiting: Waiting | None) -> None:
    """The event of an unknown outcome; a later settlement overwrites the columns that a report of this moment needs."""
    record_event(tx, key, "attempt.unknown", facts, {
        "next": waiting.step if waiting else "decide", "message": facts.message, "bytes_sent": facts.bytes_sent,
        "duration_us": facts.duration_us, "status": facts.status,
    })  # fmt: skip


def fail(tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None) -> None:
    """An answer that is an error: settle it; the slot waits for another attempt, or has failed.

    Where nothing was sent (the request could not be written, the program could not be started) nothing is charged.
    """
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    budgets.settle_ended(tx, key, facts)
    end_failed(tx, key, facts, waiting=waiting)


def end_failed(tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None) -> None:
    """End a running attempt as failed, its last dispatch being settled already."""
    move_attempt(tx, key, AttemptState.FAILED, AttemptState.RUNNING, facts)
    end_slot(tx, key, SlotState.PENDING if waiting else SlotState.FAILED, waiting=waiting, reason=facts.reason)
    record_event(tx, key, "attempt.failed", facts, {"again": waiting is not None})


def lose(
    tx: Transaction, key: DispatchKey, facts: DispatchFacts, *, waiting: Waiting | None, suspect: bool = False
) -> None:
    """Bytes may have left and no whole answer came: unknown, and its holds stay held.

    ``waiting`` is what `if_unknown` allows to follow; without it the slot itself is unknown until it is settled.
    """
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    stay_unknown(tx, key, facts, waiting=waiting, suspect=suspect)


def _intend(tx: Transaction, key: DispatchKey, held: Held | None, *, is_replay: int) -> None:
    tx.execute(
        _ADD_DISPATCH,
        (key.call_id, key.dispatch_no, key.run_key, "intended", tx.worker_id, tx.now_us, is_replay),
    )
    budgets.record_reservations(tx, key)
    tx.event(key.run_key, "dispatch.intended", {
        "slot": key.slot_no, "attempt": key.attempt_no, "call": key.call_id, "dispatch": key.dispatch_no,
        "held": held_amounts(key.holds), **_under(held),
    })  # fmt: skip
    crashpoint("dispatch.intent.inside")


def _under(held: Held | None) -> dict[str, JsonValue]:
    return {} if held is None else {"fence": held.fence, "leases": list(held.leases)}


def held_amounts(holds: Sequence[Hold]) -> dict[str, JsonValue]:
    """What an event says of the holds of a dispatch."""
    return {str(hold.budget_no): hold.amount for hold in holds}


def fail_unprepared(
    tx: Transaction,
    run_key: int,
    slot_no: int,
    *,
    fingerprint: str,
    reason: str,
    message: str,
    waiting: Waiting | None = None,
) -> None:
    """A case from which no request can be made: a failed attempt without any call; the slot has failed, or waits."""
    key = DispatchKey(run_key, slot_no, claim(tx, run_key, slot_no), "", 0)
    add_attempt(tx, run_key, slot_no, key.attempt_no, fingerprint=fingerprint)
    end_failed(tx, key, DispatchFacts(DispatchState.FAILED, reason, message), waiting=waiting)


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


def leave_unknown(tx: Transaction, run_key: int, slot_no: int, *, reason: str, undecided: str | None = None) -> None:
    """A waiting slot whose resends or queries are used up: from here an operator decides.

    With ``undecided``, a message, its next step stays until the reason goes away (`budgets.let_wait_again`).
    """
    tx.move(
        "slot",
        "unknown",
        "UPDATE slots SET state = 'unknown', reason = ?, next_step = CASE WHEN ? THEN next_step ELSE 'new' END,"
        " not_before_us = 0, suspect = 0"
        " WHERE run_key = ? AND slot_no = ? AND state = 'pending' AND next_step <> 'new'",
        (reason, undecided is not None, run_key, slot_no),
    )
    body: dict[str, JsonValue] = {"slot": slot_no, "reason": reason}
    tx.event(run_key, "slot.unknown", body if undecided is None else {**body, "undecided": undecided})


def tries_spent(tx: Transaction | Reader, run_key: int, slot_no: int) -> int:
    """How many ended attempts count against ``attempts_max``: a death of ours is not the target's fault."""
    count: int = tx.row(
        "SELECT count(*) FROM attempts WHERE run_key = ? AND slot_no = ?"
        " AND state IN ('failed', 'unknown', 'late', 'given_back', 'not_landed', 'abandoned')"
        " AND coalesce(reason, '') NOT IN ('coordinator.died', 'stopped', 'cancelled', 'lease.lost')",
        (run_key, slot_no),
    )[0]
    return count


def resendable(tx: Transaction, call_id: str) -> tuple[int | None, bool]:
    """Until when the call's idempotency key holds (None: for ever), and whether its bytes are kept."""
    until, stored = tx.row(
        "SELECT key_until_us, coalesce(payload, payload_artifact) IS NOT NULL FROM calls WHERE call_id = ?", (call_id,)
    )
    return until, bool(stored)
