"""Deaths on a device that another run takes over: charged to the case that was alone, which is parked in the end."""

from __future__ import annotations

import pytest

from tallystick.ledger import attempts, leases
from tallystick.ledger.coordinators import Coordinator, open_run, release_run
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import PlannedRun
from tallystick.ledger.records import Held
from tallystick.ledger.states import IfUnknown
from tests.unit.ledger.devices import (
    LEASE_US,
    attempt,
    device,
    events,
    granted_to,
    held_under,
    line_up,
    other_worker,
    write_as,
)
from tests.unit.ledger.factories import HandClock, begin, every, intent, new_run, one, slot_state

DEVICE = device("atlas:A")
DEAD = "w-dead"


@pytest.fixture
def run(ledger: Ledger) -> PlannedRun:
    other_worker(ledger, DEAD)
    return new_run(ledger)


def dies(ledger: Ledger, run: PlannedRun, *slots: int, by_clock: HandClock | None = None, **options: bool) -> None:
    """A worker of the run dies, or freezes, at the device with these slots in flight; another run takes it over."""
    granted = granted_to(ledger, DEVICE, run_key=run.run_key, worker=DEAD)
    for slot_no in slots:
        begin_as(ledger, run.run_key, slot_no, held_under(granted), **options)
    waiting = line_up(ledger, DEVICE)
    if by_clock is None:
        attempt(ledger, waiting, granted.leases[0].lease_id)
    else:
        by_clock.us += LEASE_US + 1
        attempt(ledger, waiting)
    ledger.write(lambda tx: leases.release(tx, waiting))


def begin_as(ledger: Ledger, run_key: int, slot_no: int, held: Held, *, solitary: bool = True) -> None:
    wanted = intent(run_key, slot_no, if_unknown=IfUnknown.REPEAT, solitary=solitary, held=held)
    write_as(ledger, DEAD, lambda tx: attempts.begin(tx, wanted))


def deaths(ledger: Ledger) -> list[tuple[int, int]]:
    return every(ledger, "SELECT solitary_deaths, suspect FROM slots ORDER BY slot_no")


def opened(ledger: Ledger, run: PlannedRun, **options: int) -> Coordinator:
    coordinator = open_run(ledger, run.run_id, **options)
    ledger.write(lambda tx: release_run(tx, coordinator, reason="", active_us=0))
    return coordinator


def test_a_case_that_kills_its_runner_on_a_contended_device_is_parked_when_its_run_is_opened(
    ledger: Ledger, run: PlannedRun
) -> None:
    for number in (1, 2):
        dies(ledger, run, 1)
        assert deaths(ledger)[0] == (number, 1)
        assert opened(ledger, run).recovered.parked == 0
    dies(ledger, run, 1)
    assert slot_state(ledger, run.run_key, 1) == "pending", "who takes the device over does not park"
    assert opened(ledger, run).recovered.parked == 1
    assert one(ledger, "SELECT state, reason, suspect FROM slots WHERE slot_no = 1") == (
        "parked", "kills_the_runner", 0,
    )  # fmt: skip
    assert events(ledger, run.run_key, "slot.parked") == [{"slot": 1, "solitary_deaths": 3}]
    assert [event["parked"] for event in events(ledger, run.run_key, "run.recovered")] == [1]
    assert opened(ledger, run).recovered.parked == 0


def test_deaths_at_the_device_and_elsewhere_count_together(ledger: Ledger, run: PlannedRun) -> None:
    dies(ledger, run, 1)
    dies(ledger, run, 1)
    begin(ledger, run.run_key, 1, if_unknown=IfUnknown.REPEAT, solitary=True)
    assert opened(ledger, run).recovered.parked == 1
    assert slot_state(ledger, run.run_key, 1) == "parked"


def test_the_runs_own_limit_of_deaths_counts(ledger: Ledger, run: PlannedRun) -> None:
    dies(ledger, run, 1)
    assert opened(ledger, run, solitary_deaths_max=2).recovered.parked == 0
    assert opened(ledger, run, solitary_deaths_max=1).recovered.parked == 1


def test_a_holder_that_stood_still_is_no_death(ledger: Ledger, run: PlannedRun, clock: HandClock) -> None:
    dies(ledger, run, 1, by_clock=clock)
    assert deaths(ledger)[0] == (0, 0)


def test_cases_that_were_in_flight_together_are_suspects_and_none_is_charged(ledger: Ledger, run: PlannedRun) -> None:
    dies(ledger, run, 1, 2)
    assert deaths(ledger)[:2] == [(0, 1), (0, 1)]


def test_a_case_that_was_alone_only_by_chance_is_not_charged(ledger: Ledger, run: PlannedRun) -> None:
    dies(ledger, run, 1, solitary=False)
    assert deaths(ledger)[0] == (0, 1)


def test_no_case_at_a_device_is_charged_while_another_of_its_run_is_elsewhere(ledger: Ledger, run: PlannedRun) -> None:
    begin(ledger, run.run_key, 2, if_unknown=IfUnknown.REPEAT)
    dies(ledger, run, 1)
    assert deaths(ledger)[0] == (0, 1)
