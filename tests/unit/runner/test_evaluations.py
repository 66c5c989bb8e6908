"""Evaluations after the run: a set that is fixed, verdicts that are used again, and deaths that are made up for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import tallystick as ts
from tallystick._wiring import ADAPTERS
from tallystick.adapters.rule_judges import contains, exact
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import EvaluationBusy, IdentityChanged, UsageError
from tallystick.ledger.evaluation_holds import open_evaluation
from tallystick.ledger.evaluations import create_evaluation, find_evaluation, write_set
from tallystick.ledger.judgments import mark_judging
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import JudgmentKey
from tallystick.ledger.run_reads import find_run
from tallystick.runner.evaluations import _plan, describe_judge_order
from tallystick.runner.judge_orders import JudgeOrder
from tallystick.runner.protocols import NoVerdict, Observed, Verdict
from tallystick.runner.qualification import unmet
from tallystick.runner.stopping import StopSwitch
from tests.unit.runner.scripted import ANSWERED, FAILED, Scripted, always, execute, in_turn
from tests.unit.runner.scripted_judge import (
    MALFORMED,
    PASSED,
    ScriptedJudge,
    a_run,
    judge,
    judge_always,
    judge_dispatches,
    judge_in_turn,
    judgment_rows,
    said,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


@attrs.define(eq=False)
class Function:
    """A judge that is code of a user."""

    said: Any = attrs.field(factory=lambda: Verdict(passed=True))
    name: str = "function"
    kind: str = "python"
    scale: tuple[float, float] | None = None
    samples: int = 1
    asked: int = 0

    def identity(self) -> dict[str, Any]:
        return {"code": "1"}

    def judge(self, observed: Observed) -> Any:
        self.asked += 1
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said


def changes(ledger: Ledger) -> tuple[int, int]:
    with ledger.reading() as reader:
        events: int = reader.row("SELECT count(*) FROM events")[0]
        judgments: int = reader.row("SELECT count(*) FROM judgments WHERE state = 'judged'")[0]
    return events, judgments


# The set.


def test_rules_judge_everything_that_was_observed_and_call_nothing(ledger: Ledger) -> None:
    run = a_run(ledger, cases=5)
    end = judge(ledger, run, contains("x"), contains("y", name="other"))
    assert (end.next, end.exit_status, end.calls, end.ended) == ("nothing", 0, 0, True)
    assert [(line.judge, line.passed, line.judged, line.planned) for line in end.judges] == [
        ("contains", 5, 5, 5), ("other", 0, 5, 5),
    ]  # fmt: skip
    assert check_ledger(ledger) == []


def test_a_finished_evaluation_is_told_again_and_changes_nothing(ledger: Ledger) -> None:
    run = a_run(ledger)
    first = judge(ledger, run, contains("x"))
    before = changes(ledger)
    again = judge(ledger, run, contains("x"))
    assert again == first
    assert changes(ledger) == before
    assert judge(ledger, run, contains("x"), new=True).evaluation == 3


def test_the_set_is_what_was_observed_when_the_evaluation_was_created(ledger: Ledger) -> None:
    target = Scripted(in_turn(ANSWERED, FAILED, ANSWERED))
    run = execute(ledger, target, cases=3, concurrency=1).run_id
    first = judge(ledger, run, contains("x"))
    assert [row[0] for row in judgment_rows(ledger)] == [1, 3]

    with ts.open(ledger.path) as opened:
        opened.retry(run, "failed")
    execute(ledger, Scripted(always(ANSWERED)), cases=3, concurrency=1)
    second = judge(ledger, run, contains("x"))
    assert [row[0] for row in judgment_rows(ledger)] == [1, 3], "the first one stays as it was"
    assert second.evaluation == first.evaluation + 1
    assert [row[0] for row in judgment_rows(ledger, evaluation=3)] == [1, 2, 3]
    third = judge(ledger, run, contains("x"), at_event=first.set_at_event)
    assert third == first, "the same judges and the same set are the same evaluation"


def test_what_is_observed_between_the_creation_and_a_set_that_is_written_later_is_not_in_it(ledger: Ledger) -> None:
    run = execute(ledger, Scripted(in_turn(ANSWERED, FAILED, ANSWERED)), cases=3, concurrency=1).run_id
    description = describe_judge_order(JudgeOrder("strict", judges=[contains("x")]), ADAPTERS)
    ledger.write(lambda tx: create_evaluation(tx, run, _plan(description, None)))
    with ts.open(ledger.path) as opened:
        opened.retry(run, "failed")
    execute(ledger, Scripted(always(ANSWERED)), cases=3, concurrency=1)
    with ledger.reading() as reader:
        row = find_evaluation(reader, find_run(reader, run).run_key, "2")
    while not ledger.write(lambda tx: write_set(tx, row)):
        pass
    assert [found[:2] for found in judgment_rows(ledger)] == [(1, "pending"), (3, "pending")]


def test_what_has_no_observation_is_in_no_set(ledger: Ledger) -> None:
    run = execute(ledger, Scripted(always(FAILED)), cases=2).run_id
    end = judge(ledger, run, contains("x"))
    assert [(line.planned, line.judged) for line in end.judges] == [(0, 0)]
    assert end.ended


@pytest.mark.parametrize("event", [0, 10_000])
def test_an_event_that_the_run_does_not_have_is_refused(ledger: Ledger, event: int) -> None:
    with pytest.raises(UsageError, match="has no event"):
        judge(ledger, a_run(ledger), contains("x"), at_event=event)


def test_other_judges_are_another_evaluation_and_other_limits_are_not(ledger: Ledger) -> None:
    run = a_run(ledger)
    assert judge(ledger, run, ScriptedJudge(judge_always(PASSED))).evaluation == 2
    assert judge(ledger, run, ScriptedJudge(judge_always(PASSED)), deadline_seconds=7).evaluation == 2
    assert judge(ledger, run, ScriptedJudge(judge_always(PASSED), rubric="be mild")).evaluation == 3
    with ledger.reading() as reader:
        assert '"deadline_seconds":7' in find_evaluation(reader, 1, "2").settings


def test_other_budgets_are_refused(ledger: Ledger) -> None:
    run, asking = a_run(ledger), ScriptedJudge(judge_always(PASSED))
    judge(ledger, run, asking, budgets={"dispatches": 9})
    with pytest.raises(UsageError, match="has other budgets"):
        judge(ledger, run, asking, budgets={"usd": {"limit": "1", "kind": "soft"}})


def test_a_budget_of_an_evaluation_does_not_let_the_run_go_on(ledger: Ledger) -> None:
    """Its unavailable slots were kept from a budget of the run's own."""
    run = a_run(ledger, cases=3, budgets={"dispatches": 2})
    asking = ScriptedJudge(judge_always(PASSED))
    judge(ledger, run, asking, budgets={"tokens_in": {"limit": 11, "bound_per_dispatch": 11}})
    judge(ledger, run, asking, budgets={"tokens_in": {"limit": 99, "bound_per_dispatch": 11}})
    with ts.open(ledger.path) as opened:
        assert opened.outcome(run).state == "finished"
        assert opened.outcome(run).next == "fund"


# The cache.


def test_e09_a_verdict_on_the_very_same_is_used_again_without_a_call_and_marked(ledger: Ledger) -> None:
    run = a_run(ledger)
    first = judge(ledger, run, ScriptedJudge(judge_always(said(passed=True, explanation="so"))))
    assert first.judges[0].reused == 0
    again = ScriptedJudge(judge_always(PASSED))
    second = judge(ledger, run, again, new=True, budgets={"dispatches": 0})
    assert (second.next, again.asked, second.judges[0].reused) == ("nothing", [], 3)
    columns = "slot_no, reused_from, call_id, passed, explanation, raw, parser"
    rows = judgment_rows(ledger, columns, evaluation=3)
    with ledger.reading() as reader:
        source = find_evaluation(reader, 1, "2").evaluation_id
    raw = '{"passed": true, "explanation": "so"}'
    assert rows == [(slot, f"{source}/1/{slot}/1/1", None, 1, "so", raw, "json_verdict/1") for slot in (1, 2, 3)]


def test_c45_repetitions_with_the_same_text_keep_rows_of_their_own_and_say_whose_verdict_it_is(ledger: Ledger) -> None:
    target = Scripted(in_turn(*[attrs.evolve(ANSWERED, answer=text) for text in "XXY"]))
    run = execute(ledger, target, cases=1, repetitions=3, concurrency=1).run_id
    asking = ScriptedJudge(judge_always(PASSED))
    judge(ledger, run, asking, concurrency=3)
    assert len(asking.asked) == 2, "X once, Y once"
    rows = judgment_rows(ledger, "slot_no, state, passed, reused_from IS NOT NULL")
    assert [row[:3] for row in rows] == [(1, "judged", 1), (2, "judged", 1), (3, "judged", 1)]
    assert sorted(row[3] for row in rows) == [0, 0, 1]


def test_e09_each_deliberate_repeat_is_its_own_sampled_call(ledger: Ledger) -> None:
    run = a_run(ledger, cases=1)
    replies = [said(passed=True), said(passed=False), said(passed=True)]
    asking = ScriptedJudge(judge_in_turn(*replies), samples=3)
    end = judge(ledger, run, asking, concurrency=1)
    assert len(asking.asked) == len({one.request_id for one in asking.asked}) == 3
    assert judgment_rows(ledger, "sample_no, passed, reused_from") == [(1, 1, None), (2, 0, None), (3, 1, None)]
    assert (end.judges[0].planned, end.judges[0].judged, end.judges[0].passed) == (3, 3, 2)
    more = ScriptedJudge(judge_always(PASSED), samples=4)
    assert judge(ledger, run, more).calls == 1, "three samples are there already"


@pytest.mark.parametrize(
    "change",
    [{"rubric": "be mild"}, {"parser": "json_verdict/2"}, {"scale": (0.0, 1.0)}],
    ids=lambda change: next(iter(change)),
)
def test_c44_another_rubric_parser_or_scale_is_a_miss(ledger: Ledger, change: dict[str, Any]) -> None:
    run = a_run(ledger, cases=1)
    judge(ledger, run, ScriptedJudge(judge_always(PASSED)))
    other = ScriptedJudge(judge_always(said(passed=True, score=1.0) if "scale" in change else PASSED), **change)
    assert judge(ledger, run, other).calls == 1


@pytest.mark.parametrize(
    "options",
    [{"answer": "y"}, {"cases": 2}],
    ids=["another answer", "another input"],
)
def test_c44_another_answer_or_input_is_a_miss(ledger: Ledger, options: dict[str, Any]) -> None:
    asking = ScriptedJudge(judge_always(PASSED))
    judge(ledger, a_run(ledger, cases=1), asking)
    end = judge(ledger, a_run(ledger, **{"cases": 1, **options}, repetitions=1, attempts_max=2), asking)
    assert end.judges[0].judged - end.judges[0].reused == 1


def test_c44_other_evidence_is_a_miss(ledger: Ledger) -> None:
    asking = ScriptedJudge(judge_always(PASSED))
    for context in ("one", "two", "two"):
        outcome = attrs.evolve(ANSWERED, evidence={"context": context})
        run = execute(ledger, Scripted(always(outcome)), cases=1, repetitions=1 + (context == "two")).run_id
        judge(ledger, run, asking, new=True)
    assert len(asking.asked) == 2


def test_c25_what_gave_no_verdict_is_never_used_again(ledger: Ledger) -> None:
    run = a_run(ledger, cases=1)
    for reply in (MALFORMED, FAILED, MALFORMED):
        asking = ScriptedJudge(judge_always(reply))
        judge(ledger, run, asking, new=True)
        assert len(asking.asked) == 1


def test_a_judge_that_sees_whose_answer_it_is_has_keys_of_its_own(ledger: Ledger) -> None:
    run = execute(ledger, Scripted(always(ANSWERED)), cases=1, repetitions=3).run_id
    seeing = ScriptedJudge(judge_always(PASSED), is_blind=False)
    judge(ledger, run, seeing)
    assert len(seeing.asked) == 3


def test_without_a_cache_everything_is_asked_anew(ledger: Ledger) -> None:
    run = a_run(ledger)
    judge(ledger, run, ScriptedJudge(judge_always(PASSED)))
    assert judge(ledger, run, ScriptedJudge(judge_always(PASSED)), new=True, cache=False).calls == 3


def test_verdicts_of_an_imported_run_feed_no_cache(ledger: Ledger) -> None:
    run = a_run(ledger, cases=1)
    judge(ledger, run, ScriptedJudge(judge_always(PASSED)))
    ledger.write(
        lambda tx: tx.execute(
            "INSERT INTO imports (import_id, state, snapshot_digest, run_key, began_us)"
            " VALUES ('i', 'complete', 'd', 1, 1)"
        )
    )
    assert judge(ledger, run, ScriptedJudge(judge_always(PASSED)), new=True).calls == 1


# Reading again.


def test_c41_replies_that_were_kept_are_read_again_without_a_call(ledger: Ledger) -> None:
    run = a_run(ledger)
    replies = judge_in_turn(said(score=0.2), said(score=0.8), MALFORMED)
    first = judge(ledger, run, ScriptedJudge(replies, scale=(0.0, 1.0)), concurrency=1)
    assert first.judges[0].judged == 2
    before = judge_dispatches(ledger)

    silent = ScriptedJudge(judge_always(PASSED), scale=(0.0, 1.0), parser="json_verdict/2")
    end = judge(ledger, run, silent, reparse="2")
    assert (end.evaluation, end.set_at_event, end.calls, silent.asked) == (3, first.set_at_event, 0, [])
    assert judge_dispatches(ledger) == before
    rows = judgment_rows(ledger, "state, score, reason, raw, parser, reused_from IS NOT NULL, call_id", evaluation=3)
    assert rows == [
        ("judged", "0.2", None, '{"score": 0.2}', "json_verdict/2", 1, None),
        ("judged", "0.8", None, '{"score": 0.8}', "json_verdict/2", 1, None),
        ("no_verdict", None, "malformed_verdict", "well, it is fine", "json_verdict/2", 1, None),
    ]
    assert judge(ledger, run, silent, reparse="2").evaluation == 3, "the same is the same evaluation"
    assert check_ledger(ledger) == []


def test_judges_that_are_asked_nothing_have_no_replies_to_be_read_again(ledger: Ledger) -> None:
    run = a_run(ledger, cases=1)
    judge(ledger, run, ScriptedJudge(judge_always(PASSED)))
    with pytest.raises(UsageError, match="none of the judges of strict has replies that could be read again"):
        judge(ledger, run, Function(), reparse="2")


def test_the_command_that_goes_on_with_a_reading_asks_nobody(ledger: Ledger) -> None:
    run = a_run(ledger, cases=2)
    first = judge(ledger, run, ScriptedJudge(judge_in_turn(MALFORMED, PASSED)), concurrency=1)
    assert first.command == f"tallystick judge {run} ORDER --retry malformed_verdict"
    stop = StopSwitch()
    stop.ask("SIGINT")
    stopped = judge(ledger, run, ScriptedJudge(judge_always(PASSED)), reparse="2", stop=stop)
    assert (stopped.next, stopped.command) == ("resume", f"tallystick judge {run} ORDER --reparse {first.id}")
    read = judge(ledger, run, ScriptedJudge(judge_always(PASSED)), reparse="2")
    assert (read.next, read.command) == ("decide", "")


def test_what_left_no_reply_has_none_to_be_read_again(ledger: Ledger) -> None:
    run = a_run(ledger, cases=2)
    judge(ledger, run, ScriptedJudge(judge_in_turn(FAILED, PASSED)), concurrency=1)
    judge(ledger, run, ScriptedJudge(judge_always(PASSED)), reparse="2")
    assert judgment_rows(ledger, evaluation=3) == [(1, "no_verdict", None, "judge_error"), (2, "judged", 1, None)]


@pytest.mark.parametrize("change", [{"rubric": "be mild"}, {"name": "another"}])
def test_replies_are_not_read_for_a_judge_that_was_asked_something_else(ledger: Ledger, change: dict[str, Any]) -> None:
    run = a_run(ledger)
    judge(ledger, run, ScriptedJudge(judge_always(PASSED)))
    with pytest.raises(IdentityChanged, match="asked its judges something else"):
        judge(ledger, run, ScriptedJudge(judge_always(PASSED), **change), reparse="2")


# Code of users, and deaths.


def test_functions_are_asked_side_by_side_and_whatever_they_do_is_a_reason(ledger: Ledger) -> None:
    run = a_run(ledger, cases=2)
    judge(ledger, run, Function(SystemExit(3)))
    assert judgment_rows(ledger) == [(1, "no_verdict", None, "judge_error"), (2, "no_verdict", None, "judge_error")]
    judge(ledger, run, Function(NoVerdict("out_of_budget", "mine")), new=True)
    rows = judgment_rows(ledger, "reason, explanation", evaluation=3)
    assert rows == [("abstained", "out_of_budget: mine")] * 2, "only the runner knows of budgets"


@pytest.mark.parametrize("problem", [SystemExit(0), asyncio.CancelledError(), GeneratorExit(), ValueError("no")])
def test_an_async_judge_that_leaves_ends_neither_the_process_nor_the_evaluation(
    ledger: Ledger, problem: BaseException
) -> None:
    @ts.judge
    async def leaving(answer: str) -> bool:
        raise problem

    end = judge(ledger, a_run(ledger, cases=2), leaving)
    assert (end.ended, end.stopped) == (True, None)
    assert judgment_rows(ledger) == [(1, "no_verdict", None, "judge_error"), (2, "no_verdict", None, "judge_error")]


def test_samples_of_a_function_are_asked_as_often(ledger: Ledger) -> None:
    function = Function(samples=4)
    judge(ledger, a_run(ledger, cases=2), function)
    assert function.asked == 8


def test_code_of_a_user_is_known_to_be_at_an_observation_before_it_is(ledger: Ledger) -> None:
    seen = []

    class Looking(Function):
        def judge(self, observed: Observed) -> Any:
            with ledger.reading() as reader:
                seen.append(reader.rows("SELECT slot_no FROM judgments WHERE state = 'judging'"))
            return True

    judge(ledger, a_run(ledger, cases=2), Looking(), concurrency=1)
    assert seen == [[(1,)], [(2,)]]


def died_at(ledger: Ledger, run: str, function: Function, *, at: list[int], solitary: bool = False) -> None:
    """As a process leaves it that died while it was at these."""
    with ledger.reading() as reader:
        row = find_evaluation(reader, find_run(reader, run).run_key, "2")
    keys = [JudgmentKey(row.run_key, 2, 1, slot, 1) for slot in at]
    ledger.write(lambda tx: mark_judging(tx, keys, solitary=solitary))


def prepared(ledger: Ledger, run: str, function: Function) -> None:
    """An evaluation that nobody has gone on with yet."""
    description = describe_judge_order(JudgeOrder("strict", judges=[function]), ADAPTERS)
    row = ledger.write(lambda tx: create_evaluation(tx, run, _plan(description, None)))
    assert ledger.write(lambda tx: write_set(tx, row))


def test_what_was_under_way_at_a_death_is_tried_again_alone_and_blamed_only_then(ledger: Ledger) -> None:
    run, function = a_run(ledger), Function()
    prepared(ledger, run, function)
    died_at(ledger, run, function, at=[1, 2])
    end = judge(ledger, run, function)
    assert (end.next, end.evaluation, end.recovery.again, end.recovery.parked) == ("nothing", 2, 2, 0)
    assert judgment_rows(ledger, "solitary_deaths") == [(0,)] * 3


def test_a_judgment_that_kills_its_process_when_it_is_alone_is_given_up_and_the_others_go_on(ledger: Ledger) -> None:
    run, function = a_run(ledger), Function()
    prepared(ledger, run, function)
    with ledger.reading() as reader:
        row = find_evaluation(reader, 1, "2")
    parked = 0
    for _ in range(3):
        died_at(ledger, run, function, at=[2], solitary=True)
        hold = open_evaluation(ledger, row)
        parked += hold.recovered.parked
        lease = hold.lease_id
        ledger.write(lambda tx, lease=lease: tx.change(  # type: ignore[misc]
            "UPDATE leases SET state = 'released' WHERE lease_id = ?", (lease,)
        ))  # fmt: skip
    assert parked == 1
    end = judge(ledger, run, function)
    assert [state for _, state, *_ in judgment_rows(ledger)] == ["judged", "no_verdict", "judged"]
    ((reason, explanation),) = judgment_rows(ledger, "reason, explanation")[1:2]
    assert reason == "judge_error"
    assert explanation == "the process died 3 times while this was the only judgment under way"
    assert end.exit_status == 3
    assert judge(ledger, run, function, new=False).judges[0].no_verdict == {"judge_error": 1}


def test_one_process_has_an_evaluation_at_a_time(ledger: Ledger) -> None:
    run, function = a_run(ledger), Function()
    prepared(ledger, run, function)
    with ledger.reading() as reader:
        row = find_evaluation(reader, 1, "2")
    open_evaluation(ledger, row)
    with pytest.raises(EvaluationBusy, match="is being made by process"):
        judge(ledger, run, function)


def test_a_reason_can_be_tried_again(ledger: Ledger) -> None:
    from tallystick.ledger.evaluations import let_retried_wait

    run = a_run(ledger, cases=2)
    judge(ledger, run, ScriptedJudge(judge_in_turn(MALFORMED, PASSED)), concurrency=1)
    with ledger.reading() as reader:
        row = find_evaluation(reader, 1, "2")
    assert ledger.write(lambda tx: let_retried_wait(tx, row, reason="timeout")) == 0
    assert ledger.write(lambda tx: let_retried_wait(tx, row, reason="malformed_verdict")) == 1
    end = judge(ledger, run, ScriptedJudge(judge_always(PASSED)))
    assert (end.evaluation, end.next, end.calls) == (2, "nothing", 1)
    assert len(judge_dispatches(ledger)) == 3
    assert check_ledger(ledger) == []


# Qualification.


@pytest.mark.parametrize(
    ("require", "measured", "lacking"),
    [
        ({"accuracy": 0.9}, None, ["it has no qualification"]),
        ({"accuracy": 0.9}, {"accuracy": 0.9}, []),
        ({"accuracy": 0.9}, {"accuracy": 0.89}, ["accuracy is 0.89, 0.9 is required"]),
        ({"kappa": 0.6}, {"kappa": None}, ["kappa could not be measured, 0.6 is required"]),
        ({"labels": 50}, {"labels": 49}, ["the number of labelled observations is 49, 50 is required"]),
    ],
)
def test_what_is_required_is_held_against_what_was_measured(
    require: dict[str, float], measured: dict[str, Any] | None, lacking: list[str]
) -> None:
    assert unmet(require, measured) == lacking


def test_an_unqualified_judge_is_said_to_be_so(ledger: Ledger) -> None:
    run = a_run(ledger)
    asking = ScriptedJudge(judge_always(PASSED), require={"accuracy": 0.9})
    end = judge(ledger, run, asking)
    assert end.judges[0].qualified is not None
    assert (end.judges[0].qualified.met, end.judges[0].qualified.lacking) == (False, ["it has no qualification"])
    assert (end.next, end.exit_status) == ("decide", 3)
    assert exact().name == "exact"
