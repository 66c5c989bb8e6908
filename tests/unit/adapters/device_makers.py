"""A tenure without a ledger, and Atlas targets on a device that runs as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, cast

import attrs

from tallystick.adapters.atlas_target import AtlasTarget
from tallystick.adapters.line_target import LineTarget
from tallystick.adapters.registry import target_from_work_order
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.errors import LeaseLost
from tallystick.runner.device_protocols import OpenRequest, TakenOver, Tenure
from tallystick.runner.protocols import Dispatching, Outcome, Prepared, SlotView, Turn

from ...fixtures.atlas_handle import AtlasDevice
from .makers import FIXTURES, make_case, make_dispatching, read_lines

ATLAS = "atlas:SN-1"


@attrs.define(eq=False)
class FakeTenure:
    """Holds whatever it is asked for, and remembers the calls of the lease."""

    number: int = 1
    open: Sequence[OpenRequest] = ()
    is_lost: bool = False
    calls: list[tuple[str, Prepared, Outcome]] = attrs.field(factory=list)
    raised: list[int] = attrs.field(factory=list)

    def fence(self, resource: str) -> int:
        return self.number

    def open_requests(self, resource: str) -> Sequence[OpenRequest]:
        return self.open

    async def raise_fence(self, resource: str, seen: int) -> int:
        self.raised.append(seen)
        self.number = max(self.number, seen) + 1
        return self.number

    async def call(
        self, resource: str, role: str, prepared: Prepared, send: Callable[[str, int], Awaitable[Outcome]]
    ) -> Outcome:
        if self.is_lost:
            raise LeaseLost("the lease is lost", "ask for it again", resource)
        outcome = await send(f"lease-{self.number}-{len(self.calls)}", self.number)
        self.calls.append((role, prepared, outcome))
        return outcome

    @property
    def roles(self) -> list[str]:
        return [role for role, _, _ in self.calls]


def open_request(request_id: str, fence: int = 1) -> OpenRequest:
    return OpenRequest(request_id, fence, None, 0)


def make_atlas(device: AtlasDevice | str, **options: Any) -> AtlasTarget:
    url = device if isinstance(device, str) else device.url
    table = {"url": url, "serial": "SN-1", "drain_seconds": 0.05, "call_seconds": 5.0, **options}
    target = target_from_work_order("atlas", table, folder=Path(), place="target")
    assert isinstance(target, AtlasTarget)
    return target


@asynccontextmanager
async def held(
    device: AtlasDevice | str, tenure: Tenure | None = None, **options: Any
) -> AsyncIterator[tuple[AtlasTarget, TakenOver]]:
    """A target that has taken its device over."""
    target = make_atlas(device, **options)
    await target.open()
    try:
        yield target, await target.take_over(tenure or FakeTenure())
    finally:
        await target.close()


def make_turn(number: int, message: JsonValue, session: str = "session-1") -> SlotView:
    return SlotView("run-1", make_case(), "default", 1, Turn(session, number, message))


async def send(target: Any, slot: SlotView, **more: Any) -> tuple[Outcome, Dispatching]:
    dispatching = make_dispatching(slot, **more)
    return await target.dispatch(target.prepare(slot), dispatching), dispatching


@attrs.define
class Instrument:
    """A running ``line_instrument.py``."""

    process: subprocess.Popen[str]
    address: str
    log: Path
    said: queue.SimpleQueue[str] = attrs.field(factory=queue.SimpleQueue)

    @classmethod
    def start(cls, folder: Path, *options: str) -> Instrument:
        log = folder / "queries.jsonl"
        process = subprocess.Popen(
            [sys.executable, str(FIXTURES / "line_instrument.py"), "--log", str(log), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = cast("IO[str]", process.stdout).readline().strip()
        made = cls(process, told if told.startswith("/") else f"127.0.0.1:{told}", log)
        threading.Thread(target=made._listen, daemon=True).start()
        return made

    def _listen(self) -> None:
        for line in cast("IO[str]", self.process.stdout):
            self.said.put(line.strip())

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.log)

    def tell(self, command: str) -> None:
        """Say a command, and wait until it is done."""
        stdin = cast("IO[str]", self.process.stdin)
        stdin.write(f"{command}\n")
        stdin.flush()
        self.wait_for(f"done {command.partition(' ')[0]}")

    def wait_for(self, line: str) -> None:
        """What it says next, within a bound: a test that waits in vain fails."""
        assert self.said.get(timeout=20) == line

    def stop(self) -> None:
        with self.process as process:
            process.kill()


def make_line(instrument: Instrument | str, **options: Any) -> LineTarget:
    address = instrument if isinstance(instrument, str) else instrument.address
    table = {"address": address, "serial": "SN-7", "drain_seconds": 5.0, **options}
    target = target_from_work_order("line", table, folder=Path(), place="target")
    assert isinstance(target, LineTarget)
    return target


async def in_thread(work: Callable[[], Any]) -> Any:
    """What blocks until another process is somewhere, without blocking the loop that gets it there."""
    return await asyncio.to_thread(work)


@contextlib.contextmanager
def an_instrument(folder: Path, *options: str) -> Iterator[Instrument]:
    instrument = Instrument.start(folder, *options)
    try:
        yield instrument
    finally:
        instrument.stop()


@contextlib.contextmanager
def a_device(folder: Path, *options: str, **more: Any) -> Iterator[AtlasDevice]:
    device = AtlasDevice.start(folder, *options, **more)
    try:
        yield device
    finally:
        device.stop()
