"""The planned observations as JUnit XML, for the test tabs of CI servers: a suite a variant, a test each.

A test fails where a judge said no. Whatever was not measured (failed, unknown, unavailable, no verdict) is an *error*:
servers show errors apart from failures, and neither as passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final
from xml.sax.saxutils import escape

from ..ledger.states import SlotState
from ..runner.report_document import RunReport
from ..runner.report_reading import Report
from ..runner.report_slots import ListedSlot
from .safe_text import plain, xml_text

__all__ = ["junit_report", "outcome_of"]

_TEXT_MAX: Final = 2_000


def junit_report(report: Report) -> Iterator[str]:
    """Its pieces. The tests are kept until their sums are known, which stand before them."""
    names = [one.name for one in report.summary.variants]
    counts = {name: Counter[str]() for name in names}
    seconds = dict.fromkeys(names, 0.0)
    cases: dict[str, list[str]] = {name: [] for name in names}
    ignored = {score.judge for score in report.summary.scores if not score.counts}
    for slot in report.slots():
        outcome = _outcome(report.summary, slot, ignored)
        counts[slot.variant][outcome[0]] += 1
        seconds[slot.variant] += slot.seconds or 0.0
        cases[slot.variant].append(_case(slot, *outcome))
    total = sum(counts.values(), Counter[str]())
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuites {_attributes(report.summary.name, total, sum(seconds.values()))}>\n"
    for name in names:
        yield f"  <testsuite {_attributes(name, counts[name], seconds[name])}>\n"
        yield from cases[name]
        yield "  </testsuite>\n"
    yield "</testsuites>\n"


def outcome_of(summary: RunReport, slot: ListedSlot) -> tuple[str, str, str]:
    """``passed``, ``failure``, ``error`` or ``skipped``, with a type and a message."""
    return _outcome(summary, slot, {score.judge for score in summary.scores if not score.counts})


def _outcome(summary: RunReport, slot: ListedSlot, ignored: AbstractSet[str]) -> tuple[str, str, str]:
    if slot.state == SlotState.CANCELLED:
        return "skipped", slot.state, slot.reason or ""
    if slot.state != SlotState.SELECTED:
        return "error", slot.state, " ".join(part for part in (slot.reason, slot.message) if part)
    counted = [one for one in slot.verdicts if one.judge not in ignored]
    for one in counted:
        if one.passed is False:
            return "failure", one.judge, one.explanation or "not passed"
    for one in counted:
        if one.reason is not None:
            return "error", f"{one.judge}.{one.reason}", one.explanation or "no verdict"
    judges = [] if summary.evaluation is None else summary.evaluation.judges
    for name in judges:
        if name not in ignored and all(one.judge != name for one in counted):
            return "error", f"{name}.waiting", "not judged yet"
    if ignored and not counted:
        return "error", f"{min(ignored)}.unqualified", "its judge is not qualified as it must be"
    return "passed", "", ""


def _case(slot: ListedSlot, outcome: str, kind: str, message: str) -> str:
    name = slot.case if slot.repetition == 1 else f"{slot.case} [{slot.repetition}]"
    time = "" if slot.seconds is None else f' time="{slot.seconds:.6f}"'
    head = f"    <testcase classname={_quoted(slot.variant)} name={_quoted(name)}{time}"
    if outcome == "passed":
        return f"{head}/>\n"
    told = f"type={_quoted(kind)} message={_quoted(message)}"
    return f"{head}><{outcome} {told}>{xml_text(message[:_TEXT_MAX])}</{outcome}></testcase>\n"


def _attributes(name: str, counts: Counter[str], seconds: float) -> str:
    return (
        f'name={_quoted(name)} tests="{sum(counts.values())}" failures="{counts["failure"]}"'
        f' errors="{counts["error"]}" skipped="{counts["skipped"]}" time="{seconds:.6f}"'
    )


def _quoted(text: str) -> str:
    """An attribute's value in quotes, on one line."""
    shown = escape(" ".join(plain(text[:_TEXT_MAX]).split()))
    return '"' + shown.replace('"', "&quot;") + '"'
