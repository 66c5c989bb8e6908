"""What a judge said becomes a row of the ledger: no default, no clamping, no word beyond the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.ledger.canonical import unescaped_text
from tallystick.ledger.verdicts import NoVerdictReason
from tallystick.runner.protocols import NoVerdict, Verdict
from tallystick.runner.verdict_rows import checked, judgment_row

SCALE = (0.0, 2.0)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "pass",
        1,
        {"passed": True},
        Verdict(),
        Verdict(passed="false"),  # type: ignore[arg-type]
        Verdict(passed=1),  # type: ignore[arg-type]
        Verdict(score=4),
        Verdict(score=-0.1),
        Verdict(score="0.5"),  # type: ignore[arg-type]
        Verdict(score=True),
        Verdict(score=float("nan")),
        Verdict(score=float("inf")),
        Verdict(score=10**400),
        Verdict(score=10**5000),
        Verdict(passed=True, score=float("nan")),
        Verdict(passed=True, explanation=5),  # type: ignore[arg-type]
        NoVerdict(""),
        NoVerdict(None),  # type: ignore[arg-type]
        NoVerdict("timeout", explanation=b"x"),  # type: ignore[arg-type]
    ],
    ids=lambda said: type(said).__name__,
)
def test_c42_what_is_no_verdict_is_malformed_and_no_pass(said: Any) -> None:
    found = checked(said, SCALE)
    assert isinstance(found, NoVerdict)
    assert found.reason == "malformed_verdict"


def test_a_score_without_a_declared_scale_is_malformed() -> None:
    found = checked(Verdict(score=1), None)
    assert isinstance(found, NoVerdict)
    assert "it declares none" in found.explanation


@pytest.mark.parametrize("reason", NoVerdictReason)
def test_a_reason_of_the_vocabulary_stays_as_it_is(reason: NoVerdictReason) -> None:
    assert judgment_row(1, 1, 1, NoVerdict(str(reason)), None).reason == reason.value


def test_a_word_of_a_judges_own_is_an_abstention_and_stands_before_its_explanation() -> None:
    row = judgment_row(1, 1, 1, NoVerdict("nothing_wanted", "no word is expected"), None)
    assert (row.reason, row.explanation) == ("abstained", "nothing_wanted: no word is expected")


def test_c32_what_was_said_in_strange_characters_is_kept_and_shown_harmlessly() -> None:
    row = judgment_row(1, 1, 1, Verdict(passed=True, explanation="\ud800 \x1b[31m"), None, raw="\ud800\x00\\")
    assert "\x1b" not in row.explanation
    assert row.raw is not None
    assert unescaped_text(row.raw) == "\ud800\x00\\"
