"""What is reported as used may be absurd: the answer is kept, the run goes on, and the sums stay sums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState
from tallystick.runner.protocols import USAGE_MAX, Usage
from tests.unit.runner.scripted import ANSWERED, Scripted, always, execute, held_and_settled

TOKENS = {"tokens": {"limit": 2**63 - 1, "bound_per_dispatch": 10}}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


@pytest.mark.parametrize("used", [2**62, 2**63, 10**30, -5, 1.5, True, "12"])
def test_an_absurd_count_is_not_known_and_the_bound_is_charged(ledger: Ledger, used: object) -> None:
    usage = Usage(tokens_in=used, tokens_out=used, cost_nanousd=used)  # type: ignore[arg-type]
    outcome = execute(ledger, Scripted(always(attrs.evolve(ANSWERED, usage=usage))), cases=3, budgets=TOKENS)
    assert outcome.counts[SlotState.SELECTED] == 3
    assert held_and_settled(ledger) == [(0, 30, 3)]


def test_the_largest_counts_that_are_believed_add_up(ledger: Ledger) -> None:
    usage = Usage(tokens_in=USAGE_MAX, tokens_out=USAGE_MAX, cost_nanousd=USAGE_MAX)
    generous = {"tokens": {"limit": 2**63 - 1, "bound_per_dispatch": 2 * USAGE_MAX}}
    outcome = execute(ledger, Scripted(always(attrs.evolve(ANSWERED, usage=usage))), cases=3, budgets=generous)
    assert outcome.counts[SlotState.SELECTED] == 3
    assert held_and_settled(ledger) == [(0, 6 * USAGE_MAX, 0)]
