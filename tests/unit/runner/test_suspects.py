"""Cases that were in flight when a coordinator died: tried alone, and held to the same stops as all others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tallystick._wiring import ADAPTERS
from tallystick.ledger import attempts
from tallystick.ledger.coordinators import open_run, release_run
from tallystick.ledger.errors import TargetNotFound
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import IfUnknown, SlotState
from tallystick.runner import flights
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Dispatching, Outcome
from tallystick.runner.sessions import Session, find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tests.unit.ledger.factories import intent
from tests.unit.runner.scripted import ANSWERED, Scripted, always, order_of


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


def left_behind(ledger: Ledger, target: Scripted, *, in_flight: int, cases: int) -> Session:
    """A run whose coordinator went away without a word while the first cases were in flight."""
    session = find_or_create(ledger, describe(order_of(target, cases=cases, deadline_seconds=60), ADAPTERS))
    coordinator = open_run(ledger, session.run.run_id)
    for slot_no in range(1, in_flight + 1):
        wanted = intent(coordinator.run_key, slot_no, if_unknown=IfUnknown.REPEAT)
        ledger.write(lambda tx, wanted=wanted: attempts.begin(tx, wanted))  # type: ignore[misc]
    ledger.write(lambda tx: release_run(tx, coordinator, reason="died", active_us=0))
    return session


def test_suspects_are_tried_one_at_a_time_before_all_others(ledger: Ledger) -> None:
    under_way: list[str] = []
    together: list[tuple[str, ...]] = []

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        under_way.append(dispatching.slot.case.id)
        await asyncio.sleep(0)
        together.append(tuple(under_way))
        under_way.remove(dispatching.slot.case.id)
        return ANSWERED

    target = Scripted(reply, IfUnknown.REPEAT)
    asyncio.run(run_session(ledger, left_behind(ledger, target, in_flight=2, cases=6)))
    assert together[:2] == [("c0",), ("c1",)]
    assert len(target.asked) == 6


def test_suspects_that_a_death_was_charged_to_are_tried_after_all_others(ledger: Ledger) -> None:
    target = Scripted(always(ANSWERED), IfUnknown.REPEAT)
    session = left_behind(ledger, target, in_flight=2, cases=6)
    coordinator = open_run(ledger, session.run.run_id)
    ledger.write(lambda tx: release_run(tx, coordinator, reason="died", active_us=0))
    ledger.write(lambda tx: tx.change("UPDATE slots SET solitary_deaths = 1 WHERE slot_no = 1", ()))
    outcome = asyncio.run(run_session(ledger, session))
    assert outcome.counts[SlotState.SELECTED] == 6
    asked = [dispatching.slot.case.id for dispatching in target.asked]
    assert (asked[0], asked[-1]) == ("c1", "c0")


@pytest.mark.timeout(50)
def test_a_stop_gives_a_suspect_its_grace_time_and_no_more(ledger: Ledger) -> None:
    switch = StopSwitch()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 10
        switch.ask("interrupted")
        await asyncio.Event().wait()
        return ANSWERED

    target = Scripted(reply, IfUnknown.REPEAT)
    outcome = asyncio.run(run_session(ledger, left_behind(ledger, target, in_flight=2, cases=3), stop=switch))
    assert (len(target.asked), outcome.counts[SlotState.PENDING], outcome.stopped) == (1, 3, "interrupted")


@pytest.mark.timeout(50)
def test_a_suspect_that_swallows_its_cancellation_holds_up_nobody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "CANCEL_SLACK_SECONDS", 0.0)
    monkeypatch.setattr(flights, "ABANDON_SLACK_SECONDS", 0.1)
    freed = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 10
        if dispatching.slot.case.id == "c2":
            freed.set()
        while dispatching.slot.case.id == "c0" and dispatching.attempt == 2 and not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        return ANSWERED

    target = Scripted(reply, IfUnknown.REPEAT)
    session = left_behind(ledger, target, in_flight=1, cases=3)
    order = session.description.order.with_execution(deadline_seconds=0.1)
    session = attrs.evolve(session, description=attrs.evolve(session.description, order=order))
    outcome = asyncio.run(run_session(ledger, session))
    assert outcome.counts[SlotState.SELECTED] == 3


def test_targets_that_are_open_are_closed_when_another_cannot_be_opened(ledger: Ledger) -> None:
    closed: list[str] = []

    class Watched(Scripted):
        async def open(self) -> None:
            if self.kind == "broken":
                raise TargetNotFound("it went away", "bring it back")

        async def close(self) -> None:
            closed.append(self.kind)

    sides = {"one": Watched(always(ANSWERED), kind="whole"), "two": Watched(always(ANSWERED), kind="broken")}
    with pytest.raises(TargetNotFound):
        asyncio.run(run_session(ledger, find_or_create(ledger, describe(order_of(sides), ADAPTERS))))
    assert closed == ["whole", "broken"]
