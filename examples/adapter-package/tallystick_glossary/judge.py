"""A judge that says which part of the expected words is in its place: 1 minus the word error rate, 0 at least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from pydantic import Field

from tallystick.adapters.tables import Table, read_table
from tallystick.ledger.verdicts import NoVerdictReason
from tallystick.runner.protocols import NoVerdict, Observed, Verdict


class WordAccuracyTable(Table):
    """What a work order may say in ``[[judges]]``, besides ``kind``."""

    name: str = Field("word_accuracy", description="What it is called in reports.")
    at_least: float = Field(1.0, ge=0, le=1, description="From which score on it passes.")


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> WordAccuracy:
    """The judge of a work order's table. ``folder`` is where relative paths begin; this one has none."""
    found = read_table(WordAccuracyTable, table, place=place)
    return WordAccuracy(found.name, found.at_least)


@attrs.frozen
class WordAccuracy:
    name: str
    at_least: float
    kind: str = "word_accuracy"
    scale: tuple[float, float] | None = (0.0, 1.0)
    needs: tuple[str, ...] = ("expected",)  # without it there is no verdict, and `judge` is not asked

    def identity(self) -> Mapping[str, Any]:
        """What a verdict depends on."""
        return {"at_least": self.at_least}

    def judge(self, observed: Observed) -> Verdict | NoVerdict:
        wanted, answer = observed.case.expected, observed.answer
        if not isinstance(wanted, str) or not wanted.split():
            return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, "what is expected is no text")
        if not isinstance(answer, str):
            return NoVerdict(NoVerdictReason.ANSWER_UNFIT, "the answer is no text")
        errors = distance(wanted.split(), answer.split())
        score = max(0.0, 1 - errors / len(wanted.split()))
        return Verdict(passed=score >= self.at_least, score=score, explanation=f"{errors} words are wrong")


def distance(one: Sequence[str], other: Sequence[str]) -> int:
    """How many words have to be put in, taken out or changed to make the one into the other."""
    row = list(range(len(other) + 1))
    for number, word in enumerate(one, start=1):
        corner, row[0] = row[0], number
        for at, against in enumerate(other, start=1):
            corner, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, corner + (word != against))
    return row[-1]
