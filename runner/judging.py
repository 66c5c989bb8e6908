"""Asking judges that are code: on the loop, or on a thread of their own, within a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import attrs

from ..ledger.canonical import JsonValue, digest_of_value
from ..ledger.records import JudgmentRow
from ..ledger.verdicts import NoVerdictReason
from .judge_protocols import lacking, needs_of
from .protocols import Judge, NoVerdict, Observed
from .thrown import go_if_closed
from .verdict_rows import by_judge, judgment_row

__all__ = ["ask", "ask_now", "evidence_digest_of", "is_instant", "judge_all", "judge_error"]


async def judge_all(
    judges: Sequence[tuple[int, Judge]], observed: Observed, *, slot_no: int, attempt_no: int, deadline_seconds: float
) -> list[JudgmentRow]:
    """One row a judge, each under its number; one that raises or takes too long gives no verdict.

    Code of a user gets a copy each: what it changes in what it was given is seen by no other judge.
    """
    evidence = evidence_digest_of(observed.evidence)
    return [
        judgment_row(
            number, slot_no, attempt_no,
            await ask(judge, observed if is_instant(judge) else _copy_of(observed), deadline_seconds), judge.scale,
            evidence_digest=evidence,
        )
        for number, judge in judges
    ]  # fmt: skip


def _copy_of(observed: Observed) -> Observed:
    case = observed.case
    return attrs.evolve(
        observed,
        case=attrs.evolve(
            case, input=_json_copy(case.input), expected=_json_copy(case.expected), metadata=_json_copy(case.metadata)
        ),
        answer=_json_copy(observed.answer),
        evidence=_json_copy(observed.evidence),
    )


def _json_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _json_copy(one) for name, one in value.items()}
    return [_json_copy(one) for one in value] if isinstance(value, list | tuple) else value


def evidence_digest_of(evidence: Mapping[str, JsonValue]) -> str | None:
    """The digest of what was there beside the answer; None where nothing was."""
    return digest_of_value(dict(evidence)) if evidence else None


def is_instant(judge: object) -> bool:
    """Whether it may judge on the event loop: a rule of ours whose time is bounded."""
    return bool(getattr(judge, "is_instant", False))


def ask_now(judge: Judge, observed: Observed) -> object:
    """What an instant judge says; whatever it raises is a reason."""
    return lacking(needs_of(judge), observed) or _said(judge, observed)


async def ask(judge: Judge, observed: Observed, deadline_seconds: float) -> object:
    """What a judge says, or why it said nothing within its deadline."""
    # A rule of ours is instant; a judge that may block does it in a thread.
    if is_instant(judge):
        return ask_now(judge, observed)
    if (lack := lacking(needs_of(judge), observed)) is not None:
        return lack
    try:
        async with asyncio.timeout(deadline_seconds):
            if getattr(judge, "is_async", False):
                said: object = judge.judge(observed)
            else:
                said = await _in_thread(judge, observed)
            return await _awaited(said) if inspect.isawaitable(said) else said
    except TimeoutError:
        return NoVerdict(NoVerdictReason.TIMEOUT, f"no verdict within {deadline_seconds:g} s")
    except Exception as problem:  # noqa: BLE001 - whatever a judge raises is a reason, never the end of the run
        return judge_error(problem)


async def _awaited(said: Awaitable[object]) -> object:
    """What an async judge says; it ends neither the loop nor the process, and cancels nobody but itself."""
    task = asyncio.current_task()
    try:
        return by_judge(await said)
    except asyncio.CancelledError as problem:
        if task is not None and task.cancelling():
            raise
        return judge_error(problem)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # noqa: BLE001 - a SystemExit in a task would end the whole loop
        go_if_closed(problem, task)
        return judge_error(problem)


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
        return by_judge(judge.judge(observed))
    except BaseException as problem:  # noqa: BLE001 - out of a thread, an exit or an interrupt is no wish of a user
        return judge_error(problem)


def judge_error(problem: BaseException) -> NoVerdict:
    """What a judge raised, as a reason."""
    try:
        return NoVerdict(NoVerdictReason.JUDGE_ERROR, f"{type(problem).__name__}: {problem}")
    except Exception:  # noqa: BLE001 - the text of an exception is the judge's code
        return NoVerdict(NoVerdictReason.JUDGE_ERROR, type(problem).__name__)
