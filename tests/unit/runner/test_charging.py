"""What a dispatch is charged when it was several requests, or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.runner.protocols import Outcome, QueryAnswer, QueryState
from tests.unit.runner.scripted import UNKNOWN, Scripted, always, execute, held_and_settled, in_turn

REDIRECTED = Outcome(DispatchState.ANSWERED, answer="x", bytes_sent=30, wire_sends=3)
LANDED = QueryAnswer(QueryState.LANDED, Outcome(DispatchState.ANSWERED, answer=1))
TURNED_AWAY = Outcome(DispatchState.REFUSED, "http.status", "429", status=429, bytes_sent=20, wire_sends=2)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


def test_a_dispatch_sets_aside_every_request_that_it_may_be_and_is_charged_those_that_it_was(ledger: Ledger) -> None:
    target = Scripted(always(REDIRECTED), wire_sends_max=6)
    outcome = execute(ledger, target, cases=3, concurrency=1, budgets={"dispatches": 11})
    assert held_and_settled(ledger) == [(0, 6, 0)]
    assert len(target.asked) == 2  # a third might have been 6 requests more
    assert int(outcome.exit_status) == 6


def test_a_refusal_after_a_redirect_is_charged_both_requests(ledger: Ledger) -> None:
    execute(ledger, Scripted(in_turn(TURNED_AWAY, REDIRECTED), wire_sends_max=6), budgets={"dispatches": 20})
    assert held_and_settled(ledger) == [(0, 5, 0)]


def test_an_answer_that_was_fetched_took_an_unknown_time_and_is_charged_the_bound(ledger: Ledger) -> None:
    target = Scripted(always(UNKNOWN), IfUnknown.QUERY, query_answer=LANDED)
    execute(ledger, target, budgets={"seconds": {"limit": 60, "bound_per_dispatch": 10}})
    assert held_and_settled(ledger) == [(0, 10_000, 1)]
