"""The run's own evaluation: at once where that costs nothing, at the end of a session where it is a call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import tallystick as ts
from tallystick._wiring import ADAPTERS
from tallystick.adapters.rule_judges import contains
from tallystick.ledger import budgets
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Dispatching, Outcome
from tallystick.runner.results import NextMove, RunOutcome
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tallystick.runner.tally import Tally
from tallystick.runner.work_order import WorkOrder
from tests.unit.runner.scripted import ANSWERED, FAILED, Scripted, always, order_of
from tests.unit.runner.scripted_judge import (
    PASSED,
    ScriptedJudge,
    judge,
    judge_always,
    judge_dispatches,
    judgment_rows,
)
from tests.unit.runner.test_evaluations import Function


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


def run(
    ledger: Ledger, *judges: Any, stop: StopSwitch | None = None, tallies: list[Tally] | None = None, **options: Any
) -> RunOutcome:
    """Execute the same work order, as often as this is called."""
    order = order_of(Scripted(always(ANSWERED)), judges=list(judges), **{"cases": 3, **options})
    session = find_or_create(ledger, describe(order, ADAPTERS))
    kept = [] if tallies is None else tallies
    return asyncio.run(run_session(ledger, session, stop=stop, on_start=lambda _, tally: kept.append(tally)))


def test_why_a_judge_of_a_run_gives_no_verdict_is_there_for_its_display(ledger: Ledger) -> None:
    tallies: list[Tally] = []
    run(ledger, ScriptedJudge(judge_always(FAILED)), tallies=tallies)
    assert tallies[0].judging.trouble == f"{FAILED.reason}: {FAILED.message}"
    assert tallies[0].judging.trouble_since_us is not None
    assert tallies[0].trouble_since_us is None, "every send to the target was answered"


def test_a_judge_that_calls_judges_what_the_run_observes_within_its_budgets(ledger: Ledger) -> None:
    budgets = [{"unit": "dispatches", "limit": 6}, {"unit": "dispatches", "limit": 3, "role": "judge"}]
    outcome = run(ledger, ScriptedJudge(judge_always(PASSED)), contains("x"), budgets=budgets)
    assert outcome.next is NextMove.NOTHING
    assert [row[1:3] for row in judgment_rows(ledger, evaluation=1)] == [("judged", 1)] * 6
    assert judge_dispatches(ledger) == [("answered", "")] * 3
    with ledger.reading() as reader:
        assert reader.rows("SELECT held, settled FROM budgets ORDER BY budget_no") == [(0, 6), (0, 3)]
    assert check_ledger(ledger) == []


def test_what_a_judge_changes_in_what_it_was_given_is_seen_by_no_other(ledger: Ledger) -> None:
    @ts.judge
    def changing(answer: dict[str, Any], metadata: dict[str, Any], evidence: dict[str, Any]) -> bool:
        for given in (answer, answer["list"], metadata, evidence):
            given.clear()
        return True

    @ts.judge
    def looking(answer: dict[str, Any], metadata: dict[str, Any], evidence: dict[str, Any]) -> bool:
        return bool(answer == {"list": [1]} and metadata and evidence)

    given = attrs.evolve(ANSWERED, answer={"list": [1]}, evidence={"context": ["c"]})
    order = WorkOrder(
        "m", cases=[{"id": "a", "input": 1, "metadata": {"k": 1}}], variants={"default": Scripted(always(given))},
        judges=[changing, looking],
    )  # fmt: skip
    asyncio.run(run_session(ledger, find_or_create(ledger, describe(order, ADAPTERS))))
    assert [row[1:3] for row in judgment_rows(ledger, evaluation=1)] == [("judged", 1)] * 2


def test_repeats_of_a_function_are_all_asked(ledger: Ledger) -> None:
    function = Function(samples=3)
    assert run(ledger, function).next is NextMove.NOTHING
    assert function.asked == 9
    assert len(judgment_rows(ledger, evaluation=1)) == 9


def test_what_a_full_budget_kept_from_being_judged_waits_again_once_it_is_raised(ledger: Ledger) -> None:
    asking, limit = ScriptedJudge(judge_always(PASSED)), [{"unit": "dispatches", "limit": 1, "role": "judge"}]
    outcome = run(ledger, asking, budgets=limit)
    assert (outcome.next, outcome.exit_status, outcome.state) == (NextMove.FUND, 6, "finished")
    assert run(ledger, asking, budgets=limit).next is NextMove.FUND
    assert len(asking.asked) == 1

    ledger.write(lambda tx: budgets.amend(tx, 1, 1, limit=3, reason="r", made_by="me"))
    assert check_ledger(ledger) == []
    with ts.open(ledger.path) as opened:
        assert opened.outcome(outcome.run_id).state == "open"
    again = run(ledger, asking, budgets=[{"unit": "dispatches", "limit": 1, "role": "judge"}])
    assert (again.next, len(asking.asked)) == (NextMove.NOTHING, 3)
    assert check_ledger(ledger) == []


def test_a_stop_leaves_the_rest_to_the_next_session(ledger: Ledger) -> None:
    stop = StopSwitch()

    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        stop.ask("SIGINT")
        return PASSED

    outcome = run(ledger, ScriptedJudge(reply), stop=stop, concurrency=1)
    assert (outcome.state, outcome.exit_status) == ("open", 130)
    assert [row[1] for row in judgment_rows(ledger, evaluation=1)] == ["judged", "pending", "pending"]
    assert run(ledger, ScriptedJudge(judge_always(PASSED)), concurrency=1).next is NextMove.NOTHING
    assert len(judge_dispatches(ledger)) == 3


def test_what_a_stop_left_unjudged_is_judged_by_the_next_session(ledger: Ledger) -> None:
    stop, function = StopSwitch(), Function()
    stop.ask("SIGINT")
    assert run(ledger, function, stop=stop).state == "open"
    assert run(ledger, function).next is NextMove.NOTHING
    assert function.asked == 3


def test_a_later_evaluation_leaves_the_runs_own_alone(ledger: Ledger) -> None:
    outcome = run(ledger, contains("x"))
    end = judge(ledger, outcome.run_id, contains("x"))
    assert end.evaluation == 2
    assert len(judgment_rows(ledger, evaluation=1)) == len(judgment_rows(ledger, evaluation=2)) == 3
    with ts.open(ledger.path) as opened:
        assert [score.judged for score in opened.scores(outcome.run_id)] == [3]
    assert run(ledger, contains("x")).next is NextMove.NOTHING


def test_a_run_without_judges_of_its_own_can_be_judged_and_gone_on_with(ledger: Ledger) -> None:
    outcome = run(ledger)
    assert judge(ledger, outcome.run_id, contains("x")).evaluation == 2
    assert run(ledger).next is NextMove.NOTHING
