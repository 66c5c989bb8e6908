"""What judges send is told apart from what targets send, and counts where it gave a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import budgets
from tallystick.ledger.ledger import Ledger
from tallystick.runner.report_models import TotalsPart
from tallystick.runner.reports import status_of
from tests.unit.renderers.made_runs import document
from tests.unit.runner.scripted import UNKNOWN
from tests.unit.runner.scripted_judge import (
    MALFORMED,
    PASSED,
    ScriptedJudge,
    a_run,
    judge,
    judge_always,
    judge_in_turn,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


def newest_event(ledger: Ledger) -> int:
    with ledger.reading() as reader:
        return int(reader.row("SELECT max(event_no) FROM events")[0])


def figures(found: TotalsPart | None) -> tuple[Any, ...] | None:
    if found is None:
        return None
    return (
        found.attempts, found.calls, found.dispatches, found.wasted_dispatches, found.tokens_in, found.cost_usd,
        found.unpriced_dispatches,
    )  # fmt: skip


def both(ledger: Ledger, run: str, **options: Any) -> tuple[Any, Any]:
    """``totals`` and ``judge_totals`` of the report; those of the status are the same."""
    report = document(ledger, run, **options)
    told = [None if report[key] is None else TotalsPart(**report[key]) for key in ("totals", "judge_totals")]
    if not options:
        status = status_of(ledger, run)
        assert [status.totals, status.judge_totals] == told
    return figures(told[0]), figures(told[1])


def spent(ledger: Ledger, run: str, **options: Any) -> tuple[Any, ...]:
    line = document(ledger, run, **options)["budgets"][-1]
    return (line["settled"], line["counted"], line["wasted"], line["held"])


def test_calls_of_judges_are_no_targets_calls_and_count_where_they_gave_a_verdict(ledger: Ledger) -> None:
    run = a_run(ledger, cases=3)
    before, event = both(ledger, run), newest_event(ledger)
    assert before[1] is None
    asking = ScriptedJudge(judge_in_turn(PASSED, MALFORMED, PASSED))
    judge(ledger, run, asking, budgets={"dispatches": 9}, concurrency=1)
    assert both(ledger, run) == (before[0], (0, 3, 3, 1, 22, None, 3))
    assert spent(ledger, run) == (3, 2, 1, 0)
    assert both(ledger, run, at=event) == before, "nothing of it had been sent then"
    assert document(ledger, run, at=event)["budgets"] == []
    with ledger.reading() as reader:
        ends = reader.rows("SELECT event_no FROM events WHERE kind = 'observation.judged' ORDER BY event_no")
    told = [(spent(ledger, run, at=end), both(ledger, run, at=end)[1][1:5]) for (end,) in ends]
    assert told == [((1, 1, 0, 0), (1, 1, 0, 11)), ((2, 1, 1, 0), (2, 2, 1, 11)), ((3, 2, 1, 0), (3, 3, 1, 22))]


def test_a_judges_call_with_an_unknown_outcome_is_neither_useful_nor_wasted(ledger: Ledger) -> None:
    run = a_run(ledger, cases=1)
    judge(ledger, run, ScriptedJudge(judge_in_turn(UNKNOWN, PASSED)), budgets={"dispatches": 9})
    assert both(ledger, run)[1] == (0, 2, 2, 0, 11, None, 2)
    assert spent(ledger, run) == (1, 1, 0, 1)


def test_a_verdict_that_is_used_again_has_cost_once(ledger: Ledger) -> None:
    run = a_run(ledger, cases=2)
    for name in ("first", "second"):
        judge(ledger, run, ScriptedJudge(judge_always(PASSED)), name=name, new=name == "second")
    assert both(ledger, run)[1] == (0, 2, 2, 0, 22, None, 2)


def test_the_report_names_money_as_next_where_there_was_no_room_as_the_status_does(ledger: Ledger) -> None:
    limit = [{"unit": "dispatches", "limit": 1, "role": "judge"}]
    run = a_run(ledger, cases=2, judges=[ScriptedJudge(judge_always(PASSED))], budgets=limit)
    assert (status_of(ledger, run).next, document(ledger, run)["next"]) == ("fund", "fund")
    event = newest_event(ledger)
    ledger.write(lambda tx: budgets.amend(tx, 1, 1, limit=3, reason="r", made_by="me"))
    assert (status_of(ledger, run).next, document(ledger, run)["next"]) == ("resume", "resume")
    assert document(ledger, run, at=event)["next"] == "fund"
