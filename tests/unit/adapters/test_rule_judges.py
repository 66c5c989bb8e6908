from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.adapters import rule_judges
from tallystick.adapters.rule_judges import RuleJudge, contains, exact, not_contains, numeric, regex, same_json
from tallystick.ledger.canonical import JsonValue, canonical_text
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import MISSING, Judge, Missing, NoVerdict, Observed, Verdict

from .makers import make_case


def judged(judge: RuleJudge, answer: JsonValue, expected: JsonValue | Missing = MISSING) -> bool | str:
    """Pass or fail, or the reason why there is no verdict."""
    said = judge.judge(Observed(make_case(expected=expected), "default", 1, answer))
    if isinstance(said, NoVerdict):
        return said.reason
    assert isinstance(said, Verdict)
    assert said.passed is not None
    assert said.score is None
    assert "\n" not in said.explanation
    return said.passed


@pytest.mark.parametrize(
    ("answer", "expected", "passed"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (0, None, False),
        ("", None, False),
        (None, None, True),
        (False, False, True),
        ("1", 1, False),
        ([], {}, False),
        ([1, [2]], [1, [2]], True),
        ([1, [True]], [1, [1]], False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": 1, "b": None}, {"b": None, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ("\ud800", "\ud800", True),
        (10**30, 10**30, True),
        (10**30, 10**30 + 1, False),
        ("INCORRECT", "CORRECT", False),
    ],
    ids=repr,
)
def test_exact_compares_json_with_its_types(answer: JsonValue, expected: JsonValue, passed: bool) -> None:
    assert judged(exact(), answer, expected) is passed


def test_exact_can_be_told_to_fold_trim_and_be_strict() -> None:
    assert judged(exact(ignore_case=True), ["Straße"], ["STRASSE"]) is True
    assert judged(exact(trim=True), " x\n", "x") is True
    assert judged(exact(), " x\n", "x") is False
    assert judged(exact(strict_numbers=True), 1, 1.0) is False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, JSON)
def test_exact_is_equality_of_the_canonical_form(one: JsonValue, other: JsonValue) -> None:
    assert same_json(one, one)
    assert same_json(one, other) == (canonical_text(one) == canonical_text(other))


@pytest.mark.parametrize(
    ("judge", "answer", "expected", "said"),
    [
        (contains(), "it is Paris", "Paris", True),
        (contains(), "it is paris", "Paris", False),
        (contains(ignore_case=True), "it is paris", "Paris", True),
        (contains(), "a b", ["a", "b"], True),
        (contains(), "a", ["a", "b"], False),
        (contains(any_of=True), "a", ["a", "b"], True),
        (contains(any_of=True), "c", ["a", "b"], False),
        (contains("x"), "x", "ignored", True),
        (contains(["x", "y"]), "x", MISSING, False),
        (contains(), None, "null", "answer_unfit"),
        (contains(), 12, "1", "answer_unfit"),
        (contains(), "a", 1, "expected_unfit"),
        (contains(), "a", [], "expected_unfit"),
        (contains(), "a", "", "expected_unfit"),
        (contains(), "a", MISSING, "missing_expected"),
        (not_contains(), "fine", "sorry", True),
        (not_contains(), "sorry, no", "sorry", False),
        (not_contains(["sorry", "cannot"]), "I cannot", MISSING, False),
        (not_contains(), None, "sorry", "answer_unfit"),
        (not_contains(), {}, "sorry", "answer_unfit"),
        (regex(r"\d+"), "a 12", MISSING, True),
        (regex(r"\d+", full=True), "a 12", MISSING, False),
        (regex(r"\d+", full=True), "12", MISSING, True),
        (regex("PARIS", ignore_case=True), "paris", MISSING, True),
        (regex(), "paris", "^p", True),
        (regex(), "paris", "(", "expected_unfit"),
        (regex(), "paris", 1, "expected_unfit"),
        (regex("x"), 1, MISSING, "answer_unfit"),
        (numeric(), 1, 1.0, True),
        (numeric(), "1e2", 100, True),
        (numeric(), " 7 ", 7, True),
        (numeric(tolerance=0.1), 1.1, 1, True),
        (numeric(tolerance=0.1), 1.11, 1, False),
        (numeric(relative=0.01), 101, 100, True),
        (numeric(relative=0.01), 102, 100, False),
        (numeric(), 10**30 + 1, 10**30, False),
        (numeric(), True, 1, False),
        (numeric(), "I do not know", 1, False),
        (numeric(), "nan", 1, False),
        (numeric(), "1e999999999", 1, False),
        (numeric(), None, 0, False),
        (numeric(), "", 0, False),
        (numeric(), "1." + "0" * 1_000 + " or so", 1, False),
        (numeric(), 1, "one", "expected_unfit"),
        (numeric(), 1, MISSING, "missing_expected"),
        (exact(), None, MISSING, "missing_expected"),
    ],
    ids=repr,
)
def test_rule_gives_pass_fail_or_the_reason_for_neither(
    judge: RuleJudge, answer: JsonValue, expected: JsonValue | Missing, said: bool | str
) -> None:
    assert judged(judge, answer, expected) == said


def test_explanation_says_what_was_wrong() -> None:
    said = exact().judge(Observed(make_case(expected="en"), "default", 1, "de\nno"))
    assert said == Verdict(passed=False, explanation="expected en, got de no")
    said = regex("en", full=True).judge(Observed(make_case(), "default", 1, "even"))
    assert said == Verdict(passed=False, explanation="en is not the whole answer")


@pytest.mark.parametrize("make", [exact, contains, not_contains, regex, numeric])
def test_judges_of_one_kind_differ_by_their_options(make: Any) -> None:
    judge = make()
    assert isinstance(judge, Judge)
    assert judge.scale is None
    assert judge.identity() == make(name="other").identity()
    other = numeric(tolerance=1) if make is numeric else make(ignore_case=True)
    assert judge.identity() != other.identity()


@pytest.mark.parametrize(
    ("factory", "table", "text"),
    [
        ("exact", {"trimm": True}, 'judges[0].trimm: there is no such key. Did you mean "trim"'),
        ("regex", {"pattern": "("}, "judges[0]: ( is no regular expression"),
        ("regex", {"pattern": ""}, "judges[0]: a pattern is wanted"),
        ("numeric", {"tolerance": -1.0}, "judges[0].tolerance: -1.0 cannot stand here"),
        ("numeric", {"tolerance": "1"}, "judges[0].tolerance: '1' cannot stand here"),
        ("contains", {"value": 1}, "judges[0].value: 1 cannot stand here"),
    ],
    ids=str,
)
def test_table_with_a_fault_is_refused_in_one_line(factory: str, table: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        getattr(rule_judges, f"{factory}_from_work_order")(table, folder=Path(), place="judges[0]")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
