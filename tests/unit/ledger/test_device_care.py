"""What an operator decides about a device, and which attempts an earlier holder may have touched."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.ledger import attempts, device_care, leases
from tallystick.ledger.contamination import contaminate, touched_late
from tallystick.ledger.errors import DeviceNotFound, LeaseLost, TransitionRefused, UsageError
from tallystick.ledger.forks import Kept, KeptUnknown, OpenSend, TakenOver, take_over
from tallystick.ledger.late import keep_late
from tallystick.ledger.lease_records import Blocked, Granted
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchKey
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.states import DispatchState
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
)
from tests.unit.ledger.factories import (
    ANSWER,
    ANSWER_DIGEST,
    HandClock,
    answered,
    dispatch_state,
    every,
    facts,
    intent,
    lost,
    new_run,
    observe,
    one,
    slot_state,
)

A, B = device("atlas:A"), device("atlas:B")
PLAIN = device("line:1", compares=False)


def begin_under(ledger: Ledger, run_key: int, granted: Granted, slot_no: int) -> DispatchKey:
    wanted = intent(run_key, slot_no, held=held_under(granted))
    return ledger.write(lambda tx: attempts.begin(tx, wanted)).key


def revoke(ledger: Ledger, resource: str) -> device_care.Revoked | None:
    return ledger.write(lambda tx: device_care.revoke(tx, resource, reason="it hangs", made_by="ann"))


def quarantine(ledger: Ledger, resource: str) -> bool:
    return ledger.write(lambda tx: device_care.quarantine(tx, resource, reason="it smokes", made_by="ann"))


def clear(ledger: Ledger, resource: str) -> None:
    ledger.write(lambda tx: device_care.clear(tx, resource, reason="new fuse", made_by="bob"))


# Forced release.


def test_a_device_that_is_taken_away_goes_to_the_next_and_its_request_is_unknown(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, PLAIN, run_key=run_key)
    key = begin_under(ledger, run_key, held, 1)
    waiting = line_up(ledger, PLAIN)
    found = revoke(ledger, "line:1")
    assert found is not None
    assert (found.lease_id, found.run_key, found.fence, found.unknown) == (held.leases[0].lease_id, run_key, 1, 1)
    assert dispatch_state(ledger, key) == "unknown"
    assert slot_state(ledger, run_key) == "unknown"
    with pytest.raises(LeaseLost):
        begin_under(ledger, run_key, held, 2)
    assert isinstance(attempt(ledger, waiting), Granted)
    assert one(ledger, "SELECT state, reason FROM leases WHERE set_id = ?", held.set_id) == (
        "revoked",
        "taken away by ann: it hangs",
    )
    assert [told["unknown"] for told in events(ledger, run_key, "lease.revoked")] == [1]


def test_there_is_nothing_to_take_away_from_nobody(ledger: Ledger) -> None:
    line_up(ledger, A)
    assert revoke(ledger, "atlas:A") is None


@pytest.mark.parametrize("care", [revoke, quarantine, clear])
def test_a_device_that_was_never_here_is_named_as_such(care: Any, ledger: Ledger) -> None:
    with pytest.raises(DeviceNotFound, match="atlas:typo") as caught:
        care(ledger, "atlas:typo")
    assert caught.value.resource == "atlas:typo"


def test_a_holder_of_which_one_device_was_taken_away_has_lost_its_set(ledger: Ledger) -> None:
    held = granted_to(ledger, A, B)
    revoke(ledger, "atlas:A")
    with pytest.raises(LeaseLost):
        ledger.write(lambda tx: leases.renew(tx, held.set_id))
    assert ledger.write(lambda tx: leases.abandon(tx, held.set_id))
    assert lease_states(ledger, held.set_id) == [("atlas:A", "revoked"), ("atlas:B", "lost")]


# Quarantine.


def test_nobody_gets_a_device_in_quarantine_before_it_is_cleared(ledger: Ledger) -> None:
    held = granted_to(ledger, A)
    ledger.write(lambda tx: leases.release(tx, held.set_id))
    assert quarantine(ledger, "atlas:A")
    assert not quarantine(ledger, "atlas:A")
    waiting = line_up(ledger, A, B)
    found = attempt(ledger, waiting)
    assert isinstance(found, Blocked)
    assert found.quarantined == ("atlas:A",)
    assert found.obstacles[0].reason == "it smokes (by ann)"
    clear(ledger, "atlas:A")
    assert one(ledger, "SELECT reason FROM leases WHERE reason LIKE '%fuse'") == (
        "it smokes (by ann); cleared by bob: new fuse",
    )
    found = attempt(ledger, waiting)
    assert isinstance(found, Granted)
    assert found.lease("atlas:A").fence == 2


def test_a_device_that_is_held_goes_into_quarantine_with_its_holders_request_unknown(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, run_key=run_key)
    key = begin_under(ledger, run_key, held, 1)
    quarantine(ledger, "atlas:A")
    assert dispatch_state(ledger, key) == "unknown"
    assert lease_states(ledger, held.set_id) == [("atlas:A", "quarantined")]
    assert isinstance(attempt(ledger, line_up(ledger, A)), Blocked)
    clear(ledger, "atlas:A")
    assert [told["by"] for told in events(ledger, run_key, "device.cleared")] == ["bob"]


def test_who_waits_for_a_device_in_quarantine_keeps_nobody_from_another(ledger: Ledger) -> None:
    held = granted_to(ledger, A)
    quarantine(ledger, "atlas:A")
    both, other = line_up(ledger, A, B), line_up(ledger, B)
    assert isinstance(attempt(ledger, other), Granted)
    clear(ledger, "atlas:A")
    assert blocked_by(attempt(ledger, both)) == [("atlas:B", "held", other)]
    assert held.leases[0].fence == 1


def test_a_device_that_is_not_in_quarantine_cannot_be_cleared(ledger: Ledger) -> None:
    granted_to(ledger, A)
    with pytest.raises(UsageError, match="not in quarantine"):
        clear(ledger, "atlas:A")


# Contamination.


def contaminated(ledger: Ledger, run_key: int) -> list[int]:
    rows = every(ledger, "SELECT slot_no FROM attempts WHERE run_key = ? AND contaminated = 1 ORDER BY 1", run_key)
    return [row[0] for row in rows]


def two_tenures(ledger: Ledger, clock: HandClock, one_device: Any) -> tuple[int, DispatchKey, Granted]:
    """A request that was lost to the next holder, who then had slot 2 observed and slot 3 in flight."""
    run_key = new_run(ledger, 5).run_key
    first = granted_to(ledger, one_device, run_key=run_key)
    key = begin_under(ledger, run_key, first, 1)
    clock.us += LEASE_US + 1
    waiting = line_up(ledger, one_device, run_key=run_key)
    second = attempt(ledger, waiting, first.leases[0].lease_id)
    assert isinstance(second, Granted)
    done = begin_under(ledger, run_key, second, 2)
    ledger.write(lambda tx: observe(tx, done))
    begin_under(ledger, run_key, second, 3)
    return run_key, key, second


def come_late(ledger: Ledger, key: DispatchKey) -> None:
    assert ledger.write(
        lambda tx: keep_late(tx, key, facts(DispatchState.LATE), answer=ANSWER, answer_digest=ANSWER_DIGEST)
    )


def settle(ledger: Ledger, key: DispatchKey, decision: Decision) -> None:
    settlement = Settlement(key.call_id, key.dispatch_no, decision, "ann", "seen", answered(), ANSWER, ANSWER_DIGEST)
    ledger.write(lambda tx: settle_unknown(tx, settlement))


def test_an_answer_to_an_earlier_holder_marks_what_is_going_on_when_it_comes(ledger: Ledger, clock: HandClock) -> None:
    run_key, key, _ = two_tenures(ledger, clock, A)
    come_late(ledger, key)
    assert contaminated(ledger, run_key) == [3]
    told = events(ledger, run_key, "attempt.contaminated")
    assert [(one["slot"], one["resource"], one["fence"], one["call"]) for one in told] == [
        (3, "atlas:A", 1, key.call_id)
    ]


def test_at_a_device_that_compares_no_fences_the_whole_next_tenure_is_marked(ledger: Ledger, clock: HandClock) -> None:
    run_key, key, second = two_tenures(ledger, clock, PLAIN)
    ledger.write(lambda tx: leases.abandon(tx, second.set_id))
    third = granted_to(ledger, PLAIN, run_key=run_key)
    done = begin_under(ledger, run_key, third, 4)
    ledger.write(lambda tx: observe(tx, done))
    begin_under(ledger, run_key, third, 5)
    come_late(ledger, key)
    assert contaminated(ledger, run_key) == [2, 3, 5]


@pytest.mark.parametrize(
    ("one_device", "decision", "marked"),
    [
        (A, Decision.LANDED, []),
        (PLAIN, Decision.LANDED, [2, 3]),
        (PLAIN, Decision.FAILED, [2, 3]),
        (PLAIN, Decision.NOT_LANDED, []),
        (PLAIN, Decision.GIVE_UP, []),
    ],
)
def test_a_settlement_afterwards_marks_only_where_the_device_could_be_touched_unseen(
    one_device: Any, decision: Decision, marked: list[int], ledger: Ledger, clock: HandClock
) -> None:
    run_key, key, _ = two_tenures(ledger, clock, one_device)
    settle(ledger, key, decision)
    assert contaminated(ledger, run_key) == marked


def forked_unknown(ledger: Ledger, run_key: int, key: DispatchKey) -> DispatchKey:
    """The copy, in a fork of that run, of the request for slot 1."""
    fork = new_run(ledger, 5, name="fork").run_key
    send = OpenSend(key.call_id, key.dispatch_no, None, "lease.lost", "")
    kept = KeptUnknown(Kept(1, 1, 1), None, "lease.lost", "", (send,))
    (run_id,) = one(ledger, "SELECT run_id FROM runs WHERE run_key = ?", run_key)
    take_over(ledger, fork, TakenOver(run_key, run_id, 1, unknown=(kept,)))
    (call_id,) = one(ledger, "SELECT call_id FROM calls WHERE run_key = ? AND reused_from = ?", fork, key.call_id)
    return DispatchKey(fork, 1, 1, call_id, 1)


@pytest.mark.parametrize(("one_device", "marked"), [(A, []), (PLAIN, [2, 3])])
def test_what_is_settled_in_a_fork_marks_who_had_the_device_next_as_in_the_run_that_sent_it(
    one_device: Any, marked: list[int], ledger: Ledger, clock: HandClock
) -> None:
    run_key, key, _ = two_tenures(ledger, clock, one_device)
    settle(ledger, forked_unknown(ledger, run_key, key), Decision.LANDED)
    assert contaminated(ledger, run_key) == marked
    assert dispatch_state(ledger, key) == "unknown", "each run settles its own"


def test_a_run_that_is_not_this_ledgers_to_continue_is_not_marked(ledger: Ledger, clock: HandClock) -> None:
    run_key, key, _ = two_tenures(ledger, clock, PLAIN)
    copy = forked_unknown(ledger, run_key, key)
    ledger.write(lambda tx: tx.change("UPDATE runs SET custody = 'moved' WHERE run_key = ?", (run_key,)))
    settle(ledger, copy, Decision.LANDED)
    assert contaminated(ledger, run_key) == []
    assert events(ledger, run_key, "attempt.contaminated") == []


def test_what_the_holder_itself_sent_late_marks_nothing(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, PLAIN, run_key=run_key)
    key = begin_under(ledger, run_key, held, 1)
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=None))
    begin_under(ledger, run_key, held, 2)
    come_late(ledger, key)
    assert contaminated(ledger, run_key) == []


def test_another_device_of_the_same_set_counts_too(ledger: Ledger, clock: HandClock) -> None:
    run_key = new_run(ledger).run_key
    both = granted_to(ledger, A, B, run_key=run_key)
    key = begin_under(ledger, run_key, both, 1)
    clock.us += LEASE_US + 1
    next_one = attempt(ledger, line_up(ledger, B, run_key=run_key))
    assert isinstance(next_one, Granted)
    begin_under(ledger, run_key, next_one, 2)
    come_late(ledger, key)
    assert contaminated(ledger, run_key) == [2]


def test_an_attempt_is_marked_once(ledger: Ledger, clock: HandClock) -> None:
    run_key, key, _ = two_tenures(ledger, clock, A)

    def mark() -> int:
        return ledger.write(
            lambda tx: contaminate(tx, "atlas:A", fence=1, call_id=key.call_id, reason="the device says so")
        )

    assert (mark(), mark()) == (1, 0)
    assert contaminated(ledger, run_key) == [3]
    assert len(events(ledger, run_key, "attempt.contaminated")) == 1


def test_a_call_that_needed_no_device_marks_nothing(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    wanted = intent(run_key)
    key = ledger.write(lambda tx: attempts.begin(tx, wanted)).key
    assert ledger.write(lambda tx: touched_late(tx, key.call_id, answered_now=True)) == 0
    with pytest.raises(TransitionRefused):
        settle(ledger, key, Decision.LANDED)
