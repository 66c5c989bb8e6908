from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters.answers import Answer
from tallystick.adapters.python_judge import PythonJudge, from_work_order, judge
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.errors import TargetNotFound, WorkOrderInvalid
from tallystick.runner.protocols import MISSING, Judge, Missing, NoVerdict, Observed, Verdict

from .makers import make_case


def observed(answer: JsonValue = "a", *, expected: JsonValue | Missing = MISSING, **evidence: JsonValue) -> Observed:
    return Observed(make_case("asked", expected=expected, tag=1), "old", 2, answer, evidence, ("truncated",))


def test_function_gets_what_its_parameters_name() -> None:
    names = ("answer", "expected", "input", "metadata", "flags", "variant", "repetition", "evidence")

    @judge
    def all_of_it(
        answer: Any,
        expected: Any,
        input: Any,  # noqa: A002 - the part's name
        metadata: Any,
        flags: Any,
        variant: Any,
        repetition: Any,
        evidence: Any,
        case: Any,
        observed: Any,
        limit: int = 3,
    ) -> bool:
        seen = locals()
        wanted = ("a", "e", "asked", {"tag": 1}, ("truncated",), "old", 2, {"x": 1})
        return tuple(seen[name] for name in names) == wanted and (case.id, observed.answer, limit) == ("case-1", "a", 3)

    assert isinstance(all_of_it, Judge)
    assert all_of_it.judge(observed(expected="e", x=1)) == Verdict(passed=True)
    assert all_of_it.needs == ("expected",)


def test_answer_is_whole_where_the_parameter_says_so() -> None:
    @judge(needs=["context"])
    def grounded(answer: Answer) -> Verdict:
        return Verdict(passed=answer.value in answer.context, explanation=str(answer.evidence))  # type: ignore[operator]

    said = grounded.judge(observed("a", context=["a", "b"], model="m"))
    assert said == Verdict(passed=True, explanation="{'model': 'm'}")


@pytest.mark.parametrize(
    ("context", "reason"),
    [(None, "missing_context"), ([], "empty_retrieval"), ("", "empty_retrieval"), ({}, "empty_retrieval")],
)
def test_e10_missing_and_empty_context_are_told_apart_and_neither_passes(context: JsonValue, reason: str) -> None:
    @judge
    def grounded(answer: Any, context: Any) -> bool:
        return True

    said = grounded.judge(observed(context=context) if reason == "empty_retrieval" else observed())
    assert isinstance(said, NoVerdict)
    assert said.reason == reason


def test_what_is_not_needed_may_be_missing() -> None:
    @judge
    def lenient(answer: Any, expected: Any = None, context: Any = "none") -> bool:
        return expected is None and context == "none"

    assert lenient.judge(observed()) == Verdict(passed=True)


def returning(value: Any, **options: Any) -> Verdict | NoVerdict:
    given: Verdict | NoVerdict = PythonJudge(lambda answer: value, **options).judge(observed())
    return given


@pytest.mark.parametrize("scale", [None, (0, 2)])
@pytest.mark.parametrize(
    "value",
    [
        *(None, "pass", "true", {"pass": True}, {"score": 0}, {"reason": "x"}, [], object()),
        *(Verdict(), Verdict(passed="false"), Verdict(score=4.0), Verdict(score=float("nan")), Verdict(score=True)),  # type: ignore[arg-type]
        *(Verdict(score="0.5"), Verdict(passed=1), Verdict(passed=True, score=-1)),  # type: ignore[arg-type]
        *(-0.1, 2.1, float("nan"), float("inf"), 10**400),
        pytest.param(10**5000, id="too long to write down"),
    ],
)
def test_c42_what_is_no_verdict_is_malformed_and_never_a_pass(value: Any, scale: Any) -> None:
    said = returning(value, scale=scale)
    assert isinstance(said, NoVerdict)
    assert said.reason == "malformed_verdict"
    assert "\n" not in said.explanation


@pytest.mark.parametrize(
    ("value", "scale", "verdict"),
    [
        (True, None, Verdict(passed=True)),
        (False, (0, 1), Verdict(passed=False)),
        (0, (0, 2), Verdict(score=0)),
        (2, (0, 2), Verdict(score=2)),
        (0.5, (0, 1), Verdict(score=0.5)),
        (Verdict(passed=True, score=1.0, explanation="e"), (0, 1), Verdict(passed=True, score=1.0, explanation="e")),
        (NoVerdict("own_reason"), None, NoVerdict("own_reason")),
    ],
)
def test_verdict_is_taken_as_it_is(value: Any, scale: Any, verdict: Verdict | NoVerdict) -> None:
    assert returning(value, scale=scale) == verdict


def test_number_without_a_declared_scale_is_malformed() -> None:
    assert returning(1) == NoVerdict("malformed_verdict", "it returned 1")
    assert returning(Verdict(score=1.0)) == NoVerdict("malformed_verdict", "a score without a declared scale")


def test_function_that_raises_gives_no_verdict() -> None:
    @judge
    def broken(answer: Any) -> bool:
        raise ZeroDivisionError("by\nzero")

    assert broken.judge(observed()) == NoVerdict("judge_error", "ZeroDivisionError: by zero")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: judge(lambda answr: True), 'a judge has no parameter answr. Did you mean "answer"'),
        (lambda: judge(needs=["contxt"])(lambda answer: True), 'needs = "contxt" is not known. Did you mean "context"'),
        (lambda: judge(scale=(1, 0))(lambda answer: True), "a scale rises from one number to another"),
        (lambda: judge(scale=(0, float("nan")))(lambda answer: True), "a scale rises from one number to another"),
    ],
)
def test_function_that_is_unfit_is_refused(make: Any, text: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "expected"), [("x", Verdict(passed=True)), ("y", NoVerdict("judge_error", "ValueError: y"))]
)
def test_async_function_is_awaited_and_what_it_raises_is_a_reason(answer: str, expected: Any) -> None:
    @judge
    async def asks(answer: Any) -> bool:
        await asyncio.sleep(0)
        if answer == "y":
            raise ValueError(answer)
        return True

    assert asks.is_async
    assert asyncio.run(asks.judge(observed(answer))) == expected


def test_async_function_is_not_asked_where_its_evidence_is_missing() -> None:
    @judge
    async def grounded(answer: Any, context: Any) -> bool:
        raise AssertionError("nobody asks")

    said = asyncio.run(grounded.judge(observed()))
    assert said.reason == "missing_context"


@pytest.mark.parametrize(
    ("need", "evidence", "reason"),
    [
        ("tool_calls", {}, "missing_evidence"),
        ("tool_calls", {"tool_calls": None}, "missing_evidence"),
        ("retrieval", {}, "missing_evidence"),
        ("retrieval", {"retrieval": []}, "empty_retrieval"),
        ("context", {"context": ["", " "]}, "empty_retrieval"),
        ("evidence.trace", {"context": "x"}, "missing_evidence"),
    ],
)
def test_what_a_judge_needs_and_what_is_not_there_are_told_apart(need: str, evidence: Any, reason: str) -> None:
    assert judge(needs=[need])(lambda answer: True).judge(observed(**evidence)).reason == reason


@pytest.mark.parametrize(("need", "evidence"), [("tool_calls", {"tool_calls": []}), ("evidence.trace", {"trace": 0})])
def test_evidence_that_says_nothing_happened_is_there(need: str, evidence: Any) -> None:
    assert judge(needs=[need])(lambda answer: True).judge(observed(**evidence)) == Verdict(passed=True)


def test_judge_can_be_called_as_the_function_that_it_is() -> None:
    assert judge(lambda answer: answer == 1)(1) is True


def write(folder: Path, text: str) -> None:
    (folder / "judges.py").write_text(textwrap.dedent(text), encoding="utf-8")


def test_judge_in_a_file_beside_the_work_order(tmp_path: Path) -> None:
    write(tmp_path, "def close(answer, expected, limit): return abs(answer - expected) / limit")
    table = {"function": "close", "file": "judges.py", "arguments": {"limit": 10}, "scale": [0, 1], "name": "distance"}
    made = from_work_order(table, folder=tmp_path, place="judges[0]")
    assert made.judge(observed(7, expected=2)) == Verdict(score=0.5)
    assert (made.name, made.scale, made.kind) == ("distance", (0.0, 1.0), "python")
    identity = made.identity()
    assert identity["function"] == "judges.py:close"
    assert str(tmp_path) not in str(identity)
    write(tmp_path, "def close(answer, expected, limit): return 1 - abs(answer - expected) / limit")
    changed = from_work_order(table, folder=tmp_path, place="judges[0]").identity()
    assert changed != identity, "another source is another judge, whatever it is called"


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ({"function": "close"}, WorkOrderInvalid, 'judges[0].function: "close" names no module'),
        ({"function": "clse", "file": "judges.py"}, TargetNotFound, 'Did you mean "close"'),
        ({"function": "close", "file": "judges.py"}, WorkOrderInvalid, "a judge has no parameter limit"),
        ({"function": "close", "file": "judges.py", "scal": [0, 1]}, WorkOrderInvalid, 'Did you mean "scale"'),
    ],
)
def test_table_with_a_fault_is_refused_in_one_line(
    tmp_path: Path, table: dict[str, Any], error: type[Exception], text: str
) -> None:
    write(tmp_path, "def close(answer, expected, limit): return 1")
    with pytest.raises(error) as caught:
        from_work_order(table, folder=tmp_path, place="judges[0]")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
