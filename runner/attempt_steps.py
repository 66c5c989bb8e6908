"""One slot's next step: a new attempt, a resend of its stored bytes, or a query by its request id.

The order within a step is the promise: prepare, commit the intent, dispatch, commit the outcome, judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from ..ledger import artifacts, attempts
from ..ledger.attempt_groups import Beginning, Observing
from ..ledger.canonical import canonical_text, digest_of_bytes, printable
from ..ledger.coordinators import Coordinator
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import TransitionRefused
from ..ledger.ledger import Ledger
from ..ledger.records import Artifact, Begun, DispatchFacts, DispatchKey, Intent, PendingSlot
from ..ledger.slot_reads import CallToRepeat, call_to_repeat, slot_stands
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.transaction import Transaction
from .call_steps import Asking, CallSteps, LetGo, Sent, as_failure
from .ended import Ended
from .flights import Flight, FlightWatch
from .inline_judging import InlineJudging, case_of
from .late_answers import LateAnswers
from .pacing import Pace
from .protocols import MISSING, Case, Prepared, SlotView
from .query_steps import QuerySteps, leave_unknown, stored_request
from .stopping import StopSwitch
from .tally import Tally
from .tenures import DeviceTenure

if TYPE_CHECKING:
    from .executor import Execution

__all__ = ["AttemptSteps"]


class _SettledMeanwhile(Exception):
    """The slot is not what was handed out: a late answer or an operator has settled its newest attempt."""


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
            match slot.next_step:
                case NextStep.NEW:
                    return await self._new_attempt(slot, asking, solitary=solitary)
                case NextStep.RESEND:
                    return await self._resend(slot, asking, solitary=solitary)
                case NextStep.QUERY:
                    with self._unless_settled(slot):
                        return await self._queries.run(slot, side.target, self._call_of(slot))
        except LetGo:
            return Ended.LET_GO
        except _SettledMeanwhile:
            return Ended.WAITS_AGAIN  # nothing was committed; the feed reads it anew
        except TransitionRefused as refused:
            if tenure is None:
                raise
            return self._ended_by_successor(slot, refused)

    def let_go(self, flight: Flight) -> asyncio.Task[object]:
        """Record a dispatch that outlived its deadline and every cancellation as unknown; done once that is durable."""
        return self._calls.let_go(flight)

    async def _new_attempt(self, slot: PendingSlot, asking: Asking, *, solitary: bool) -> Ended:
        side = asking.side
        try:
            prepared = side.target.prepare(asking.view)
            head = canonical_text(prepared.head)
        except Exception as problem:  # noqa: BLE001 - one case's fault must not stop the others
            with self._unless_settled(slot):
                return await self._unprepared(slot, asking, problem)
        crashpoint("dispatch.intent.before")
        target, now_us = side.target, self._ledger.clock.now_us()
        valid = target.key_valid_seconds
        intent = Intent(
            self._run_key, slot.slot_no, self._ledger.ids.next(), prepared.payload if prepared.keep else None,
            digest_of_bytes(prepared.payload), len(prepared.payload), head, target.if_unknown, side.holds,
            side.fingerprint, None if valid is None else now_us + round(valid * 1e6), solitary, side.held,
        )  # fmt: skip
        stored = await artifacts.with_stored_payload(self._ledger, intent)
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
        crashpoint("dispatch.intent.before")
        side = asking.side
        begun = await self._claimed(
            slot, lambda tx: attempts.reopen(tx, key, side.holds, solitary=solitary, held=side.held)
        )
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("dispatch.intent.committed")
        return await self._dispatches(asking, prepared, begun.key)

    async def _claimed(self, slot: PendingSlot, work: Callable[[Transaction], Begun]) -> Begun:
        with self._unless_settled(slot):
            return await self._ledger.write_async(work, undo=lambda tx, begun: self._calls.undo(tx, begun.key))

    @contextlib.contextmanager
    def _unless_settled(self, slot: PendingSlot) -> Iterator[None]:
        """A late answer or an operator may settle a slot between the look and the claim; that stops no run.

        Where the slot stands as it was handed out, or somebody else has claimed it, the refusal goes on.
        """
        try:
            yield
        except TransitionRefused:
            with self._ledger.reading() as reader:
                state, tries, step = slot_stands(reader, self._run_key, slot.slot_no)
            is_settled = state is not SlotState.IN_FLIGHT and (state, step) != (SlotState.PENDING, slot.next_step)
            if tries != slot.attempts or not is_settled:
                raise
            raise _SettledMeanwhile from None

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
        if outcome.answer is MISSING:
            return await self._calls.failed(as_failure(sent, "answer.missing", "there is no answer in it"))
        try:
            text = canonical_text(outcome.answer)  # type: ignore[arg-type]
            evidence = canonical_text(outcome.evidence) if outcome.evidence else "{}"
        except (TypeError, ValueError) as problem:
            return await self._calls.failed(as_failure(sent, "answer.not_json", str(problem)))
        facts = await self._calls.facts(sent)
        digest, answer = digest_of_bytes(text.encode()), await artifacts.stored_answer(self._ledger, text)
        flags = canonical_text(list(outcome.flags)) if outcome.flags else "[]"
        await self._ledger.write_async(_observing(key, facts, answer, digest, evidence, flags))
        self._tally.move(SlotState.IN_FLIGHT, SlotState.SELECTED)
        crashpoint("dispatch.outcome.committed")
        await self._judging.judge(view, key.slot_no, key.attempt_no, outcome)
        return Ended.DONE

    async def _leave_unknown(self, slot: PendingSlot, reason: str) -> Ended:
        with self._unless_settled(slot):
            return await leave_unknown(self._ledger, self._coordinator, self._tally, slot, reason)

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

    def _ended_by_successor(self, slot: PendingSlot, refused: TransitionRefused) -> Ended:
        """Whoever took the device over has ended what was in flight on it: the feed reads the slot anew."""
        with self._ledger.reading() as reader:
            state, tries, _ = slot_stands(reader, self._run_key, slot.slot_no)
        if state is SlotState.IN_FLIGHT or tries < slot.attempts:
            raise refused
        self._tally.move(SlotState.IN_FLIGHT, state)
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE

    def _call_of(self, slot: PendingSlot) -> CallToRepeat | None:
        with self._ledger.reading() as reader:
            return call_to_repeat(reader, self._run_key, slot.slot_no, slot.attempts)


def _observing(
    key: DispatchKey, facts: DispatchFacts, answer: str | Artifact, digest: str, evidence: str, flags: str
) -> Callable[[Transaction], None]:
    if isinstance(answer, str):
        return Observing(key, facts, answer, digest, evidence, flags)
    return lambda tx: attempts.observe(
        tx, key, facts, answer=answer, answer_digest=digest, evidence=evidence, flags=flags
    )


def _case_of(slot: PendingSlot) -> Case:
    return case_of(slot.case_id, slot.input, slot.expected, slot.metadata)
