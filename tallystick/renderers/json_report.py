"""The whole report as one JSON document; ``docs/report.schema.json`` says what is in it."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Iterator
from typing import Final

from ..runner.report_models import as_json
from ..runner.report_reading import Report
from ..runner.report_slots import ListedSlot, ListedVerdict
from .json_text import json_writer

__all__ = ["json_report", "slot_text"]

_quoted: Final[Callable[[str], str]] = json.encoder.encode_basestring_ascii
_dumps: Final = json_writer()
_BOOLEANS: Final = {True: "true", False: "false", None: "null"}


def json_report(report: Report) -> Iterator[str]:
    """Its pieces. Text beyond ASCII is escaped, so that every encoding and every lone surrogate passes."""
    head = json.dumps(as_json(report.summary), indent=2)
    yield head.removesuffix("\n}") + ',\n  "slots": ['
    between = "\n    "
    for slot in report.slots():
        yield between + slot_text(slot)
        between = ",\n    "
    yield "]\n}\n" if between == "\n    " else "\n  ]\n}\n"


def slot_text(slot: ListedSlot) -> str:
    """One planned observation: what `json.dumps` writes of its `SlotLine`, in a fifth of the time."""
    verdicts = ", ".join([_verdict_text(one) for one in slot.verdicts])
    return (
        f'{{"slot": {slot.slot}, "case": {_quoted(slot.case)}, "variant": {_quoted(slot.variant)},'
        f' "repetition": {slot.repetition}, "state": {_quoted(slot.state)}, "reason": {_text(slot.reason)},'
        f' "message": {_text(slot.message)}, "attempts": {slot.attempts}, "dispatches": {slot.dispatches},'
        f' "replays": {slot.replays}, "contaminated": {_BOOLEANS[slot.contaminated]}, "source": {_text(slot.source)},'
        f' "reused_from": {_text(slot.reused_from)}, "has_answer": {_BOOLEANS[slot.has_answer]},'
        f' "answer": {_dumps(slot.answer)}, "answer_cut": {_BOOLEANS[slot.answer_cut]}, "flags": {_dumps(slot.flags)},'
        f' "seconds": {_number(slot.seconds)}, "began_at": {_text(slot.began_at)}, "ended_at": {_text(slot.ended_at)},'
        f' "tokens_in": {_number(slot.tokens_in)}, "tokens_out": {_number(slot.tokens_out)},'
        f' "cost_usd": {_text(slot.cost_usd)}, "metadata": {_dumps(slot.metadata)}, "verdicts": [{verdicts}]}}'
    )


def _verdict_text(one: ListedVerdict) -> str:
    judge, sample, passed, score, reason, explanation, reused = one
    return (
        f'{{"judge": {_quoted(judge)}, "sample": {sample}, "passed": {_BOOLEANS[passed]}, "score": {_number(score)},'
        f' "reason": {_text(reason)}, "explanation": {_text(explanation)}, "reused": {_BOOLEANS[reused]}}}'
    )


def _text(value: str | None) -> str:
    return "null" if value is None else _quoted(value)


def _number(value: float | None) -> str:
    return "null" if value is None else _dumps(value)
