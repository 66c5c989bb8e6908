"""Read models of one case's page: what was sent for an attempt, what judges said of it and what they sent. Pure."""

from __future__ import annotations

from typing import Any, Final

import attrs

from .artifacts import bytes_of
from .canonical import unescaped_text
from .ledger import Reader

__all__ = ["DispatchPage", "JudgmentPage", "dispatches_of", "judgments_of"]


@attrs.frozen
class DispatchPage:
    """One dispatch as the page of a case shows it."""

    call_id: str
    dispatch_no: int
    state: str
    intended_us: int
    ended_us: int | None
    duration_us: int | None
    bytes_sent: int | None
    status: int | None
    reason: str | None
    message: str | None
    settled_by: str | None
    raw: bytes | None
    tokens_in: int | None
    tokens_out: int | None
    cost_nanousd: int | None
    fence: int | None
    replay: int
    usage: str | None = None  # JSON text: what was reported, what was wrong with it, and its classes of tokens


@attrs.frozen
class JudgmentPage:
    """What one judge said of an observation, for one of its ``samples``, in one evaluation.

    ``reply`` is what the verdict was read from by ``parser``, ``reused_from`` the judgment whose verdict it is.
    """

    judge: str
    state: str
    passed: int | None
    score: str | None
    reason: str | None
    explanation: str | None
    evaluation_no: int
    attempt_no: int
    sample_no: int
    samples: int
    reply: str | None
    parser: str | None
    reused_from: str | None
    judge_no: int
    dispatches: tuple[DispatchPage, ...] = ()


_SENT: Final = (
    "SELECT d.call_id, d.dispatch_no, d.state, d.intended_us, d.ended_us, d.duration_us, d.bytes_sent,"
    " d.status, d.reason, d.message, d.settled_by, coalesce(d.raw, d.raw_artifact), d.tokens_in, d.tokens_out,"
    " d.cost_nanousd, c.fence, d.replay, d.usage"
    " FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ?"
)
_FOR_ATTEMPT: Final = f"{_SENT} AND c.owner = 'attempt' ORDER BY c.position, d.dispatch_no"
_FOR_JUDGMENT: Final = (
    f"{_SENT} AND c.owner = 'judgment' AND c.evaluation_no = ? AND c.judge_no = ? AND c.sample_no = ?"
    " ORDER BY c.position, d.dispatch_no"
)
_SAID: Final = (
    "SELECT e.name, j.state, j.passed, j.score, j.reason, j.explanation, j.evaluation_no, j.attempt_no, j.sample_no,"
    " e.samples, j.raw, j.parser, j.reused_from, j.judge_no FROM judgments j JOIN evaluation_judges e"
    " ON e.run_key = j.run_key AND e.evaluation_no = j.evaluation_no AND e.judge_no = j.judge_no"
    " WHERE j.run_key = ? AND j.slot_no = ? ORDER BY j.evaluation_no, j.judge_no, j.attempt_no, j.sample_no"
)


def dispatches_of(reader: Reader, run_key: int, slot_no: int, attempt_no: int) -> tuple[DispatchPage, ...]:
    """What was sent for an attempt, in its order."""
    return _pages(reader, _FOR_ATTEMPT, run_key, slot_no, attempt_no)


def judgments_of(reader: Reader, run_key: int, slot_no: int) -> tuple[JudgmentPage, ...]:
    """What judges said of a slot's observations in all evaluations, by evaluation and judge."""
    return tuple(_judgment(reader, run_key, slot_no, row) for row in reader.rows(_SAID, (run_key, slot_no)))


def _judgment(reader: Reader, run_key: int, slot_no: int, row: tuple[Any, ...]) -> JudgmentPage:
    page = JudgmentPage(*row)
    reply = None if page.reply is None else unescaped_text(page.reply)
    return attrs.evolve(page, reply=reply, dispatches=_sent(reader, run_key, slot_no, page))


def _sent(reader: Reader, run_key: int, slot_no: int, one: JudgmentPage) -> tuple[DispatchPage, ...]:
    return _pages(
        reader, _FOR_JUDGMENT, run_key, slot_no, one.attempt_no, one.evaluation_no, one.judge_no, one.sample_no
    )


def _pages(reader: Reader, query: str, *values: int) -> tuple[DispatchPage, ...]:
    return tuple(_page(reader, row) for row in reader.rows(query, values))


def _page(reader: Reader, row: tuple[Any, ...]) -> DispatchPage:
    with_raw = (*row[:11], bytes_of(reader, row[11]), *row[12:])
    return DispatchPage(*with_raw)
