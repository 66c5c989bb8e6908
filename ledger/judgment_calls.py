"""Calls that judges make: intent first, one dispatch at a time, the outcome in one transaction with the verdict.

`begin_judgment` claims a judgment, sets the holds aside and records call and dispatch, before anything is sent.
`end_judgment_call` commits what became of the dispatch together with the verdict that came of it, if one did.
"""

from __future__ import annotations

from typing import Final

import attrs

from . import budgets
from .attempt_rows import end_dispatch, recorded
from .crashpoints import crashpoint
from .errors import TransitionRefused
from .judgments import add_judgments, let_wait
from .records import Artifact, DispatchFacts, DispatchKey, Hold, JudgmentKey, JudgmentRow
from .schema import calls, dispatches
from .statements import hot_insert
from .states import DispatchState, IfUnknown
from .transaction import Transaction

__all__ = ["JudgeIntent", "begin_judgment", "dispatch_judgment_again", "end_judgment_call", "undo_judgment"]

JUDGE_ROLE: Final = "judge"

_CLAIM: Final = (
    "INSERT INTO judgments (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no, state, worker_id,"
    " solitary, tries) VALUES (?, ?, ?, ?, ?, ?, 'judging', ?, ?, 1)"
    " ON CONFLICT (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no) DO UPDATE SET state = 'judging',"
    " worker_id = excluded.worker_id, solitary = excluded.solitary, tries = judgments.tries + 1"
    " WHERE judgments.state = 'pending' RETURNING tries"
)
_ADD_CALL = hot_insert(
    calls,
    "call_id", "run_key", "owner", "slot_no", "attempt_no", "evaluation_no", "judge_no", "sample_no", "position",
    "role", "head", "payload", "payload_artifact", "payload_digest", "payload_size", "if_unknown", "intended_us",
)  # fmt: skip
_ADD_DISPATCH = hot_insert(dispatches, "call_id", "dispatch_no", "run_key", "state", "worker_id", "intended_us")


@attrs.frozen
class JudgeIntent:
    """Everything that is committed before a judge's call is sent; ``head`` is canonical JSON text."""

    key: JudgmentKey
    call_id: str
    head: str
    payload: bytes | None
    payload_digest: str
    payload_size: int
    if_unknown: IfUnknown
    holds: tuple[Hold, ...]
    solitary: bool = False
    payload_artifact: Artifact | None = None


def begin_judgment(tx: Transaction, intent: JudgeIntent) -> DispatchKey:
    """Claim the judgment, reserve, and record the intent of its next call.

    Raises TransitionRefused when the judgment does not wait and BudgetExhausted when a hold does not fit; then nothing
    of it stays.
    """
    key = intent.key
    claimed = tx.rows(_CLAIM, (*_values(key), tx.worker_id, int(intent.solitary)))
    if not claimed:
        raise TransitionRefused(
            f"the judgment of slot {key.slot_no} by judge {key.judge_no} does not wait",
            "somebody else is at it or has given it", "judgment", "judging",
        )  # fmt: skip
    budgets.reserve(tx, key.run_key, intent.holds)
    tx.execute(
        _ADD_CALL,
        (intent.call_id, key.run_key, "judgment", key.slot_no, key.attempt_no, key.evaluation_no, key.judge_no,
         key.sample_no, claimed[0][0], JUDGE_ROLE, intent.head, intent.payload,
         recorded(tx, intent.payload_artifact), intent.payload_digest, intent.payload_size, intent.if_unknown,
         tx.now_us),
    )  # fmt: skip
    sent = DispatchKey(key.run_key, key.slot_no, key.attempt_no, intent.call_id, 1, intent.holds)
    _intend(tx, key, sent)
    return sent


def dispatch_judgment_again(
    tx: Transaction, key: JudgmentKey, sent: DispatchKey, holds: tuple[Hold, ...]
) -> DispatchKey:
    """Intend the next dispatch of the same call, after one that was refused.

    Raises TransitionRefused when that one has another state, BudgetExhausted when a hold does not fit.
    """
    row = tx.row("SELECT state FROM dispatches WHERE call_id = ? AND dispatch_no = ?", (sent.call_id, sent.dispatch_no))
    if row is None or row[0] != DispatchState.REFUSED:
        raise TransitionRefused(
            f"dispatch {sent.dispatch_no} of call {sent.call_id} cannot be followed by another",
            "look at its case: `tallystick show RUN CASE`", "dispatch", "intended",
        )  # fmt: skip
    budgets.reserve(tx, key.run_key, holds)
    again = DispatchKey(key.run_key, key.slot_no, key.attempt_no, sent.call_id, sent.dispatch_no + 1, holds)
    _intend(tx, key, again)
    return again


def end_judgment_call(
    tx: Transaction,
    key: JudgmentKey,
    sent: DispatchKey,
    facts: DispatchFacts,
    row: JudgmentRow | None,
    *,
    goes_on: bool = False,
) -> None:
    """Commit what became of a dispatch, settle it, and commit the verdict or the reason in ``row``.

    Without a row the judgment waits for its next call; with ``goes_on`` it stays with this one, which was refused and
    will be dispatched again. An unknown outcome keeps its holds.
    """
    end_dispatch(tx, sent, facts, DispatchState.INTENDED)
    budgets.settle_ended(tx, sent, facts)
    tx.event(key.run_key, "judgment.call_ended", {
        **_named(key, sent), "state": facts.state, "reason": facts.reason, "message": facts.message,
        "by": facts.settled_by, "duration_us": facts.duration_us, "bytes_sent": facts.bytes_sent,
        "status": facts.status, "again": row is None,
    })  # fmt: skip
    if row is not None:
        add_judgments(tx, key.run_key, key.evaluation_no, [row])
    elif not goes_on:
        let_wait(tx, key)
    crashpoint("judgment.outcome.inside")


def undo_judgment(tx: Transaction, key: JudgmentKey, sent: DispatchKey) -> None:
    """The caller was cancelled once its intent was committed: nothing was sent, and the judgment waits again."""
    facts = DispatchFacts(
        DispatchState.REFUSED, "cancelled", "cancelled before it was sent", bytes_sent=0, wire_sends=0, charged=False
    )
    end_judgment_call(tx, key, sent, facts, None)


def _intend(tx: Transaction, key: JudgmentKey, sent: DispatchKey) -> None:
    tx.execute(_ADD_DISPATCH, (sent.call_id, sent.dispatch_no, key.run_key, "intended", tx.worker_id, tx.now_us))
    budgets.record_reservations(tx, sent)
    tx.event(key.run_key, "judgment.call_intended", {
        **_named(key, sent), "held": {str(hold.budget_no): hold.amount for hold in sent.holds},
    })  # fmt: skip
    crashpoint("judgment.intent.inside")


def _named(key: JudgmentKey, sent: DispatchKey) -> dict[str, str | int]:
    return {
        "evaluation": key.evaluation_no, "judge": key.judge_no, "slot": key.slot_no, "attempt": key.attempt_no,
        "sample": key.sample_no, "call": sent.call_id, "dispatch": sent.dispatch_no,
    }  # fmt: skip


def _values(key: JudgmentKey) -> tuple[int, ...]:
    return key.run_key, key.evaluation_no, key.judge_no, key.slot_no, key.attempt_no, key.sample_no
