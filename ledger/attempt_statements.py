"""The statements by which attempts live, written once for one attempt at a time and for many."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import bindparam, update

from .schema import attempts, calls, dispatches, observations, slots
from .statements import hot, hot_insert, hot_update

__all__ = [
    "ADD_ATTEMPT",
    "ADD_CALL",
    "ADD_DISPATCH",
    "ADD_OBSERVATION",
    "ADD_PLAIN_CALL",
    "ADD_PLAIN_OBSERVATION",
    "ATTEMPT_AND_DISPATCH",
    "CLAIM",
    "CLAIM_KNOWN",
    "END_DISPATCH",
    "END_SLOT",
    "HAS_UNKNOWN",
    "MOVE_ATTEMPT",
    "OBSERVE_ATTEMPT",
    "SELECT_SLOT",
    "end_intended",
]

_SLOT = (slots.c.run_key == bindparam("run")) & (slots.c.slot_no == bindparam("slot"))
CLAIM = hot(
    update(slots)
    .ordered_values(
        (slots.c.state, bindparam("new")), (slots.c.attempts, slots.c.attempts + bindparam("one"))
    )
    .where(_SLOT, slots.c.state == bindparam("old"), slots.c.next_step == bindparam("step"))
    .returning(slots.c.attempts),
    "new", "one", "run", "slot", "old", "step",
)  # fmt: skip
END_SLOT = hot(
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
MOVE_ATTEMPT = hot(
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
ADD_CALL = hot_insert(
    calls,
    "call_id", "run_key", "owner", "slot_no", "attempt_no", "head", "payload", "payload_artifact", "payload_digest",
    "payload_size", "if_unknown", "key_until_us", "fence", "intended_us",
)  # fmt: skip
ADD_DISPATCH = hot_insert(dispatches, "call_id", "dispatch_no", "run_key", "state", "worker_id", "intended_us")
END_DISPATCH = hot(
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
ATTEMPT_AND_DISPATCH = (
    "SELECT a.state, d.state FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
    " JOIN attempts a ON a.run_key = c.run_key AND a.slot_no = c.slot_no AND a.attempt_no = c.attempt_no"
    " WHERE d.call_id = ? AND d.dispatch_no = ?"
)
HAS_UNKNOWN = (
    "SELECT EXISTS (SELECT 1 FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt' AND d.state = 'unknown')"
)
ADD_OBSERVATION = hot_insert(
    observations,
    "run_key", "slot_no", "attempt_no", "call_id", "dispatch_no", "answer", "answer_artifact", "answer_digest",
    "evidence", "flags", "source", "observed_us",
)  # fmt: skip

# For many at once: what is the same for all of them stands in the statement, and what stays NULL is not named, since
# the driver looks for somebody's adapter of each None and of each `bytes` that it binds.
CLAIM_KNOWN = (
    "UPDATE slots SET state = 'in_flight', attempts = ? WHERE run_key = ? AND slot_no = ? AND state = 'pending'"
    " AND next_step = 'new' AND attempts = ?"
)
ADD_PLAIN_CALL = hot_insert(
    calls,
    "call_id", "run_key", "owner", "slot_no", "attempt_no", "head", "payload", "payload_digest", "payload_size",
    "if_unknown", "intended_us",
)  # fmt: skip
OBSERVE_ATTEMPT = (
    "UPDATE attempts SET state = 'observed', ended_us = ?, reason = ?, message = ?"
    " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'running'"
)
ADD_PLAIN_OBSERVATION = hot_insert(
    observations,
    "run_key", "slot_no", "attempt_no", "call_id", "dispatch_no", "answer", "answer_digest", "evidence", "flags",
    "source", "observed_us",
)  # fmt: skip
SELECT_SLOT = (
    "UPDATE slots SET state = 'selected', selected_attempt = ?, next_step = 'new', not_before_us = 0, reason = NULL,"
    " suspect = 0 WHERE run_key = ? AND slot_no = ? AND state = 'in_flight' AND attempts = ?"
)


@lru_cache(maxsize=256)
def end_intended(names: tuple[str, ...]) -> str:
    """End a dispatch that is under way, setting these columns besides those that every end sets."""
    return hot_update(
        dispatches, "state", "ended_us", "reason", "message", "settled_by", *names,
        where=(dispatches.c.call_id == bindparam("call"))
        & (dispatches.c.dispatch_no == bindparam("dispatch"))
        & (dispatches.c.state == bindparam("old")),
        where_names=("call", "dispatch", "old"),
    )  # fmt: skip
