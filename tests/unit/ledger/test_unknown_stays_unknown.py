"""An attempt of which an earlier dispatch is unknown, whatever ends it: no new request follows by itself."""

from __future__ import annotations

import pytest

from tallystick.ledger import attempts, run_ends
from tallystick.ledger.coordinators import Coordinator, Recovered, open_run, release_run
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchKey, Waiting
from tallystick.ledger.states import DispatchState, IfUnknown, NextStep
from tests.unit.ledger.factories import attempt_states, begin, facts, lost, one, opened_run, slot_state

RESEND = Waiting(NextStep.RESEND)


def resent_and_refused(ledger: Ledger, coordinator: Coordinator, slot_no: int = 1, *, solitary: bool = False) -> None:
    """The first dispatch is unknown, the second was refused, and the attempt waits to send a third."""
    run_key = coordinator.run_key
    key = begin(ledger, run_key, slot_no, if_unknown=IfUnknown.RESEND).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=RESEND))
    again = ledger.write(lambda tx: attempts.reopen(tx, key, (), solitary=solitary)).key
    ledger.write(lambda tx: attempts.refuse(tx, again, facts(DispatchState.REFUSED, "busy")))


def died(ledger: Ledger, coordinator: Coordinator) -> Coordinator:
    """Open the run again after its coordinator went away without a word."""
    ledger.write(lambda tx: release_run(tx, coordinator, reason="died", active_us=0))
    return open_run(ledger, coordinator.run_id)


def step_of(ledger: Ledger, slot_no: int = 1) -> tuple[str, str]:
    state, step = one(ledger, "SELECT state, next_step FROM slots WHERE slot_no = ?", slot_no)
    return state, step


def test_a_death_between_a_refused_resend_and_the_next_leaves_the_attempt_unknown(ledger: Ledger) -> None:
    coordinator = opened_run(ledger)
    resent_and_refused(ledger, coordinator)
    assert died(ledger, coordinator).recovered == Recovered((), again=1)
    assert attempt_states(ledger, coordinator.run_key) == ["unknown"]
    assert step_of(ledger) == ("pending", "resend")


@pytest.mark.parametrize(("waiting", "stands"), [(Waiting(), ("pending", "resend")), (None, ("unknown", "new"))])
def test_a_resend_that_is_given_back_goes_on_as_a_resend_or_not_at_all(
    ledger: Ledger, waiting: Waiting | None, stands: tuple[str, str]
) -> None:
    coordinator = opened_run(ledger)
    resent_and_refused(ledger, coordinator)
    call_id = one(ledger, "SELECT call_id FROM calls")[0]
    key = DispatchKey(coordinator.run_key, 1, 1, call_id, 2)
    ledger.write(lambda tx: attempts.give_back(tx, key, waiting, reason="busy"))
    assert attempt_states(ledger, coordinator.run_key) == ["unknown"]
    assert step_of(ledger) == stands


def test_a_resend_says_whether_its_case_was_alone(ledger: Ledger) -> None:
    coordinator = opened_run(ledger)
    resent_and_refused(ledger, coordinator, solitary=True)
    assert one(ledger, "SELECT solitary FROM attempts")[0] == 1


def test_a_run_that_is_given_up_leaves_unknown_what_was_to_be_resent_or_asked_for(ledger: Ledger) -> None:
    coordinator = opened_run(ledger)
    key = begin(ledger, coordinator.run_key, if_unknown=IfUnknown.QUERY).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(NextStep.QUERY)))
    count = ledger.write(lambda tx: run_ends.abandon_run(tx, coordinator.run_key, reason="enough", made_by="me"))
    assert count == 2
    assert [slot_state(ledger, coordinator.run_key, slot) for slot in (1, 2)] == ["unknown", "cancelled"]


def test_a_parked_case_that_is_retried_is_still_resent_and_not_asked_anew(ledger: Ledger) -> None:
    coordinator = opened_run(ledger)
    key = begin(ledger, coordinator.run_key, if_unknown=IfUnknown.RESEND).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=RESEND))
    ledger.write(lambda tx: tx.change("UPDATE slots SET state = 'parked' WHERE slot_no = ?", (1,)))
    ledger.write(lambda tx: run_ends.retry(tx, coordinator.run_key, state="parked", reason=None))
    assert step_of(ledger) == ("pending", "resend")
