"""One call of an attempt: sent until it has its outcome, and what became of it committed.

An attempt has one call, or several one after the other. Which of these an answer ends is not decided here: `exchange`
gives back what came, and whoever asked commits an answer as an observation, or as a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from ..ledger import artifacts, attempts
from ..ledger.canonical import digest_of_bytes
from ..ledger.coordinators import follow_up
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import BudgetExhausted, LeaseLost, TransitionRefused
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchFacts, DispatchKey, Intent, Waiting
from ..ledger.states import DispatchState, IfUnknown, NextStep, SlotState
from ..ledger.transaction import Transaction
from .device_protocols import LEASE_LOST, REBOOTED, SESSION_LOST
from .ended import Ended
from .flights import Flight, FlightWatch
from .late_answers import LateAnswers
from .outcome_facts import facts_of, interrupted_outcome, said_of
from .pacing import Pace
from .protocols import MISSING, Dispatching, Outcome, Prepared, SlotView, WireProgress
from .stopping import StopSwitch
from .tally import Tally
from .tenures import DeviceTenure
from .thrown import go_if_closed

if TYPE_CHECKING:
    from .executor import Execution, VariantSide

__all__ = ["Asking", "CallSteps", "LetGo", "Sent", "as_failure"]


class LetGo(Exception):
    """The watch gave this dispatch up meanwhile, and somebody else has recorded that."""


@attrs.frozen
class Asking:
    """Whom is asked, and for which planned observation."""

    side: VariantSide
    view: SlotView


@attrs.frozen
class Sent:
    """A call that has its outcome: ANSWERED, FAILED or UNKNOWN. Nothing of it is committed yet."""

    key: DispatchKey
    outcome: Outcome
    began: float


class CallSteps:
    """Sends calls and commits what became of them; one for each session of a run, on its loop."""

    def __init__(
        self, ledger: Ledger, execution: Execution, *, flights: FlightWatch, stop: StopSwitch, tally: Tally, pace: Pace
    ) -> None:
        self._ledger = ledger
        self._execution = execution
        self._policy = execution.policy
        self._flights = flights
        self._stop = stop
        self._tally = tally
        self._pace = pace
        self._side_of_call: dict[str, VariantSide] = {}
        self._too_late: dict[str, Outcome] = {}
        self.late = LateAnswers(ledger, tally)

    def let_go(self, flight: Flight) -> asyncio.Task[object]:
        """Record a dispatch that outlived its deadline and every cancellation as unknown; done once that is durable."""
        outcome = interrupted_outcome(flight.progress, reason="deadline", message="did not end when it was cancelled")
        if outcome.state is DispatchState.REFUSED:
            outcome = Outcome(DispatchState.UNKNOWN, "deadline", outcome.message)
        return self.late.spawn(
            self.lose(Sent(flight.key, outcome, flight.began), self._side_of_call[flight.key.call_id])
        )

    async def intent(
        self, asking: Asking, run_key: int, slot_no: int, prepared: Prepared, head: str, *, solitary: bool
    ) -> Intent:
        """The intent of a call's first dispatch, its large bytes in their file already; ``head`` is the request's."""
        side, now_us = asking.side, self._ledger.clock.now_us()
        valid = side.target.key_valid_seconds
        intent = Intent(
            run_key, slot_no, self._ledger.ids.next(), prepared.payload if prepared.keep else None,
            digest_of_bytes(prepared.payload), len(prepared.payload), head, side.target.if_unknown, side.holds,
            side.fingerprint, None if valid is None else now_us + round(valid * 1e6), solitary, side.held,
        )  # fmt: skip
        return await artifacts.with_stored_payload(self._ledger, intent)

    async def exchange(self, asking: Asking, prepared: Prepared, key: DispatchKey, *, deadline: float) -> Sent | Ended:
        """Dispatch, and after a refusal once more while deadline and limits allow.

        An `Ended` says that the attempt was given back. Raises LetGo.
        """
        while True:
            began = time.monotonic()
            outcome = await self._send(asking, prepared, key, deadline)
            crashpoint("dispatch.sent")
            match outcome.state:
                case DispatchState.ANSWERED | DispatchState.FAILED:
                    return Sent(key, outcome, began)
                case DispatchState.REFUSED:
                    again = await self._refused(asking.side, Sent(key, outcome, began), deadline)
                    if isinstance(again, Ended):
                        return again
                    key = again
                case _:
                    return Sent(key, outcome, began)

    async def _send(self, asking: Asking, prepared: Prepared, key: DispatchKey, deadline: float) -> Outcome:
        now, progress, side = time.monotonic(), WireProgress(), asking.side
        if side.tenure is not None and side.tenure.is_lost:
            # Frozen between the intent and this line: it was not sent, and must not be.
            return interrupted_outcome(progress, reason=LEASE_LOST, message="the lease ran out before it was sent")
        task = asyncio.current_task()
        assert task is not None
        flight = Flight(key, task, progress, now, deadline, side.tenure)
        dispatching = Dispatching(
            key.call_id, key.attempt_no, key.dispatch_no, asking.view, max(0.0, deadline - now), progress,
            None if side.held is None else side.held.fence, self.late.reporter(key, now),
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
        except (Exception, GeneratorExit) as problem:  # noqa: BLE001 - an adapter's own fault is an outcome too
            go_if_closed(problem, task)
            outcome = _adapter_fault(progress, problem)
        finally:
            self._flights.remove(flight)
            self._side_of_call.pop(key.call_id, None)
        if flight.is_abandoned:
            self.late.arrived(key, outcome, now)
            raise LetGo
        return outcome if side.tenure is None else await self._under(side, side.tenure, key, outcome)

    async def _under(self, side: VariantSide, tenure: DeviceTenure, key: DispatchKey, outcome: Outcome) -> Outcome:
        """What an outcome is worth that came while, or after, the devices were held."""
        tenure.saw(outcome)
        if outcome.state is not DispatchState.ANSWERED or not await tenure.is_superseded():
            return outcome
        # Somebody has had the device since, perhaps in a ledger that knows nothing of what is in flight in this one.
        if side.target.if_unknown is not IfUnknown.QUERY:
            self._too_late[key.call_id] = outcome
        return Outcome(
            DispatchState.UNKNOWN, LEASE_LOST, "its answer came after the device had gone to another holder",
            bytes_sent=outcome.bytes_sent, wire_sends=outcome.wire_sends, quarantine=outcome.quarantine,
        )  # fmt: skip

    @contextlib.contextmanager
    def late_if_taken(self, asking: Asking, sent: Sent) -> Iterator[None]:
        """Whoever took the device over has called this dispatch unknown: its answer is evidence, where none can be had.

        A target that can be queried is asked for it, which settles the slot; late evidence would end it.
        """
        try:
            yield
        except TransitionRefused:
            if asking.side.tenure is not None and asking.side.target.if_unknown is not IfUnknown.QUERY:
                self.late.arrived(sent.key, sent.outcome, sent.began)
            raise

    async def facts(self, sent: Sent) -> DispatchFacts:
        """What is to be stored of the outcome, its large bytes in their file already."""
        facts = facts_of(sent.outcome, duration_us=round((time.monotonic() - sent.began) * 1e6))
        return facts if facts.raw is None else await artifacts.with_stored_raw(self._ledger, facts)

    async def _refused(self, side: VariantSide, sent: Sent, deadline: float) -> DispatchKey | Ended:
        """The key of the next dispatch, or how the attempt ended: given back until later, or out of tries."""
        key, outcome = sent.key, sent.outcome
        facts = await self.facts(sent)
        await self._ledger.write_async(
            lambda tx: attempts.refuse(tx, key, facts),
            undo=lambda tx, _: attempts.give_back(tx, key, Waiting(), reason="stopped"),
        )
        self._tally.refuse(said_of(outcome), self._ledger.clock.now_us())
        wait = self._policy.wait_seconds(key.dispatch_no, retry_after_seconds=outcome.retry_after_seconds)
        not_before_us = self._ledger.clock.now_us() + round(wait * 1e6)
        if outcome.reason in (LEASE_LOST, REBOOTED):
            not_before_us = 0  # it waits for the device, and for nothing else
        if outcome.retry_after_seconds:
            self._pace.hold(side.variant_no, outcome.retry_after_seconds)
        fits = time.monotonic() + wait < deadline and self._policy.may_dispatch(key.dispatch_no)
        fits = fits and outcome.reason not in (SESSION_LOST, REBOOTED)  # it would be refused for ever
        fits = fits and not (side.tenure is not None and side.tenure.is_lost)
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
                lambda tx: attempts.dispatch_again(tx, key, side.holds, held=side.held),
                undo=lambda tx, begun: self.undo(tx, begun.key),
            )
        except (BudgetExhausted, LeaseLost):
            return None  # the attempt is given back; the slot meets the same when it is claimed again
        return begun.key

    async def _give_back(self, key: DispatchKey, outcome: Outcome, not_before_us: int) -> Ended:
        stopped = self._stop.is_asked or outcome.reason == LEASE_LOST

        def work(tx: Transaction) -> SlotState:
            if was_resent := attempts.unknown_sends(tx, key)[0]:
                allowed = self._policy.may_dispatch(key.dispatch_no)
            else:
                allowed = self._policy.may_attempt(attempts.tries_spent(tx, key.run_key, key.slot_no) + 1)
            waiting = Waiting(NextStep.NEW, not_before_us) if stopped or allowed else None
            reason = (
                "stopped"
                if self._stop.is_asked
                else "resends.used_up"
                if was_resent and not allowed
                else outcome.reason
            )
            return attempts.give_back(tx, key, waiting, reason=reason, message=outcome.message)

        state = await self._ledger.write_async(work)
        self._tally.move(SlotState.IN_FLIGHT, state)
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE

    async def failed(self, sent: Sent) -> Ended:
        """Commit an answer that is an error; the slot waits for a new attempt where the work order allows one.

        A lost session is no error of the target's: its conversation goes on in a new attempt, within the limits.
        """
        key, facts = sent.key, await self.facts(sent)
        now_us = self._ledger.clock.now_us()

        def work(tx: Transaction) -> Waiting | None:
            tries = attempts.tries_spent(tx, key.run_key, key.slot_no) + 1
            waiting = None
            is_lost = facts.reason == SESSION_LOST and self._policy.may_attempt(tries)
            if is_lost or self._policy.may_retry(facts.reason, tries):
                waiting = Waiting(NextStep.NEW, self._policy.not_before_us(
                    now_us, tries, retry_after_seconds=sent.outcome.retry_after_seconds))  # fmt: skip
            attempts.fail(tx, key, facts, waiting=waiting)
            return waiting

        waiting = await self._ledger.write_async(work)
        self._tally.fail(said_of(sent.outcome), now_us)
        self._tally.move(SlotState.IN_FLIGHT, SlotState.PENDING if waiting else SlotState.FAILED)
        return Ended.WAITS_AGAIN if waiting else Ended.DONE

    async def lose(self, sent: Sent, side: VariantSide) -> Waiting | None:
        """Commit that the outcome is not known, and return what follows by itself; None: an operator decides."""
        key, facts = sent.key, await self.facts(sent)
        if getattr(side.target, "may_answer_late", False):
            self.late.expect(key)
        try:
            waiting = await self._ledger.write_async(lambda tx: self._lose_now(tx, key, sent.outcome, side, facts))
        finally:
            # Evidence of an unknown outcome: it is kept once that is what the ledger says of it.
            if (answered := self._too_late.pop(key.call_id, None)) is not None:
                self.late.arrived(key, answered, sent.began)
        self._tally.fail(said_of(sent.outcome), self._ledger.clock.now_us())
        self._tally.move(SlotState.IN_FLIGHT, SlotState.PENDING if waiting else SlotState.UNKNOWN)
        crashpoint("dispatch.outcome.committed")
        return waiting

    def _lose_now(
        self, tx: Transaction, key: DispatchKey, outcome: Outcome, side: VariantSide, facts: DispatchFacts
    ) -> Waiting | None:
        until, stored = attempts.resendable(tx, key.call_id)
        waiting = follow_up(side.target.if_unknown, now_us=tx.now_us, key_until_us=until, stored=stored)
        if waiting is not None:
            tries = attempts.tries_spent(tx, key.run_key, key.slot_no) + 1
            is_new = waiting.step is NextStep.NEW
            # What a stop or a lost device broke off is not the target's fault and costs none of its tries.
            allowed = self._policy.may_attempt(tries) if is_new else self._policy.may_dispatch(key.dispatch_no)
            if not allowed and outcome.reason not in ("stopped", "cancelled", LEASE_LOST):
                waiting = None
            elif waiting.step is not NextStep.QUERY:
                waiting = Waiting(waiting.step, self._policy.not_before_us(tx.now_us, tries))
        attempts.lose(tx, key, facts, waiting=waiting)
        return waiting

    def undo(self, tx: Transaction, key: DispatchKey) -> None:
        """The caller was cancelled once its intent was committed: nothing was sent, and that is certain."""
        facts = facts_of(Outcome(DispatchState.REFUSED, "cancelled", "cancelled before it was sent", bytes_sent=0),
                         duration_us=0)  # fmt: skip
        attempts.refuse(tx, key, facts)
        attempts.give_back(tx, key, Waiting(), reason="stopped")

    async def _cancelled_from_outside(self, flight: Flight, side: VariantSide) -> None:
        outcome = interrupted_outcome(flight.progress, reason="cancelled", message="the caller was cancelled")
        key = flight.key
        if outcome.state is DispatchState.REFUSED:
            await asyncio.shield(asyncio.ensure_future(self._ledger.write_async(lambda tx: self.undo(tx, key))))
        else:
            await asyncio.shield(asyncio.ensure_future(self.lose(Sent(key, outcome, flight.began), side)))


def as_failure(sent: Sent, reason: str, message: str) -> Sent:
    """The same call with an answer that is none."""
    outcome = attrs.evolve(sent.outcome, state=DispatchState.FAILED, reason=reason, message=message, answer=MISSING)
    return attrs.evolve(sent, outcome=outcome)


def _adapter_fault(progress: WireProgress, problem: BaseException) -> Outcome:
    message = f"the adapter raised {type(problem).__name__}: {problem}"
    state = DispatchState.FAILED if progress.bytes_sent == 0 else DispatchState.UNKNOWN
    return Outcome(state, "target.raised", message, bytes_sent=progress.bytes_sent)
