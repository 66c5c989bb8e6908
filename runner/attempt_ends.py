"""How an attempt without an answer ends, when its target has made requests of its own: by what is open, else by why."""

from __future__ import annotations

import attrs

from ..ledger import attempt_calls, attempts
from ..ledger.inner_calls import leave_calls
from ..ledger.open_calls import AttemptCalls, next_of
from ..ledger.records import DispatchFacts, DispatchKey, Waiting
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.transaction import Transaction
from .protocols import Outcome
from .retry_policy import RetryPolicy

__all__ = ["end_broken"]


def end_broken(
    tx: Transaction,
    key: DispatchKey,
    outcome: Outcome,
    facts: DispatchFacts,
    *,
    policy: RetryPolicy,
    is_ours: bool = False,
) -> SlotState:
    """End a running attempt; what is under way is unknown from now on, and decides together with what was before.

    ``is_ours``: a stop, a full budget or a lost device ended it, which is nobody's fault and costs no try.
    """
    calls = leave_calls(tx, key, attrs.evolve(facts, state=DispatchState.UNKNOWN))
    if calls.open:
        return _leave_open(tx, key, calls, facts, policy, is_ours=is_ours)
    if is_ours:
        return attempt_calls.break_off(tx, key, reason=facts.reason, message=facts.message)
    tries = attempts.tries_spent(tx, key.run_key, key.slot_no) + 1
    if outcome.state is DispatchState.REFUSED:
        return attempts.give_back(
            tx, key, _again(tx, policy, tries, outcome), reason=facts.reason, message=facts.message
        )
    waiting = None
    if policy.may_retry(facts.reason, tries):
        waiting = Waiting(NextStep.NEW, policy.not_before_us(tx.now_us, tries))
    attempts.end_failed(tx, key, attrs.evolve(facts, state=DispatchState.FAILED), waiting=waiting)
    return SlotState.PENDING if waiting else SlotState.FAILED


def _leave_open(
    tx: Transaction, key: DispatchKey, calls: AttemptCalls, facts: DispatchFacts, policy: RetryPolicy, *, is_ours: bool
) -> SlotState:
    waiting = next_of(calls.open, now_us=tx.now_us)
    tries = attempts.tries_spent(tx, key.run_key, key.slot_no) + 1
    if waiting is not None and waiting.step is not NextStep.QUERY:
        allowed = policy.may_attempt(tries) or waiting.step is not NextStep.NEW
        waiting = Waiting(waiting.step, policy.not_before_us(tx.now_us, tries)) if allowed or is_ours else None
    newest = attrs.evolve(key, call_id=calls.open[-1].call_id, dispatch_no=0)
    return attempts.stay_unknown(tx, newest, facts, waiting=waiting)


def _again(tx: Transaction, policy: RetryPolicy, tries: int, outcome: Outcome) -> Waiting | None:
    if not policy.may_attempt(tries):
        return None
    wait = outcome.retry_after_seconds
    return Waiting(NextStep.NEW, policy.not_before_us(tx.now_us, tries, retry_after_seconds=wait))
