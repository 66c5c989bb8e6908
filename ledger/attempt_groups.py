"""Intents and answers that wait for the same commit, written together.

The rows are those of `attempts.begin` and `attempts.observe`, in the same transaction; a test holds both ways together.
Together they cost about half: one statement a table for all of them, one update of each budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam

from . import budgets
from .attempt_rows import ADD_ATTEMPT
from .attempts import begin, held_amounts, observe
from .canonical import canonical_text
from .crashpoints import crashpoint
from .errors import TransitionRefused
from .records import Begun, DispatchFacts, DispatchKey, Hold, Intent
from .schema import calls, dispatches, observations
from .statements import hot_insert, hot_update
from .transaction import Transaction, storable

__all__ = ["Beginning", "Observing"]

# For many at once: what is the same for all of them stands in the statement, and what stays NULL is not named, since
# the driver looks for somebody's adapter of each None and of each `bytes` that it binds.
_CLAIM_KNOWN = (
    "UPDATE slots SET state = 'in_flight', attempts = ? WHERE run_key = ? AND slot_no = ? AND state = 'pending'"
    " AND next_step = 'new' AND attempts = ?"
)
_ADD_PLAIN_CALL = hot_insert(
    calls,
    "call_id", "run_key", "owner", "slot_no", "attempt_no", "head", "payload", "payload_digest", "payload_size",
    "if_unknown", "intended_us",
)  # fmt: skip
_OBSERVE_ATTEMPT = (
    "UPDATE attempts SET state = 'observed', ended_us = ?, reason = ?, message = ?"
    " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'running'"
)
_ADD_PLAIN_OBSERVATION = hot_insert(
    observations,
    "run_key", "slot_no", "attempt_no", "call_id", "dispatch_no", "answer", "answer_digest", "evidence", "flags",
    "source", "observed_us",
)  # fmt: skip
_SELECT_SLOT = (
    "UPDATE slots SET state = 'selected', selected_attempt = ?, next_step = 'new', not_before_us = 0, reason = NULL,"
    " suspect = 0 WHERE run_key = ? AND slot_no = ? AND state = 'in_flight' AND attempts = ?"
)
_ADD_DISPATCH = hot_insert(dispatches, "call_id", "dispatch_no", "run_key", "state", "worker_id", "intended_us")


class Beginning:
    """`attempts.begin`, alone or together with others; ``attempt_no`` is the number that the attempt should get."""

    __slots__ = ("attempt_no", "intent")

    def __init__(self, intent: Intent, attempt_no: int) -> None:
        self.intent = intent
        self.attempt_no = attempt_no

    def __call__(self, tx: Transaction) -> Begun:
        return begin(tx, self.intent)

    @property
    def together(self) -> Callable[[Transaction, list[Beginning]], list[Begun]] | None:
        intent = self.intent
        is_plain = intent.payload is not None and intent.payload_artifact is None
        is_plain = is_plain and intent.key_until_us is None and intent.held is None
        return _begin_all if is_plain else None


class Observing:
    """`attempts.observe`, alone or together with others; ``answer`` is canonical JSON text."""

    __slots__ = ("answer", "answer_digest", "evidence", "facts", "flags", "key")

    def __init__(
        self, key: DispatchKey, facts: DispatchFacts, answer: str, answer_digest: str, evidence: str, flags: str
    ) -> None:
        self.key = key
        self.facts = facts
        self.answer = answer
        self.answer_digest = answer_digest
        self.evidence = evidence
        self.flags = flags

    def __call__(self, tx: Transaction) -> None:
        observe(
            tx, self.key, self.facts, answer=self.answer, answer_digest=self.answer_digest, evidence=self.evidence,
            flags=self.flags,
        )  # fmt: skip

    @property
    def together(self) -> Callable[[Transaction, list[Observing]], list[None]] | None:
        return _observe_all if self.facts.raw_artifact is None else None


def _begin_all(tx: Transaction, works: list[Beginning]) -> list[Begun]:
    now_us, worker_id = tx.now_us, tx.worker_id
    keys = [
        DispatchKey(one.intent.run_key, one.intent.slot_no, one.attempt_no, one.intent.call_id, 1, one.intent.holds)
        for one in works
    ]
    _claim_all(tx, keys)
    budgets.reserve_all(tx, keys)
    execute_all = tx.cursor.executemany
    execute_all(ADD_ATTEMPT, [
        (key.run_key, key.slot_no, key.attempt_no, "running", worker_id, one.intent.fingerprint,
         int(one.intent.solitary), now_us)
        for key, one in zip(keys, works, strict=True)
    ])  # fmt: skip
    execute_all(_ADD_PLAIN_CALL, [
        (key.call_id, key.run_key, "attempt", key.slot_no, key.attempt_no, one.intent.head,
         storable(one.intent.payload or b""), one.intent.payload_digest, one.intent.payload_size,
         one.intent.if_unknown.value, now_us)
        for key, one in zip(keys, works, strict=True)
    ])  # fmt: skip
    execute_all(_ADD_DISPATCH, [(key.call_id, 1, key.run_key, "intended", worker_id, now_us) for key in keys])
    budgets.record_all(tx, keys)
    _event_all(tx, "dispatch.intended", keys, [
        f'{{"attempt":{key.attempt_no},"call":"{key.call_id}","dispatch":1,"held":{_held_text(key.holds)},'
        f'"payload":"{one.intent.payload_digest}","slot":{key.slot_no}}}'
        for key, one in zip(keys, works, strict=True)
    ])  # fmt: skip
    for _ in keys:
        crashpoint("dispatch.intent.inside")
    return [Begun(key, now_us) for key in keys]


def _observe_all(tx: Transaction, works: list[Observing]) -> list[None]:
    now_us = tx.now_us
    keys = [one.key for one in works]
    _end_all_dispatches(tx, works)
    budgets.settle_all(tx, [(one.key, one.facts) for one in works])
    _all_moved(tx, "attempt", "observed", _OBSERVE_ATTEMPT, [
        (now_us, one.facts.reason, one.facts.message, one.key.run_key, one.key.slot_no, one.key.attempt_no)
        for one in works
    ])  # fmt: skip
    tx.cursor.executemany(_ADD_PLAIN_OBSERVATION, [
        (one.key.run_key, one.key.slot_no, one.key.attempt_no, one.key.call_id, one.key.dispatch_no, one.answer,
         one.answer_digest, one.evidence, one.flags, "wire", now_us)
        for one in works
    ])  # fmt: skip
    _all_moved(tx, "slot", "selected", _SELECT_SLOT, [
        (key.attempt_no, key.run_key, key.slot_no, key.attempt_no) for key in keys
    ])  # fmt: skip
    _event_all(tx, "attempt.observed", keys, [_observed_text(one) for one in works])
    for _ in keys:
        crashpoint("dispatch.outcome.inside")
    return [None] * len(keys)


def _claim_all(tx: Transaction, keys: list[DispatchKey]) -> None:
    _all_moved(tx, "slot", "in_flight", _CLAIM_KNOWN, [
        (key.attempt_no, key.run_key, key.slot_no, key.attempt_no - 1) for key in keys
    ])  # fmt: skip


def _end_all_dispatches(tx: Transaction, works: list[Observing]) -> None:
    rows: dict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
    now_us = tx.now_us
    for one in works:
        facts = one.facts
        names, values = _told(facts)
        rows[names].append((
            facts.state.value, now_us, facts.reason, facts.message, facts.settled_by, *values, one.key.call_id,
            one.key.dispatch_no, "intended",
        ))  # fmt: skip
    for names, some in rows.items():
        _all_moved(tx, "dispatch", "answered", _end_intended(names), some)


def _told(facts: DispatchFacts) -> tuple[tuple[str, ...], list[Any]]:
    """The columns of which something is known, and their values; the others of a dispatch under way are NULL or 0."""
    values = {
        "duration_us": facts.duration_us,
        "bytes_sent": facts.bytes_sent,
        "wire_sends": facts.wire_sends,
        "status": facts.status,
        "raw": None if facts.raw is None else storable(facts.raw),
        "raw_cut": 1 if facts.raw_cut else None,
        "retry_after_us": facts.retry_after_us,
        "tokens_in": facts.tokens_in,
        "tokens_out": facts.tokens_out,
        "cost_nanousd": facts.cost_nanousd,
        "usage": facts.usage,
    }
    known = {name: value for name, value in values.items() if value is not None}
    return tuple(known), list(known.values())


@lru_cache(maxsize=256)
def _end_intended(names: tuple[str, ...]) -> str:
    """End a dispatch that is under way, setting these columns besides those that every end sets."""
    return hot_update(
        dispatches, "state", "ended_us", "reason", "message", "settled_by", *names,
        where=(dispatches.c.call_id == bindparam("call"))
        & (dispatches.c.dispatch_no == bindparam("dispatch"))
        & (dispatches.c.state == bindparam("old")),
        where_names=("call", "dispatch", "old"),
    )  # fmt: skip


def _event_all(tx: Transaction, kind: str, keys: Sequence[DispatchKey], bodies: list[str]) -> None:
    by_run: dict[int, list[str]] = defaultdict(list)
    for key, body in zip(keys, bodies, strict=True):
        by_run[key.run_key].append(body)
    for run_key, some in by_run.items():
        tx.events(run_key, kind, some)


def _observed_text(one: Observing) -> str:
    key, facts = one.key, one.facts
    return (
        f'{{"answer":"{one.answer_digest}","attempt":{key.attempt_no},"by":{canonical_text(facts.settled_by)},'
        f'"call":"{key.call_id}","dispatch":{key.dispatch_no},"reason":{canonical_text(facts.reason)},'
        f'"slot":{key.slot_no}}}'
    )


@lru_cache(maxsize=256)
def _held_text(holds: tuple[Hold, ...]) -> str:
    return canonical_text(held_amounts(holds))


def _all_moved(tx: Transaction, machine: str, wanted: str, sql: str, rows: list[tuple[Any, ...]]) -> None:
    if not tx.change_all(sql, rows):
        raise TransitionRefused(
            f"not every {machine} of a group can become {wanted}", "each of them is tried by itself", machine, wanted
        )
