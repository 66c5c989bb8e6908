"""One slot's next step: a new attempt, a resend of its stored bytes, or a query by its request id.

The order within a step is the promise: prepare, commit the intent, dispatch, commit the outcome, judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from ..ledger import artifacts, attempts
from ..ledger.attempt_groups import Beginning, Observing
from ..ledger.canonical import canonical_text, printable
from ..ledger.coordinators import Coordinator
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import LeaseLost, TransitionRefused
from ..ledger.ledger import Ledger
from ..ledger.records import Artifact, Begun, DispatchFacts, DispatchKey, PendingSlot
from ..ledger.slot_reads import CallToRepeat, call_to_repeat, slot_stands
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.transaction import Transaction
from .answer_texts import AnswerTexts, NoAnswer, answer_texts
from .call_steps import Asking, CallSteps, LetGo, Sent, as_failure
from .claims import SettledMeanwhile, unless_settled
from .ended import Ended
from .flights import Flight, FlightWatch
from .guarded_steps import GuardedSteps, is_guarded
from .inline_judging import InlineJudging, case_of
from .late_answers import LateAnswers
from .pacing import Pace
from .protocols import Case, Prepared, SlotView
from .query_steps import QuerySteps, leave_unknown, stored_request
from .request_bounds import UNBOUNDED, bounded
from .stopping import StopSwitch
from .tally import Tally
from .tenures import DeviceTenure
from .turn_steps import TurnSteps

if TYPE_CHECKING:
    from .executor import Execution

__all__ = ["AttemptSteps"]


class AttemptSteps:
    """Takes slots one step further; one for each session of a run, on its loop."""

    def __init__(
        self,
        ledger: Ledger,
        coordinator: Coordinator,
        execution: Execution,
        *,
        flights: FlightWatch,
        stop: StopSwitch,
        tally: Tally,
        pace: Pace,
        judging: InlineJudging,
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._run_key = coordinator.run_key
        self._run_id = coordinator.run_id
        self._execution = execution
        self._policy = execution.policy
        self._tally = tally
        self._pace = pace
        self._judging = judging
        self._calls = CallSteps(ledger, execution, flights=flights, stop=stop, tally=tally, pace=pace)
        self._queries = QuerySteps(ledger, coordinator, execution, tally=tally, judging=judging)
        self._guarded = GuardedSteps(
            ledger, coordinator, execution, flights=flights, stop=stop, tally=tally, pace=pace, judging=judging
        )
        self._turns = None if execution.conversation is None else TurnSteps(
            ledger, coordinator, execution, execution.conversation, calls=self._calls, queries=self._queries,
            stop=stop, tally=tally, pace=pace, judging=judging,
        )  # fmt: skip

    @property
    def late(self) -> LateAnswers:
        """Answers that came after their attempt had ended."""
        return self._calls.late

    async def run(self, slot: PendingSlot, *, solitary: bool, tenure: DeviceTenure | None = None) -> Ended:
        """Take the slot's next step, under ``tenure`` where its target works on devices.

        Raises BudgetExhausted, with nothing done, when a hold does not fit, LeaseLost, with nothing done, when a device
        is not held any more, and LedgerError when the ledger failed.
        """
        side = self._execution.sides[slot.variant_no]
        if tenure is not None:
            side = attrs.evolve(side, tenure=tenure)
        if not await self._pace.turn(slot.variant_no):
            return Ended.UNTOUCHED
        asking = Asking(side, SlotView(self._run_id, _case_of(slot), side.name, slot.repetition))
        try:
            if self._turns is not None:
                return await self._turns.run(slot, asking, solitary=solitary)
            return await self._one_call(slot, asking, solitary=solitary)
        except LetGo:
            return Ended.LET_GO
        except SettledMeanwhile:
            return Ended.WAITS_AGAIN  # nothing was committed; the feed reads it anew
        except TransitionRefused as refused:
            if tenure is None:
                raise
            return self._ended_by_successor(slot, tenure, refused)

    async def _one_call(self, slot: PendingSlot, asking: Asking, *, solitary: bool) -> Ended:
        side = asking.side
        if slot.next_step is not NextStep.QUERY and is_guarded(side.target):
            return await self._guarded_attempt(slot, asking, solitary=solitary)
        match slot.next_step:
            case NextStep.NEW:
                return await self._new_attempt(slot, asking, solitary=solitary)
            case NextStep.RESEND:
                return await self._resend(slot, asking, solitary=solitary)
            case NextStep.QUERY:
                if side.tenure is not None:
                    side.tenure.refuse_if_taken()
                with unless_settled(self._ledger, self._run_key, slot):
                    return await self._queries.run(slot, side.target, self._call_of(slot))

    def let_go(self, flight: Flight) -> asyncio.Task[object]:
        """Record a dispatch that outlived its deadline and every cancellation as unknown; done once that is durable."""
        if not flight.key.call_id:
            return self._calls.late.spawn(self._guarded.let_go(flight))
        return self._calls.let_go(flight)

    async def _guarded_attempt(self, slot: PendingSlot, asking: Asking, *, solitary: bool) -> Ended:
        try:
            prepared = asking.side.target.prepare(asking.view)
        except Exception as problem:  # noqa: BLE001 - one case's fault must not stop the others
            with unless_settled(self._ledger, self._run_key, slot):
                return await self._unprepared(slot, asking, problem)
        return await self._guarded.run(slot, asking, prepared, solitary=solitary)

    async def _new_attempt(self, slot: PendingSlot, asking: Asking, *, solitary: bool) -> Ended:
        side = asking.side
        try:
            prepared = side.target.prepare(asking.view)
            head = canonical_text(prepared.head)
            if side.bounds is not None:
                asking = attrs.evolve(asking, side=bounded(side, prepared))
        except Exception as problem:  # noqa: BLE001 - one case's fault must not stop the others
            with unless_settled(self._ledger, self._run_key, slot):
                return await self._unprepared(slot, asking, problem)
        crashpoint("dispatch.intent.before")
        stored = await self._calls.intent(asking, self._run_key, slot.slot_no, prepared, head, solitary=solitary)
        begun = await self._claimed(slot, Beginning(stored, slot.attempts + 1))
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("dispatch.intent.committed")
        return await self._dispatches(asking, prepared, begun.key)

    async def _resend(self, slot: PendingSlot, asking: Asking, *, solitary: bool) -> Ended:
        call = self._call_of(slot)
        now_us = self._ledger.clock.now_us()
        if call is None or call.payload is None or not self._policy.may_dispatch(call.dispatches):
            return await self._leave_unknown(slot, "resends.used_up")
        if call.key_until_us is not None and now_us >= call.key_until_us:
            return await self._leave_unknown(slot, "key.expired")
        prepared = stored_request(call)
        key = DispatchKey(self._run_key, slot.slot_no, call.attempt_no, call.call_id, call.dispatch_no)
        try:
            side = bounded(asking.side, prepared)
        except Exception as problem:  # noqa: BLE001 - one slot's fault must not stop the others
            return await self._leave_unknown(slot, UNBOUNDED, printable(str(problem)))
        crashpoint("dispatch.intent.before")
        begun = await self._claimed(
            slot, lambda tx: attempts.reopen(tx, key, side.holds, solitary=solitary, held=side.held)
        )
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("dispatch.intent.committed")
        return await self._dispatches(attrs.evolve(asking, side=side), prepared, begun.key)

    async def _claimed(self, slot: PendingSlot, work: Callable[[Transaction], Begun]) -> Begun:
        with unless_settled(self._ledger, self._run_key, slot):
            return await self._ledger.write_async(work, undo=lambda tx, begun: self._calls.undo(tx, begun.key))

    async def _dispatches(self, asking: Asking, prepared: Prepared, key: DispatchKey) -> Ended:
        """The attempt's one call, until it has its outcome and that is committed."""
        deadline = time.monotonic() + self._execution.deadline_seconds
        sent = await self._calls.exchange(asking, prepared, key, deadline=deadline)
        if isinstance(sent, Ended):
            return sent
        match sent.outcome.state:
            case DispatchState.ANSWERED:
                with self._calls.late_if_taken(asking, sent):
                    return await self._answered(asking.view, sent)
            case DispatchState.FAILED:
                return await self._calls.failed(sent)
            case _:
                return Ended.WAITS_AGAIN if await self._calls.lose(sent, asking.side) else Ended.DONE

    async def _answered(self, view: SlotView, sent: Sent) -> Ended:
        key, outcome = sent.key, sent.outcome
        try:
            texts = answer_texts(outcome)
        except NoAnswer as none:
            return await self._calls.failed(as_failure(sent, none.reason, str(none)))
        facts = await self._calls.facts(sent)
        answer = await artifacts.stored_answer(self._ledger, texts.answer)
        await self._ledger.write_async(_observing(key, facts, answer, texts))
        self._tally.move(SlotState.IN_FLIGHT, SlotState.SELECTED)
        crashpoint("dispatch.outcome.committed")
        await self._judging.judge(view, key.slot_no, key.attempt_no, outcome)
        return Ended.DONE

    async def _leave_unknown(self, slot: PendingSlot, reason: str, undecided: str | None = None) -> Ended:
        with unless_settled(self._ledger, self._run_key, slot):
            return await leave_unknown(self._ledger, self._coordinator, self._tally, slot, reason, undecided)

    async def _unprepared(self, slot: PendingSlot, asking: Asking, problem: Exception) -> Ended:
        text = printable(f"case {slot.case_id}: {problem}")
        await self._ledger.write_async(
            lambda tx: attempts.fail_unprepared(
                tx,
                self._run_key,
                slot.slot_no,
                fingerprint=asking.side.fingerprint,
                reason="request.not_prepared",
                message=text,
            )
        )
        self._tally.move(SlotState.PENDING, SlotState.FAILED)
        return Ended.DONE

    def _ended_by_successor(self, slot: PendingSlot, tenure: DeviceTenure, refused: TransitionRefused) -> Ended:
        """Whoever took the device over has ended what was in flight on it: the feed reads the slot anew."""
        with self._ledger.reading() as reader:
            state, tries, _ = slot_stands(reader, self._run_key, slot.slot_no)
        if state is SlotState.IN_FLIGHT or tries < slot.attempts:
            raise refused
        self._tally.move(SlotState.IN_FLIGHT, state)
        with contextlib.suppress(LeaseLost):
            tenure.refuse_if_taken()  # which takes note of it
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE

    def _call_of(self, slot: PendingSlot) -> CallToRepeat | None:
        with self._ledger.reading() as reader:
            return call_to_repeat(reader, self._run_key, slot.slot_no, slot.attempts)


def _observing(
    key: DispatchKey, facts: DispatchFacts, answer: str | Artifact, texts: AnswerTexts
) -> Callable[[Transaction], None]:
    if isinstance(answer, str):
        return Observing(key, facts, answer, texts.digest, texts.evidence, texts.flags)
    return lambda tx: attempts.observe(
        tx, key, facts, answer=answer, answer_digest=texts.digest, evidence=texts.evidence, flags=texts.flags
    )


def _case_of(slot: PendingSlot) -> Case:
    return case_of(slot.case_id, slot.input, slot.expected, slot.metadata)
