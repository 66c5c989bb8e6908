"""The outcome of a session, for people."""

from __future__ import annotations

from tallystick.ledger.states import SlotState
from tallystick.runner.results import ExitStatus, NextMove, RunOutcome


def test_an_outcome_is_printed_in_one_line() -> None:
    counts = {SlotState.SELECTED: 2, SlotState.UNKNOWN: 1}
    outcome = RunOutcome("01k", "nightly", "finished", counts, NextMove.DECIDE, ExitStatus.DECIDE)
    assert str(outcome) == "run 01k (nightly): finished, 2 of 3 selected, next: decide"
