"""Asking a target by request id what became of an unknown outcome (``if_unknown = "query"``)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..ledger import attempts
from ..ledger.canonical import parse_json
from ..ledger.coordinators import Coordinator
from ..ledger.crashpoints import crashpoint
from ..ledger.ledger import Ledger
from ..ledger.records import PendingSlot, Waiting
from ..ledger.settlements import Decision, Settlement, settle_unknown
from ..ledger.slot_reads import CallToRepeat
from ..ledger.states import NextStep, SlotState
from ..ledger.transaction import Transaction
from .answer_texts import settlement_by
from .ended import Ended
from .inline_judging import InlineJudging, case_of
from .protocols import Outcome, Prepared, QueryAnswer, QueryState, SlotView, Target
from .tally import Tally
from .thrown import go_if_closed

if TYPE_CHECKING:
    from .executor import Execution

__all__ = ["QuerySteps", "leave_unknown", "never_landed", "stored_request"]

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
        answer = await self.ask(target, call)
        crashpoint("query.answered")
        match answer.state:
            case QueryState.LANDED if answer.outcome is not None:
                return await self._landed(slot, call, answer.outcome)
            case QueryState.NEVER:
                return await self.never(slot, never_landed(call, answer))
        return Ended.DONE if await self.ask_later(slot, call) is None else Ended.WAITS_AGAIN

    async def ask(self, target: Target, call: CallToRepeat) -> QueryAnswer:
        """What the target says of the call; whatever goes wrong proves nothing."""
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._execution.deadline_seconds):
                return await target.query(call.call_id, stored_request(call))
        except (Exception, GeneratorExit) as problem:  # noqa: BLE001 - a query that fails proves nothing
            go_if_closed(problem, task)
            return QueryAnswer(QueryState.NO_PROOF, None, f"{type(problem).__name__}: {problem}")

    async def _landed(self, slot: PendingSlot, call: CallToRepeat, outcome: Outcome) -> Ended:
        settlement = await self.settlement(call, outcome)
        ended = await self.settle(settlement)
        if settlement.decision is not Decision.LANDED or ended is Ended.WAITS_AGAIN:
            return ended  # a request of the target's own is no observation yet
        side = self._execution.sides[slot.variant_no]
        case = case_of(slot.case_id, slot.input, slot.expected, slot.metadata)
        view = SlotView(self._coordinator.run_id, case, side.name, slot.repetition)
        await self._judging.judge(view, slot.slot_no, call.attempt_no, outcome)
        return ended

    async def settlement(self, call: CallToRepeat, outcome: Outcome) -> Settlement:
        """What an outcome that the target told settles."""
        return await settlement_by(
            self._ledger, call.call_id, call.dispatch_no, outcome, made_by=_BY, reason="fetched by its request id"
        )

    async def never(self, slot: PendingSlot, settlement: Settlement) -> Ended:
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

    async def settle(self, settlement: Settlement) -> Ended:
        """Settle a slot that waits to ask for its call."""
        return self._settled(await self._ledger.write_async(lambda tx: settle_unknown(tx, settlement)))

    def _settled(self, state: SlotState) -> Ended:
        self._tally.move(SlotState.PENDING, state)
        crashpoint("query.settled")
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE

    async def ask_later(self, slot: PendingSlot, call: CallToRepeat) -> Waiting | None:
        """Nothing is proven: when to ask again; None: asked often enough, an operator decides."""
        policy = self._execution.policy
        asked = self._asked[call.call_id] = self._asked.get(call.call_id, 0) + 1
        if not policy.may_dispatch(asked):
            await leave_unknown(self._ledger, self._coordinator, self._tally, slot, "query.no_proof")
            return None
        waiting = Waiting(NextStep.QUERY, policy.not_before_us(self._ledger.clock.now_us(), asked))
        run_key, until = self._coordinator.run_key, waiting.not_before_us
        await self._ledger.write_async(lambda tx: attempts.postpone(tx, run_key, slot.slot_no, not_before_us=until))
        return waiting


def never_landed(call: CallToRepeat, answer: QueryAnswer) -> Settlement:
    """What a target's word settles that it never will do what it was asked."""
    said = answer.message or "the target says that it never will be done"
    return Settlement(call.call_id, call.dispatch_no, Decision.NOT_LANDED, _BY, said)


async def leave_unknown(
    ledger: Ledger, coordinator: Coordinator, tally: Tally, slot: PendingSlot, reason: str, undecided: str | None = None
) -> Ended:
    """What may follow by itself is used up: from here an operator decides; ``undecided`` as in the ledger."""
    run_key = coordinator.run_key
    await ledger.write_async(
        lambda tx: attempts.leave_unknown(tx, run_key, slot.slot_no, reason=reason, undecided=undecided)
    )
    tally.move(SlotState.PENDING, SlotState.UNKNOWN)
    return Ended.DONE


def stored_request(call: CallToRepeat) -> Prepared:
    """The request as it was committed before its first dispatch."""
    head = parse_json(call.head)
    assert isinstance(head, dict)
    return Prepared(call.payload or b"", head, keep=call.payload is not None)
