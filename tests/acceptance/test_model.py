"""Random histories against small models of what the ledger promises; the longer runs of the same are unit tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.unit.ledger.test_lease_model import LeaseMachine
from tests.unit.ledger.test_model import LedgerMachine

SHORT, LONG = 20, 2_000


@pytest.mark.parametrize("histories", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)], ids=["short", "long"])
@pytest.mark.parametrize("machine", [LedgerMachine, LeaseMachine], ids=["attempts-and-budgets", "leases"])
def test_model_agrees_with_the_ledger_after_every_step(machine: type[RuleBasedStateMachine], histories: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=histories, stateful_step_count=50, deadline=None, database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )  # fmt: skip
