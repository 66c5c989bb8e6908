"""Asking a target by request id what became of an unknown outcome (``if_unknown = "query"``)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..ledger import artifacts, attempts
from ..ledger.canonical import canonical_text, digest_of_bytes, parse_json
from ..ledger.coordinators import Coordinator
from ..ledger.crashpoints import crashpoint
from ..ledger.ledger import Ledger
from ..ledger.records import PendingSlot
from ..ledger.settlements import Decision, Settlement, settle_unknown
from ..ledger.slot_reads import CallToRepeat
from ..ledger.states import DispatchState, SlotState
from ..ledger.transaction import Transaction
from .ended import Ended
from .inline_judging import InlineJudging, case_of
from .outcome_facts import facts_of
from .protocols import Missing, Outcome, Prepared, QueryAnswer, QueryState, SlotView, Target
from .tally import Tally

if TYPE_CHECKING:
    from .executor import Execution

__all__ = ["QuerySteps", "leave_unknown", "stored_request"]

_BY = "query"


class QuerySteps:
    """Queries of one session; what cannot be proven is asked a bounded number of times, then left to an operator."""

    def __init__(
        self, ledger: Ledger, coordinator: Coordinator, execution: Execution, *, tally: Tally, judging: InlineJudging
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._execution = execution
        self._tally = tally
        self._judging = judging
        self._asked: dict[str, int] = {}

    async def run(self, slot: PendingSlot, target: Target, call: CallToRepeat | None) -> Ended:
        """Ask for the slot's newest call and settle what the answer proves."""
        if call is None:
            return await leave_unknown(self._ledger, self._coordinator, self._tally, slot, "query.no_call")
        answer = await self._ask(target, call)
        crashpoint("query.answered")
        match answer.state:
            case QueryState.LANDED if answer.outcome is not None:
                return await self._landed(slot, call, answer.outcome)
            case QueryState.NEVER:
                said = answer.message or "the target says that it never will be done"
                return await self._never(
                    slot, Settlement(call.call_id, call.dispatch_no, Decision.NOT_LANDED, _BY, said)
                )
        return await self._ask_later(slot, call)

    async def _ask(self, target: Target, call: CallToRepeat) -> QueryAnswer:
        try:
            async with asyncio.timeout(self._execution.deadline_seconds):
                return await target.query(call.call_id, stored_request(call))
        except Exception as problem:  # noqa: BLE001 - a query that fails proves nothing
            return QueryAnswer(QueryState.NO_PROOF, None, f"{type(problem).__name__}: {problem}")

    async def _landed(self, slot: PendingSlot, call: CallToRepeat, outcome: Outcome) -> Ended:
        facts = await artifacts.with_stored_raw(self._ledger, facts_of(outcome, duration_us=None, settled_by=_BY))
        common = (call.call_id, call.dispatch_no)
        if outcome.state is not DispatchState.ANSWERED or isinstance(outcome.answer, Missing):
            reason = outcome.message or outcome.reason
            return await self._settle(Settlement(*common, Decision.FAILED, _BY, reason, facts))
        text = canonical_text(outcome.answer)
        stored = await artifacts.stored_answer(self._ledger, text)
        settlement = Settlement(
            *common, Decision.LANDED, _BY, "fetched by its request id", facts, stored, digest_of_bytes(text.encode()),
            canonical_text(outcome.evidence), canonical_text(list(outcome.flags)),
        )  # fmt: skip
        ended = await self._settle(settlement)
        side = self._execution.sides[slot.variant_no]
        case = case_of(slot.case_id, slot.input, slot.expected, slot.metadata)
        view = SlotView(self._coordinator.run_id, case, side.name, slot.repetition)
        await self._judging.judge(view, slot.slot_no, call.attempt_no, outcome)
        return ended

    async def _never(self, slot: PendingSlot, settlement: Settlement) -> Ended:
        """A new attempt, as long as the limits allow one: a target that never does anything is not asked for ever."""
        policy, run_key = self._execution.policy, self._coordinator.run_key

        def work(tx: Transaction) -> SlotState:
            state = settle_unknown(tx, settlement)
            if state is not SlotState.PENDING:
                return state
            tries = attempts.tries_spent(tx, run_key, slot.slot_no)
            if not policy.may_attempt(tries):
                return attempts.give_up(tx, run_key, slot.slot_no, reason="query.never")
            attempts.postpone(tx, run_key, slot.slot_no, not_before_us=policy.not_before_us(tx.now_us, tries))
            return state

        return self._settled(await self._ledger.write_async(work))

    async def _settle(self, settlement: Settlement) -> Ended:
        return self._settled(await self._ledger.write_async(lambda tx: settle_unknown(tx, settlement)))

    def _settled(self, state: SlotState) -> Ended:
        self._tally.move(SlotState.PENDING, state)
        crashpoint("query.settled")
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE

    async def _ask_later(self, slot: PendingSlot, call: CallToRepeat) -> Ended:
        policy = self._execution.policy
        asked = self._asked[call.call_id] = self._asked.get(call.call_id, 0) + 1
        if not policy.may_dispatch(asked):
            return await leave_unknown(self._ledger, self._coordinator, self._tally, slot, "query.no_proof")
        not_before = policy.not_before_us(self._ledger.clock.now_us(), asked)
        await self._ledger.write_async(
            lambda tx: attempts.postpone(tx, self._coordinator.run_key, slot.slot_no, not_before_us=not_before)
        )
        return Ended.WAITS_AGAIN


async def leave_unknown(
    ledger: Ledger, coordinator: Coordinator, tally: Tally, slot: PendingSlot, reason: str
) -> Ended:
    """What may follow by itself is used up: from here an operator decides."""
    await ledger.write_async(lambda tx: attempts.leave_unknown(tx, coordinator.run_key, slot.slot_no, reason=reason))
    tally.move(SlotState.PENDING, SlotState.UNKNOWN)
    return Ended.DONE


def stored_request(call: CallToRepeat) -> Prepared:
    """The request as it was committed before its first dispatch."""
    head = parse_json(call.head)
    assert isinstance(head, dict)
    return Prepared(call.payload or b"", head, keep=call.payload is not None)
