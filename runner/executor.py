"""Executing a run: bounded concurrency, one coordinator, two commits a call.

A worker takes a slot from the feed, prepares its request, commits the intent, dispatches, and commits what became of
it. Every wait (rate limit, back-off, a full budget) lies before an intent, never between intent and dispatch.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import attrs

from ..ledger import run_ends
from ..ledger.asked_waits import asked_to_wait_until
from ..ledger.coordinators import Coordinator
from ..ledger.errors import BudgetExhausted, LeaseLost, TallystickError
from ..ledger.host_claims import HostClaims
from ..ledger.ledger import Ledger
from ..ledger.records import Held, Hold, PendingSlot
from ..ledger.run_reads import stop_asked
from ..ledger.states import SlotState
from .attempt_steps import AttemptSteps
from .conversations import Conversation
from .device_lanes import DeviceLanes, device_sets
from .ended import Ended
from .feed import Feed
from .flights import Flight, FlightWatch
from .inline_judging import InlineJudging
from .lease_keeper import LeaseKeeper
from .pacing import Pace
from .protocols import Judge, Target
from .request_bounds import RequestBounds
from .retry_policy import RetryPolicy
from .stopping import StopSwitch
from .tally import Tally
from .tenures import DeviceTenure
from .work_order_device import DeviceSpec

__all__ = ["Execution", "Executor", "VariantSide"]

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 300.0
"""How long a coordinator waits for the next slot before it ends its session and says when to resume."""

_STOP_LOOK_SECONDS: Final = 0.5
_BREAK_OFF_SECONDS: Final = 1.0


@attrs.frozen
class VariantSide:
    """One variant as it is executed. ``fingerprint`` is the digest of the identity that its attempts see.

    ``tenure`` is set for a step that is taken while the target's devices are held, ``bounds`` where the target tells
    for each request what it can use at most.
    """

    variant_no: int
    name: str
    target: Target
    holds: tuple[Hold, ...]
    fingerprint: str
    tenure: DeviceTenure | None = None
    bounds: RequestBounds | None = None

    @property
    def held(self) -> Held | None:
        """What an intent is committed under, where the target works on devices."""
        return None if self.tenure is None else self.tenure.held


@attrs.frozen
class Execution:
    """How to execute: limits, throughput, judges, and what to stop on.

    ``lease_holds`` is what a call of a lease sets aside. Without a ``conversation`` a case is one request.
    """

    sides: Mapping[int, VariantSide]
    judges: Sequence[Judge]
    policy: RetryPolicy
    concurrency: int
    deadline_seconds: float
    grace_seconds: float
    rate_per_second: float | None = None
    slots_max: int | None = None
    patience_seconds: float = attrs.field(factory=lambda: PATIENCE_SECONDS)
    device: DeviceSpec = DeviceSpec()
    lease_holds: tuple[Hold, ...] = ()
    conversation: Conversation | None = None


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
        self._go_on_waiting()
        self._judging = InlineJudging(ledger, coordinator.run_key, execution, tally=tally.judging)
        self._steps = AttemptSteps(
            ledger, coordinator, execution, flights=self._flights, stop=stop, tally=tally, pace=self._pace,
            judging=self._judging,
        )  # fmt: skip
        self._room = asyncio.Event()
        self._lanes = self._lanes_of(coordinator)
        self._workers: set[asyncio.Task[None]] = set()
        self._work_to_do = self._work
        self._busy = 0
        self._waiting = 0
        self._ended = 0
        self._left_to_take = execution.slots_max
        self._is_out_of_patience = False
        self.failure: BaseException | None = None
        self.exhausted: BudgetExhausted | None = None
        self.budget_error: BudgetExhausted | None = None

    def _go_on_waiting(self) -> None:
        """A target that asked an earlier session to wait is left alone until then by this one too."""
        now_us = self._ledger.clock.now_us()
        with self._ledger.reading() as reader:
            for variant_no, until_us in asked_to_wait_until(reader, self._run_key, now_us=now_us).items():
                self._pace.hold(variant_no, (until_us - now_us) / 1e6)

    def _lanes_of(self, coordinator: Coordinator) -> DeviceLanes | None:
        """Lanes for the devices that the targets work on; most runs have none."""
        execution = self._execution
        if not device_sets(execution.sides, execution.device):
            return None

        def keeper(on_lost: Callable[[DeviceTenure], None]) -> LeaseKeeper:
            return LeaseKeeper(
                self._ledger, coordinator.run_key, coordinator.run_id, claims=HostClaims(self._ledger),
                stop=self._stop, tally=self.tally, on_lost=on_lost, holds=execution.lease_holds,
            )  # fmt: skip

        return DeviceLanes(
            self._ledger, execution.sides, execution.device, keeper, stop=self._stop, tally=self.tally,
            flights=self._flights, patience_seconds=execution.patience_seconds, grace_seconds=execution.grace_seconds,
            is_busy=lambda: self._busy > 0, changed=self._room.set, closed=self._feed.closed_variants.update,
            fail=self._fail,
        )  # fmt: skip

    async def execute(self) -> bool:
        """Go on until nothing waits, somebody asks to stop, a budget has no room, or all wait too long.

        Says whether every observation is judged; only then the run may be finished. Raises the LedgerError that ended
        it; what had been acknowledged before is durable.
        """
        self._stop.attach()
        self._flights.start()
        looker = asyncio.get_running_loop().create_task(self._look_for_stop())
        try:
            await self._open_targets()
            if self._lanes is not None:
                self._lanes.start()
            await self._run_all()
            await self._steps.late.wait(self._execution.grace_seconds, self._stop)
            is_judged = self.failure is None and await self._judging.judge_rest(self._stop)
        finally:
            looker.cancel()
            await asyncio.gather(looker, return_exceptions=True)
            await self._flights.stop()
            if self._lanes is not None:
                await self._lanes.close()
            await self._close_targets()
        if self.failure is not None:
            raise self.failure
        if self.exhausted is not None:
            await self._close(self.exhausted, variant_no=None)
        return is_judged

    async def _run_all(self) -> None:
        """Suspects first, one at a time; then everything else; at last those that a death was charged to.

        Last, because whatever else kills this process again and again must not hit one case each time: the first of a
        session would be parked for it, and a case that really kills its runner would hold up all others meanwhile.
        """
        await self._run_workers(functools.partial(self._try_suspects, blamed=False), count=1)
        # More workers than slots would only cost memory: an absurd concurrency took 20 GB.
        count = min(self._execution.concurrency, self.tally.planned)
        if self._lanes is not None and self._lanes.is_alone:
            count = min(count, len(self._lanes))  # one conversation at a time on each set of devices
        while True:
            await self._run_workers(self._work, count=count)
            if self._is_ending() or self._left_to_take == 0 or not self._feed.suspects(blamed=True):
                return
            await self._run_workers(functools.partial(self._try_suspects, blamed=True), count=1)

    async def _try_suspects(self, *, blamed: bool) -> None:
        while not self._is_ending() and (suspects := self._feed.suspects(blamed=blamed)):
            held = self._pace.held_back()
            free = [slot for slot in suspects if slot.variant_no not in held]
            if not free and not await self._wait_for_held(min(held.values())):
                return
            for slot in free:
                is_ready = self._lanes is None or await self._lanes.ready(slot.variant_no)
                if self._is_ending():
                    return
                if is_ready and await self._one(slot, solitary=True) is Ended.LET_GO:
                    return

    async def _wait_for_held(self, seconds: float) -> bool:
        """Suspects go first: wait for them too, or end the session where that takes too long."""
        if seconds > self._execution.patience_seconds:
            self._is_out_of_patience = True
            return False
        return await self._stop.sleep(seconds)

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
        await asyncio.sleep(_BREAK_OFF_SECONDS)
        self._flights.abandon_all()
        # What still goes on is no dispatch (a judge or a query that hangs), and is made up for by the next session.
        for worker in self._workers:
            worker.cancel()

    def _start_worker(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work_to_do(), name="tallystick-worker")
        self._workers.add(task)
        task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        if isinstance(problem, BudgetExhausted):
            self.exhausted = problem  # a call of a lease met it
        else:
            self.failure = self.failure or problem
            self._stop.ask("failure")
        self._room.set()

    def _replace_worker(self, flight: Flight) -> None:
        # The wedged worker keeps its task; whatever it returns later is late, and it takes up nothing more.
        committing = self._steps.let_go(flight)
        if self._lanes is not None:
            committing.add_done_callback(lambda task: self._free_lane(flight))
        # Until that is committed somebody is at the slot: nobody may say that nothing is left to do.
        committing.add_done_callback(lambda task: self._counted_out(flight, task))
        for task in list(self._workers):
            if task is flight.task:
                self._workers.discard(task)
                self._start_worker()

    def _free_lane(self, flight: Flight) -> None:
        if self._lanes is not None:
            self._lanes.let_go(flight.tenure)

    def _counted_out(self, flight: Flight, committing: asyncio.Task[Any]) -> None:
        self._busy -= 1
        self._ended += 1
        self._feed.done(flight.key.slot_no, waits_again=True)
        self._room.set()
        if not committing.cancelled() and (problem := committing.exception()) is not None:
            self._fail(problem)

    async def _work(self) -> None:
        while not self._is_ending():
            slot = self._take()
            if slot is None:
                if not await self._wait_for_slots():
                    return
                continue
            if await self._one(slot, solitary=False) is Ended.LET_GO:
                return  # another has taken this worker's place

    def _take(self) -> PendingSlot | None:
        if self._left_to_take == 0:
            return None
        slot = self._feed.next(held=self._pace.held_back()) if self._lanes is None else self._of_free_lane(self._lanes)
        if self._left_to_take is not None:
            self._left_to_take -= slot is not None
        return slot

    def _of_free_lane(self, lanes: DeviceLanes) -> PendingSlot | None:
        """A slot whose devices are ready; a lane that is not is got ready meanwhile, and passed over."""
        for _ in self._execution.sides:
            held = lanes.blocked().union(self._pace.held_back())
            if len(held) == len(self._execution.sides):
                return None
            slot = self._feed.next(held=held)
            if slot is None or lanes.begin(slot.variant_no):
                return slot
            self._feed.not_yet(slot)
        return None

    async def _one(self, slot: PendingSlot, *, solitary: bool) -> Ended:
        self._busy += 1
        ended = Ended.UNTOUCHED
        try:
            if self._lanes is None:
                ended = await self._step(slot, solitary=solitary)
            else:
                async with self._lanes.conversation(slot.variant_no) as tenure:
                    ended = await self._step(slot, solitary=solitary, tenure=tenure)
        except TallystickError as problem:
            self._fail(problem)
        finally:
            # A worker that was let go has been counted out already, and its slot may be in other hands.
            if ended is not Ended.LET_GO:
                self._busy -= 1
                self._ended += 1
                if ended is Ended.UNTOUCHED:
                    self._feed.put_back(slot)
                    if self._left_to_take is not None and not solitary:
                        self._left_to_take += 1
                else:
                    self._feed.done(slot.slot_no, waits_again=ended is Ended.WAITS_AGAIN)
            self._room.set()
        return ended

    async def _step(self, slot: PendingSlot, *, solitary: bool, tenure: DeviceTenure | None = None) -> Ended:
        while True:
            ended_before = self._ended
            try:
                return await self._steps.run(slot, solitary=solitary, tenure=tenure)
            except LeaseLost as loss:
                if tenure is None:
                    raise
                tenure.lost(loss)
                return Ended.UNTOUCHED
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
        wait = self._wait_seconds()
        is_coming = self._busy > 0 or (self._lanes is not None and self._lanes.is_getting_ready)
        if not is_coming and (wait is None or wait > self._execution.patience_seconds):
            return False
        nap = min(max(wait or 0.0, 0.01), _STOP_LOOK_SECONDS) if wait is not None else _STOP_LOOK_SECONDS
        if is_coming:
            await self._wait_for_change(nap)
        else:
            await self._stop.sleep(nap)
        return not self._is_ending()

    def _wait_seconds(self) -> float | None:
        """How long until something may be claimed; None: nothing waits."""
        held, now_us = self._pace.held_back(), self._ledger.clock.now_us()
        until = self._feed.waits_until_us(held=held)
        waits = [] if until is None else [max(0.0, (until - now_us) / 1e6)]
        if held and self._feed.waits_until_us() is not None:
            waits.append(min(held.values()))
        self.tally.waits_until_us = now_us + round(min(waits) * 1e6) if waits else None
        return min(waits, default=None)

    def _is_ending(self) -> bool:
        has_reason = self.failure is not None or self.exhausted is not None
        return has_reason or self._stop.is_asked or self._is_out_of_patience

    async def _look_for_stop(self) -> None:
        """``tallystick cancel`` from another terminal leaves its wish in the ledger."""
        while True:
            await asyncio.sleep(_STOP_LOOK_SECONDS)
            with self._ledger.reading() as reader:
                asked, reason = stop_asked(reader, self._run_key)
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
