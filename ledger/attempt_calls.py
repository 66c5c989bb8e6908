"""An attempt of several calls: opened, asked one call after the other, and concluded or broken off.

`attempts.begin` and `attempts.observe` are the same for the one call that most attempts have, in one step each. What
becomes of a single dispatch (`attempts.refuse`, `fail`, `lose`, `dispatch_again`) is the same for both.
"""

from __future__ import annotations

import attrs

from . import budgets
from .attempt_rows import add_attempt, add_observation, claim, end_dispatch, end_slot, move_attempt, record_event
from .attempts import intend_call, record_unknown, stay_unknown
from .crashpoints import crashpoint
from .errors import TransitionRefused
from .open_calls import AttemptCalls, calls_of, next_of
from .records import Artifact, Begun, DispatchFacts, DispatchKey, Intent, Waiting
from .states import AttemptState, DispatchState, NextStep, SlotState
from .transaction import Transaction

__all__ = ["break_off", "conclude", "further_call", "leave_open", "open_attempt", "settle_answer"]


def open_attempt(
    tx: Transaction, run_key: int, slot_no: int, *, fingerprint: str, solitary: bool = False
) -> DispatchKey:
    """Claim the slot and number a new attempt that has no call yet; the key names the attempt alone.

    Raises TransitionRefused when the slot does not wait for a new attempt.
    """
    attempt_no = claim(tx, run_key, slot_no)
    add_attempt(tx, run_key, slot_no, attempt_no, fingerprint=fingerprint, solitary=solitary)
    return DispatchKey(run_key, slot_no, attempt_no, "", 0)


def further_call(tx: Transaction, intent: Intent, attempt_no: int, *, is_replay: bool = False, role: str = "") -> Begun:
    """Record the next call of a running attempt, at the next position, with the intent of its first dispatch.

    ``is_replay`` says that what it asks was answered before, in an earlier attempt. Raises TransitionRefused when the
    attempt does not run, BudgetExhausted when a hold does not fit, and LeaseLost when a device is not held any more.
    """
    state, newest = tx.row(
        "SELECT a.state, (SELECT coalesce(max(c.position), 0) FROM calls c WHERE c.run_key = a.run_key"
        " AND c.slot_no = a.slot_no AND c.attempt_no = a.attempt_no AND c.owner = 'attempt') FROM attempts a"
        " WHERE a.run_key = ? AND a.slot_no = ? AND a.attempt_no = ?",
        (intent.run_key, intent.slot_no, attempt_no),
    )
    if state != AttemptState.RUNNING:
        raise TransitionRefused(
            f"attempt {attempt_no} of slot {intent.slot_no} is {state} and can have no further call",
            "look at its case: `tallystick show RUN CASE`", "attempt", "running",
        )  # fmt: skip
    budgets.reserve(tx, intent.run_key, intent.holds)
    return intend_call(tx, intent, attempt_no, position=newest + 1, is_replay=is_replay, role=role)


def settle_answer(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    """A whole answer in time that does not end its attempt; whoever asked for it appends the event."""
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    budgets.settle(tx, key, facts)


def conclude(
    tx: Transaction,
    key: DispatchKey,
    *,
    answer: str | Artifact,
    answer_digest: str,
    evidence: str = "{}",
    flags: str = "[]",
    source: str = "wire",
) -> None:
    """End a running attempt, none of whose calls is under way, with its observation, and select it.

    ``key`` names the call that the answer is from, or the attempt alone where it is from none of its own.
    """
    facts = DispatchFacts(DispatchState.ANSWERED)
    move_attempt(tx, key, AttemptState.OBSERVED, AttemptState.RUNNING, facts)
    add_observation(tx, key, answer=answer, answer_digest=answer_digest, evidence=evidence, flags=flags, source=source)
    end_slot(tx, key, SlotState.SELECTED, selected=True)
    record_event(tx, key, "attempt.observed", facts, {"answer": answer_digest})
    crashpoint("dispatch.outcome.inside")


def leave_open(
    tx: Transaction, key: DispatchKey, calls: AttemptCalls, facts: DispatchFacts, *, may_be_its_doing: bool
) -> Waiting | None:
    """End a running attempt of which some call has no outcome: each is unknown, and together they say what may follow.

    ``may_be_its_doing``: its process died meanwhile, so that the case is suspect where it is tried again. Returns what
    follows by itself, None where an operator decides.
    """
    waiting = next_of(calls.open, now_us=tx.now_us)
    under_way = [(call.call_id, number) for call in calls.open for number in call.intended]
    for number, (call_id, dispatch_no) in enumerate(under_way, start=1):
        key = attrs.evolve(key, call_id=call_id, dispatch_no=dispatch_no)
        end_dispatch(tx, key, facts, DispatchState.INTENDED)
        if number < len(under_way):
            record_unknown(tx, key, facts, waiting)
    stay_unknown(tx, key, facts, waiting=waiting, suspect=may_be_its_doing and waiting is not None)
    return waiting


def break_off(
    tx: Transaction, key: DispatchKey, *, reason: str, message: str = "", not_before_us: int = 0, suspect: bool = False
) -> SlotState:
    """End a running attempt between two of its calls; its slot waits for a new attempt. Nobody is to blame.

    The attempt stays unknown where one of its dispatches is: one whose call was answered when it was sent again. Raises
    TransitionRefused while one of its calls is under way, or has no outcome.
    """
    calls = calls_of(tx, key.run_key, key.slot_no, key.attempt_no)
    if calls.open:
        raise TransitionRefused(
            f"attempt {key.attempt_no} of slot {key.slot_no} has a call without an outcome and cannot be broken off",
            "look at its case: `tallystick show RUN CASE`", "attempt", "interrupted",
        )  # fmt: skip
    facts = DispatchFacts(DispatchState.REFUSED, reason, message, settled_by="runner")
    waiting = Waiting(NextStep.NEW, not_before_us)
    if calls.has_unknown:
        return stay_unknown(tx, key, facts, waiting=waiting, suspect=suspect)
    move_attempt(tx, key, AttemptState.INTERRUPTED, AttemptState.RUNNING, facts)
    end_slot(tx, key, SlotState.PENDING, waiting=waiting, reason=reason, suspect=suspect)
    record_event(tx, key, "attempt.interrupted", facts)
    return SlotState.PENDING
