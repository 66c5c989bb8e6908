"""Sets of devices: all or none, first come, first served, one holder; and by which clock a lease runs out."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.ledger import leases
from tallystick.ledger.errors import LeaseLost, UsageError
from tallystick.ledger.lease_line import is_wanted
from tallystick.ledger.lease_records import Blocked, DeviceAsk, Granted
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.devices import (
    LEASE_MS,
    LEASE_US,
    attempt,
    blocked_by,
    device,
    events,
    granted_to,
    lease_states,
    line_up,
    other_worker,
    write_as,
)
from tests.unit.ledger.factories import HandClock, every, new_run, one

A, B, C = device("atlas:A"), device("atlas:B"), device("atlas:C")
HOUR_US = 3_600_000_000


def release(ledger: Ledger, set_id: str) -> bool:
    return ledger.write(lambda tx: leases.release(tx, set_id))


def renew(ledger: Ledger, set_id: str) -> int:
    return ledger.write(lambda tx: leases.renew(tx, set_id))


def require(ledger: Ledger, granted: Granted) -> None:
    ledger.write(lambda tx: leases.require(tx, [one.lease_id for one in granted.leases]))


# Asking and granting.


def test_a_free_set_is_granted_with_a_fence_for_each_device(ledger: Ledger) -> None:
    found = granted_to(ledger, B, A)
    assert [(lease.resource, lease.fence) for lease in found.leases] == [("atlas:A", 1), ("atlas:B", 1)]
    assert found.lease("atlas:B").fence == 1
    assert found.replaced == ()
    with pytest.raises(KeyError):
        found.lease("atlas:C")


def test_a_set_of_which_one_device_is_held_gets_none_of_it(ledger: Ledger) -> None:
    holder = granted_to(ledger, B)
    waiting = line_up(ledger, A, B)
    assert blocked_by(attempt(ledger, waiting)) == [("atlas:B", "held", holder.set_id)]
    assert lease_states(ledger, waiting) == [("atlas:A", "waiting"), ("atlas:B", "waiting")]
    release(ledger, holder.set_id)
    assert isinstance(attempt(ledger, waiting), Granted)


def test_sets_that_want_the_same_devices_in_another_order_do_not_wait_for_each_other(ledger: Ledger) -> None:
    first, second = line_up(ledger, A, B), line_up(ledger, B, A)
    assert blocked_by(attempt(ledger, second)) == [("atlas:A", "waiting", first), ("atlas:B", "waiting", first)]
    assert isinstance(attempt(ledger, first), Granted)
    assert [state for _, state, _ in blocked_by(attempt(ledger, second))] == ["held", "held"]
    release(ledger, first)
    assert isinstance(attempt(ledger, second), Granted)


def test_a_large_set_is_not_starved_by_small_ones_that_come_later(ledger: Ledger) -> None:
    holder = granted_to(ledger, B)
    large, small = line_up(ledger, A, B), line_up(ledger, A)
    assert blocked_by(attempt(ledger, small)) == [("atlas:A", "waiting", large)]
    unrelated = line_up(ledger, C)
    assert isinstance(attempt(ledger, unrelated), Granted)
    release(ledger, holder.set_id)
    assert blocked_by(attempt(ledger, small)) == [("atlas:A", "waiting", large)]
    assert isinstance(attempt(ledger, large), Granted)


@pytest.mark.parametrize("step_us", [-HOUR_US, HOUR_US])
def test_the_order_of_the_line_is_that_of_asking_whatever_the_wall_clock(
    step_us: int, ledger: Ledger, clock: HandClock
) -> None:
    first = line_up(ledger, A)
    clock.step(step_us)
    second = line_up(ledger, A)
    assert first < second
    assert blocked_by(attempt(ledger, second)) == [("atlas:A", "waiting", first)]


def test_asking_again_for_what_is_held_changes_nothing(ledger: Ledger) -> None:
    held = granted_to(ledger, A)
    before = every(ledger, "SELECT * FROM leases")
    assert attempt(ledger, held.set_id) == held
    assert every(ledger, "SELECT * FROM leases") == before


def test_each_holder_has_a_higher_fence_than_all_before(ledger: Ledger) -> None:
    fences = []
    for _ in range(4):
        held = granted_to(ledger, A)
        fences.append(held.leases[0].fence)
        release(ledger, held.set_id)
    assert fences == [1, 2, 3, 4]


def test_the_history_of_the_run_tells_of_grants_and_of_giving_back(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, B, run_key=run_key)
    release(ledger, held.set_id)
    assert events(ledger, run_key, "lease.granted") == [{"set": held.set_id, "fences": {"atlas:A": 1, "atlas:B": 1}}]
    assert events(ledger, run_key, "lease.released") == [{"set": held.set_id, "reason": "done"}]


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ((), "0 devices"),
        ((A, A), "twice"),
        ((device(""),), "cannot be the name"),
        ((device("run:abc"),), "cannot be the name"),
        ((device("a\nb"),), "cannot be the name"),
        ((device("x" * 201),), "cannot be the name"),
        ((device("a", lease_ms=0),), "0 ms"),
        (tuple(device(f"d{n}") for n in range(65)), "65 devices"),
    ],
)
def test_a_set_that_cannot_be_is_refused_and_leaves_nothing(
    asks: tuple[DeviceAsk, ...], said: str, ledger: Ledger
) -> None:
    with pytest.raises(UsageError, match=said):
        line_up(ledger, *asks)
    assert every(ledger, "SELECT * FROM leases") == []


def test_leaving_the_line_lets_the_next_one_go(ledger: Ledger) -> None:
    first, second = line_up(ledger, A), line_up(ledger, A)
    assert release(ledger, first)
    assert not release(ledger, first)
    assert isinstance(attempt(ledger, second), Granted)
    with pytest.raises(LeaseLost):
        attempt(ledger, first)


def test_a_holder_learns_that_somebody_waits_for_one_of_its_devices(ledger: Ledger, clock: HandClock) -> None:
    held = granted_to(ledger, A, B)
    assert not is_wanted(ledger, held.set_id)
    line_up(ledger, B, C)
    assert is_wanted(ledger, held.set_id)
    clock.us += LEASE_US + 1
    assert not is_wanted(ledger, held.set_id), "who stopped asking is waited for no more"


# Renewing, requiring, and by which clock a lease runs out.


def test_a_lease_holds_to_its_last_nanosecond_and_is_refused_after_it(ledger: Ledger, clock: HandClock) -> None:
    held = granted_to(ledger, A)
    clock.us += LEASE_US
    assert clock.boot_ns() == held.expires_boot_ns
    require(ledger, held)
    clock.us += 1
    with pytest.raises(LeaseLost, match="atlas:A"):
        require(ledger, held)


def test_renewing_holds_a_set_for_another_lease_time(ledger: Ledger, clock: HandClock) -> None:
    held = granted_to(ledger, A, B)
    for _ in range(5):
        clock.us += LEASE_US
        assert renew(ledger, held.set_id) == clock.boot_ns() + LEASE_MS * 1_000_000
        require(ledger, held)


def test_a_lease_that_has_run_out_cannot_be_renewed_though_nobody_took_it(ledger: Ledger, clock: HandClock) -> None:
    held = granted_to(ledger, A)
    clock.us += LEASE_US + 1
    before = every(ledger, "SELECT * FROM leases")
    for refused in (renew, attempt):
        with pytest.raises(LeaseLost):
            refused(ledger, held.set_id)
    assert every(ledger, "SELECT * FROM leases") == before


@pytest.mark.parametrize("step_us", [-HOUR_US, HOUR_US])
def test_a_stepped_wall_clock_neither_frees_nor_prolongs_a_lease(
    step_us: int, ledger: Ledger, clock: HandClock
) -> None:
    held, waiting = granted_to(ledger, A), line_up(ledger, A)
    clock.step(step_us)
    require(ledger, held)
    assert isinstance(attempt(ledger, waiting), Blocked)
    assert renew(ledger, held.set_id) == held.expires_boot_ns
    clock.us += LEASE_US + 1
    with pytest.raises(LeaseLost):
        require(ledger, held)
    attempted = attempt(ledger, waiting)
    assert isinstance(attempted, Granted)


def test_a_suspend_counts_although_the_process_saw_nothing_of_it(ledger: Ledger, clock: HandClock) -> None:
    held, waiting = granted_to(ledger, A), line_up(ledger, A)
    clock.suspend(600_000_000)
    assert isinstance(attempt(ledger, waiting), Granted)
    with pytest.raises(LeaseLost):
        require(ledger, held)


def test_a_lease_of_another_boot_has_run_out(ledger: Ledger) -> None:
    held, waiting = granted_to(ledger, A), line_up(ledger, A)
    ledger.write(lambda tx: tx.change("UPDATE leases SET boot_id = 'before' WHERE set_id = ?", (held.set_id,)))
    with pytest.raises(LeaseLost):
        require(ledger, held)
    assert isinstance(attempt(ledger, waiting), Granted)


def test_a_lease_of_another_host_never_runs_out_here(ledger: Ledger, clock: HandClock) -> None:
    other_worker(ledger, "far", host="elsewhere", boot="another")
    held = granted_to(ledger, A, worker="far")
    ledger.write(lambda tx: tx.change("UPDATE leases SET boot_id = 'another' WHERE set_id = ?", (held.set_id,)))
    waiting = line_up(ledger, A)
    clock.us += HOUR_US
    assert blocked_by(attempt(ledger, waiting)) == [("atlas:A", "held", held.set_id)]


def test_a_lease_of_another_process_is_not_this_ones(ledger: Ledger) -> None:
    other_worker(ledger, "w2")
    held = granted_to(ledger, A, worker="w2")
    with pytest.raises(LeaseLost):
        require(ledger, held)
    write_as(ledger, "w2", lambda tx: leases.require(tx, [held.leases[0].lease_id]))


def test_a_lease_that_never_was_is_refused(ledger: Ledger) -> None:
    held = granted_to(ledger, A)
    for ids in (["absent"], [held.leases[0].lease_id, "absent"]):
        with pytest.raises(LeaseLost, match="absent"):
            ledger.write(lambda tx, ids=ids: leases.require(tx, ids))  # type: ignore[misc]
    with pytest.raises(LeaseLost):
        renew(ledger, "000000009999")


# Waiters that stand still, and what an operator must look at.


def test_a_waiter_that_stands_still_is_passed_over_and_finds_its_place_again(ledger: Ledger, clock: HandClock) -> None:
    holder = granted_to(ledger, A)
    frozen, second = line_up(ledger, A), line_up(ledger, A)
    release(ledger, holder.set_id)
    assert isinstance(attempt(ledger, second), Blocked)
    clock.us += LEASE_US + 1
    assert isinstance(attempt(ledger, second), Granted)
    third = line_up(ledger, A)
    assert isinstance(attempt(ledger, frozen), Blocked)
    release(ledger, second)
    assert blocked_by(attempt(ledger, third)) == [("atlas:A", "waiting", frozen)]


def test_a_poll_keeps_the_place_in_line(ledger: Ledger, clock: HandClock) -> None:
    holder = granted_to(ledger, A)
    first, second = line_up(ledger, A), line_up(ledger, A)
    for _ in range(3):
        clock.us += LEASE_US
        renew(ledger, holder.set_id)
        attempt(ledger, first)
    release(ledger, holder.set_id)
    assert isinstance(attempt(ledger, second), Blocked)


# Fences that came from elsewhere.


def test_a_fence_is_raised_above_what_the_device_has_seen_and_never_falls_again(ledger: Ledger) -> None:
    held = granted_to(ledger, A)
    lease_id = held.leases[0].lease_id
    assert ledger.write(lambda tx: leases.raise_fence(tx, lease_id, seen=41)) == 42
    assert ledger.write(lambda tx: leases.raise_fence(tx, lease_id, seen=7)) == 42
    assert one(ledger, "SELECT fence FROM leases WHERE lease_id = ?", lease_id) == (42,)
    release(ledger, held.set_id)
    assert granted_to(ledger, A).leases[0].fence == 43


def test_who_has_lost_its_lease_cannot_raise_a_fence(ledger: Ledger, clock: HandClock) -> None:
    held = granted_to(ledger, A)
    clock.us += LEASE_US + 1
    with pytest.raises(LeaseLost):
        ledger.write(lambda tx: leases.raise_fence(tx, held.leases[0].lease_id, seen=9))
    assert one(ledger, "SELECT high_water FROM fences WHERE resource = 'atlas:A'") == (1,)


# What a device said.


def test_what_a_device_said_is_kept_with_its_generation(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    granted_to(ledger, A, run_key=run_key)

    def look(boot: int, *, new: bool) -> Any:
        return ledger.write(
            lambda tx: leases.record_device(
                tx, "atlas:A", {"serial": "A"}, boot_count=boot, new_generation=new, run_key=run_key
            )
        )

    assert (look(1, new=False), look(2, new=True)) == (1, 2)
    assert one(ledger, "SELECT facts, boot_count, generation FROM devices") == ('{"serial":"A"}', 2, 2)
    assert [(told["boot_count"], told["generation"]) for told in events(ledger, run_key, "device.seen")] == [
        (1, 1),
        (2, 2),
    ]


def test_while_somebody_has_a_device_the_stricter_word_on_its_fences_counts(ledger: Ledger, clock: HandClock) -> None:
    strict, lax = device("x", compares=False), device("x", compares=True)
    held = granted_to(ledger, strict)
    waiting = line_up(ledger, lax)
    clock.us += LEASE_US + 1
    assert blocked_by(attempt(ledger, waiting)) == [("x", "held", held.set_id)]
    for set_id in (held.set_id, waiting):
        release(ledger, set_id)
    held = granted_to(ledger, lax)
    clock.us += LEASE_US + 1
    assert isinstance(attempt(ledger, line_up(ledger, lax)), Granted)
