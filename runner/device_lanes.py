"""One conversation at a time on each set of devices, for as long as their tenure lasts.

A *lane* is one set of devices with the variants that work on it. It is got ready in the background (leases, look) while
other variants go on; its own variants are passed over meanwhile. Between two conversations it gives way to another
runner that waits, once it is old enough, and stands in line again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..ledger.errors import DeviceQuarantined, LeaseLost, LedgerError, TallystickError, TargetNotFound
from ..ledger.ledger import Ledger
from .device_protocols import LEASE_LOST, DeviceTarget
from .flights import FlightWatch
from .lease_keeper import DeviceSet, LeaseKeeper
from .lease_thread import LEASE_PARTS
from .stopping import StopSwitch
from .tally import PassedOver, Tally
from .tenures import DeviceTenure

if TYPE_CHECKING:
    from .executor import VariantSide
    from .work_order_device import DeviceSpec

__all__ = ["DeviceLanes", "device_sets"]

_LOSSES_MAX: Final = 5
_IDLE_SECONDS: Final = 0.5
_IN_USE_SECONDS: Final = 0.05
_LET_GO_SECONDS: Final = 1.0
_PAUSE_FIRST_SECONDS: Final = 0.5
_PAUSE_MAX_SECONDS: Final = 15.0


@attrs.define(eq=False)
class _Lane:
    """``user`` is the conversation that goes on, ``task`` what gets it ready or gives it back."""

    devices: DeviceSet
    variants: frozenset[int]
    tenure: DeviceTenure | None = None
    user: object | None = None
    task: asyncio.Task[None] | None = None
    is_closed: bool = False
    was_ready: bool = False
    losses: int = 0
    idle_since: float = 0.0

    @property
    def is_free(self) -> bool:
        return self.user is None and self.task is None and not self.is_closed


def device_sets(sides: Mapping[int, VariantSide], spec: DeviceSpec) -> dict[int, DeviceSet]:
    """The devices that each variant needs; no entry for one that needs none."""
    found: dict[int, DeviceSet] = {}
    for number, side in sides.items():
        needs = side.target.devices() if isinstance(side.target, DeviceTarget) else ()
        if needs:
            found[number] = DeviceSet(needs, spec.lease_seconds_of(needs), spec.on_reboot.value == "new_generation")
    return found


class DeviceLanes:
    """All lanes of a session; on its loop.

    ``is_busy`` says whether an attempt is under way anywhere. ``changed`` is called when a lane may have become free,
    ``closed`` with the variants that are passed over from now on, ``fail`` with what ends the session.
    """

    def __init__(
        self,
        ledger: Ledger,
        sides: Mapping[int, VariantSide],
        spec: DeviceSpec,
        make_keeper: Callable[[Callable[[DeviceTenure], None]], LeaseKeeper],
        *,
        stop: StopSwitch,
        tally: Tally,
        flights: FlightWatch,
        patience_seconds: float,
        grace_seconds: float,
        is_busy: Callable[[], bool],
        changed: Callable[[], None],
        closed: Callable[[frozenset[int]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._ledger = ledger
        self._sides = sides
        self._tenure_seconds = spec.tenure_seconds
        self._stop = stop
        self._tally = tally
        self._flights = flights
        self._patience = patience_seconds
        self._grace = grace_seconds
        self._is_busy = is_busy
        self._changed = changed
        self._closed = closed
        self._fail = fail
        self._lane_of = _lanes(device_sets(sides, spec))
        self._lanes = list({id(lane): lane for lane in self._lane_of.values()}.values())
        self._keeper = make_keeper(self._on_lost)
        self._looker: asyncio.Task[None] | None = None
        self._hurry = contextlib.ExitStack()
        self._going_on: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def is_alone(self) -> bool:
        """Whether every variant of the run works on devices."""
        return len(self._lane_of) == len(self._sides)

    @property
    def is_getting_ready(self) -> bool:
        """Whether some lane may become free by itself."""
        return any(lane.task is not None and not lane.is_closed for lane in self._lanes)

    def blocked(self) -> set[int]:
        """The variants that cannot begin a conversation at this moment."""
        return {number for lane in self._lanes if not lane.is_free for number in lane.variants}

    def begin(self, variant_no: int) -> bool:
        """Whether the variant may begin a conversation now; else its lane is got ready, unless it is in use."""
        lane = self._lane_of.get(variant_no)
        if lane is None:
            return True
        if not lane.is_free:
            return False
        tenure = lane.tenure
        if tenure is not None and not tenure.is_lost and variant_no in tenure.taken_over:
            return True
        self._start(lane, self._get_ready(lane, self._sides[variant_no]))
        return False

    async def ready(self, variant_no: int) -> bool:
        """Wait until the variant may begin a conversation; False when it will not."""
        lane = self._lane_of.get(variant_no)
        while not self.begin(variant_no):
            assert lane is not None
            if lane.is_closed or self._stop.is_asked:
                return False
            if lane.task is not None:
                await asyncio.wait({lane.task})
            else:
                await self._stop.sleep(_IN_USE_SECONDS)  # a conversation that was let go is being written down
        return True

    @contextlib.asynccontextmanager
    async def conversation(self, variant_no: int) -> AsyncIterator[DeviceTenure | None]:
        """The variant's devices, for one conversation, after `begin` or `ready` has said so."""
        lane = self._lane_of.get(variant_no)
        if lane is None:
            yield None
            return
        token = lane.user = object()
        try:
            yield lane.tenure
        finally:
            if lane.user is token:  # else it was let go, and somebody else may be at it
                lane.user = None
                self._after(lane)
                self._changed()

    def let_go(self, tenure: object) -> None:
        """The conversation under this tenure was given up while its target is still at it."""
        for lane in self._lanes:
            if lane.tenure is not None and lane.tenure is tenure:
                lane.user = None
                lane.tenure.taken_over.clear()  # whatever it still does, the target looks again first
                self._after(lane)
                self._changed()

    def start(self) -> None:
        """Begin to look after lanes that nobody uses."""
        # A part of a lease: a process that stands still inside a transaction must cost nobody a renewal.
        shortest = min(lane.devices.lease_seconds for lane in self._lanes)
        self._hurry.enter_context(self._ledger.stall_limit(shortest / LEASE_PARTS))
        self._looker = asyncio.get_running_loop().create_task(self._look_after_idle(), name="tallystick-lanes")

    async def close(self) -> None:
        """Give everything back, in good order where that is possible; raises nothing of what a target does."""
        tasks = {lane.task for lane in self._lanes if lane.task is not None}
        for task in {*tasks, *([self._looker] if self._looker else [])}:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        try:
            for lane in self._lanes:
                await self._give_back(lane, reason="the session ended")
            if self._going_on:
                await asyncio.wait(self._going_on)
        except LedgerError as problem:
            self._fail(problem)  # the claims are given back all the same
        finally:
            self._keeper.close()
            self._hurry.close()

    def _start(self, lane: _Lane, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="tallystick-lane")
        lane.task = task
        task.add_done_callback(lambda ended: self._ended(lane, ended))

    def _ended(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        lane.task = None
        lane.idle_since = time.monotonic()
        if not task.cancelled() and (problem := task.exception()) is not None:
            lane.is_closed = True
            self._fail(problem)
        self._changed()

    def _after(self, lane: _Lane) -> None:
        """A conversation has ended: what its tenure comes to now."""
        tenure, lane.idle_since = lane.tenure, time.monotonic()
        if tenure is None or lane.task is not None:
            return
        if tenure.is_lost:
            self._start(lane, self._give_back(lane, reason="lost"))
        elif tenure.quarantine is not None:
            self._start(lane, self._quarantine(lane))
        elif tenure.needs_look:
            tenure.taken_over.clear()
        elif time.monotonic() - tenure.since >= self._tenure_seconds:
            self._start(lane, self._give_way(lane))

    def _on_lost(self, tenure: DeviceTenure) -> None:
        for lane in self._lanes:
            if lane.tenure is tenure and lane.is_free:
                self._after(lane)
            elif lane.tenure is tenure:
                checking = asyncio.get_running_loop().create_task(self._break_off_if_taken(tenure))
                self._going_on.add(checking)
                checking.add_done_callback(self._going_on.discard)

    async def _break_off_if_taken(self, tenure: DeviceTenure) -> None:
        """What is in flight may end, as long as nobody else has taken the device: its answer is an answer."""
        if await self._keeper.is_taken(tenure):
            self._flights.break_off_under(tenure, LEASE_LOST)

    async def _look_after_idle(self) -> None:
        """A device that is not used goes to whoever waits for it, however young its tenure is."""
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            for lane in self._lanes:
                is_idle = time.monotonic() - lane.idle_since >= _IDLE_SECONDS
                if lane.tenure is not None and lane.is_free and is_idle:
                    self._start(lane, self._give_way(lane))

    async def _give_way(self, lane: _Lane) -> None:
        assert lane.tenure is not None
        if await self._keeper.is_wanted(lane.tenure):
            await self._give_back(lane, reason="gave way")

    async def _get_ready(self, lane: _Lane, side: VariantSide) -> None:
        """Hold the lane's devices and have the target look at them; what cannot be reached is tried for a while."""
        end, pause = time.monotonic() + self._patience, _PAUSE_FIRST_SECONDS
        while True:
            try:
                await self._hold_and_look(lane, side, lambda: self._is_after(end))
            except LeaseLost:
                lane.losses += 1
                await self._give_back(lane, reason="lost")
                if lane.losses > _LOSSES_MAX:
                    raise
            except DeviceQuarantined as kept:
                self._close(lane, kept.what, is_for_operator=True)
                return
            except TargetNotFound as away:
                if not lane.was_ready:
                    raise
                await self._give_back(lane, reason="cannot be reached")
                if self._is_after(end - pause):
                    self._close(lane, away.what)
                    return
                if not await self._stop.sleep(pause):
                    return
                pause = min(2 * pause, _PAUSE_MAX_SECONDS)
            else:
                return

    def _is_after(self, end: float) -> bool:
        """Whether patience is at its end; as long as the session has something else to do, waiting costs nothing."""
        return time.monotonic() >= end and not self._is_busy()

    async def _hold_and_look(self, lane: _Lane, side: VariantSide, is_out_of_patience: Callable[[], bool]) -> None:
        if lane.tenure is not None and lane.tenure.is_lost:
            await self._give_back(lane, reason="lost")
        if lane.tenure is None:
            lane.tenure = await self._keeper.take(lane.devices, is_out_of_patience=is_out_of_patience)
        if lane.tenure is None:
            if not self._stop.is_asked:
                self._close(lane, "it was not to be had for as long as a session waits")
            return
        if side.variant_no not in lane.tenure.taken_over:
            await self._look(lane, lane.tenure, side)
        if lane.tenure.quarantine is not None:
            await self._quarantine(lane)
            return
        lane.was_ready, lane.losses = True, 0

    async def _look(self, lane: _Lane, tenure: DeviceTenure, side: VariantSide) -> None:
        try:
            await self._keeper.look(tenure, lane.devices, side, within=self._patience)
        except TallystickError:
            raise
        except Exception as problem:
            raise TargetNotFound(
                f"the device {lane.devices.first} could not be taken over ({type(problem).__name__}: {problem})",
                "look at the device and at its connection, then resume",
            ) from problem

    async def _quarantine(self, lane: _Lane) -> None:
        assert lane.tenure is not None
        tenure, lane.tenure = lane.tenure, None
        await self._to_its_end(self._keeper.quarantine(tenure, lane.devices))
        self._close(lane, f"it is in quarantine: {tenure.quarantine}", is_for_operator=True)

    async def _give_back(self, lane: _Lane, *, reason: str) -> None:
        tenure, lane.tenure = lane.tenure, None
        if tenure is None:
            return
        sides = [self._sides[number].target for number in sorted(tenure.taken_over)]
        targets = [] if tenure.is_lost else [one for one in sides if isinstance(one, DeviceTarget)]
        within = max(_LET_GO_SECONDS, self._grace)
        await self._to_its_end(self._keeper.let_go(tenure, targets, within=within, reason=reason))

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Also when the caller is cancelled: half given back would keep others waiting, half in quarantine nobody."""
        going_on = asyncio.get_running_loop().create_task(work, name="tallystick-lane")
        self._going_on.add(going_on)
        going_on.add_done_callback(self._going_on.discard)
        await asyncio.shield(going_on)

    def _close(self, lane: _Lane, why: str, *, is_for_operator: bool = False) -> None:
        """The session goes on without these devices; a later one stands in line again."""
        lane.is_closed = True
        self._closed(lane.variants)
        self._tally.passed_over.append(PassedOver(lane.devices.first, why, is_for_operator))


def _lanes(sets: Mapping[int, DeviceSet]) -> dict[int, _Lane]:
    """Variants that need the same devices share a lane; what overlaps otherwise waits for one another in line."""
    by_devices: dict[object, list[int]] = {}
    for number, devices in sets.items():
        key = devices.first, frozenset((one.resource, one.compares_fences) for one in devices.needs)
        by_devices.setdefault(key, []).append(number)
    return {
        number: lane
        for numbers in by_devices.values()
        for lane in [_Lane(sets[numbers[0]], frozenset(numbers))]
        for number in numbers
    }
