"""A device in memory that compares fences, and a scripted target that works on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from tallystick.ledger.states import DispatchState
from tallystick.runner.device_protocols import LEASE_LOST, DeviceNeed, TakenOver, Tenure
from tallystick.runner.protocols import Dispatching, Outcome, Prepared
from tests.unit.runner.scripted import ANSWERED, Reply, Scripted, always

DONE = Outcome(DispatchState.ANSWERED, "", "reset", bytes_sent=1)


@attrs.define(eq=False)
class Bench:
    """What the device itself knows: every request that it took, with its fence, and the highest fence that it saw."""

    name: str = "bench:1"
    compares_fences: bool = True
    boot_count: int = 1
    highest: int = 0
    log: list[tuple[str, int, str]] = attrs.field(factory=list)
    refused: list[tuple[str, int]] = attrs.field(factory=list)

    def takes(self, request_id: str, fence: int, role: str) -> bool:
        if self.compares_fences and fence < self.highest:
            self.refused.append((request_id, fence))
            return False
        self.highest = max(self.highest, fence)
        self.log.append((request_id, fence, role))
        return True


Look = Callable[["OnBench", Tenure], Awaitable[TakenOver]]


async def plain_look(target: OnBench, tenure: Tenure) -> TakenOver:
    """Identify, and reset as a call of the lease."""
    name = target.benches[0].name
    await target.reset(tenure, name)
    return TakenOver({"serial": name}, target.benches[0].boot_count)


@attrs.define(eq=False)
class OnBench(Scripted):
    """A target on one or several benches."""

    reply: Reply = always(ANSWERED)
    kind: str = "bench"
    benches: tuple[Bench, ...] = attrs.field(factory=lambda: (Bench(),))
    look: Look = plain_look
    tenures: list[Any] = attrs.field(factory=list)
    left: list[Any] = attrs.field(factory=list)
    lease_seconds: float = 30.0

    def devices(self) -> tuple[DeviceNeed, ...]:
        return tuple(
            DeviceNeed(bench.name, "bench", bench.compares_fences, self.lease_seconds) for bench in self.benches
        )

    async def take_over(self, tenure: Tenure) -> TakenOver:
        self.tenures.append(tenure)
        return await self.look(self, tenure)

    async def let_go(self, tenure: Tenure) -> None:
        self.left.append(tenure)

    async def reset(self, tenure: Tenure, name: str, *, outcome: Outcome = DONE) -> Outcome:
        bench = next(one for one in self.benches if one.name == name)

        async def send(request_id: str, fence: int) -> Outcome:
            return outcome if bench.takes(request_id, fence, "reset") else _stale()

        return await tenure.call(name, "reset", Prepared(b"reset"), send)

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        assert dispatching.fence is not None
        dispatching.progress.bytes_sent = len(prepared.payload)
        if not self.benches[0].takes(dispatching.request_id, dispatching.fence, "submit"):
            return _stale()
        return await Scripted.dispatch(self, prepared, dispatching)


def _stale() -> Outcome:
    return Outcome(DispatchState.REFUSED, LEASE_LOST, "the device has seen a higher fence", bytes_sent=1)
