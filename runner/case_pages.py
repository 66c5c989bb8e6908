"""One case with everything that happened to it, in the model that its screen and ``--json`` use."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..ledger.canonical import parse_json, stored_json
from ..ledger.case_reads import DispatchPage, JudgmentPage
from ..ledger.run_reads import RunRow
from ..ledger.slot_reads import AttemptPage, CasePage
from ..ledger.turns import SessionRow, TurnRow
from .amounts import usd_text
from .reports import instant

__all__ = [
    "AttemptPart",
    "BytesPart",
    "CaseModel",
    "ConversationPart",
    "DispatchPart",
    "DispatchUsage",
    "JudgmentPart",
    "SettlementPart",
    "SlotPart",
    "TurnPart",
    "bytes_part",
    "case_model",
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BytesPart(_Part):
    """Bytes as ``text`` where they are UTF-8, else as ``base64``."""

    size: int
    text: str | None = None
    base64: str | None = None


class DispatchUsage(_Part):
    """What a send was reported to have used (``raw``), and what was made of it.

    ``seen`` is what a stream that broke off had told: at least that was used. ``besides`` is used and no token.
    """

    raw: Any = None
    problems: list[str] = []
    classes: dict[str, int] = {}
    besides: list[str] = []
    seen: dict[str, int | None] | None = None


class DispatchPart(_Part):
    """One send of a call."""

    call: str
    number: int
    state: str
    intended_at: str
    ended_at: str | None
    seconds: float | None
    bytes_sent: int | None
    status: int | None
    reason: str | None
    message: str | None
    settled_by: str | None
    received: BytesPart | None
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: str | None
    usage: DispatchUsage | None
    fence: int | None
    replay: bool


class SettlementPart(_Part):
    """Who decided on an unknown outcome, how and why."""

    decision: str
    made_by: str
    reason: str
    made_at: str


class TurnPart(_Part):
    """One committed turn of a conversation.

    ``source`` is ``wire``, ``query``, ``operator``, or ``carried`` where the attempt ``carried_from`` asked it; then
    ``call`` is null. ``replay``: an earlier attempt had an answer to it. ``checkpoint`` is a digest.
    """

    turn: int
    message: Any
    answer: Any
    source: str
    call: str | None
    dispatch: int | None
    carried_from: int | None
    replay: bool
    checkpoint: str | None
    evidence: Any
    flags: list[str]
    committed_at: str


class ConversationPart(_Part):
    """An attempt's session. ``asked`` is the turn that was asked last; ``checkpoint`` is what it was restored from."""

    session: str
    asked: int
    checkpoint: str | None
    turns: list[TurnPart]


class AttemptPart(_Part):
    """One try. ``answer`` is there only with ``has_answer``: null is an answer, too.

    ``contaminated``: an earlier holder touched its device meanwhile, or may have. ``reused_from`` names the run, slot
    and attempt that a fork took it over from.
    """

    number: int
    state: str
    worker: str | None
    began_at: str
    ended_at: str | None
    reason: str | None
    message: str | None
    has_answer: bool
    answer: Any
    source: str | None
    evidence: Any
    flags: list[str]
    contaminated: bool
    reused_from: str | None
    dispatches: list[DispatchPart]
    settlements: list[SettlementPart]
    conversation: ConversationPart | None


class JudgmentPart(_Part):
    """What one judge said in an evaluation; ``reason`` is why there is no verdict.

    ``reply`` is what the verdict was read from. ``reused_from`` is the judgment whose verdict this is, as
    evaluation/judge/planned observation/attempt/sample, the last four by number; then nothing was sent.
    """

    evaluation: int
    judge: str
    attempt: int
    sample: int
    samples: int
    state: str
    passed: bool | None
    score: str | None
    reason: str | None
    explanation: str | None
    reply: str | None
    parser: str | None
    reused_from: str | None
    dispatches: list[DispatchPart]


class SlotPart(_Part):
    """One planned observation of the case."""

    variant: str
    repetition: int
    state: str
    reason: str | None
    selected_attempt: int | None
    next_step: str
    not_before: str | None
    attempts: list[AttemptPart]
    judgments: list[JudgmentPart]


class CaseModel(_Part):
    """What ``show`` says. ``expected`` is there only with ``has_expected``."""

    format: Literal["tallystick.case/1"] = "tallystick.case/1"
    ledger: str
    run: str
    name: str
    case: str
    input: Any
    has_expected: bool
    expected: Any
    metadata: Any
    planned: list[SlotPart]


def case_model(ledger: str, run: RunRow, pages: Sequence[CasePage]) -> CaseModel:
    """The pages of one case (at least one) as a model."""
    first = pages[0]
    return CaseModel(
        ledger=ledger, run=run.run_id, name=run.name, case=first.case_id, input=parse_json(first.input),
        has_expected=first.expected is not None,
        expected=None if first.expected is None else parse_json(first.expected),
        metadata=parse_json(first.metadata), planned=[_slot(page) for page in pages],
    )  # fmt: skip


def bytes_part(data: bytes | None) -> BytesPart | None:
    """The bytes as JSON can carry them."""
    if data is None:
        return None
    try:
        return BytesPart(size=len(data), text=data.decode())
    except UnicodeDecodeError:
        return BytesPart(size=len(data), base64=base64.b64encode(data).decode("ascii"))


def _slot(page: CasePage) -> SlotPart:
    return SlotPart(
        variant=page.variant, repetition=page.repetition, state=page.state, reason=page.reason,
        selected_attempt=page.selected_attempt, next_step=page.next_step,
        not_before=instant(page.not_before_us) if page.not_before_us else None,
        attempts=[_attempt(one) for one in page.attempts],
        judgments=[_judgment(one) for one in page.judgments],
    )  # fmt: skip


def _attempt(page: AttemptPage) -> AttemptPart:
    flags = parse_json(page.flags) if page.flags else []
    assert isinstance(flags, list)
    return AttemptPart(
        number=page.attempt_no, state=page.state, worker=page.worker_id, began_at=instant(page.began_us),
        ended_at=_instant(page.ended_us), reason=page.reason, message=page.message,
        has_answer=page.answer is not None, answer=None if page.answer is None else parse_json(page.answer),
        source=page.source, evidence=parse_json(page.evidence) if page.evidence else {},
        flags=[str(flag) for flag in flags], contaminated=bool(page.contaminated),
        reused_from=page.reused_from,
        dispatches=[_dispatch(one) for one in page.dispatches],
        settlements=[
            SettlementPart(decision=decision, made_by=made_by, reason=reason, made_at=instant(made_us))
            for decision, made_by, reason, made_us in page.settlements
        ],
        conversation=None if page.session is None else _conversation(page.session),
    )  # fmt: skip


def _judgment(page: JudgmentPage) -> JudgmentPart:
    return JudgmentPart(
        evaluation=page.evaluation_no, judge=page.judge, attempt=page.attempt_no, sample=page.sample_no,
        samples=page.samples, state=page.state, passed=None if page.passed is None else bool(page.passed),
        score=page.score, reason=page.reason, explanation=page.explanation, reply=page.reply, parser=page.parser,
        reused_from=page.reused_from, dispatches=[_dispatch(one) for one in page.dispatches],
    )  # fmt: skip


def _conversation(session: SessionRow) -> ConversationPart:
    return ConversationPart(
        session=session.session_id, asked=session.turn, checkpoint=session.checkpoint,
        turns=[_turn(row) for row in session.turns],
    )  # fmt: skip


def _turn(row: TurnRow) -> TurnPart:
    flags = parse_json(row.flags)
    assert isinstance(flags, list)
    return TurnPart(
        turn=row.turn, message=parse_json(row.message), answer=parse_json(row.answer), source=row.source,
        call=row.call_id, dispatch=row.dispatch_no, carried_from=row.carried_from, replay=row.replay,
        checkpoint=row.checkpoint, evidence=parse_json(row.evidence), flags=[str(flag) for flag in flags],
        committed_at=instant(row.committed_us),
    )  # fmt: skip


def _dispatch(page: DispatchPage) -> DispatchPart:
    return DispatchPart(
        call=page.call_id, number=page.dispatch_no, state=page.state, intended_at=instant(page.intended_us),
        ended_at=_instant(page.ended_us), seconds=None if page.duration_us is None else page.duration_us / 1e6,
        bytes_sent=page.bytes_sent, status=page.status, reason=page.reason, message=page.message,
        settled_by=page.settled_by, received=bytes_part(page.raw), tokens_in=page.tokens_in,
        tokens_out=page.tokens_out,
        cost_usd=None if page.cost_nanousd is None else usd_text(page.cost_nanousd),
        usage=None if page.usage is None else _usage(page.usage), fence=page.fence, replay=bool(page.replay),
    )  # fmt: skip


def _usage(text: str) -> DispatchUsage | None:
    try:
        told = stored_json(text)
        return DispatchUsage.model_validate(told) if told else None
    except ValueError:  # another program wrote it, or a snapshot that was redacted has nothing of it
        return DispatchUsage(raw=text)


def _instant(us: int | None) -> str | None:
    return None if us is None else instant(us)
