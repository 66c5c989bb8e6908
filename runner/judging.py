"""Judges of the run's own evaluation, applied to observations that are durable already."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import math
import threading
from collections.abc import Sequence

from ..ledger.canonical import printable
from ..ledger.records import JudgmentRow
from .protocols import Judge, NoVerdict, Observed, Verdict

__all__ = ["judge_all"]

_EXPLANATION_MAX = 2_000


async def judge_all(
    judges: Sequence[Judge], observed: Observed, *, slot_no: int, attempt_no: int, deadline_seconds: float
) -> list[JudgmentRow]:
    """One row a judge, in the judges' order; one that raises or takes too long gives no verdict."""
    rows = []
    for number, judge in enumerate(judges, start=1):
        said = await _ask(judge, observed, deadline_seconds)
        rows.append(_row(number, slot_no, attempt_no, said, judge.scale))
    return rows


async def _ask(judge: Judge, observed: Observed, deadline_seconds: float) -> object:
    # A rule of ours is instant; a judge that may block does it in a thread.
    if getattr(judge, "is_instant", False):
        return _said(judge, observed)
    try:
        async with asyncio.timeout(deadline_seconds):
            if getattr(judge, "is_async", False):
                said: object = judge.judge(observed)
            else:
                said = await _in_thread(judge, observed)
            return await said if inspect.isawaitable(said) else said
    except TimeoutError:
        return NoVerdict("judge_timeout", f"no verdict within {deadline_seconds:g} s")
    except Exception as problem:  # noqa: BLE001 - whatever a judge raises is a reason, never the end of the run
        return _judge_error(problem)


def _in_thread(judge: Judge, observed: Observed) -> asyncio.Future[object]:
    """On a daemon thread of its own: one that never returns keeps neither the others nor the process."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def arrive(said: object) -> None:
        if not over.done():
            over.set_result(said)

    def job() -> None:
        said = context.run(_said, judge, observed)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            loop.call_soon_threadsafe(arrive, said)

    threading.Thread(target=job, name="tallystick-judge", daemon=True).start()
    return over


def _said(judge: Judge, observed: Observed) -> object:
    try:
        return judge.judge(observed)
    except BaseException as problem:  # noqa: BLE001 - out of a thread, an exit or an interrupt is no wish of a user
        return _judge_error(problem)


def _judge_error(problem: BaseException) -> NoVerdict:
    try:
        return NoVerdict("judge_error", f"{type(problem).__name__}: {problem}")
    except Exception:  # noqa: BLE001 - the text of an exception is the judge's code
        return NoVerdict("judge_error", type(problem).__name__)


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
    if isinstance(said, Verdict | NoVerdict):
        explanation: object = said.explanation
        if not isinstance(explanation, str):
            return NoVerdict("malformed_verdict", f"the explanation is {type(explanation).__name__}")
    if isinstance(said, NoVerdict):
        reason: object = said.reason
        is_token = isinstance(reason, str) and reason
        return said if is_token else NoVerdict("malformed_verdict", "the reason for no verdict is no text")
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
