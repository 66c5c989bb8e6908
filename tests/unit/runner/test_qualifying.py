"""Judges held against labels, and verdicts that do not count before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick._wiring import ADAPTERS
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import CaseFileInvalid, UsageError, WorkOrderInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.runner.descriptions import describe
from tallystick.runner.judge_orders import JudgeOrder
from tallystick.runner.labelled import load_labelled
from tallystick.runner.protocols import Dispatching, NoVerdict, Observed, Outcome, Verdict
from tallystick.runner.qualification_models import QualifyEnd
from tallystick.runner.qualifying import qualify
from tallystick.runner.stopping import StopSwitch
from tests.unit.runner.scripted import ANSWERED, Scripted, always, order_of
from tests.unit.runner.scripted_judge import PASSED, ScriptedJudge, a_run, judge, judge_always


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


@attrs.define(eq=False)
class Reader:
    """A judge that says what the answer says: ``pass``, ``fail``, a score, or nothing."""

    name: str = "reader"
    kind: str = "python"
    scale: tuple[float, float] | None = None
    require: Mapping[str, float] = attrs.field(factory=dict)
    code: str = "1"

    def identity(self) -> dict[str, Any]:
        return {"code": self.code}

    def judge(self, observed: Observed) -> Any:
        answer = observed.answer
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            return Verdict(score=answer)
        return NoVerdict("nothing") if answer == "nothing" else answer == "pass"


def write(folder: Path, *rows: tuple[Any, Any]) -> Path:
    """Answers with their labels."""
    path = folder / "labelled.jsonl"
    lines = [
        json.dumps({"id": f"l{at}", "input": f"q{at}", "answer": answer, "label": label})
        for at, (answer, label) in enumerate(rows)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def held(ledger: Ledger, path: Path, *judges: Any, stop: StopSwitch | None = None, **options: Any) -> QualifyEnd:
    order = JudgeOrder("q", judges=list(judges), **options)
    return asyncio.run(qualify(ledger, order, load_labelled(path), ADAPTERS, stop=stop, command="qualify"))


SURE = '{"id": "a", "input": 1, "answer": 1, "label": true}'
ROWS = [("pass", True), ("pass", "pass"), ("fail", False), ("pass", "fail"), ("fail", "failed"), ("nothing", True)]


def test_figures_are_those_of_the_labels(ledger: Ledger, tmp_path: Path) -> None:
    end = held(ledger, write(tmp_path, *ROWS), Reader())
    (line,) = end.judges
    assert (line.labels, line.judged, line.agreed, line.accuracy) == (6, 5, 4, 0.8)
    assert line.accuracy_low is not None
    assert line.accuracy_high is not None
    assert 0.37 < line.accuracy_low < 0.38 < 0.96 < line.accuracy_high < 0.97, "Wilson's interval of 4 in 5"
    assert (line.coverage, line.no_verdict) == (5 / 6, {"abstained": 1})
    assert line.confusion == {"fail": {"fail": 2, "pass": 1}, "pass": {"no verdict": 1, "pass": 2}}
    assert [(one.label, one.labelled, one.judged, one.agreed) for one in line.by_label] == [
        ("fail", 3, 2, 2), ("pass", 3, 3, 2),
    ]  # fmt: skip
    assert (end.next, end.exit_status, line.met) == ("decide", 3, None)
    assert line.qualification is not None
    assert check_ledger(ledger) == []


def test_the_same_again_makes_no_call_and_is_the_same_qualification(ledger: Ledger, tmp_path: Path) -> None:
    path, asking = write(tmp_path, ("x", True), ("y", True)), ScriptedJudge(judge_always(PASSED))
    first = held(ledger, path, asking)
    again = held(ledger, path, asking)
    assert (first.calls, again.calls, len(asking.asked)) == (2, 0, 2)
    assert again.judges == first.judges
    with ledger.reading() as reader:
        assert reader.rows("SELECT count(*) FROM qualifications") == [(1,)]


def test_a_judges_verdicts_count_once_it_is_qualified_and_not_under_another_rubric(
    ledger: Ledger, tmp_path: Path
) -> None:
    run = a_run(ledger, cases=2)
    required = {"accuracy": 0.9, "labels": 2}
    asking = ScriptedJudge(judge_always(PASSED), require=required)
    before = judge(ledger, run, asking)
    assert before.judges[0].qualified is not None
    assert before.judges[0].qualified.met is False

    end = held(ledger, write(tmp_path, ("x", True), ("y", True)), asking)
    assert (end.exit_status, end.judges[0].met) == (0, True)
    after = judge(ledger, run, asking)
    assert after.evaluation == before.evaluation
    assert after.judges[0].qualified is not None
    assert (after.judges[0].qualified.met, after.exit_status, after.calls) == (True, 0, 0)
    assert after.judges[0].qualified.qualification == end.judges[0].qualification

    other = judge(ledger, run, ScriptedJudge(judge_always(PASSED), require=required, rubric="be mild"))
    assert other.judges[0].qualified is not None
    assert other.judges[0].qualified.met is False


def test_a_judge_that_does_not_reach_what_is_required_is_said_to_lack_it(ledger: Ledger, tmp_path: Path) -> None:
    end = held(ledger, write(tmp_path, *ROWS), Reader(require={"accuracy": 0.9, "coverage": 0.8}))
    assert (end.next, end.exit_status) == ("decide", 3)
    assert end.judges[0].lacking == ["accuracy is 0.8, 0.9 is required"]


def test_scores_are_compared_with_scores(ledger: Ledger, tmp_path: Path) -> None:
    end = held(ledger, write(tmp_path, (1, 1), (0.5, 0.5), (0, 1)), Reader(scale=(0.0, 1.0)))
    assert end.judges[0].confusion == {"0.5": {"0.5": 1}, "1.0": {"0.0": 1, "1.0": 1}}


@pytest.mark.parametrize(("row", "told"), [((1, True), "Give it the least score"), (("pass", 1), "Give it a scale")])
def test_labels_that_no_verdict_can_be_are_refused(ledger: Ledger, tmp_path: Path, row: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        held(ledger, write(tmp_path, row), Reader(scale=(0.0, 1.0)))


@pytest.mark.parametrize(
    ("label", "scale", "told"),
    [
        ({"scriped": True}, None, "labelled.jsonl has no label for the judge scripted"),
        ({}, None, "labelled.jsonl has no label for the judge scripted"),
        (0.5, None, "the labels are scores, and the judge scripted gives none"),
        (3, (0.0, 1.0), "the label 3 is not on the scale 0 to 1 of the judge scripted"),
    ],
)
def test_labels_that_do_not_fit_a_judge_are_refused_before_it_is_asked(
    ledger: Ledger, tmp_path: Path, label: Any, scale: tuple[float, float] | None, told: str
) -> None:
    asking = ScriptedJudge(judge_always(PASSED), scale=scale)
    with pytest.raises(UsageError, match=told):
        held(ledger, write(tmp_path, ("x", label)), asking)
    assert asking.asked == []
    with ledger.reading() as reader:
        assert reader.rows("SELECT count(*) FROM runs") == [(0,)]


LLM = {"kind": "llm", "url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "r", "scale": [0, 1]}
ONLY_SCORES: list[dict[str, Any]] = [
    LLM, {**LLM, "labels": {"good": 1.0, "bad": 0.0}}, {"kind": "similarity", "name": "llm"},
]  # fmt: skip


@pytest.mark.parametrize("table", ONLY_SCORES, ids=["json", "words", "similarity"])
def test_pass_and_fail_are_no_labels_for_a_judge_that_only_gives_scores(
    ledger: Ledger, tmp_path: Path, table: dict[str, Any]
) -> None:
    path = write(tmp_path, ("x", 1), ("y", "fail"))
    with pytest.raises(UsageError, match="the labels are pass and fail, and the judge llm gives scores") as caught:
        held(ledger, path, table)
    assert "\n" not in str(caught.value)
    with ledger.reading() as reader:
        assert reader.rows("SELECT count(*) FROM runs") == [(0,)]


@pytest.mark.parametrize("table", ONLY_SCORES, ids=["json", "words", "similarity"])
@pytest.mark.parametrize("limit", [0.9, {"llm": 0.9}])
def test_no_gate_wants_passes_of_a_judge_that_only_gives_scores(table: dict[str, Any], limit: Any) -> None:
    def described(**more: Any) -> object:
        judges = [{**table, **more}]
        return describe(order_of(Scripted(always(ANSWERED)), judges=judges, gates={"min_pass_rate": limit}), ADAPTERS)

    with pytest.raises(WorkOrderInvalid, match="the judge llm gives scores and passes nothing") as caught:
        described()
    assert "gates.min_pass_rate" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert described(**({"at_least": 0.5} if table["kind"] == "similarity" else {"pass_at": 0.5}))


def test_each_judge_may_have_labels_of_its_own(ledger: Ledger, tmp_path: Path) -> None:
    path = write(tmp_path, ("pass", {"reader": True, "other": False}), ("fail", {"other": False}))
    end = held(ledger, path, Reader(), Reader("other", code="2"))
    assert [(line.judge, line.labels, line.agreed) for line in end.judges] == [("reader", 1, 1), ("other", 2, 1)]


def test_budgets_hold_here_too_and_it_goes_on_once_they_are_raised(ledger: Ledger, tmp_path: Path) -> None:
    path, asking = write(tmp_path, ("x", True), ("y", True)), ScriptedJudge(judge_always(PASSED))
    end = held(ledger, path, asking, budgets={"dispatches": 1})
    assert (end.next, end.exit_status, end.command) == ("fund", 6, "qualify")
    assert held(ledger, path, asking, budgets={"dispatches": 2}).next == "nothing"
    assert len(asking.asked) == 2


def test_a_stop_keeps_no_figures_and_it_goes_on(ledger: Ledger, tmp_path: Path) -> None:
    path, stop = write(tmp_path, ("x", True), ("y", True)), StopSwitch()

    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        stop.ask("SIGINT")
        return PASSED

    end = held(ledger, path, ScriptedJudge(reply), stop=stop, concurrency=1)
    assert (end.next, end.exit_status, end.judges[0].qualification) == ("resume", 130, None)
    asked = StopSwitch()
    asked.ask("SIGINT")
    assert held(ledger, write(tmp_path, ("z", True)), ScriptedJudge(reply), stop=asked).judges == []
    assert (
        held(ledger, write(tmp_path, ("x", True), ("y", True)), ScriptedJudge(judge_always(PASSED))).next == "nothing"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "there is no labelled observation"),
        ("{", "labelled.jsonl:1: not JSON"),
        ("\ufeff{}", "labelled.jsonl:1: begins with a byte order mark. Save it as UTF-8 without BOM"),
        (f"{SURE}\n{SURE}", 'labelled.jsonl:2: a second line has the id "a". Keep one of them'),
        ("[1]", "labelled.jsonl:1: a labelled observation is an object"),
        ('{"id": "a", "input": 1, "answer": 1}', 'labelled.jsonl:1: "label" is missing'),
        ('{"id": "a", "input": 1, "label": true}', 'labelled.jsonl:1: "answer" is missing'),
        ('{"id": "a", "input": 1, "answer": 1, "label": "maybe"}', "labelled.jsonl:1: the label is no verdict"),
        ('{"id": "a", "input": 1, "answer": 1, "label": null}', "labelled.jsonl:1: the label is no verdict"),
    ],
)
def test_a_labelled_file_with_a_fault_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "labelled.jsonl"
    path.write_text(text)
    with pytest.raises(CaseFileInvalid) as caught:
        load_labelled(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
