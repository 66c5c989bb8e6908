"""One coordinator a run, and what becomes of the work of one that died."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger import attempts, coordinators, run_ends
from tallystick.ledger.coordinators import Coordinator, Recovered, coordinator_of, follow_up, open_run
from tallystick.ledger.errors import CustodyElsewhere, RunBusy, RunNotFound, RunNotResumable
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Waiting
from tallystick.ledger.states import DispatchState, IfUnknown, NextStep
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import (
    DAY_US,
    HandClock,
    attempt_states,
    begin,
    budget,
    budget_row,
    every,
    facts,
    hold,
    lost,
    new_ledger,
    new_run,
    observe,
    one,
    slot_state,
)


def killed(ledger: Ledger, run_id: str, *slots: int, if_unknown: str = "keep", key_until_us: int = 0) -> str:
    """A coordinator that had these slots in flight and was killed; its worker id."""
    with Child("coordinate_and_wait", ledger.path, run_id, if_unknown, key_until_us, *slots) as child:
        worker_id = child.line()
        assert worker_id
        child.kill()
    return worker_id


def leave(ledger: Ledger, coordinator: Coordinator) -> None:
    ledger.write(lambda tx: coordinators.release_run(tx, coordinator, reason="done", active_us=1_000))


def worker_row(ledger: Ledger, worker_id: str) -> Any:
    return one(ledger, "SELECT end_reason FROM workers WHERE worker_id = ?", worker_id)[0]


# Who has the run.


def test_a_run_that_another_process_executes_is_busy_and_says_who(ledger: Ledger) -> None:
    run = new_run(ledger)
    with Child("coordinate_and_wait", ledger.path, run.run_id, "keep", 0) as child:
        worker_id = child.line()
        with pytest.raises(RunBusy, match=f"process {child.pid}") as caught:
            open_run(ledger, run.run_id)
        assert worker_id in caught.value.holder
        child.stop()
        with pytest.raises(RunBusy):
            open_run(ledger, run.run_id)
        child.kill()
        coordinator = open_run(ledger, run.run_id)
    assert coordinator.fence == 2
    assert coordinator.recovered.dead_workers == (worker_id,)
    assert worker_row(ledger, worker_id) == "died"
    assert every(ledger, "SELECT state FROM leases ORDER BY fence") == [("lost",), ("held",)]


def test_a_run_is_busy_for_a_second_thread_of_its_own_process(ledger: Ledger) -> None:
    run = new_run(ledger)
    open_run(ledger, run.run_id)
    told: list[BaseException] = []

    def again() -> None:
        try:
            open_run(ledger, run.run_id)
        except RunBusy as problem:
            told.append(problem)

    thread = threading.Thread(target=again)
    thread.start()
    thread.join()
    assert len(told) == 1


def test_threads_that_open_a_run_at_once_are_told_apart(ledger: Ledger) -> None:
    run = new_run(ledger)
    barrier, told = threading.Barrier(8), list[str]()

    def race() -> None:
        barrier.wait()
        try:
            open_run(ledger, run.run_id)
        except RunBusy:
            told.append("busy")
        else:
            told.append("mine")

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["busy"] * 7 + ["mine"]


def test_of_processes_that_recover_a_run_at_once_exactly_one_wins(ledger: Ledger) -> None:
    run = new_run(ledger)
    killed(ledger, run.run_id, 1, 2)
    children = [Child("race_for_run", ledger.path, run.run_id) for _ in range(4)]
    try:
        assert [child.line() for child in children] == ["ready"] * 4
        for child in children:
            child.say()
        told = [child.line() for child in children]
        for child in children:
            child.say()
    finally:
        for child in children:
            child.__exit__(None, None, None)
    assert sorted(told) == ["mine", "run.busy", "run.busy", "run.busy"]
    assert one(ledger, "SELECT count(*) FROM events WHERE kind = 'run.recovered'") == (1,)
    assert one(ledger, "SELECT count(*) FROM leases WHERE state = 'lost'") == (1,)


def test_a_recoverer_that_saw_the_same_dead_holder_loses_to_the_first(ledger: Ledger) -> None:
    run = new_run(ledger)
    killed(ledger, run.run_id, 1)
    seen = coordinator_of(ledger, run.run_id)
    assert seen is not None
    assert seen.dead
    first = ledger.write(lambda tx: coordinators._take(tx, run.run_id, seen, 3))
    for stale in (seen, None):
        with pytest.raises(RunBusy):
            ledger.write(lambda tx, stale=stale: coordinators._take(tx, run.run_id, stale, 3))  # type: ignore[misc]
    leave(ledger, first)
    with pytest.raises(RunBusy):
        ledger.write(lambda tx: coordinators._take(tx, run.run_id, seen, 3))


def test_a_run_that_was_left_in_good_order_is_free_at_once(ledger: Ledger) -> None:
    run = new_run(ledger)
    leave(ledger, open_run(ledger, run.run_id))
    again = open_run(ledger, run.run_id)
    assert again.fence == 2
    assert again.recovered == Recovered()
    assert one(ledger, "SELECT active_us FROM runs") == (1_000,)


def test_a_coordinator_that_closed_its_ledger_without_leaving_the_run_is_replaced(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run = new_run(ledger)
        open_run(ledger, run.run_id)
    with new_ledger(tmp_path) as ledger:
        assert open_run(ledger, run.run_id).fence == 2


def test_a_holder_of_another_host_is_never_replaced_by_itself(ledger: Ledger) -> None:
    run = new_run(ledger)
    worker_id = killed(ledger, run.run_id)
    ledger.write(lambda tx: tx.change("UPDATE workers SET host = 'elsewhere' WHERE worker_id = ?", (worker_id,)))
    with pytest.raises(RunBusy):
        open_run(ledger, run.run_id)


@pytest.mark.parametrize("step_us", [-3_600_000_000, 3_600_000_000])
def test_a_stepped_clock_neither_frees_nor_keeps_a_run(step_us: int, ledger: Ledger, clock: HandClock) -> None:
    run = new_run(ledger)
    open_run(ledger, run.run_id)
    clock.us += step_us
    with pytest.raises(RunBusy):
        open_run(ledger, run.run_id)


def test_runs_that_may_not_go_on_here_are_refused(ledger: Ledger) -> None:
    with pytest.raises(RunNotFound):
        open_run(ledger, "absent")
    cancelled, copied = new_run(ledger, name="a"), new_run(ledger, name="b")
    ledger.write(lambda tx: run_ends.abandon_run(tx, cancelled.run_key, reason="r", made_by="me"))
    ledger.write(lambda tx: tx.change("UPDATE runs SET custody = 'copy' WHERE run_key = ?", (copied.run_key,)))
    with pytest.raises(RunNotResumable, match="cancelled"):
        open_run(ledger, cancelled.run_id)
    with pytest.raises(CustodyElsewhere):
        open_run(ledger, copied.run_id)


def test_opening_takes_back_an_old_request_to_stop(ledger: Ledger) -> None:
    run = new_run(ledger)
    ledger.write(lambda tx: run_ends.ask_to_stop(tx, run.run_key, reason="r"))
    open_run(ledger, run.run_id)
    assert one(ledger, "SELECT stop_asked_us, stop_reason FROM runs") == (None, None)


# What a dead coordinator left.


@pytest.mark.parametrize(
    ("if_unknown", "state", "step", "counted"),
    [
        ("keep", "unknown", "new", Recovered(unknown=2)),
        ("resend", "pending", "resend", Recovered(again=2)),
        ("query", "pending", "query", Recovered(again=2)),
        ("repeat", "pending", "new", Recovered(again=2)),
        ("restart", "pending", "new", Recovered(again=2)),
    ],
)
def test_what_was_in_flight_becomes_what_its_target_declares(
    if_unknown: str, state: str, step: str, counted: Recovered, ledger: Ledger
) -> None:
    run = new_run(ledger, budgets=(budget(limit=5),))
    worker_id = killed(ledger, run.run_id, 1, 2, if_unknown=if_unknown)
    found = open_run(ledger, run.run_id).recovered
    assert attrs.evolve(found, dead_workers=()) == counted
    assert found.dead_workers == (worker_id,)
    rows = every(ledger, "SELECT state, next_step, suspect FROM slots ORDER BY slot_no")
    suspect = int(if_unknown != "keep")
    assert rows == [(state, step, suspect), (state, step, suspect), ("pending", "new", 0)]
    assert attempt_states(ledger, run.run_key) == ["unknown"]
    assert (
        every(ledger, "SELECT state, reason, settled_by FROM dispatches")
        == [("unknown", "coordinator.died", "recovery")] * 2
    )
    assert budget_row(ledger, run.run_key)[0] == 2


@pytest.mark.parametrize(("until", "step"), [(DAY_US * 40_000, "resend"), (1, None)])
def test_after_the_validity_of_its_key_a_call_is_not_resent(until: int, step: str | None, ledger: Ledger) -> None:
    run = new_run(ledger)
    killed(ledger, run.run_id, 1, if_unknown="resend", key_until_us=until)
    open_run(ledger, run.run_id)
    if step is None:
        assert slot_state(ledger, run.run_key) == "unknown"
    else:
        assert one(ledger, "SELECT state, next_step FROM slots WHERE slot_no = 1") == ("pending", step)


@pytest.mark.parametrize(
    ("value", "stored", "until", "waiting"),
    [
        (IfUnknown.KEEP, True, None, None),
        (IfUnknown.RESEND, True, None, Waiting(NextStep.RESEND)),
        (IfUnknown.RESEND, True, 11, Waiting(NextStep.RESEND)),
        (IfUnknown.RESEND, True, 10, None),
        (IfUnknown.RESEND, False, None, None),
        (IfUnknown.QUERY, False, None, Waiting(NextStep.QUERY)),
        (IfUnknown.REPEAT, False, None, Waiting(NextStep.NEW)),
        (IfUnknown.RESTART, False, None, Waiting(NextStep.NEW)),
    ],
)
def test_what_may_follow_an_unknown_outcome(
    value: IfUnknown, stored: bool, until: int | None, waiting: Waiting | None
) -> None:
    assert follow_up(value, now_us=10, key_until_us=until, stored=stored) == waiting


def test_an_attempt_of_which_nothing_is_unknown_is_interrupted_and_tried_again(ledger: Ledger) -> None:
    run = new_run(ledger)
    coordinator = open_run(ledger, run.run_id)
    key = begin(ledger, run.run_key).key
    ledger.write(lambda tx: attempts.refuse(tx, key, facts(DispatchState.REFUSED, "connect")))
    leave(ledger, coordinator)
    found = open_run(ledger, run.run_id).recovered
    assert found.interrupted == 1
    assert attempt_states(ledger, run.run_key) == ["interrupted"]
    assert slot_state(ledger, run.run_key) == "pending"


def test_what_has_ended_is_not_touched_by_a_recovery(ledger: Ledger) -> None:
    run = new_run(ledger)
    coordinator = open_run(ledger, run.run_id)
    key = begin(ledger, run.run_key, 1).key
    ledger.write(lambda tx: observe(tx, key))
    unknown = begin(ledger, run.run_key, 2).key
    ledger.write(lambda tx: attempts.lose(tx, unknown, lost(), waiting=None))
    leave(ledger, coordinator)
    before = every(ledger, "SELECT * FROM slots") + every(ledger, "SELECT * FROM dispatches")
    open_run(ledger, run.run_id)
    assert every(ledger, "SELECT * FROM slots") + every(ledger, "SELECT * FROM dispatches") == before


def test_a_recovery_that_is_killed_leaves_all_or_nothing(ledger: Ledger) -> None:
    run = new_run(ledger)
    killed(ledger, run.run_id, 1, 2)
    for point in ("scribe.commit.before@2", "recovery.done"):
        with Child("coordinate_and_wait", ledger.path, run.run_id, "keep", 0, crashpoint=point) as child:
            assert child.end() == -9
    assert attrs.evolve(open_run(ledger, run.run_id).recovered, dead_workers=()) == Recovered()
    assert one(ledger, "SELECT count(*) FROM events WHERE kind = 'run.recovered'") == (1,)
    assert slot_state(ledger, run.run_key, 1) == slot_state(ledger, run.run_key, 2) == "unknown"


# Suspects.


def die_alone(ledger: Ledger, run_id: str, slot_no: int, times: int, if_unknown: str = "repeat") -> list[str]:
    """Kill a coordinator so often while that slot is in flight, solitary, and say what state it was in after each."""
    states = []
    run_key = one(ledger, "SELECT run_key FROM runs WHERE run_id = ?", run_id)[0]
    for _ in range(times):
        with Child("coordinate_and_wait", ledger.path, run_id, if_unknown, 0, -slot_no) as child:
            child.line()
            child.kill()
        leave(ledger, open_run(ledger, run_id))
        states.append(slot_state(ledger, run_key, slot_no))
    return states


def test_a_case_that_kills_its_runner_three_times_when_alone_is_parked(ledger: Ledger) -> None:
    run = new_run(ledger)
    assert die_alone(ledger, run.run_id, 1, 3) == ["pending", "pending", "parked"]
    assert one(ledger, "SELECT solitary_deaths, reason FROM slots WHERE slot_no = 1") == (3, "kills_the_runner")
    assert one(ledger, "SELECT count(*) FROM events WHERE kind = 'slot.parked'") == (1,)


def test_a_case_that_is_kept_when_unknown_is_never_parked(ledger: Ledger) -> None:
    run = new_run(ledger)
    assert die_alone(ledger, run.run_id, 1, 1, "keep") == ["unknown"]


def test_no_case_is_blamed_for_a_death_in_company(ledger: Ledger) -> None:
    run = new_run(ledger)
    for _ in range(4):
        killed(ledger, run.run_id, 1, 2, if_unknown="repeat")
        leave(ledger, open_run(ledger, run.run_id))
    assert (
        every(ledger, "SELECT state, solitary_deaths, suspect FROM slots ORDER BY slot_no")[:2]
        == [("pending", 0, 1)] * 2
    )


def test_no_case_that_was_to_be_alone_is_blamed_for_a_death_in_company(ledger: Ledger) -> None:
    run = new_run(ledger)
    killed(ledger, run.run_id, -1, 2, if_unknown="repeat")
    open_run(ledger, run.run_id)
    assert every(ledger, "SELECT state, solitary_deaths FROM slots ORDER BY slot_no")[:2] == [("pending", 0)] * 2


def test_no_case_is_blamed_when_it_was_alone_only_by_chance(ledger: Ledger) -> None:
    run = new_run(ledger)
    for _ in range(4):
        killed(ledger, run.run_id, 1, if_unknown="repeat")
        leave(ledger, open_run(ledger, run.run_id))
    assert one(ledger, "SELECT state, solitary_deaths FROM slots WHERE slot_no = 1") == ("pending", 0)


def test_a_suspect_that_answers_is_cleared(ledger: Ledger) -> None:
    run = new_run(ledger)
    killed(ledger, run.run_id, 1, 2, if_unknown="repeat")
    open_run(ledger, run.run_id)
    key = begin(ledger, run.run_key, 1).key
    ledger.write(lambda tx: observe(tx, key))
    assert every(ledger, "SELECT suspect FROM slots ORDER BY slot_no") == [(0,), (1,), (0,)]


def test_a_parked_case_can_be_retried_from_a_clean_slate(ledger: Ledger) -> None:
    run = new_run(ledger)
    die_alone(ledger, run.run_id, 1, 3)
    assert ledger.write(lambda tx: run_ends.retry(tx, run.run_key, state="parked", reason=None)) == 1
    assert one(ledger, "SELECT state, solitary_deaths, suspect FROM slots WHERE slot_no = 1") == ("pending", 0, 0)


def test_a_recovery_costs_by_what_was_in_flight_and_not_by_the_run(ledger: Ledger) -> None:
    run = new_run(ledger, 50)
    killed(ledger, run.run_id, 7, if_unknown="repeat")
    steps: list[str] = []
    ledger.write(lambda tx: ledger._shared._desk.connection().set_trace_callback(steps.append))  # type: ignore[union-attr]
    open_run(ledger, run.run_id)
    small = len(steps)
    ledger.write(lambda tx: ledger._shared._desk.connection().set_trace_callback(None))  # type: ignore[union-attr]
    assert small < 60


def test_a_hold_of_the_dead_stays_held_through_recoveries(ledger: Ledger) -> None:
    run = new_run(ledger, budgets=(budget(limit=1),))
    killed(ledger, run.run_id, 1, if_unknown="keep")
    leave(ledger, open_run(ledger, run.run_id))
    with pytest.raises(Exception, match="no room"):
        begin(ledger, run.run_key, 2, holds=(hold(),))
