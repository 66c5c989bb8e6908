"""A check finds what breaks the promise of one holder a device, each planted behind the ledger's back."""

from __future__ import annotations

import pytest

from tallystick.ledger import attempts, lease_calls, leases
from tallystick.ledger.check_leases import LEASE_RULES
from tallystick.ledger.checks import Severity, check_ledger
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.devices import device, granted_to, held_under
from tests.unit.ledger.factories import intent, new_run, observe, raw

A = device("atlas:A")

FAULTS: dict[str, tuple[str, ...]] = {
    "lease.two_holders": ("UPDATE leases SET state = 'held' WHERE fence = 1",),
    "lease.fence_twice": ("UPDATE leases SET fence = 2 WHERE fence = 1",),
    "lease.held_without_fence": ("UPDATE leases SET fence = 0 WHERE state = 'held'",),
    "lease.fence_falls": (
        "UPDATE events SET body = json_set(body, '$.fence', 7) WHERE kind = 'dispatch.intended' AND event_no < 5",
    ),
    "call.fence_not_given": ("UPDATE calls SET fence = 1 WHERE fence = 2",),
    "dispatch.without_lease": ("UPDATE dispatches SET state = 'intended' WHERE call_id = 'first'",),
}


def two_holders(ledger: Ledger) -> None:
    """A device that was held, used and given back, and is held and used again."""
    run_key = new_run(ledger).run_key
    for slot_no, call_id in ((1, "first"), (2, "second")):
        held = granted_to(ledger, A, run_key=run_key)
        wanted = intent(run_key, slot_no, held=held_under(held), call_id=call_id)
        key = ledger.write(lambda tx, wanted=wanted: attempts.begin(tx, wanted)).key  # type: ignore[misc]
        if slot_no == 1:
            ledger.write(lambda tx, key=key: observe(tx, key))  # type: ignore[misc]
            ledger.write(lambda tx, held=held: leases.release(tx, held.set_id))  # type: ignore[misc]
        else:
            call = lease_calls.LeaseCall("reset", run_key, "reset", "{}", b"reset", held_under(held))
            ledger.write(lambda tx, call=call: lease_calls.begin_lease_call(tx, call))  # type: ignore[misc]


def test_a_ledger_whose_devices_are_in_use_is_sound(ledger: Ledger) -> None:
    two_holders(ledger)
    assert [one for one in check_ledger(ledger) if one.severity is Severity.ERROR] == []


@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_is_found(code: str, ledger: Ledger) -> None:
    two_holders(ledger)
    connection = raw(ledger.path)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("DROP INDEX leases_one_holder")
    for fault in FAULTS[code]:
        assert connection.execute(fault).rowcount != 0
    connection.close()
    assert code in {finding.code for finding in check_ledger(ledger)}


def test_every_rule_has_a_fault_that_shows_that_it_finds_something() -> None:
    assert {rule.code for rule in LEASE_RULES} == set(FAULTS)
