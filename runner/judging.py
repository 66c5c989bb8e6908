"""Judges of the run's own evaluation, applied to observations that are durable already."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Sequence

from ..ledger.canonical import printable
from ..ledger.records import JudgmentRow
from .protocols import Judge, NoVerdict, Observed, Verdict

__all__ = ["judge_all"]

_EXPLANATION_MAX = 2_000


async def judge_all(judges: Sequence[Judge], observed: Observed, *, slot_no: int, attempt_no: int) -> list[JudgmentRow]:
    """One row a judge, in the judges' order; a judge that raises gives no verdict, never a missing row."""
    rows = []
    for number, judge in enumerate(judges, start=1):
        said = await _ask(judge, observed)
        rows.append(_row(number, slot_no, attempt_no, said, judge.scale))
    return rows


async def _ask(judge: Judge, observed: Observed) -> object:
    try:
        # A rule of ours is instant; a judge that may block does it in a thread.
        if getattr(judge, "is_instant", False) or getattr(judge, "is_async", False):
            said = judge.judge(observed)
        else:
            said = await asyncio.to_thread(judge.judge, observed)
        return await said if inspect.isawaitable(said) else said
    except Exception as problem:  # noqa: BLE001 - whatever a judge raises is a reason, never the end of the run
        return NoVerdict("judge_error", f"{type(problem).__name__}: {problem}")


def _row(judge_no: int, slot_no: int, attempt_no: int, said: object, scale: tuple[float, float] | None) -> JudgmentRow:
    verdict = _checked(said, scale)
    explanation = printable(verdict.explanation)[:_EXPLANATION_MAX]
    if isinstance(verdict, NoVerdict):
        return JudgmentRow(judge_no, slot_no, attempt_no, reason=verdict.reason, explanation=explanation)
    score = None if verdict.score is None else repr(float(verdict.score))
    return JudgmentRow(judge_no, slot_no, attempt_no, verdict.passed, score, None, explanation)


def _checked(said: object, scale: tuple[float, float] | None) -> Verdict | NoVerdict:
    if isinstance(said, bool):
        said = Verdict(passed=said)
    if isinstance(said, NoVerdict):
        return said
    if not isinstance(said, Verdict):
        return NoVerdict("malformed_verdict", f"a judge returned {type(said).__name__}")
    if said.passed is None and said.score is None:
        return NoVerdict("malformed_verdict", "neither passed nor a score")
    passed: object = said.passed
    if passed is not None and not isinstance(passed, bool):
        return NoVerdict("malformed_verdict", f"passed is {type(passed).__name__}")
    if said.score is not None and not _on_scale(said.score, scale):
        return NoVerdict("malformed_verdict", f"the score {said.score!r} is not on the scale {scale}")
    return said


def _on_scale(score: object, scale: tuple[float, float] | None) -> bool:
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        return False
    return scale is not None and scale[0] <= score <= scale[1]
