"""How an attempt at a conversation ends between two of its turns, with nothing under way."""

from __future__ import annotations

from ..ledger import attempt_calls, attempts
from ..ledger.canonical import printable
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchFacts, DispatchKey, Waiting
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.transaction import Transaction
from .ended import Ended
from .protocols import Outcome
from .retry_policy import RetryPolicy
from .talks import Talk
from .tally import Tally

__all__ = ["TurnEnds"]


class TurnEnds:
    """Ends attempts of one session of a run; each end is one commit."""

    def __init__(self, ledger: Ledger, run_key: int, policy: RetryPolicy, tally: Tally) -> None:
        self._ledger = ledger
        self._run_key = run_key
        self._policy = policy
        self._tally = tally

    async def break_off(self, talk: Talk, reason: str, message: str = "") -> Ended:
        """Nobody is to blame: the conversation goes on in a new attempt, from its committed turns."""
        key = _attempt_of(talk)
        state = await self._ledger.write_async(
            lambda tx: attempt_calls.break_off(tx, key, reason=reason, message=printable(message))
        )
        return self._ended(talk, state)

    async def fail(self, talk: Talk, reason: str, message: str) -> Ended:
        """The attempt has failed, with or without having begun; a new one follows where the work order allows it."""
        facts = DispatchFacts(DispatchState.FAILED, reason, printable(f"case {talk.slot.case_id}: {message}"))
        slot_no, side = talk.slot.slot_no, talk.asking.side

        def work(tx: Transaction) -> SlotState:
            tries = attempts.tries_spent(tx, self._run_key, slot_no) + 1
            waiting = None
            if self._policy.may_retry(reason, tries):
                waiting = Waiting(NextStep.NEW, self._policy.not_before_us(tx.now_us, tries))
            if talk.attempt is None:
                attempts.fail_unprepared(
                    tx, self._run_key, slot_no, fingerprint=side.fingerprint, reason=facts.reason,
                    message=facts.message, waiting=waiting,
                )  # fmt: skip
            else:
                attempts.end_failed(tx, _attempt_of(talk), facts, waiting=waiting)
            return SlotState.PENDING if waiting else SlotState.FAILED

        return self._ended(talk, await self._ledger.write_async(work))

    async def give_back(self, talk: Talk, outcome: Outcome) -> Ended:
        """Its session could not be begun, and nothing was done: the slot waits, or was tried often enough."""
        key, stopped = _attempt_of(talk), outcome.reason == "stopped"

        def work(tx: Transaction) -> SlotState:
            tries = attempts.tries_spent(tx, self._run_key, key.slot_no) + 1
            waiting = None
            if stopped or self._policy.may_attempt(tries):
                wait = outcome.retry_after_seconds
                waiting = Waiting(NextStep.NEW, self._policy.not_before_us(tx.now_us, tries, retry_after_seconds=wait))
            return attempts.give_back(
                tx, key, waiting, reason=printable(outcome.reason), message=printable(outcome.message)
            )

        return self._ended(talk, await self._ledger.write_async(work))

    def _ended(self, talk: Talk, state: SlotState) -> Ended:
        self._tally.move(SlotState.PENDING if talk.attempt is None else SlotState.IN_FLIGHT, state)
        talk.is_between = False
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE


def _attempt_of(talk: Talk) -> DispatchKey:
    assert talk.attempt is not None, "the attempt has begun"
    return talk.attempt
