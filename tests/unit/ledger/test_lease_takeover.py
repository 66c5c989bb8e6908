"""Who may be replaced, when, and what becomes of what it had in flight."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import attempt_calls, attempts, lease_calls, leases
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import LeaseLost, TransitionRefused
from tallystick.ledger.late import keep_late
from tallystick.ledger.lease_records import Granted
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Begun, DispatchKey
from tallystick.ledger.states import DispatchState, IfUnknown
from tests.unit.ledger.children import Child
from tests.unit.ledger.devices import (
    LEASE_US,
    attempt,
    blocked_by,
    device,
    events,
    granted_to,
    held_under,
    lease_states,
    line_up,
    other_worker,
    polled,
    write_as,
)
from tests.unit.ledger.factories import (
    ANSWER,
    ANSWER_DIGEST,
    HandClock,
    answered,
    budget,
    budget_row,
    dispatch_state,
    every,
    facts,
    hold,
    intent,
    new_ledger,
    new_run,
    observe,
    one,
    slot_state,
)

A, B = device("atlas:A"), device("atlas:B")
PLAIN, OTHER_PLAIN = device("line:1", compares=False), device("line:2", compares=False)


def begin_under(ledger: Ledger, run_key: int, granted: Granted, slot_no: int = 1, **options: Any) -> Begun:
    wanted = intent(run_key, slot_no, held=held_under(granted), **options)
    return ledger.write(lambda tx: attempts.begin(tx, wanted))


# Who may be replaced.


def test_a_dead_holder_is_replaced_at_once_whatever_its_device(ledger: Ledger) -> None:
    for one_device in (A, PLAIN):
        held, waiting = granted_to(ledger, one_device), line_up(ledger, one_device)
        assert blocked_by(attempt(ledger, waiting)) == [(one_device.resource, "held", held.set_id)]
        lease_id = held.leases[0].lease_id
        found = attempt(ledger, waiting, lease_id)
        assert isinstance(found, Granted)
        assert found.replaced == (lease_id,)
        assert found.leases[0].fence == held.leases[0].fence + 1
        assert lease_states(ledger, held.set_id) == [(one_device.resource, "lost")]


def test_a_holder_that_is_frozen_past_its_lease_is_replaced_only_where_the_device_compares_fences(
    ledger: Ledger, clock: HandClock
) -> None:
    compares, plain = granted_to(ledger, A), granted_to(ledger, PLAIN)
    clock.us += LEASE_US + 1
    assert isinstance(attempt(ledger, line_up(ledger, A)), Granted)
    assert blocked_by(attempt(ledger, line_up(ledger, PLAIN))) == [("line:1", "held", plain.set_id)]
    assert lease_states(ledger, compares.set_id) == [("atlas:A", "lost")]


def test_who_was_thought_dead_and_has_been_replaced_meanwhile_is_not_replaced_again(ledger: Ledger) -> None:
    seen = granted_to(ledger, A)
    first, second = line_up(ledger, A), line_up(ledger, A)
    dead = seen.leases[0].lease_id
    found = attempt(ledger, first, dead)
    assert isinstance(found, Granted)
    assert blocked_by(attempt(ledger, second, dead)) == [("atlas:A", "held", first)]


def test_a_dead_waiter_is_no_longer_in_the_way(ledger: Ledger) -> None:
    holder = granted_to(ledger, A)
    dead, alive = line_up(ledger, A, B), line_up(ledger, A)
    ledger.write(lambda tx: leases.release(tx, holder.set_id))
    rows = every(ledger, "SELECT lease_id FROM leases WHERE set_id = ?", dead)
    assert isinstance(attempt(ledger, alive, *(row[0] for row in rows)), Granted)
    assert lease_states(ledger, dead) == [("atlas:A", "lost"), ("atlas:B", "lost")]


def test_a_frozen_set_is_lost_where_fences_are_compared_and_stays_where_they_are_not(
    ledger: Ledger, clock: HandClock
) -> None:
    held = granted_to(ledger, A, B, PLAIN)
    clock.us += LEASE_US + 1
    assert isinstance(attempt(ledger, line_up(ledger, A)), Granted)
    assert lease_states(ledger, held.set_id) == [("atlas:A", "lost"), ("atlas:B", "lost"), ("line:1", "held")]
    assert isinstance(attempt(ledger, line_up(ledger, B)), Granted)


def test_a_dead_set_is_lost_whole(ledger: Ledger) -> None:
    held = granted_to(ledger, A, PLAIN)
    found = attempt(ledger, line_up(ledger, A), held.lease("atlas:A").lease_id)
    assert isinstance(found, Granted)
    assert lease_states(ledger, held.set_id) == [("atlas:A", "lost"), ("line:1", "lost")]


# What it had in flight.


@pytest.mark.parametrize(
    ("if_unknown", "slot", "step"),
    [
        (IfUnknown.KEEP, "unknown", "new"),
        (IfUnknown.QUERY, "pending", "query"),
        (IfUnknown.RESEND, "pending", "resend"),
        (IfUnknown.REPEAT, "pending", "new"),
        (IfUnknown.RESTART, "pending", "new"),
    ],
)
@pytest.mark.parametrize("died", [True, False])
def test_what_a_replaced_holder_had_in_flight_is_unknown_and_goes_on_as_declared(
    died: bool, if_unknown: IfUnknown, slot: str, step: str, ledger: Ledger, clock: HandClock
) -> None:
    run_key = new_run(ledger, budgets=(budget(limit=5),)).run_key
    held = granted_to(ledger, A, B, run_key=run_key)
    key = begin_under(ledger, run_key, held, if_unknown=if_unknown, holds=(hold(),)).key
    waiting = line_up(ledger, B)
    clock.us += 1 if died else LEASE_US + 1
    attempt(ledger, waiting)
    found = attempt(ledger, waiting, *([held.lease("atlas:B").lease_id] if died else []))
    assert isinstance(found, Granted)
    assert one(ledger, "SELECT state, reason, settled_by FROM dispatches") == ("unknown", "lease.lost", "recovery")
    suspect = int(died and if_unknown is not IfUnknown.KEEP)
    assert one(ledger, "SELECT state, next_step, suspect FROM slots WHERE slot_no = 1") == (slot, step, suspect)
    assert budget_row(ledger, run_key)[:2] == (1, 0)
    assert [told["resource"] for told in events(ledger, run_key, "lease.lost")] == ["atlas:A", "atlas:B"]
    assert dispatch_state(ledger, key) == "unknown"
    assert check_ledger(ledger) == []


def test_the_writes_of_a_replaced_holder_are_refused_and_its_answer_is_late_evidence(
    ledger: Ledger, clock: HandClock
) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, run_key=run_key)
    key = begin_under(ledger, run_key, held).key
    clock.us += LEASE_US + 1
    attempt(ledger, line_up(ledger, A))
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: observe(tx, key))
    with pytest.raises(LeaseLost):
        begin_under(ledger, run_key, held, slot_no=2)
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: attempts.dispatch_again(tx, key, (), held=held_under(held)))
    assert ledger.write(
        lambda tx: keep_late(tx, key, facts(DispatchState.LATE), answer=ANSWER, answer_digest=ANSWER_DIGEST)
    )
    assert one(ledger, "SELECT state FROM attempts") == ("late",)
    assert slot_state(ledger, run_key, 2) == "pending"


def test_what_has_an_outcome_is_not_touched_by_a_takeover(ledger: Ledger, clock: HandClock) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, run_key=run_key)
    key = begin_under(ledger, run_key, held).key
    ledger.write(lambda tx: observe(tx, key))
    clock.us += LEASE_US + 1
    attempt(ledger, line_up(ledger, A))
    assert slot_state(ledger, run_key) == "selected"
    assert dispatch_state(ledger, key) == "answered"


def test_a_call_of_a_lost_lease_is_unknown_too(ledger: Ledger, clock: HandClock) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, run_key=run_key)
    call = lease_calls.LeaseCall("reset-1", run_key, "reset", "{}", b"reset", held_under(held))
    key = ledger.write(lambda tx: lease_calls.begin_lease_call(tx, call))
    clock.us += LEASE_US + 1
    attempt(ledger, line_up(ledger, A))
    assert dispatch_state(ledger, key) == "unknown"
    assert not ledger.write(lambda tx: lease_calls.end_lease_call(tx, key, answered()))
    assert [told["state"] for told in events(ledger, run_key, "lease.call_ended")] == ["unknown"]


def test_of_an_attempt_of_several_calls_the_one_in_flight_is_unknown_and_says_what_follows(
    ledger: Ledger, clock: HandClock
) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, run_key=run_key)
    opened = ledger.write(lambda tx: attempt_calls.open_attempt(tx, run_key, 1, fingerprint="fp"))

    def ask() -> DispatchKey:
        wanted = intent(run_key, held=held_under(held), if_unknown=IfUnknown.QUERY)
        return ledger.write(lambda tx: attempt_calls.further_call(tx, wanted, opened.attempt_no)).key

    first = ask()
    ledger.write(lambda tx: attempt_calls.settle_answer(tx, first, answered()))
    second = ask()
    clock.us += LEASE_US + 1
    attempt(ledger, line_up(ledger, A))
    assert (dispatch_state(ledger, first), dispatch_state(ledger, second)) == ("answered", "unknown")
    assert one(ledger, "SELECT state, next_step FROM slots WHERE slot_no = 1") == ("pending", "query")


def test_a_takeover_leaves_what_another_lease_has_in_flight(ledger: Ledger, clock: HandClock) -> None:
    run_key = new_run(ledger).run_key
    mine, theirs = granted_to(ledger, A, run_key=run_key), granted_to(ledger, B, run_key=run_key)
    kept, lost = begin_under(ledger, run_key, mine, 1).key, begin_under(ledger, run_key, theirs, 2).key
    clock.us += 1
    attempt(ledger, line_up(ledger, B), theirs.leases[0].lease_id)
    assert (dispatch_state(ledger, kept), dispatch_state(ledger, lost)) == ("intended", "unknown")


def test_a_holder_that_owns_up_to_a_loss_leaves_nothing_in_flight(ledger: Ledger, clock: HandClock) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, PLAIN, run_key=run_key)
    key = begin_under(ledger, run_key, held).key
    clock.us += LEASE_US + 1
    assert ledger.write(lambda tx: leases.abandon(tx, held.set_id))
    assert not ledger.write(lambda tx: leases.abandon(tx, held.set_id))
    assert dispatch_state(ledger, key) == "unknown"
    assert granted_to(ledger, PLAIN, run_key=run_key).leases[0].fence == 2


def test_nobody_else_can_own_up_to_it(ledger: Ledger) -> None:
    other_worker(ledger, "w2")
    held = granted_to(ledger, A, worker="w2")
    assert not ledger.write(lambda tx: leases.abandon(tx, held.set_id))
    assert not ledger.write(lambda tx: leases.release(tx, held.set_id))
    assert lease_states(ledger, held.set_id) == [("atlas:A", "held")]
    assert write_as(ledger, "w2", lambda tx: leases.release(tx, held.set_id))


# Real deaths.


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with the machine's clocks, as those of other processes."""
    with new_ledger(tmp_path) as opened:
        yield opened


def test_a_killed_holder_is_replaced_at_the_first_look_and_a_stopped_one_is_not(real: Ledger) -> None:
    ledger = real
    with Child("hold_devices", ledger.path, "line:1") as child:
        held = child.line()
        child.stop()
        mine = line_up(ledger, PLAIN)
        assert blocked_by(polled(ledger, mine)) == [("line:1", "held", held)]
        child.kill()
        assert isinstance(polled(ledger, mine), Granted)
        assert lease_states(ledger, held) == [("line:1", "lost")]


@pytest.mark.parametrize("pid", [1, os.getpid()], ids=["first", "own"])
def test_a_death_is_proven_whoever_has_the_pid_now(pid: int, real: Ledger) -> None:
    """Pid 1 is everybody's in containers, and a pid that is free again soon belongs to another process."""
    with Child("hold_devices", real.path, "line:1") as dead, Child("hold_devices", real.path, "line:2") as alive:
        held, kept = dead.line(), alive.line()
        dead.kill()
        real.write(lambda tx: tx.change("UPDATE workers SET pid = ?", (pid,)))
        assert isinstance(polled(real, line_up(real, PLAIN)), Granted)
        assert lease_states(real, held) == [("line:1", "lost")]
        assert blocked_by(polled(real, line_up(real, OTHER_PLAIN))) == [("line:2", "held", kept)]


IN_A_CONTAINER = ("unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc", "--kill-child")


def test_a_holder_that_is_pid_1_of_its_own_namespace_is_alive_until_it_is_killed(real: Ledger) -> None:
    if subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no namespaces here, as in many containers: see `unshare` in its manual")
    with Child("hold_devices", real.path, "line:1", under=IN_A_CONTAINER) as child:
        held = child.line()
        assert one(real, "SELECT w.pid FROM workers w JOIN leases USING (worker_id)") == (1,)
        mine = line_up(real, PLAIN)
        assert blocked_by(polled(real, mine)) == [("line:1", "held", held)]
        child.kill()
        # It dies with its parent, a moment later.
        assert any(isinstance(polled(real, mine), Granted) for _ in range(1_000))
        assert lease_states(real, held) == [("line:1", "lost")]


def test_a_waiter_that_was_killed_keeps_nobody_waiting(real: Ledger) -> None:
    ledger, holder = real, granted_to(real, PLAIN)
    with Child("hold_devices", ledger.path, "line:1", pause_at="lease.asked") as child:
        child.wait_until_there()
        mine = line_up(ledger, PLAIN)
        ledger.write(lambda tx: leases.release(tx, holder.set_id))
        assert [state for _, state, _ in blocked_by(polled(ledger, mine))] == ["waiting"]
        child.kill()
        assert isinstance(polled(ledger, mine), Granted)


def test_a_takeover_that_is_killed_leaves_all_or_nothing(real: Ledger) -> None:
    ledger, run = real, new_run(real)
    with Child("hold_devices", ledger.path, "atlas:A") as holder:
        held = holder.line()
        holder.kill()
    with Child("hold_devices", ledger.path, "atlas:A", crashpoint="lease.takeover.inside") as child:
        assert child.end() == -9
    assert lease_states(ledger, held) == [("atlas:A", "held")]
    found = polled(ledger, line_up(ledger, A, run_key=run.run_key))
    assert isinstance(found, Granted)
    assert found.leases[0].fence == 2
