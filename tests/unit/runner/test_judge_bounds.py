"""A judge that tells what its request can use at most needs no bound in a hard budget, and sets that aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import budgets_of
from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import Dispatching, Outcome, Prepared, Usage
from tests.unit.runner.scripted_judge import PASSED, ScriptedJudge, a_run, judge, judge_always, judge_in_turn

REFUSED = Outcome(DispatchState.REFUSED, "http.status", "429", status=429, bytes_sent=20)


@attrs.define(eq=False)
class Telling(ScriptedJudge):
    """Its requests use ten tokens at most."""

    bounded_units: frozenset[str] = frozenset({"tokens"})

    def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
        return {"tokens": 10}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


def holds(ledger: Ledger) -> list[tuple[int, int, int]]:
    with ledger.reading() as reader:
        return [(one.held, one.settled, one.unknown_uses) for one in budgets_of(reader, 1)]


@pytest.mark.parametrize("limit", [{"limit": 25}, {"limit": 25, "bound_per_dispatch": 20}])
def test_what_a_judge_tells_is_set_aside_before_each_of_its_calls(ledger: Ledger, limit: Any) -> None:
    seen = []

    async def reply(asking: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        seen.append(holds(ledger))
        return attrs.evolve(PASSED, usage=Usage(4, 4))

    asking = Telling(reply)
    judge(ledger, a_run(ledger, cases=3), asking, budgets={"tokens": limit}, concurrency=1)
    assert seen == [[(10, 0, 0)], [(10, 8, 0)]], "a third one would not have fitted"
    assert holds(ledger) == [(0, 16, 0)]


def test_a_call_that_is_dispatched_again_sets_the_same_aside(ledger: Ledger) -> None:
    asking = Telling(judge_in_turn(REFUSED, PASSED))
    judge(ledger, a_run(ledger, cases=1), asking, budgets={"tokens": 10})
    assert len(asking.asked) == 2
    assert holds(ledger) == [(0, 16, 0)]


def test_e08b_a_judge_that_cannot_tell_is_refused_under_a_hard_budget_without_a_bound(ledger: Ledger) -> None:
    found = a_run(ledger, cases=1)
    with pytest.raises(WorkOrderInvalid, match=r"a hard budget of tokens needs .* judge scripted cannot tell it"):
        judge(ledger, found, ScriptedJudge(judge_always(PASSED)), budgets={"tokens": 10})
