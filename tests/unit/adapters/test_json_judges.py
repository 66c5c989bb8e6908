"""Judges of JSON, and patterns whose search has a bound."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters.json_judges import (
    json_schema,
    json_schema_from_work_order,
    jsonpath,
    jsonpath_from_work_order,
)
from tallystick.adapters.rule_judges import RuleJudge, regex
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import MISSING, Missing, NoVerdict, Observed, Verdict

from .makers import make_case
from .test_rule_judges import judged

NUMBER: dict[str, JsonValue] = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}},
                                "required": ["n"], "additionalProperties": False}  # fmt: skip
CLOSED: JsonValue = {"properties": {"n": True}, "patternProperties": {"^a": True}, "additionalProperties": False}
SLOW = "(a|aa)+$"
LONG = "a" * 80 + "b"
"""What no search for ``SLOW`` without a bound would end on in our time."""


def said(judge: RuleJudge, answer: JsonValue, expected: JsonValue | Missing = MISSING) -> Verdict | NoVerdict:
    found = judge.judge(Observed(make_case(expected=expected), "default", 1, answer))
    assert isinstance(found, Verdict | NoVerdict)
    return found


@pytest.mark.parametrize(
    ("judge", "answer", "expected", "passed"),
    [
        (json_schema(NUMBER), {"n": 3}, MISSING, True),
        (json_schema(NUMBER), {"n": -1}, MISSING, False),
        (json_schema(NUMBER), {"n": 3, "m": 1}, MISSING, False),
        (json_schema(NUMBER), {}, MISSING, False),
        (json_schema(NUMBER), None, MISSING, False),
        (json_schema(NUMBER), {"n": True}, MISSING, False),
        (json_schema(NUMBER), '{"n": 3}', MISSING, False),
        (json_schema(NUMBER, parse=True), '{"n": 3}', MISSING, True),
        (json_schema(NUMBER, parse=True), '{"n": 3} ', MISSING, True),
        (json_schema(NUMBER, parse=True), '{"n": 3', MISSING, False),
        (json_schema(NUMBER, parse=True), '{"n": NaN}', MISSING, False),
        (json_schema(NUMBER, parse=True), '{"n": 3, "n": 4}', MISSING, False),
        (json_schema(), 3, {"type": "integer"}, True),
        (json_schema(), "x", {"type": "integer"}, False),
        (json_schema(), 3, {"type": "intger"}, "expected_unfit"),
        (json_schema(), 3, "integer", "expected_unfit"),
        (json_schema(), 3, MISSING, "missing_expected"),
        (json_schema(), 3, {"$ref": "https://example.com/schema.json"}, "expected_unfit"),
        (json_schema(), "ab", {"pattern": "^a"}, True),
        (json_schema(), "ba", {"pattern": "^a"}, False),
        (json_schema(), {"ax": 1}, {"patternProperties": {"^a": {"type": "string"}}}, False),
        (json_schema(), {"bx": 1}, {"patternProperties": {"^a": {"type": "string"}}}, True),
        (json_schema(), {"ax": 1, "n": 2}, CLOSED, True),
        (json_schema(), {"ax": 1, "b": 2}, CLOSED, False),
        (json_schema(), {"b": 2}, {"additionalProperties": {"type": "string"}}, False),
        (json_schema(), {"b": "2"}, {"additionalProperties": {"type": "string"}}, True),
        (json_schema(), "text", CLOSED, True),
        (json_schema(), {}, {"patternProperties": {"a": True}, "unevaluatedProperties": False}, "expected_unfit"),
        (json_schema(), [1, True, "1", None, [1], {"a": 1}], {"uniqueItems": True}, True),
        (json_schema(), [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], {"uniqueItems": True}, False),
        (json_schema(), [1, 1], {"uniqueItems": False}, True),
        (jsonpath("$.a.b", 1), {"a": {"b": 1}}, MISSING, True),
        (jsonpath("$.a.b", 1), {"a": {"b": True}}, MISSING, False),
        (jsonpath("$.a.b"), {"a": {"b": None}}, None, True),
        (jsonpath("$.a.b"), {"a": {}}, None, False),
        (jsonpath("/a/0"), {"a": ["x"]}, "x", True),
        (jsonpath("$.a"), "text", "x", False),
        (jsonpath("$.a", parse=True), '{"a": "x"}', "x", True),
        (jsonpath("$.a", parse=True), "no json", "x", False),
        (jsonpath("$.a"), {"a": 1}, MISSING, "missing_expected"),
        (jsonpath("$.a", exists=True), {"a": None}, MISSING, True),
        (jsonpath("$.a", exists=True), {}, MISSING, False),
        (jsonpath("$.a", exists=False), {}, MISSING, True),
        (jsonpath("$.a", exists=False), {"a": 0}, "whatever", False),
    ],
)
def test_json_is_valid_or_says_what_is_expected_at_its_place(
    judge: RuleJudge, answer: JsonValue, expected: JsonValue | Missing, passed: bool | str
) -> None:
    assert judged(judge, answer, expected) == passed


def test_explanations_name_the_place() -> None:
    found = said(json_schema(NUMBER), {"n": -1})
    assert found == Verdict(passed=False, explanation="at /n: -1 is less than the minimum of 0")
    assert "parse = true reads as JSON" in said(json_schema(NUMBER), "3").explanation
    assert said(jsonpath("$.a", 1), {"a": 2}).explanation == "expected 1, got 2"


@pytest.mark.parametrize(
    ("judge", "answer"),
    [
        (regex(SLOW), LONG),
        (json_schema({"pattern": SLOW}), LONG),
        (json_schema({"patternProperties": {SLOW: False}}), {LONG: 1}),
        (json_schema({"additionalProperties": False, "patternProperties": {SLOW: True}}), {LONG: 1}),
    ],
    ids=["regex", "pattern", "patternProperties", "additionalProperties"],
)
def test_a_search_that_backtracks_without_end_is_given_up_and_is_no_verdict(
    judge: RuleJudge, answer: JsonValue
) -> None:
    found = said(judge, answer)
    assert isinstance(found, NoVerdict)
    assert found.reason == "timeout"
    assert "given up" in found.explanation


def test_a_schema_reaches_for_nothing_outside_of_itself(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = said(json_schema(), 3, {"$ref": other.as_uri()})
    assert isinstance(found, NoVerdict)
    assert found.reason == "expected_unfit"
    assert said(json_schema(), 3, {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}) == Verdict(passed=True)


@pytest.mark.parametrize(
    ("make", "table", "text"),
    [
        (json_schema_from_work_order, {"schema": {"type": "intger"}}, "judges[0]: no JSON schema: 'intger'"),
        (json_schema_from_work_order, {"shema": {}}, 'judges[0].shema: there is no such key. Did you mean "schema"'),
        (jsonpath_from_work_order, {"path": "$.a["}, "judges[0]"),
        (jsonpath_from_work_order, {"path": "$.a", "value": 1, "exists": True}, "value and exists both say"),
        (jsonpath_from_work_order, {"path": "$[?match(@.a, 'x')]"}, "a regular expression in a path has no bound"),
        (jsonpath_from_work_order, {}, "path: this key is missing"),
    ],
)
def test_table_with_a_fault_is_refused_in_one_line(make: Any, table: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        make(table, folder=Path(), place="judges[0]")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_verdict_depends_on_is_identity() -> None:
    judges = [
        json_schema(NUMBER), json_schema({}), json_schema(NUMBER, parse=True), jsonpath("$.a"), jsonpath("$.b"),
        jsonpath("$.a", 1), jsonpath("$.a", exists=True), jsonpath("$.a", exists=False),
    ]  # fmt: skip
    identities = [repr((judge.kind, judge.identity())) for judge in judges]
    assert len(set(identities)) == len(judges)
    assert json_schema(NUMBER).identity() == json_schema(NUMBER, name="other").identity()
