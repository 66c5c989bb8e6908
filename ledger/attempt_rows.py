"""What the steps of an attempt write: each function changes or adds one row, by one guarded statement.

Nothing here decides anything; `attempts` and its neighbours put them together, one step a piece of work.
"""

from __future__ import annotations

from sqlalchemy import bindparam, update

from .artifacts import record
from .errors import TransitionRefused
from .records import Artifact, DispatchFacts, DispatchKey, Waiting
from .schema import attempts, dispatches, observations, slots
from .statements import hot, hot_insert
from .states import AttemptState, DispatchState, NextStep, SlotState
from .transaction import Transaction

__all__ = [
    "ADD_ATTEMPT",
    "add_attempt",
    "add_observation",
    "claim",
    "end_dispatch",
    "end_slot",
    "move_attempt",
    "record_event",
    "recorded",
    "take_up_again",
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
ADD_ATTEMPT = hot_insert(
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
_ADD_OBSERVATION = hot_insert(
    observations,
    "run_key", "slot_no", "attempt_no", "call_id", "dispatch_no", "answer", "answer_artifact", "answer_digest",
    "evidence", "flags", "source", "observed_us",
)  # fmt: skip


def claim(tx: Transaction, run_key: int, slot_no: int) -> int:
    """Take a slot that waits for a new attempt, and return that attempt's number; raises TransitionRefused."""
    claimed = tx.rows(_CLAIM, ("in_flight", 1, run_key, slot_no, "pending", "new"))
    if not claimed:
        raise TransitionRefused(
            f"slot {slot_no} is not pending for a new attempt", "somebody else has claimed or settled it", "slot",
            "in_flight",
        )  # fmt: skip
    attempt_no: int = claimed[0][0]
    return attempt_no


def take_up_again(tx: Transaction, key: DispatchKey, step: NextStep, *, solitary: bool) -> None:
    """Let a slot's newest attempt run again, whose call waits to be resent or asked for; raises TransitionRefused."""
    tx.move("slot", "in_flight",
            "UPDATE slots SET state = 'in_flight' WHERE run_key = ? AND slot_no = ? AND state = 'pending'"
            " AND attempts = ? AND next_step = ?",
            (key.run_key, key.slot_no, key.attempt_no, step))  # fmt: skip
    tx.move("attempt", "running",
            "UPDATE attempts SET state = 'running', worker_id = ?, ended_us = NULL, solitary = ?"
            " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'unknown'",
            (tx.worker_id, int(solitary), key.run_key, key.slot_no, key.attempt_no))  # fmt: skip


def add_attempt(
    tx: Transaction, run_key: int, slot_no: int, attempt_no: int, *, fingerprint: str, solitary: bool = False
) -> None:
    """The row of an attempt that begins now."""
    tx.execute(
        ADD_ATTEMPT,
        (run_key, slot_no, attempt_no, "running", tx.worker_id, fingerprint, int(solitary), tx.now_us),
    )


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
    """Keep an answer with its attempt; ``source`` is ``wire``, ``late``, ``query`` or ``operator``.

    A key without a call is an attempt's that brings together what others were answered.
    """
    text, file = (answer, None) if isinstance(answer, str) else (None, recorded(tx, answer))
    tx.execute(
        _ADD_OBSERVATION,
        (key.run_key, key.slot_no, key.attempt_no, key.call_id or None, key.dispatch_no or None, text, file,
         answer_digest, evidence, flags, source, tx.now_us),
    )  # fmt: skip


def recorded(tx: Transaction, artifact: Artifact | None) -> str | None:
    return None if artifact is None else record(tx, artifact)


def end_dispatch(tx: Transaction, key: DispatchKey, facts: DispatchFacts, old: DispatchState) -> None:
    tx.move(
        "dispatch", facts.state, _END_DISPATCH,
        (facts.state, tx.now_us, facts.duration_us, facts.bytes_sent, facts.wire_sends, facts.status, facts.reason,
         facts.message, facts.settled_by, facts.raw, recorded(tx, facts.raw_artifact), int(facts.raw_cut),
         facts.retry_after_us, facts.tokens_in,
         facts.tokens_out, facts.cost_nanousd, facts.usage, key.call_id, key.dispatch_no, old),
    )  # fmt: skip


def move_attempt(tx: Transaction, key: DispatchKey, new: AttemptState, old: AttemptState, facts: DispatchFacts) -> None:
    tx.move("attempt", new, _MOVE_ATTEMPT,
            (new, tx.now_us, facts.reason, facts.message, key.run_key, key.slot_no, key.attempt_no, old))  # fmt: skip


def end_slot(
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
