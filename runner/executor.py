"""Executing a run: bounded concurrency, one coordinator, two commits a call.

A worker takes a slot from the feed, prepares its request, commits the intent, dispatches, and commits what became of
it. Every wait (rate limit, back-off, a full budget) lies before an intent, never between intent and dispatch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import attrs

from ..ledger import run_ends
from ..ledger.coordinators import Coordinator
from ..ledger.errors import BudgetExhausted, TallystickError
from ..ledger.ledger import Ledger
from ..ledger.records import Hold, PendingSlot
from ..ledger.states import SlotState
from .attempt_steps import AttemptSteps
from .ended import Ended
from .feed import Feed
from .flights import Flight, FlightWatch
from .inline_judging import InlineJudging
from .pacing import Pace
from .protocols import Judge, Target
from .retry_policy import RetryPolicy
from .stopping import StopSwitch
from .tally import Tally

__all__ = ["Execution", "Executor", "VariantSide"]

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 300.0
"""How long a coordinator waits for the next slot before it ends its session and says when to resume."""

_STOP_LOOK_SECONDS: Final = 0.5


@attrs.frozen
class VariantSide:
    """One variant as it is executed. ``fingerprint`` is the digest of the identity that its attempts see."""

    variant_no: int
    name: str
    target: Target
    holds: tuple[Hold, ...]
    fingerprint: str


@attrs.frozen
class Execution:
    """How to execute: limits, throughput, judges, and what to stop on."""

    sides: Mapping[int, VariantSide]
    judges: Sequence[Judge]
    policy: RetryPolicy
    concurrency: int
    deadline_seconds: float
    grace_seconds: float
    rate_per_second: float | None = None
    slots_max: int | None = None
    patience_seconds: float = PATIENCE_SECONDS


class Executor:
    """Executes what is left of one run. Make one for each session, on the loop that executes."""

    def __init__(
        self,
        ledger: Ledger,
        coordinator: Coordinator,
        execution: Execution,
        *,
        tally: Tally,
        stop: StopSwitch,
    ) -> None:
        self._ledger = ledger
        self._run_key = coordinator.run_key
        self._execution = execution
        self._stop = stop
        self.tally = tally
        self._feed = Feed(ledger, coordinator.run_key)
        self._flights = FlightWatch(abandon=self._replace_worker)
        self._pace = Pace(execution.rate_per_second, stop)
        self._judging = InlineJudging(ledger, coordinator.run_key, execution.judges, execution.sides)
        self._steps = AttemptSteps(
            ledger, coordinator, execution, flights=self._flights, stop=stop, tally=tally, pace=self._pace,
            judging=self._judging,
        )  # fmt: skip
        self._workers: set[asyncio.Task[None]] = set()
        self._work_to_do = self._work
        self._busy = 0
        self._waiting = 0
        self._ended = 0
        self._room = asyncio.Event()
        self._left_to_take = execution.slots_max
        self.failure: BaseException | None = None
        self.exhausted: BudgetExhausted | None = None
        self.budget_error: BudgetExhausted | None = None

    async def execute(self) -> None:
        """Go on until nothing waits, somebody asks to stop, a budget has no room, or all wait too long.

        Raises the LedgerError that ended it; what had been acknowledged before is durable.
        """
        self._stop.attach()
        self._flights.start()
        looker = asyncio.get_running_loop().create_task(self._look_for_stop())
        try:
            await self._open_targets()
            await self._run_workers(self._try_suspects, count=1)
            await self._run_workers(self._work, count=self._execution.concurrency)
            await self._steps.late.wait(self._execution.grace_seconds, self._stop)
            if self.failure is None:
                await self._judging.judge_rest()
        finally:
            looker.cancel()
            await asyncio.gather(looker, return_exceptions=True)
            await self._flights.stop()
            await self._close_targets()
        if self.failure is not None:
            raise self.failure
        if self.exhausted is not None:
            await self._close(self.exhausted, variant_no=None)

    async def _try_suspects(self) -> None:
        while not self._is_ending() and (suspects := self._feed.suspects()):
            for slot in suspects:
                if self._is_ending():
                    return
                await self._one(slot, solitary=True)

    async def _run_workers(self, work: Callable[[], Coroutine[Any, Any, None]], *, count: int) -> None:
        self._work_to_do = work
        for _ in range(count):
            self._start_worker()
        grace: asyncio.Task[None] | None = None
        try:
            while self._workers:
                waiting = {*self._workers, *([grace] if grace else [])}
                await asyncio.wait(waiting, timeout=_STOP_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if (self._stop.is_asked or self.failure) and grace is None:
                    grace = asyncio.get_running_loop().create_task(self._end_in_grace())
        except asyncio.CancelledError:
            # Nobody may go on dispatching once the run is given back to others.
            self._stop.ask("cancelled")
            await self._end_workers()
            raise
        finally:
            if grace is not None:
                grace.cancel()
                await asyncio.gather(grace, return_exceptions=True)

    async def _end_workers(self) -> None:
        """Cancel each worker, which commits what is known of its dispatch, and let go of those that swallow it."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers, timeout=self._execution.grace_seconds)
        self._flights.abandon_all()

    async def _end_in_grace(self) -> None:
        await asyncio.sleep(self._execution.grace_seconds)
        self._flights.break_off_all("stopped")
        await asyncio.sleep(1.0)
        self._flights.abandon_all()

    def _start_worker(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work_to_do(), name="tallystick-worker")
        self._workers.add(task)
        task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        if self.failure is None:
            self.failure = problem
        self._stop.ask("failure")
        self._room.set()

    def _replace_worker(self, flight: Flight) -> None:
        # The wedged worker keeps its task; whatever it returns later is late.
        self._steps.let_go(flight)
        self._busy -= 1
        self._ended += 1
        self._feed.done(flight.key.slot_no, waits_again=True)
        for task in list(self._workers):
            if task is flight.task:
                self._workers.discard(task)
                self._start_worker()

    async def _work(self) -> None:
        while not self._is_ending():
            slot = self._take()
            if slot is None:
                if not await self._wait_for_slots():
                    return
                continue
            await self._one(slot, solitary=False)

    def _take(self) -> PendingSlot | None:
        if self._left_to_take is not None:
            if self._left_to_take == 0:
                return None
            slot = self._feed.next()
            self._left_to_take -= slot is not None
            return slot
        return self._feed.next()

    async def _one(self, slot: PendingSlot, *, solitary: bool) -> None:
        self._busy += 1
        ended = Ended.UNTOUCHED
        try:
            ended = await self._step(slot, solitary=solitary)
        except TallystickError as problem:
            self._fail(problem)
        finally:
            # A worker that was let go has been counted out already, and its slot may be in other hands.
            if ended is not Ended.LET_GO:
                self._busy -= 1
                self._ended += 1
                if ended is Ended.UNTOUCHED:
                    self._feed.put_back(slot)
                else:
                    self._feed.done(slot.slot_no, waits_again=ended is Ended.WAITS_AGAIN)
            self._room.set()

    async def _step(self, slot: PendingSlot, *, solitary: bool) -> Ended:
        while True:
            ended_before = self._ended
            try:
                return await self._steps.run(slot, solitary=solitary)
            except BudgetExhausted as full:
                if not await self._wait_for_room(full, slot, ended_before):
                    return Ended.UNTOUCHED

    async def _wait_for_room(self, full: BudgetExhausted, slot: PendingSlot, ended_before: int) -> bool:
        """What others are at may settle below its bound; only when nobody is at anything, the budget is used up."""
        if not self._may_go_on(slot):
            return False
        if self._ended != ended_before:
            return True
        self._waiting += 1
        try:
            if self._busy > self._waiting:
                await self._wait_for_change(_STOP_LOOK_SECONDS)
                return self._may_go_on(slot)
        finally:
            self._waiting -= 1
        side = self._execution.sides[slot.variant_no]
        if full.budget.startswith(f"variant {side.name} "):
            self._feed.closed_variants.add(slot.variant_no)
            await self._close(full, variant_no=slot.variant_no)
        else:
            self.exhausted = full
        return False

    def _may_go_on(self, slot: PendingSlot) -> bool:
        return not self._is_ending() and slot.variant_no not in self._feed.closed_variants

    async def _close(self, full: BudgetExhausted, *, variant_no: int | None) -> None:
        """Say of every slot that the full budget keeps from being attempted that it is unavailable."""
        self.budget_error = full
        undecided = await self._ledger.write_async(
            lambda tx: run_ends.leave_undecided(tx, self._run_key, reason="budget", variant_no=variant_no)
        )
        self.tally.move(SlotState.PENDING, SlotState.UNKNOWN, undecided)
        while count := await self._ledger.write_async(
            lambda tx: run_ends.mark_unavailable(tx, self._run_key, reason="budget", variant_no=variant_no)
        ):
            self.tally.move(SlotState.PENDING, SlotState.UNAVAILABLE, count)

    async def _wait_for_change(self, seconds: float) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._room.wait()
        except TimeoutError:
            return

    async def _wait_for_slots(self) -> bool:
        """Nothing can be claimed now: wait for a slot that waits itself, or for one in flight that may wait again."""
        if self._left_to_take == 0:
            return False
        until = self._feed.waits_until_us()
        wait = None if until is None else max(0.0, (until - self._ledger.clock.now_us()) / 1e6)
        self.tally.waits_until_us = until
        if self._busy == 0 and (wait is None or wait > self._execution.patience_seconds):
            return False
        nap = min(max(wait or 0.0, 0.01), _STOP_LOOK_SECONDS) if wait is not None else _STOP_LOOK_SECONDS
        if self._busy:
            await self._wait_for_change(nap)
        else:
            await self._stop.sleep(nap)
        return not self._is_ending()

    def _is_ending(self) -> bool:
        return self._stop.is_asked or self.failure is not None or self.exhausted is not None

    async def _look_for_stop(self) -> None:
        """``tallystick cancel`` from another terminal leaves its wish in the ledger."""
        while True:
            await asyncio.sleep(_STOP_LOOK_SECONDS)
            with self._ledger.reading() as reader:
                asked, reason = reader.row("SELECT stop_asked_us, stop_reason FROM runs WHERE run_key = ?",
                                           (self._run_key,))  # fmt: skip
            if asked is not None:
                self._stop.ask(reason or "cancel")
                return

    async def _open_targets(self) -> None:
        for side in self._execution.sides.values():
            await side.target.open()

    async def _close_targets(self) -> None:
        for side in self._execution.sides.values():
            try:
                await side.target.close()
            except Exception:
                logger.exception("a target could not be closed", extra={"event": "target.close_failed"})
