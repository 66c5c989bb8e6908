"""What follows a turn whose outcome is not known: its bytes once more, or a query by its request id.

While the session is this process's own, both happen within it, and the same attempt goes on. Later, only a target that
keeps nothing can go on so; for any other the turn is settled, and the conversation goes on in a new attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs

from ..ledger import attempts
from ..ledger.canonical import printable
from ..ledger.coordinators import Coordinator
from ..ledger.crashpoints import crashpoint
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchKey, Waiting
from ..ledger.settlements import Decision, Settlement, settle_and_go_on
from ..ledger.slot_reads import CallToRepeat, call_to_repeat
from ..ledger.states import NextStep, SlotState
from .answer_texts import answer_texts
from .call_steps import CallSteps
from .claims import unless_settled
from .conversations import Said
from .ended import Ended
from .protocols import MISSING, Missing, Outcome, QueryAnswer, QueryState
from .query_steps import QuerySteps, leave_unknown, never_landed, stored_request
from .request_bounds import UNBOUNDED, bounded
from .retry_policy import RetryPolicy
from .stopping import StopSwitch
from .talks import Talk
from .tally import Tally

if TYPE_CHECKING:
    from .executor import VariantSide

__all__ = ["UnansweredTurns"]

Exchange: TypeAlias = "Callable[[Talk, VariantSide, CallToRepeat, DispatchKey], Awaitable[Ended | Waiting | None]]"


class UnansweredTurns:
    """Follows up unknown turns; ``exchange`` sends a call again and deals with what comes."""

    def __init__(
        self,
        ledger: Ledger,
        coordinator: Coordinator,
        policy: RetryPolicy,
        *,
        calls: CallSteps,
        queries: QuerySteps,
        stop: StopSwitch,
        tally: Tally,
        exchange: Exchange,
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._run_key = coordinator.run_key
        self._policy = policy
        self._calls = calls
        self._queries = queries
        self._stop = stop
        self._tally = tally
        self._exchange = exchange

    async def follow_up(self, talk: Talk, waiting: Waiting) -> Ended | Waiting | None:
        """Take the unknown turn's next step, once its time has come; None: it is answered, or may be asked anew."""
        wait = (waiting.not_before_us - self._ledger.clock.now_us()) / 1e6
        if wait > 0 and not await self._stop.sleep(wait):
            return Ended.WAITS_AGAIN
        assert talk.attempt is not None
        talk.slot = attrs.evolve(talk.slot, attempts=talk.attempt.attempt_no, next_step=waiting.step)
        with self._ledger.reading() as reader:
            call = call_to_repeat(reader, self._run_key, talk.slot.slot_no, talk.attempt.attempt_no)
        if waiting.step is NextStep.RESEND:
            return await self._resend(talk, call)
        return await self._query(talk, call)

    async def _resend(self, talk: Talk, call: CallToRepeat | None) -> Ended | Waiting | None:
        now_us = self._ledger.clock.now_us()
        if call is None or call.payload is None or not self._policy.may_dispatch(call.dispatches):
            return await self._leave_unknown(talk, "resends.used_up")
        if call.key_until_us is not None and now_us >= call.key_until_us:
            return await self._leave_unknown(talk, "key.expired")
        key = DispatchKey(self._run_key, talk.slot.slot_no, call.attempt_no, call.call_id, call.dispatch_no)
        try:
            side = bounded(talk.asking.side, stored_request(call))
        except Exception as problem:  # noqa: BLE001 - one slot's fault must not stop the others
            return await self._leave_unknown(talk, UNBOUNDED, printable(str(problem)))
        crashpoint("dispatch.intent.before")
        with unless_settled(self._ledger, self._run_key, talk.slot):
            begun = await self._ledger.write_async(
                lambda tx: attempts.reopen(tx, key, side.holds, solitary=talk.solitary, held=side.held),
                undo=lambda tx, begun: self._calls.undo(tx, begun.key),
            )
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("dispatch.intent.committed")
        return await self._exchange(talk, side, call, begun.key)

    async def _query(self, talk: Talk, call: CallToRepeat | None) -> Ended | Waiting | None:
        if call is None:
            return await self._leave_unknown(talk, "query.no_call")
        answer = await self._queries.ask(talk.asking.side.target, call)
        crashpoint("query.answered")
        with unless_settled(self._ledger, self._run_key, talk.slot):
            match answer.state:
                case QueryState.LANDED if answer.outcome is not None:
                    return await self._landed(talk, call, answer.outcome)
                case QueryState.NEVER:
                    return await self._never(talk, call, answer)
            later = await self._queries.ask_later(talk.slot, call)
        if later is None:
            return Ended.DONE
        return later if talk.is_live else Ended.WAITS_AGAIN

    async def _landed(self, talk: Talk, call: CallToRepeat, outcome: Outcome) -> Ended | None:
        settlement = await self._queries.settlement(call, outcome)
        if settlement.decision is not Decision.LANDED or not self._may_go_on(talk):
            return await self._queries.settle(settlement)
        await self._go_on(talk, settlement)
        assert not isinstance(talk.message, Missing)
        texts = answer_texts(outcome)
        assert not isinstance(outcome.answer, Missing)
        talk.turns.append(
            Said(talk.message, outcome.answer, texts.digest, outcome.evidence, tuple(outcome.flags), "query",
                 talk.is_replay)
        )  # fmt: skip
        talk.message, talk.last_call = MISSING, self._key_of(talk, call)
        return None

    async def _never(self, talk: Talk, call: CallToRepeat, answer: QueryAnswer) -> Ended | None:
        """The same turn is asked again in the same session; a target that never does anything, not for ever."""
        settlement = never_landed(call, answer)
        with self._ledger.reading() as reader:
            tries = attempts.tries_spent(reader, self._run_key, talk.slot.slot_no) + talk.nevers
        if not self._may_go_on(talk) or not self._policy.may_attempt(tries):
            return await self._queries.never(talk.slot, settlement)
        await self._go_on(talk, settlement)
        talk.nevers += 1
        await self._stop.sleep(self._policy.wait_seconds(talk.nevers))
        return None

    async def _go_on(self, talk: Talk, settlement: Settlement) -> None:
        talk.is_between = True  # what is committed is so, also for whoever is cancelled meanwhile
        try:
            await self._ledger.write_async(lambda tx: settle_and_go_on(tx, settlement, solitary=talk.solitary))
        except Exception:
            talk.is_between = False
            raise
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("query.settled")

    def _may_go_on(self, talk: Talk) -> bool:
        return talk.is_live or not talk.keeps_state

    async def _leave_unknown(self, talk: Talk, reason: str, undecided: str | None = None) -> Ended:
        with unless_settled(self._ledger, self._run_key, talk.slot):
            return await leave_unknown(self._ledger, self._coordinator, self._tally, talk.slot, reason, undecided)

    def _key_of(self, talk: Talk, call: CallToRepeat) -> DispatchKey:
        return DispatchKey(self._run_key, talk.slot.slot_no, call.attempt_no, call.call_id, call.dispatch_no)
