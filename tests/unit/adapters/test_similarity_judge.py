"""How alike two texts are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.adapters.rule_judges import RuleJudge
from tallystick.adapters.similarity_judge import alike, similarity, similarity_from_work_order
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import MISSING, Missing, NoVerdict, Observed, Verdict

from .makers import make_case


def said(judge: RuleJudge, answer: JsonValue, expected: JsonValue | Missing = MISSING) -> Any:
    return judge.judge(Observed(make_case(expected=expected), "default", 1, answer))


def longest(one: str, other: str) -> int:
    """The longest common subsequence by its definition."""
    row = [0] * (len(other) + 1)
    for left in one:
        before = row
        row = [0]
        for at, right in enumerate(other):
            row.append(before[at] + 1 if left == right else max(before[at + 1], row[at]))
    return row[-1]


@given(st.text("abc", max_size=90), st.text("abc", max_size=90))
def test_the_score_is_that_of_the_longest_common_subsequence(one: str, other: str) -> None:
    length = len(one) + len(other)
    assert alike(one, other) == alike(other, one) == (2 * longest(one, other) / length if length else 1.0)


@pytest.mark.parametrize(
    ("judge", "answer", "expected", "verdict"),
    [
        (similarity(), "abcd", "acbd", Verdict(score=0.75)),
        (similarity(), "", "x", Verdict(score=0.0)),
        (similarity(at_least=0.75), "abcd", "acbd", Verdict(passed=True, score=0.75)),
        (similarity(at_least=0.76), "abcd", "acbd", Verdict(passed=False, score=0.75)),
        (similarity(unit="words"), "the cat  sat", "the dog sat", Verdict(score=4 / 6)),
        (similarity(ignore_case=True), "STRASSE", "stra\u00dfe", Verdict(score=1.0)),
        (similarity(), "e\u0301", "\u00e9", Verdict(score=1.0)),
        (similarity(), "abc", ["x", "abd", "zzz"], Verdict(score=4 / 6)),
        (similarity("abc"), "abc", "ignored", Verdict(score=1.0)),
    ],
    ids=repr,
)
def test_the_nearest_text_that_is_expected_counts(
    judge: RuleJudge, answer: JsonValue, expected: JsonValue, verdict: Verdict
) -> None:
    assert said(judge, answer, expected) == verdict


@pytest.mark.parametrize(
    ("answer", "expected", "reason"),
    [
        (1, "x", "answer_unfit"),
        ("x" * 50_001, "x", "answer_unfit"),
        ("x", 1, "expected_unfit"),
        ("x", [], "expected_unfit"),
        ("x", ["x", 1], "expected_unfit"),
        ("x" * 40_000, ["y" * 40_000] * 2, "expected_unfit"),
        ("x", MISSING, "missing_expected"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_compared_says_why(answer: JsonValue, expected: JsonValue | Missing, reason: str) -> None:
    found = said(similarity(), answer, expected)
    assert isinstance(found, NoVerdict)
    assert found.reason == reason


def test_its_scale_is_known_and_its_options_are_its_identity() -> None:
    assert similarity().scale == (0.0, 1.0)
    made = [similarity(), similarity("x"), similarity(at_least=0.5), similarity(unit="words"),
            similarity(ignore_case=True)]  # fmt: skip
    assert len({repr(one.identity()) for one in made}) == len(made)


@pytest.mark.parametrize("table", [{"at_least": 0}, {"at_least": 1.1}, {"unit": "lines"}, {"value": 1}], ids=str)
def test_table_with_a_fault_is_refused_in_one_line(table: dict[str, Any]) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        similarity_from_work_order(table, folder=Path(), place="judges[0]")
    assert f"judges[0].{next(iter(table))}" in str(caught.value)
    assert "\n" not in str(caught.value)
