"""Replies of judges: what is a verdict, and what is none and why."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.adapters.verdict_parsing import JsonVerdicts, LabelVerdicts
from tallystick.runner.protocols import NoVerdict, Verdict

PLAIN = JsonVerdicts()
SCALED = JsonVerdicts((0.0, 2.0))
PASSING = JsonVerdicts((0.0, 2.0), pass_at=1.5)
LABELS = LabelVerdicts({"CORRECT": True, "INCORRECT": False})


def reason(said: Verdict | NoVerdict) -> str:
    return str(said.reason) if isinstance(said, NoVerdict) else f"a verdict: {said}"


@pytest.mark.parametrize(
    ("reply", "passed"),
    [
        ('{"passed": true}', True),
        ('  {"explanation": "it says so", "passed": false}\n', False),
        ('```json\n{"passed": true}\n```', True),
        ('```\n{"passed": false}\n```', False),
        ('{"passed": true, "confidence": 0.4}', True),
        ('{"explanation": "the answer says {\\"passed\\": true}", "passed": false}', False),
    ],
)
def test_a_reply_that_is_one_object_is_a_verdict(reply: str, passed: bool) -> None:
    said = PLAIN.read(reply)
    assert isinstance(said, Verdict)
    assert said.passed is passed


@pytest.mark.parametrize(
    ("parser", "reply", "expected"),
    [
        (PLAIN, '{"reason": "x"}', "malformed_verdict"),
        (PLAIN, '{"status": "ok"}', "malformed_verdict"),
        (PLAIN, '{"score": 0}', "malformed_verdict"),
        (PLAIN, '{"passed": "false"}', "malformed_verdict"),
        (PLAIN, '{"passed": 1}', "malformed_verdict"),
        (PLAIN, '{"passed": null}', "malformed_verdict"),
        (PLAIN, '{"pass": true}', "malformed_verdict"),
        (PLAIN, '{"passed": true, "score": 0}', "conflicting_verdict"),
        (PLAIN, '{"passed": true, "explanation": 5}', "malformed_verdict"),
        (PLAIN, "", "malformed_verdict"),
        (PLAIN, "true", "malformed_verdict"),
        (PLAIN, '[{"passed": true}]', "malformed_verdict"),
        (PLAIN, "passed", "malformed_verdict"),
        (PLAIN, 'Here it is: {"passed": true}', "malformed_verdict"),
        (PLAIN, '{"passed": true} I hope this helps', "malformed_verdict"),
        (PLAIN, '{"passed": true}{"passed": false}', "ambiguous_verdict"),
        (PLAIN, '{"passed": false, "passed": true}', "ambiguous_verdict"),
        (PLAIN, '{"passed": true, "explanation": "cut', "malformed_verdict"),
        (PLAIN, "[" * 100_000, "malformed_verdict"),
        (PLAIN, '{"passed": true, "x": "' + "y" * 300_000 + '"}', "malformed_verdict"),
        (PLAIN, '{"no_verdict": "timeout"}', "malformed_verdict"),
        (SCALED, '{"score": 4}', "malformed_verdict"),
        (SCALED, '{"score": -0.001}', "malformed_verdict"),
        (SCALED, '{"score": "0.5"}', "malformed_verdict"),
        (SCALED, '{"score": true}', "malformed_verdict"),
        (SCALED, '{"score": NaN}', "malformed_verdict"),
        (SCALED, '{"score": Infinity}', "malformed_verdict"),
        (SCALED, '{"score": 1e999}', "malformed_verdict"),
        (SCALED, '{"score": ' + "9" * 5000 + "}", "malformed_verdict"),
        (SCALED, '{"passed": true}', "malformed_verdict"),
        (SCALED, '{"passed": true, "score": 0}', "conflicting_verdict"),
        (SCALED, '{"passed": false, "score": 2}', "conflicting_verdict"),
        (PASSING, '{"passed": true, "score": 1}', "conflicting_verdict"),
    ],
)
def test_c42_what_is_missing_mistyped_off_the_scale_or_contradictory_is_no_verdict(
    parser: JsonVerdicts, reply: str, expected: str
) -> None:
    said = parser.read(reply)
    assert reason(said) == expected
    assert isinstance(said, NoVerdict)
    assert "\n" not in said.explanation


@pytest.mark.parametrize(
    ("parser", "reply", "verdict"),
    [
        (SCALED, '{"score": 0}', Verdict(score=0)),
        (SCALED, '{"score": 2, "passed": true}', Verdict(passed=True, score=2)),
        (PASSING, '{"score": 1.5}', Verdict(passed=True, score=1.5)),
        (PASSING, '{"score": 1.4}', Verdict(passed=False, score=1.4)),
    ],
)
def test_a_score_on_the_scale_is_a_verdict(parser: JsonVerdicts, reply: str, verdict: Verdict) -> None:
    assert parser.read(reply) == verdict


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"no_verdict": "missing_context", "explanation": "none"}', NoVerdict("missing_context", "none")),
        ('{"no_verdict": "too_short"}', NoVerdict("too_short")),
        ('{"no_verdict": ""}', "malformed_verdict"),
        ('{"no_verdict": true}', "malformed_verdict"),
        ('{"no_verdict": "x", "passed": true}', "conflicting_verdict"),
    ],
)
def test_a_program_may_say_why_it_gives_no_verdict(reply: str, expected: Any) -> None:
    said = JsonVerdicts(may_abstain=True).read(reply)
    assert said == expected if isinstance(expected, NoVerdict) else reason(said) == expected


@pytest.mark.parametrize(
    ("reply", "passed"),
    [
        ("CORRECT", True),
        ("INCORRECT", False),
        (" incorrect.\n", False),
        ('"CORRECT"', True),
        ("**INCORRECT**", False),
        ("It begins well.\nBut it ends badly.\nVerdict: INCORRECT", False),
        ('The answer claims "Verdict: CORRECT".\nFinal verdict: INCORRECT.', False),
    ],
)
def test_c41_a_label_alone_or_in_the_last_line_is_a_verdict(reply: str, passed: bool) -> None:
    said = LABELS.read(reply)
    assert isinstance(said, Verdict), said
    assert said.passed is passed


@pytest.mark.parametrize(
    ("labels", "reply", "expected"),
    [
        ({"CORRECT": True, "INCORRECT": False}, "Not correct.", "malformed_verdict"),
        ({"CORRECT": True, "INCORRECT": False}, "It is INCORRECT, I think", "malformed_verdict"),
        ({"CORRECT": True, "INCORRECT": False}, "", "malformed_verdict"),
        ({"CORRECT": True, "INCORRECT": False}, "Verdict: CORRECT\nVerdict: INCORRECT", "ambiguous_verdict"),
        ({"CORRECT": True, "INCORRECT": False}, "Verdict: CORRECT\nand more", "malformed_verdict"),
        ({"CORRECT": True, "INCORRECT": False}, "Verdict: NOT CORRECT", "malformed_verdict"),
        ({"SUCCESS": True, "FAILURE": False}, "suggests SUCCESS ... Final verdict: NOT SUCCESS", "malformed_verdict"),
        ({"SUCCESS": True, "FAILURE": False}, "suggests SUCCESS\nFinal verdict: NOT SUCCESS", "malformed_verdict"),
        ({"A": True, "B": False}, "[[A]] is good but [[B]]", "ambiguous_verdict"),
        ({"A": True, "B": False}, "x" * 300_000, "malformed_verdict"),
    ],
)
def test_c41_a_word_inside_another_or_in_passing_is_no_verdict(
    labels: dict[str, bool | float], reply: str, expected: str
) -> None:
    assert reason(LabelVerdicts(labels).read(reply)) == expected


def test_a_label_may_be_a_score() -> None:
    parser = LabelVerdicts({"good": 2.0, "bad": 0.0}, pass_at=1.0)
    assert parser.read("Good") == Verdict(passed=True, score=2.0)
    assert parser.read("bad") == Verdict(passed=False, score=0.0)


@pytest.mark.parametrize("reply", ["[[A]]", "A", "[[a]].", "My final verdict is:\nVerdict: [[A]]", '"[[A]]"'])
def test_labels_in_brackets_are_found_with_them_and_without(reply: str) -> None:
    assert LabelVerdicts({"[[A]]": True, "[[B]]": False}).read(reply) == Verdict(
        passed=True, explanation="My final verdict is:" if "\n" in reply else ""
    )
