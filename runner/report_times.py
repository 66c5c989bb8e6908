"""When things happened: sessions, marks and the attempts under way, in parts of a fixed number."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import attrs

from ..ledger.history import Mark, RunHistory, SessionSpan
from ..ledger.report_rows import SlotRow
from .instants import instant
from .report_document import AttemptBar, DurationLine, MarkLine, SessionLine, TimeBucket, TimeLine
from .statistics_samples import median_interval, quantile

__all__ = ["Times", "duration_line", "mark_lines", "session_lines"]

BARS_MAX: Final = 400
BUCKETS: Final = 120
BINS: Final = 24
_SILENT_MARKS: Final = ("run.planned", "budget.bound_amended")


@attrs.define
class Times:
    """The attempts' instants; `add` takes one planned observation."""

    began: array[int] = attrs.field(factory=lambda: array("q"))
    ended: array[int] = attrs.field(factory=lambda: array("q"))
    states: list[str] = attrs.field(factory=list)
    bars: list[AttemptBar] = attrs.field(factory=list)

    def add(self, row: SlotRow, variant: str) -> None:
        """Keep the instants of the attempts, and a bar each while they are few."""
        for one in row.attempts:
            if one.reused_from is not None:
                continue  # it was made in another run, at another time
            self.began.append(one.began_us)
            self.ended.append(-1 if one.ended_us is None else one.ended_us)
            self.states.append(one.state)
            if len(self.bars) <= BARS_MAX:
                self.bars.append(
                    AttemptBar(
                        case=row.case_id, variant=variant, repetition=row.repetition, attempt=one.attempt_no,
                        state=one.state, began_at=instant(one.began_us),
                        ended_at=None if one.ended_us is None else instant(one.ended_us),
                    )
                )  # fmt: skip

    def line(self, history: RunHistory) -> TimeLine:
        """The time line from the first attempt to the last thing that happened."""
        if not self.began:
            return TimeLine(began_at=None, ended_at=None, buckets=[], attempts=[])
        first = min(itertools.chain(self.began, (one.began_us for one in history.sessions[:1])))
        last = max(itertools.chain(self.ended, (history.at_us, first + 1)))
        bars = sorted(self.bars, key=lambda bar: (bar.began_at, bar.case, bar.variant, bar.repetition))
        return TimeLine(
            began_at=instant(first), ended_at=instant(last), buckets=self._buckets(first, last),
            attempts=bars if len(self.bars) <= BARS_MAX else [],
        )  # fmt: skip

    def _buckets(self, first: int, last: int) -> list[TimeBucket]:
        width = max(1, math.ceil((last - first + 1) / BUCKETS))
        count = (last - first) // width + 1
        steps: list[Counter[int]] = [Counter() for _ in range(count)]
        ends: list[Counter[str]] = [Counter() for _ in range(count)]
        for began, ended, state in zip(self.began, self.ended, self.states, strict=True):
            steps[(began - first) // width][began] += 1
            if ended >= 0:
                at = (max(ended, began) - first) // width
                steps[at][max(ended, began)] -= 1
                ends[at][state] += 1
        under_way, buckets = 0, []
        for number in range(count):
            most = under_way
            for _, change in sorted(steps[number].items()):
                under_way += change
                most = max(most, under_way)
            buckets.append(
                TimeBucket(
                    at=instant(first + number * width), seconds=width / 1e6, in_flight=most,
                    ended=dict(sorted(ends[number].items())),
                )
            )  # fmt: skip
        return buckets


def session_lines(sessions: Sequence[SessionSpan]) -> list[SessionLine]:
    """The sessions in their order; one that was found dead is a kill."""
    return [
        SessionLine(
            number=number, began_at=instant(one.began_us),
            ended_at=None if one.ended_us is None else instant(one.ended_us), died=one.died, reason=one.reason,
            fence=one.fence, unknown=one.recovered.get("unknown", 0), again=one.recovered.get("again", 0),
            interrupted=one.recovered.get("interrupted", 0), parked=one.recovered.get("parked", 0),
        )
        for number, one in enumerate(sessions, start=1)
    ]  # fmt: skip


def mark_lines(marks: Sequence[Mark]) -> list[MarkLine]:
    """What happened to the run as a whole, the newest last."""
    return [
        MarkLine(event=one.event_no, at=instant(one.at_us), kind=one.kind, text=_text(one.kind, one.body))
        for one in marks
        if one.kind not in _SILENT_MARKS
    ]


def _text(kind: str, body: dict[str, Any]) -> str:
    match kind:
        case "run.cancelled":
            return f"{body['count']} given up by {body['by']}: {body['reason']}"
        case "run.stop_asked":
            return f"asked to stop: {body['reason']}"
        case "slots.retried":
            return f"{body['count']} that were {body['state']} wait again"
        case "slots.unavailable" | "slots.unknown":
            return f"{body['count']} became {kind.partition('.')[2]}: {body['reason']}"
        case "slot.parked":
            return f"slot {body['slot']} was parked"
        case "dispatch.settled":
            return f"call {body['call']} was settled as {body['decision']} by {body['by']}: {body['reason']}"
        case "dispatch.late":
            return f"the answer to call {body['call']} came late"
        case "budget.amended":
            return f"budget {body['budget']} was changed from {body['old']} to {body['new']}: {body['reason']}"
        case "lease.lost":
            return f"the lease of {body['resource']} was lost: {body['reason']}"
        case "evaluation.created":
            return f"evaluation {body['evaluation']} ({body['name']}) was created"
        case _:
            return kind


def duration_line(variant: str, seconds: array[float], silent: int) -> DurationLine:
    """The distribution of a variant's durations."""
    if not seconds:
        return DurationLine(
            variant=variant, known=0, unknown=silent, mean=None, least=None, p50=None, p50_low=None, p50_high=None,
            p90=None, p95=None, p99=None, most=None,
        )  # fmt: skip
    ordered = sorted(seconds)
    around = median_interval(ordered)
    return DurationLine(
        variant=variant, known=len(ordered), unknown=silent, mean=math.fsum(ordered) / len(ordered), least=ordered[0],
        p50=quantile(ordered, 0.5), p50_low=around.low, p50_high=around.high, p90=quantile(ordered, 0.9),
        p95=quantile(ordered, 0.95), p99=quantile(ordered, 0.99), most=ordered[-1], histogram=_histogram(ordered),
    )  # fmt: skip


def _histogram(ordered: Sequence[float]) -> list[tuple[float, float, int]]:
    """``(from, to, count)`` in bins of equal ratio: durations spread over orders of magnitude."""
    least, most = max(ordered[0], 1e-6), max(ordered[-1], 1e-6)
    if most <= least * 1.0001:
        return [(least, most, len(ordered))]
    step = (most / least) ** (1 / BINS)
    edges = [least * step**number for number in range(BINS)] + [most]
    counts = [0] * BINS
    for value in ordered:
        place = int(math.log(max(value, least) / least) / math.log(step)) if value > least else 0
        counts[min(place, BINS - 1)] += 1
    return [(edges[at], edges[at + 1], counts[at]) for at in range(BINS)]
