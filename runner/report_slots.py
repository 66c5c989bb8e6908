"""A planned observation as a line of the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..ledger.canonical import printable, stored_json
from ..ledger.report_rows import DispatchRow, GivenJudgment, SlotRow
from ..ledger.states import DispatchState
from .amounts import usd_text
from .instants import instant
from .report_document import SlotLine, VerdictLine

__all__ = [
    "ANSWER_CHARACTERS_MAX",
    "flags_of",
    "metadata_of",
    "seconds_of",
    "slot_line",
    "useful_dispatches",
    "verdict_line",
]

ANSWER_CHARACTERS_MAX: Final = 2_000


def slot_line(row: SlotRow, variant: str, judges: Mapping[int, str], metadata: dict[str, Any]) -> SlotLine:
    """The line of one planned observation; ``judges`` are names by number."""
    newest = row.newest
    observed = newest.observation if newest is not None and row.selected_at else None
    answer, is_cut = (None, False) if observed is None else _shown(observed.answer)
    sent = row.dispatches
    cost = _sum_of_known([one.cost_nanousd for one in sent])
    return SlotLine(
        slot=row.slot_no, case=row.case_id, variant=variant, repetition=row.repetition, state=row.state,
        reason=row.reason, message=None if newest is None else newest.message, attempts=len(row.attempts),
        dispatches=len(sent), replays=sum([one.replay for one in sent]),
        contaminated=newest is not None and newest.contaminated,
        source=None if observed is None else observed.source,
        reused_from=None if newest is None else newest.reused_from, has_answer=observed is not None, answer=answer,
        answer_cut=is_cut, flags=[] if observed is None else flags_of(observed.flags), seconds=seconds_of(row),
        began_at=instant(row.attempts[0].began_us) if row.attempts else None,
        ended_at=None if newest is None or newest.ended_us is None else instant(newest.ended_us),
        tokens_in=_sum_of_known([one.tokens_in for one in sent]),
        tokens_out=_sum_of_known([one.tokens_out for one in sent]), cost_usd=None if cost is None else usd_text(cost),
        metadata=metadata, verdicts=[verdict_line(one, judges) for one in row.judgments],
    )  # fmt: skip


def verdict_line(given: GivenJudgment, judges: Mapping[int, str]) -> VerdictLine:
    """What a judge said."""
    return VerdictLine(
        judge=judges[given.judge_no], sample=given.sample_no, passed=given.passed,
        score=None if given.score is None else float(given.score), reason=given.reason,
        explanation=given.explanation or None, reused=given.reused,
    )  # fmt: skip


def metadata_of(text: str) -> dict[str, Any]:
    """A case's metadata."""
    found = stored_json(text)
    return found if isinstance(found, dict) else {}


def useful_dispatches(row: SlotRow) -> list[DispatchRow]:
    """The sends that the selected observation came of; in a conversation also those of turns that it carried over."""
    if not row.selected_at:
        return []
    newest, carried = len(row.attempts), row.carried
    return [
        one
        for one in row.dispatches
        if (one.attempt_no == newest or (one.call_id, one.dispatch_no) in carried)
        and one.state == DispatchState.ANSWERED
    ]


def seconds_of(row: SlotRow) -> float | None:
    """How long the selected observation took on the wire, all its calls together; None where that is not known."""
    # What was settled later has the time of the send that was lost, which is not that of its answer.
    spans = [one.duration_us if one.settled_by == "wire" else None for one in useful_dispatches(row)]
    return sum(spans) / 1e6 if spans and None not in spans else None  # type: ignore[arg-type]


def _shown(text: str) -> tuple[Any, bool]:
    if len(text) <= ANSWER_CHARACTERS_MAX:
        return stored_json(text), False
    return printable(text[:ANSWER_CHARACTERS_MAX]), True


def flags_of(text: str) -> list[str]:
    """The flags in a stored list of them."""
    if text == "[]":
        return []
    found = stored_json(text)
    assert isinstance(found, list)
    return [str(flag) for flag in found]


def _sum_of_known(amounts: list[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
