"""An attempt at a guarded target: begun without a call, its target's own requests committed one by one, and ended.

After a death, an unknown outcome or a full budget, a new attempt calls the target again from the beginning, and what
was answered before is given back from the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import attrs

from ..ledger import artifacts, attempt_calls
from ..ledger.canonical import printable
from ..ledger.coordinators import Coordinator
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import BudgetExhausted, LeaseLost, ReplayDiverged, TransitionRefused
from ..ledger.inner_calls import begin_attempt, inner_log, leave_calls, take_up_attempt
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchFacts, DispatchKey, PendingSlot
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.transaction import Transaction
from .answer_texts import NoAnswer, answer_texts
from .attempt_ends import end_broken
from .call_steps import Asking, LetGo
from .claims import unless_settled
from .ended import Ended
from .flights import Flight, FlightWatch
from .inline_judging import InlineJudging
from .inner_calls import AttemptInnerCalls
from .outcome_facts import facts_of, said_of
from .pacing import Pace
from .protocols import Dispatching, Outcome, Prepared, Target, WireProgress
from .query_steps import leave_unknown
from .stopping import StopSwitch
from .tally import Tally
from .thrown import go_if_closed

if TYPE_CHECKING:
    from .executor import Execution

__all__ = ["GuardedSteps", "is_guarded"]

_OURS: Final = ("stopped", "cancelled")
_DIVERGED: Final = "replay.diverged"


def is_guarded(target: Target) -> bool:
    """Whether the target's own requests are calls of the ledger, and it is none itself."""
    return bool(getattr(target, "is_guarded", False))


@attrs.frozen
class _Acting:
    slot: PendingSlot
    asking: Asking
    key: DispatchKey
    inner: AttemptInnerCalls
    began: float


class GuardedSteps:
    """Holds the attempts at guarded targets of one session of a run, on its loop."""

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
        self._execution = execution
        self._policy = execution.policy
        self._flights = flights
        self._stop = stop
        self._tally = tally
        self._pace = pace
        self._judging = judging
        self._under_way: dict[int, _Acting] = {}

    async def run(self, slot: PendingSlot, asking: Asking, prepared: Prepared, *, solitary: bool) -> Ended:
        """Take a slot's next step, a new attempt or its newest once more.

        Raises BudgetExhausted once the attempt that met it is broken off: the slot waits again.
        """
        with self._ledger.reading() as reader:
            log = inner_log(reader, self._run_key, slot.slot_no)
        side = asking.side
        key = DispatchKey(self._run_key, slot.slot_no, slot.attempts, "", 0)
        with unless_settled(self._ledger, self._run_key, slot):
            if slot.next_step is NextStep.RESEND:
                now_us = self._ledger.clock.now_us()
                if any(one.key_until_us is not None and now_us >= one.key_until_us for one in log.open.values()):
                    return await self._leave_unknown(slot, "key.expired")
                if not all(self._policy.may_dispatch(one.dispatches) for one in log.open.values()):
                    return await self._leave_unknown(slot, "resends.used_up")
                await self._ledger.write_async(lambda tx: take_up_attempt(tx, key, solitary=solitary))
            else:
                key = await self._ledger.write_async(
                    lambda tx: begin_attempt(
                        tx, self._run_key, slot.slot_no, fingerprint=side.fingerprint, solitary=solitary
                    ),
                    undo=lambda tx, key: attempt_calls.break_off(tx, key, reason="stopped"),
                )
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        crashpoint("attempt.begun")
        inner = AttemptInnerCalls(
            self._ledger, side, key, log, policy=self._policy, tally=self._tally,
            key_valid_seconds=side.target.key_valid_seconds,
        )  # fmt: skip
        return await self._act(_Acting(slot, asking, key, inner, time.monotonic()), prepared)

    async def _leave_unknown(self, slot: PendingSlot, reason: str) -> Ended:
        return await leave_unknown(self._ledger, self._coordinator, self._tally, slot, reason)

    async def _act(self, acting: _Acting, prepared: Prepared) -> Ended:
        task = asyncio.current_task()
        assert task is not None
        side, deadline = acting.asking.side, acting.began + self._execution.deadline_seconds
        progress = WireProgress()
        flight = Flight(acting.key, task, progress, acting.began, deadline, side.tenure)
        dispatching = Dispatching(
            "", acting.key.attempt_no, 1, acting.asking.view, self._execution.deadline_seconds, progress,
            None if side.held is None else side.held.fence, inner=acting.inner,
        )  # fmt: skip
        self._under_way[acting.key.slot_no] = acting
        self._flights.add(flight)
        try:
            outcome = await side.target.dispatch(prepared, dispatching)
        except asyncio.CancelledError:
            if flight.is_abandoned:
                raise
            if not flight.broken_off:
                with contextlib.suppress(TransitionRefused):
                    ending = self._ended(acting, _broken_off("cancelled", "the caller was cancelled"))
                    await asyncio.shield(asyncio.ensure_future(ending))
                raise
            task.uncancel()
            outcome = _broken_off(flight.broken_off, "broken off")
        except (Exception, GeneratorExit) as problem:  # noqa: BLE001 - an adapter's own fault is an outcome too
            go_if_closed(problem, task)
            outcome = Outcome(DispatchState.FAILED, "target.raised", f"{type(problem).__name__}: {problem}")
        finally:
            self._flights.remove(flight)
            self._under_way.pop(acting.key.slot_no, None)
        if flight.is_abandoned:
            raise LetGo
        crashpoint("attempt.returned")
        return await self._ended(acting, outcome)

    async def let_go(self, flight: Flight) -> None:
        """End an attempt whose target outlived its deadline and every cancellation."""
        acting = self._under_way.get(flight.key.slot_no)
        if acting is not None:
            with contextlib.suppress(BudgetExhausted, LeaseLost):
                await self._ended(acting, _broken_off("deadline", "did not end when it was cancelled"))

    # How it ended.

    async def _ended(self, acting: _Acting, outcome: Outcome) -> Ended:
        acting.inner.close()
        stopped_by = acting.inner.stopped_by
        if isinstance(stopped_by, BudgetExhausted | LeaseLost):
            reason = "budget" if isinstance(stopped_by, BudgetExhausted) else "lease.lost"
            await self._broken(acting, Outcome(DispatchState.REFUSED, reason, str(stopped_by)), is_ours=True)
            raise stopped_by
        if isinstance(stopped_by, ReplayDiverged):
            return await self._broken(acting, Outcome(DispatchState.FAILED, _DIVERGED, str(stopped_by)))
        if outcome.state is DispatchState.ANSWERED:
            return await self._answered(acting, outcome)
        refusal = acting.inner.refusal
        if refusal is not None and outcome.reason == "python.exception":
            outcome = Outcome(
                DispatchState.REFUSED, refusal.reason, outcome.message, retry_after_seconds=refusal.retry_after_seconds
            )
        return await self._broken(acting, outcome, is_ours=outcome.reason in _OURS)

    async def _answered(self, acting: _Acting, outcome: Outcome) -> Ended:
        try:
            texts = answer_texts(outcome)
        except NoAnswer as none:
            return await self._broken(acting, Outcome(DispatchState.FAILED, none.reason, str(none)))
        answer = await artifacts.stored_answer(self._ledger, texts.answer)
        left = _facts(_broken_off("target.returned", "the target returned before it was answered"))

        def work(tx: Transaction) -> None:
            leave_calls(tx, acting.key, left)
            attempt_calls.conclude(
                tx, acting.key, answer=answer, answer_digest=texts.digest, evidence=texts.evidence, flags=texts.flags
            )

        await self._ledger.write_async(work)
        self._tally.move(SlotState.IN_FLIGHT, SlotState.SELECTED)
        crashpoint("dispatch.outcome.committed")
        await self._judging.judge(acting.asking.view, acting.key.slot_no, acting.key.attempt_no, outcome)
        return Ended.DONE

    async def _broken(self, acting: _Acting, outcome: Outcome, *, is_ours: bool = False) -> Ended:
        """There is no answer. What was sent and has no outcome decides; where nothing is, what the target said does."""
        if outcome.retry_after_seconds:
            self._pace.hold(acting.asking.side.variant_no, outcome.retry_after_seconds)
        facts = _facts(outcome)

        def work(tx: Transaction) -> SlotState:
            return end_broken(tx, acting.key, outcome, facts, policy=self._policy, is_ours=is_ours)

        state = await self._ledger.write_async(work)
        self._tally.fail(said_of(outcome), self._ledger.clock.now_us())
        self._tally.move(SlotState.IN_FLIGHT, state)
        crashpoint("dispatch.outcome.committed")
        return Ended.WAITS_AGAIN if state is SlotState.PENDING else Ended.DONE


def _broken_off(reason: str, message: str) -> Outcome:
    return Outcome(DispatchState.UNKNOWN, reason, message)


def _facts(outcome: Outcome) -> DispatchFacts:
    facts = facts_of(outcome, duration_us=None, settled_by="runner")
    return attrs.evolve(facts, message=printable(outcome.message))
