"""The columns of a report as a table: one row a planned observation, for spreadsheets and data frames."""

from __future__ import annotations

from operator import attrgetter
from statistics import fmean
from typing import Any

from ..runner.report_document import RunReport
from ..runner.report_slots import ListedSlot, ListedVerdict

__all__ = ["column_names", "row_of"]

_OWN = (
    "case",
    "variant",
    "repetition",
    "state",
    "reason",
    "message",
    "attempts",
    "dispatches",
    "replays",
    "contaminated",
    "source",
    "answer",
    "answer_cut",
    "flags",
    "seconds",
    "began_at",
    "ended_at",
    "tokens_in",
    "tokens_out",
    "cost_usd",
)
_own_of = attrgetter(*_OWN)
_FLAGS = _OWN.index("flags")
_OF_JUDGE = ("passed", "score", "no_verdict", "explanation")


def column_names(summary: RunReport) -> list[str]:
    """The columns: what happened, what each judge said (``judge.NAME.passed``), and ``metadata.KEY``."""
    judges = [] if summary.evaluation is None else summary.evaluation.judges
    of_judges = [f"judge.{name}.{part}" for name in judges for part in _OF_JUDGE]
    return [*_OWN, *of_judges, *(f"metadata.{key}" for key in summary.metadata_keys)]


def row_of(summary: RunReport, slot: ListedSlot) -> list[Any]:
    """The row of one planned observation, its values as JSON knows them, None where there is none.

    ``passed`` of a judge that was asked for several samples is the share of its verdicts that passed.
    """
    judges = [] if summary.evaluation is None else summary.evaluation.judges
    row = list(_own_of(slot))
    row[_FLAGS] = " ".join(row[_FLAGS])
    verdicts = slot.verdicts
    for name in judges:
        row += _said([one for one in verdicts if one.judge == name])
    row += map(slot.metadata.get, summary.metadata_keys)
    return row


def _said(verdicts: list[ListedVerdict]) -> list[Any]:
    if len(verdicts) == 1:
        (one,) = verdicts
        return [one.passed, one.score, one.reason, one.explanation or None]
    passed = [one.passed for one in verdicts if one.passed is not None]
    scores = [one.score for one in verdicts if one.score is not None]
    share = sum(passed) / len(passed) if passed else None
    reasons = " ".join(sorted({one.reason for one in verdicts if one.reason is not None}))
    said = " / ".join(one.explanation for one in verdicts if one.explanation)
    return [share, fmean(scores) if scores else None, reasons or None, said or None]
