"""What the executor does when a budget is full, dear or raised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio.lowlevel
import pytest

from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, SlotState
from tallystick.runner.protocols import (
    Dispatching,
    Outcome,
    Usage,
)
from tallystick.runner.results import NextMove
from tests.unit.runner.scripted import (
    ANSWERED,
    Scripted,
    always,
    execute,
    held_and_settled,
    in_turn,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


def test_a_refusal_that_reached_the_target_costs_its_dispatch(ledger: Ledger) -> None:
    busy = Outcome(DispatchState.REFUSED, "http.status", "429", status=429, bytes_sent=50)
    execute(ledger, Scripted(in_turn(busy, ANSWERED)), budgets={"dispatches": 10})
    assert held_and_settled(ledger) == [(0, 2, 0)]


def test_a_full_budget_waits_for_what_is_in_flight_before_it_is_called_used_up(ledger: Ledger) -> None:
    cheap = Outcome(DispatchState.ANSWERED, answer=1, bytes_sent=1, usage=Usage(cost_nanousd=1_000_000))

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        await anyio.lowlevel.checkpoint()
        return cheap

    budget = {"usd": {"limit": "0.02", "bound_per_dispatch": "0.01"}}
    outcome = execute(ledger, Scripted(reply), cases=10, budgets=budget, concurrency=4)
    assert outcome.counts[SlotState.SELECTED] == 10
    assert held_and_settled(ledger) == [(0, 10_000_000, 0)]


def test_a_budget_that_is_used_up_leaves_the_rest_unavailable_and_asks_for_funds(ledger: Ledger) -> None:
    target = Scripted(always(ANSWERED))
    outcome = execute(ledger, target, cases=10, budgets={"dispatches": 4}, concurrency=4)
    assert len(target.asked) == 4
    assert outcome.counts[SlotState.UNAVAILABLE] == 6
    assert outcome.next is NextMove.FUND
    assert int(outcome.exit_status) == 6


def test_a_raised_limit_in_the_work_order_is_an_amendment_and_the_rest_goes_on(ledger: Ledger) -> None:
    target = Scripted(always(ANSWERED))
    execute(ledger, target, cases=10, budgets={"dispatches": 4})
    outcome = execute(ledger, target, cases=10, budgets={"dispatches": 10})
    assert outcome.counts[SlotState.SELECTED] == 10
    assert len(target.asked) == 10
    with ledger.reading() as reader:
        assert reader.rows("SELECT old_limit, new_limit FROM budget_amendments") == [(4, 10)]


def test_one_variant_out_of_budget_does_not_stop_the_other(ledger: Ledger) -> None:
    sides = {"old": Scripted(always(ANSWERED)), "new": Scripted(always(ANSWERED))}
    budgets = [{"unit": "dispatches", "limit": 2, "variant": "old"}]
    outcome = execute(ledger, sides, cases=5, budgets=budgets)
    assert len(sides["old"].asked) == 2
    assert len(sides["new"].asked) == 5
    assert outcome.next is NextMove.FUND


def test_an_answer_dearer_than_its_bound_is_kept_and_nothing_more_is_dispatched(ledger: Ledger) -> None:
    dear = Outcome(DispatchState.ANSWERED, answer=1, bytes_sent=1, usage=Usage(cost_nanousd=5_000_000_000))
    target = Scripted(always(dear))
    budget = {"usd": {"limit": "1", "bound_per_dispatch": "0.10"}}
    outcome = execute(ledger, target, cases=5, budgets=budget, concurrency=1)
    assert len(target.asked) == 1
    assert outcome.counts[SlotState.SELECTED] == 1
    assert outcome.next is NextMove.FUND
    with ledger.reading() as reader:
        assert reader.row("SELECT settled, overrun FROM budgets") == (5_000_000_000, 4_000_000_000)
