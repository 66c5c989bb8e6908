"""The planned observations as the page's script reads them: short lists, so that ten thousand are quick to open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..ledger.canonical import parse_json, printable
from ..ledger.report_rows import AttemptRow
from ..runner.instants import instant
from ..runner.report_details import SlotDetails, slot_details
from ..runner.report_document import RunReport
from ..runner.report_reading import Report
from ..runner.report_slots import ListedSlot
from .json_text import json_writer
from .safe_text import plain

__all__ = ["DETAILS_MAX", "ROWS_MAX", "page_data"]

ROWS_MAX: Final = 200_000
DETAILS_MAX: Final = 20_000
TEXT_MAX: Final = 4_000
_dumps: Final = json_writer(item_separator=",", key_separator=":")


def page_data(report: Report) -> Iterator[str]:
    """The pieces of one JSON document, safe within a script element.

    ``cases`` are ``[id, input, expected, metadata]``, ``rows`` what the list shows, ``more`` what a row unfolds; both
    have one entry a planned observation. Beyond the bounds the page says what is left out.
    """
    summary = report.summary
    variants = {one.name: number for number, one in enumerate(summary.variants)}
    yield f'{{"head":{_json(_head(summary))},"rows":['
    cases: dict[int, int] = {}
    case_rows: list[str] = []
    more: list[str] = []
    for number, found in enumerate(slot_details(report)):
        if number >= ROWS_MAX:
            break
        if found.case_no not in cases:
            cases[found.case_no] = len(cases)
            case_rows.append(_json(_case(found, with_texts=number < DETAILS_MAX)))
        yield ("," if number else "") + _json(_row(found.line, cases[found.case_no], variants))
        if number < DETAILS_MAX:
            more.append(_json(_more(found)))
    yield f'],"cases":[{",".join(case_rows)}],"more":[{",".join(more)}]}}'


def _head(summary: RunReport) -> dict[str, Any]:
    judges = [] if summary.evaluation is None else summary.evaluation.judges
    return {
        "run": summary.run, "variants": [plain(one.name) for one in summary.variants],
        "judges": [plain(name) for name in judges], "planned": summary.population.planned,
    }  # fmt: skip


def _case(found: SlotDetails, *, with_texts: bool) -> list[Any]:
    name = plain(found.line.case)
    if not with_texts:
        return [name, "", "", {}]
    expected = None if found.expected is None else _text(found.expected)
    metadata = {plain(key): _cut(plain(value)) for key, value in found.line.metadata.items()}
    return [name, _text(found.input), expected, metadata]


def _row(line: ListedSlot, case: int, variants: dict[str, int]) -> list[Any]:
    verdicts = [[plain(one.judge), one.passed, one.score, one.reason, int(one.reused)] for one in line.verdicts]
    return [
        line.slot, case, variants[line.variant], line.repetition, line.state, line.reason, line.attempts,
        line.seconds, verdicts, line.flags + (["contaminated"] if line.contaminated else []),
    ]  # fmt: skip


def _more(found: SlotDetails) -> dict[str, Any]:
    line = found.line
    return {
        "a": [_attempt(one, found) for one in found.attempts],
        "v": [_cut(plain(one.explanation or "")) for one in line.verdicts],
        "s": [
            [one.attempt_no, one.decision, plain(one.made_by), _cut(plain(one.reason)), instant(one.made_us)]
            for one in found.settlements
        ],
        "u": [line.tokens_in, line.tokens_out, line.cost_usd],
    }  # fmt: skip


def _attempt(one: AttemptRow, found: SlotDetails) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "n": one.attempt_no, "s": one.state, "b": instant(one.began_us),
        "e": None if one.ended_us is None else instant(one.ended_us), "r": one.reason,
        "m": _cut(plain(one.message or "")), "d": [_send(send) for send in found.sends_of(one.attempt_no)],
    }  # fmt: skip
    if one.contaminated:
        entry["c"] = 1
    if turns := found.turns.get(one.attempt_no):
        entry["t"] = [
            [turn.turn, _text(turn.message), _text(turn.answer), turn.source, turn.carried_from, int(turn.replay)]
            for turn in turns
        ]
    if one.observation is not None:
        evidence = parse_json(one.observation.evidence)
        entry["o"] = _text(one.observation.answer)
        entry["src"] = one.observation.source
        entry["ev"] = (
            {plain(key): _cut(plain(value)) for key, value in evidence.items()} if isinstance(evidence, dict) else {}
        )
    return entry


def _send(send: Any) -> list[Any]:
    took = None if send.duration_us is None else send.duration_us / 1e6
    return [
        send.call_id, send.dispatch_no, send.state, send.reason, _cut(plain(send.message or "")), took, send.bytes_sent,
        send.status, send.tokens_in, send.tokens_out, send.replay,
    ]  # fmt: skip


def _text(canonical: str) -> str:
    """A JSON text for people: a text as it is, everything else as JSON, cut at a bound."""
    if len(canonical) > 2 * TEXT_MAX:
        return _cut(printable(canonical))
    return _cut(plain(parse_json(canonical)))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… ({len(text)} characters; `show` has all)"


def _json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = _dumps(value)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
