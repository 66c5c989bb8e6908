"""One slot's next step: a new attempt, a resend of its stored bytes, or a query by its request id.

The order within a step is the promise: prepare, commit the intent, dispatch, commit the outcome, judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from ..ledger import artifacts, attempts
from ..ledger.attempt_groups import Beginning, Observing
from ..ledger.canonical import canonical_text, digest_of_bytes, printable
from ..ledger.coordinators import Coordinator, follow_up
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import BudgetExhausted, TransitionRefused
from ..ledger.ledger import Ledger
from ..ledger.records import Artifact, Begun, DispatchFacts, DispatchKey, Intent, PendingSlot, Waiting
from ..ledger.slot_reads import CallToRepeat, call_to_repeat, slot_stands
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.transaction import Transaction
from .ended import Ended
from .flights import Flight, FlightWatch
from .inline_judging import InlineJudging, case_of
from .late_answers import LateAnswers
from .outcome_facts import facts_of, interrupted_outcome
from .pacing import Pace
from .protocols import MISSING, Case, Dispatching, Outcome, Prepared, SlotView, WireProgress
from .query_steps import QuerySteps, leave_unknown, stored_request
from .stopping import StopSwitch
from .tally import Tally

if TYPE_CHECKING:
    from .executor import Execution, VariantSide

__all__ = ["AttemptSteps"]

logger = logging.getLogger(__name__)


class _LetGo(Exception):
    """The watch gave this dispatch up meanwhile, and somebody else has recorded that."""


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
        self._flights = flights
        self._stop = stop
        self._tally = tally
        self._pace = pace
        self._judging = judging
        self._side_of_call: dict[str, VariantSide] = {}
        self._queries = QuerySteps(ledger, coordinator, execution, tally=tally, judging=judging)
        self.late = LateAnswers(ledger, tally)

    async def run(self, slot: PendingSlot, *, solitary: bool) -> Ended:
        """Take the slot's next step.

        Raises BudgetExhausted, with nothing done, when a hold does not fit, and LedgerError when the ledger failed.
        """
        side = self._execution.sides[slot.variant_no]
        if not await self._pace.turn(slot.variant_no):
            return Ended.UNTOUCHED
        view = SlotView(self._run_id, _case_of(slot), side.name, slot.repetition)
        try:
            match slot.next_step:
                case NextStep.NEW:
                    return await self._new_attempt(slot, side, view, solitary=solitary)
                case NextStep.RESEND:
                    return await self._resend(slot, side, view, solitary=solitary)
                case NextStep.QUERY:
                    with self._unless_settled(slot):
                        return await self._queries.run(slot, side.target, self._call_of(slot))
        except _LetGo:
            return Ended.LET_GO
        except _SettledMeanwhile:
            return Ended.WAITS_AGAIN  # nothing was committed; the feed reads it anew

    def let_go(self, flight: Flight) -> asyncio.Task[object]:
        """Record a dispatch that outlived its deadline and every cancellation as unknown; done once that is durable."""
        outcome = interrupted_outcome(flight.progress, reason="deadline", message="did not end when it was cancelled")
        if outcome.state is DispatchState.REFUSED:
            outcome = Outcome(DispatchState.UNKNOWN, "deadline", outcome.message)
        return self.late.spawn(self._lose(flight.key, outcome, flight.began, self._side_of_call[flight.key.call_id]))

    async def _new_attempt(self, slot: PendingSlot, side: VariantSide, view: SlotView, *, solitary: bool) -> Ended:
        try:
            prepared = side.target.prepare(view)
            head = canonical_text(prepared.head)
        except Exception as problem:  # noqa: BLE001 - one case's fault must not stop the others
            with self._unless_settled(slot):
                return await self._unprepared(slot, side, problem)
        crashpoint("dispatch.intent.before")
        target, now_us = side.target, self._ledger.clock.now_us()
        valid = target.key_valid_seconds
        intent = Intent(
            self._run_key, slot.slot_no, self._ledger.ids.next(), prepared.payload if prepared.keep else None,
            digest_of_bytes(prepared.payload), len(prepared.payload), head, target.if_unknown, side.holds,
            side.fingerprint, None if valid is None else now_us + round(valid * 1e6), solitary,
        )  # fmt: skip
        stored = await artifacts.with_stored_payload(self._ledger, intent)
        begun = await self._claimed(slot, Beginning(stored, slot.attempts + 1))
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("dispatch.intent.committed")
        return await self._dispatches(side, view, prepared, begun.key)

    async def _resend(self, slot: PendingSlot, side: VariantSide, view: SlotView, *, solitary: bool) -> Ended:
        call = self._call_of(slot)
        now_us = self._ledger.clock.now_us()
        if call is None or call.payload is None or not self._policy.may_dispatch(call.dispatches):
            return await self._leave_unknown(slot, "resends.used_up")
        if call.key_until_us is not None and now_us >= call.key_until_us:
            return await self._leave_unknown(slot, "key.expired")
        prepared = stored_request(call)
        key = DispatchKey(self._run_key, slot.slot_no, call.attempt_no, call.call_id, call.dispatch_no)
        crashpoint("dispatch.intent.before")
        begun = await self._claimed(slot, lambda tx: attempts.reopen(tx, key, side.holds, solitary=solitary))
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("dispatch.intent.committed")
        return await self._dispatches(side, view, prepared, begun.key)

    async def _claimed(self, slot: PendingSlot, work: Callable[[Transaction], Begun]) -> Begun:
        with self._unless_settled(slot):
            return await self._ledger.write_async(work, undo=lambda tx, begun: self._undo(tx, begun.key))

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

    async def _dispatches(self, side: VariantSide, view: SlotView, prepared: Prepared, key: DispatchKey) -> Ended:
        """Dispatch, and after a refusal once more while deadline and limits allow."""
        deadline = time.monotonic() + self._execution.deadline_seconds
        while True:
            began = time.monotonic()
            outcome = await self._send(side, view, prepared, key, deadline)
            crashpoint("dispatch.sent")
            match outcome.state:
                case DispatchState.ANSWERED:
                    return await self._answered(view, key, outcome, began)
                case DispatchState.REFUSED:
                    again = await self._refused(side, key, outcome, began, deadline)
                    if isinstance(again, Ended):
                        return again
                    key = again
                case DispatchState.FAILED:
                    return await self._failed(key, outcome, began)
                case _:
                    return await self._lose(key, outcome, began, side)

    async def _send(
        self, side: VariantSide, view: SlotView, prepared: Prepared, key: DispatchKey, deadline: float
    ) -> Outcome:
        now, progress = time.monotonic(), WireProgress()
        task = asyncio.current_task()
        assert task is not None
        flight = Flight(key, task, progress, now, deadline)
        dispatching = Dispatching(
            key.call_id, key.attempt_no, key.dispatch_no, view, max(0.0, deadline - now), progress,
            late=self.late.reporter(key, now),
        )  # fmt: skip
        self._tally.dispatches += 1
        self._side_of_call[key.call_id] = side
        self._flights.add(flight)
        try:
            outcome = await side.target.dispatch(prepared, dispatching)
        except asyncio.CancelledError:
            if flight.is_abandoned:
                raise  # the watch has recorded it
            if not flight.broken_off:
                await self._cancelled_from_outside(flight, side)
                raise
            task.uncancel()
            outcome = interrupted_outcome(progress, reason=flight.broken_off, message="broken off")
        except Exception as problem:  # noqa: BLE001 - an adapter's own fault is an outcome too
            outcome = _adapter_fault(progress, problem)
        finally:
            self._flights.remove(flight)
            self._side_of_call.pop(key.call_id, None)
        if flight.is_abandoned:
            self.late.arrived(key, outcome, now)
            raise _LetGo
        return outcome

    async def _answered(self, view: SlotView, key: DispatchKey, outcome: Outcome, began: float) -> Ended:
        if outcome.answer is MISSING:
            return await self._failed(key, _as_failure(outcome, "answer.missing", "there is no answer in it"), began)
        try:
            text = canonical_text(outcome.answer)  # type: ignore[arg-type]
            evidence = canonical_text(outcome.evidence) if outcome.evidence else "{}"
        except (TypeError, ValueError) as problem:
            return await self._failed(key, _as_failure(outcome, "answer.not_json", str(problem)), began)
        facts = await self._facts(outcome, began)
        digest, answer = digest_of_bytes(text.encode()), await artifacts.stored_answer(self._ledger, text)
        flags = canonical_text(list(outcome.flags)) if outcome.flags else "[]"
        await self._ledger.write_async(_observing(key, facts, answer, digest, evidence, flags))
        self._tally.move(SlotState.IN_FLIGHT, SlotState.SELECTED)
        crashpoint("dispatch.outcome.committed")
        await self._judging.judge(view, key.slot_no, key.attempt_no, outcome)
        return Ended.DONE

    async def _facts(self, outcome: Outcome, began: float) -> DispatchFacts:
        facts = facts_of(outcome, duration_us=_since(began))
        return facts if facts.raw is None else await artifacts.with_stored_raw(self._ledger, facts)

    async def _refused(
        self, side: VariantSide, key: DispatchKey, outcome: Outcome, began: float, deadline: float
    ) -> DispatchKey | Ended:
        """The key of the next dispatch, or how the attempt ended: given back until later, or out of tries."""
        facts = await self._facts(outcome, began)
        await self._ledger.write_async(
            lambda tx: attempts.refuse(tx, key, facts),
            undo=lambda tx, _: attempts.give_back(tx, key, Waiting(), reason="stopped"),
        )
        self._tally.refused += 1
        wait = self._policy.wait_seconds(key.dispatch_no, retry_after_seconds=outcome.retry_after_seconds)
        not_before_us = self._ledger.clock.now_us() + round(wait * 1e6)
        if outcome.retry_after_seconds:
            self._pace.hold(side.variant_no, outcome.retry_after_seconds)
        fits = time.monotonic() + wait < deadline and self._policy.may_dispatch(key.dispatch_no)
        try:
            # The next dispatch keeps to the work order's rate, as every other, and to its attempt's deadline.
            may_go_on = fits and await self._stop.sleep(wait) and await self._pace.turn(side.variant_no)
            if may_go_on and time.monotonic() < deadline:
                begun = await self._again(side, key)
                if begun is not None:
                    crashpoint("dispatch.intent.committed")
                    return begun
        except asyncio.CancelledError:
            with contextlib.suppress(TransitionRefused):  # undone with the next dispatch already
                await asyncio.shield(asyncio.ensure_future(self._give_back(key, outcome, not_before_us)))
            raise
        return await self._give_back(key, outcome, not_before_us)

    async def _again(self, side: VariantSide, key: DispatchKey) -> DispatchKey | None:
        crashpoint("dispatch.intent.before")
        try:
            begun = await self._ledger.write_async(
                lambda tx: attempts.dispatch_again(tx, key, side.holds),
                undo=lambda tx, begun: self._undo(tx, begun.key),
            )
        except BudgetExhausted:
            return None  # the attempt is given back; the slot meets the full budget when it is claimed again
        return begun.key

    async def _give_back(self, key: DispatchKey, outcome: Outcome, not_before_us: int) -> Ended:
        stopped = self._stop.is_asked

        def work(tx: Transaction) -> SlotState:
            if was_resent := attempts.is_unknown(tx, key):
                allowed = self._policy.may_dispatch(key.dispatch_no)
            else:
                allowed = self._policy.may_attempt(attempts.tries_spent(tx, key.run_key, key.slot_no) + 1)
            waiting = Waiting(NextStep.NEW, not_before_us) if stopped or allowed else None
            reason = "stopped" if stopped else "resends.used_up" if was_resent and not allowed else outcome.reason
            return attempts.give_back(tx, key, waiting, reason=reason, message=outcome.message)

        state = await self._ledger.write_async(work)
        self._tally.move(SlotState.IN_FLIGHT, state)
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE

    async def _failed(self, key: DispatchKey, outcome: Outcome, began: float) -> Ended:
        facts = await self._facts(outcome, began)
        now_us = self._ledger.clock.now_us()

        def work(tx: Transaction) -> Waiting | None:
            tries = attempts.tries_spent(tx, key.run_key, key.slot_no) + 1
            waiting = None
            if self._policy.may_retry(facts.reason, tries):
                waiting = Waiting(NextStep.NEW, self._policy.not_before_us(
                    now_us, tries, retry_after_seconds=outcome.retry_after_seconds))  # fmt: skip
            attempts.fail(tx, key, facts, waiting=waiting)
            return waiting

        waiting = await self._ledger.write_async(work)
        self._tally.move(SlotState.IN_FLIGHT, SlotState.PENDING if waiting else SlotState.FAILED)
        return Ended.WAITS_AGAIN if waiting else Ended.DONE

    async def _lose(self, key: DispatchKey, outcome: Outcome, began: float, side: VariantSide) -> Ended:
        facts = await self._facts(outcome, began)
        if getattr(side.target, "may_answer_late", False):
            self.late.expect(key)
        waiting = await self._ledger.write_async(lambda tx: self._lose_now(tx, key, outcome, side, facts))
        self._tally.move(SlotState.IN_FLIGHT, SlotState.PENDING if waiting else SlotState.UNKNOWN)
        crashpoint("dispatch.outcome.committed")
        return Ended.WAITS_AGAIN if waiting else Ended.DONE

    def _lose_now(
        self, tx: Transaction, key: DispatchKey, outcome: Outcome, side: VariantSide, facts: DispatchFacts
    ) -> Waiting | None:
        until, stored = attempts.resendable(tx, key.call_id)
        waiting = follow_up(side.target.if_unknown, now_us=tx.now_us, key_until_us=until, stored=stored)
        if waiting is not None:
            tries = attempts.tries_spent(tx, key.run_key, key.slot_no) + 1
            is_new = waiting.step is NextStep.NEW
            # What a stop broke off is not the target's fault and costs none of its tries.
            allowed = self._policy.may_attempt(tries) if is_new else self._policy.may_dispatch(key.dispatch_no)
            if not allowed and outcome.reason not in ("stopped", "cancelled"):
                waiting = None
            elif waiting.step is not NextStep.QUERY:
                waiting = Waiting(waiting.step, self._policy.not_before_us(tx.now_us, tries))
        attempts.lose(tx, key, facts, waiting=waiting)
        return waiting

    async def _leave_unknown(self, slot: PendingSlot, reason: str) -> Ended:
        with self._unless_settled(slot):
            return await leave_unknown(self._ledger, self._coordinator, self._tally, slot, reason)

    async def _unprepared(self, slot: PendingSlot, side: VariantSide, problem: Exception) -> Ended:
        text = printable(f"case {slot.case_id}: {problem}")
        await self._ledger.write_async(
            lambda tx: attempts.fail_unprepared(
                tx,
                self._run_key,
                slot.slot_no,
                fingerprint=side.fingerprint,
                reason="request.not_prepared",
                message=text,
            )
        )
        self._tally.move(SlotState.PENDING, SlotState.FAILED)
        return Ended.DONE

    def _undo(self, tx: Transaction, key: DispatchKey) -> None:
        """The caller was cancelled once its intent was committed: nothing was sent, and that is certain."""
        facts = facts_of(Outcome(DispatchState.REFUSED, "cancelled", "cancelled before it was sent", bytes_sent=0),
                         duration_us=0)  # fmt: skip
        attempts.refuse(tx, key, facts)
        attempts.give_back(tx, key, Waiting(), reason="stopped")

    async def _cancelled_from_outside(self, flight: Flight, side: VariantSide) -> None:
        outcome = interrupted_outcome(flight.progress, reason="cancelled", message="the caller was cancelled")
        key = flight.key
        if outcome.state is DispatchState.REFUSED:
            await asyncio.shield(asyncio.ensure_future(self._ledger.write_async(lambda tx: self._undo(tx, key))))
        else:
            await asyncio.shield(asyncio.ensure_future(self._lose(key, outcome, flight.began, side)))

    def _call_of(self, slot: PendingSlot) -> CallToRepeat | None:
        with self._ledger.reading() as reader:
            return call_to_repeat(reader, self._run_key, slot.slot_no, slot.attempts)


def _case_of(slot: PendingSlot) -> Case:
    return case_of(slot.case_id, slot.input, slot.expected, slot.metadata)


def _observing(
    key: DispatchKey, facts: DispatchFacts, answer: str | Artifact, digest: str, evidence: str, flags: str
) -> Callable[[Transaction], None]:
    if isinstance(answer, str):
        return Observing(key, facts, answer, digest, evidence, flags)
    return lambda tx: attempts.observe(
        tx, key, facts, answer=answer, answer_digest=digest, evidence=evidence, flags=flags
    )


def _as_failure(outcome: Outcome, reason: str, message: str) -> Outcome:
    return attrs.evolve(outcome, state=DispatchState.FAILED, reason=reason, message=message, answer=MISSING)


def _adapter_fault(progress: WireProgress, problem: Exception) -> Outcome:
    message = f"the adapter raised {type(problem).__name__}: {problem}"
    state = DispatchState.FAILED if progress.bytes_sent == 0 else DispatchState.UNKNOWN
    return Outcome(state, "target.raised", message, bytes_sent=progress.bytes_sent)


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1e6)
