"""The thread that renews, and what it notices meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState
from tallystick.runner.protocols import Dispatching, Outcome
from tests.unit.ledger.factories import HandClock
from tests.unit.runner.benches import OnBench
from tests.unit.runner.scripted import ANSWERED, Scripted, execute


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: HandClock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True, clock=clock) as opened:
        yield opened


@pytest.mark.parametrize(
    ("happens", "logged"),
    [
        (lambda clock: clock.step(3_600_000_000), [3600.0]),
        (lambda clock: clock.step(-3_600_000_000), [-3600.0]),
        (lambda clock: clock.step(500_000), []),
        (lambda clock: clock.suspend(100_000), []),
    ],
    ids=["forward", "back", "slewed", "suspended"],
)
def test_a_step_of_the_wall_clock_is_logged_and_moves_no_lease(
    ledger: Ledger, clock: HandClock, caplog: pytest.LogCaptureFixture, happens: Any, logged: list[float]
) -> None:
    def renewals() -> list[Any]:
        with ledger.reading() as reader:
            return reader.rows("SELECT renewed_us, fence FROM leases WHERE resource = 'bench:1'")

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        before = renewals()
        happens(clock)
        while renewals() == before:  # noqa: ASYNC110 - rows wake nobody
            await asyncio.sleep(0)
        return ANSWERED

    with caplog.at_level(logging.WARNING, logger="tallystick"):
        outcome = execute(ledger, OnBench(reply=reply), device={"lease_seconds": 0.5})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [fence for _, fence in renewals()] == [1]
    steps = [record.__dict__["seconds"] for record in caplog.records if record.__dict__.get("event") == "clock.stepped"]
    assert steps == logged
