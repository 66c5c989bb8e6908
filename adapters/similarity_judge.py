"""How alike two texts are, without a model: the longest common subsequence as a part of both.

The score is ``2 · LCS / (length of both)``, 1 for equal texts and 0 for texts without anything in common, over
characters or words. The length of the subsequence is counted with the bits of one integer, a row of the table at a time
(L. Allison, T. I. Dix, "A bit-string longest-common-subsequence algorithm", Information Processing Letters 23, 1986; in
the form of H. Hyyrö, "Bit-parallel LCS-length computation revisited", 2004).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.verdicts import NoVerdictReason
from ..runner.protocols import NoVerdict, Verdict
from .rule_judges import RuleJudge, judge_factory, shown
from .tables import Table

__all__ = ["SimilarityTable", "alike", "similarity", "similarity_from_work_order"]

_UNITS_MAX: Final = 50_000
"""Characters or words of one text: two of them take about a second, and all that one answer is compared with may not
take more.
"""


def similarity(
    value: str | None = None,
    *,
    name: str = "similarity",
    at_least: float | None = None,
    unit: Literal["characters", "words"] = "characters",
    ignore_case: bool = False,
) -> RuleJudge:
    """How alike the answer is to what is expected, from 0 to 1; it passes from ``at_least`` up.

    Of several texts that are expected, the nearest one counts. Texts are compared in Unicode's composed form (NFC).
    """
    if at_least is not None and not 0 < at_least <= 1:
        raise ValueError("at_least lies above 0 and is 1 at most")

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict | NoVerdict:
        if not isinstance(answer, str):
            return NoVerdict(NoVerdictReason.ANSWER_UNFIT, f"the answer is {shown(answer)}")
        texts = [expected] if isinstance(expected, str) else expected
        if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
            return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, f"{shown(expected)} is neither a text nor a list of texts")
        given = _units(answer, unit, ignore_case=ignore_case)
        wanted = [_units(text, unit, ignore_case=ignore_case) for text in texts if isinstance(text, str)]
        if max(map(len, (given, *wanted))) > _UNITS_MAX:
            return NoVerdict(NoVerdictReason.ANSWER_UNFIT, f"a text has more than {_UNITS_MAX} {unit}")
        if len(given) * sum(map(len, wanted)) > _UNITS_MAX**2:
            return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, "its texts are too long, taken together")
        score = max(alike(given, one) for one in wanted)
        return Verdict(passed=None if at_least is None else score >= at_least, score=score)

    options: dict[str, JsonValue] = {"at_least": at_least, "unit": unit, "ignore_case": ignore_case}
    return RuleJudge("similarity", name, rule, options, value, scale=(0.0, 1.0))


def alike(one: Sequence[str], other: Sequence[str]) -> float:
    """Twice the length of the longest common subsequence by the length of both; 1 for two empty ones.

    >>> alike("abcd", "acbd"), alike(["a", "b"], ["b"]), alike("", "")
    (0.75, 0.6666666666666666, 1.0)
    """
    if not one and not other:
        return 1.0
    return 2 * _common(one, other) / (len(one) + len(other))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    places: dict[str, int] = {}
    for at, unit in enumerate(one):
        places[unit] = places.get(unit, 0) | (1 << at)
    full = (1 << len(one)) - 1
    row = full
    for unit in other:
        matches = row & places.get(unit, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(one) - row.bit_count()


def _units(text: str, unit: str, *, ignore_case: bool) -> Sequence[str]:
    text = unicodedata.normalize("NFC", text.casefold() if ignore_case else text)
    return text.split() if unit == "words" else text


class SimilarityTable(Table):
    """The table of a judge of kind ``similarity``."""

    name: str = Field("similarity", description="What it is called in reports.")
    value: str | None = Field(None, description="A text, instead of what the cases expect.")
    at_least: float | None = Field(None, gt=0, le=1, description="The least score that passes; no pass if absent.")
    unit: Literal["characters", "words"] = Field("characters", description="What is compared.")
    ignore_case: bool = Field(False, description="Whether upper and lower case are the same.")


similarity_from_work_order = judge_factory(SimilarityTable, similarity)
