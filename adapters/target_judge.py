"""What judges that call have in common: a target that sends, and a parser that reads what came back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.errors import WorkOrderInvalid
from ..ledger.states import IfUnknown
from ..ledger.verdicts import NoVerdictReason
from ..runner.judge_protocols import NEEDS, NEEDS_MEANING, is_known_need
from ..runner.protocols import (
    Case,
    Dispatching,
    Missing,
    NoVerdict,
    Observed,
    Outcome,
    Prepared,
    SlotView,
    Target,
    Verdict,
)
from .outcomes import one_line
from .tables import Table, nearest
from .verdict_parsing import VerdictParser

__all__ = ["CallingTable", "TargetJudge", "checked_scale"]

_UNREADABLE = frozenset({"answer.not_json", "answer.missing"})


class CallingTable(Table):
    """The keys that all judges which call share."""

    scale: tuple[float, float] | None = Field(None, strict=False, description="Lowest and highest score, if any.")
    pass_at: float | None = Field(None, description="The least score that passes; the verdict has no pass if absent.")
    needs: list[str] = Field([], description=NEEDS_MEANING)
    if_unknown: str = Field(
        "repeat",
        pattern="^(keep|repeat)$",
        description="What may follow an unknown outcome of its call: `repeat` asks again, `keep` does not.",
    )
    reasks: int = Field(0, ge=0, le=5, description="How often it is asked again after a reply that is no verdict.")


class TargetJudge:
    """A judge whose calls are those of a target. Serves one event loop at a time, between `open` and `close`.

    It is blind: what it is sent says nothing of the variant, the repetition or the case's id.
    """

    is_blind = True

    def __init__(
        self, kind: str, name: str, table: CallingTable, target: Target, parser: VerdictParser, *, place: str
    ) -> None:
        self.kind = kind
        self.name = name
        self.needs: Sequence[str] = tuple(table.needs)
        self.scale = checked_scale(table.scale, table.pass_at, place)
        self.if_unknown = IfUnknown(table.if_unknown)
        self.reasks = table.reasks
        self.parser = parser.name
        self._target = target
        self._parser = parser
        for need in self.needs:
            if not is_known_need(need):
                raise WorkOrderInvalid(f'{place}: needs = "{need}" is not known', nearest(need, NEEDS), place=place)

    @property
    def wire_sends_max(self) -> int:
        """How many wire requests one dispatch may be."""
        return int(getattr(self._target, "wire_sends_max", 1))

    def identity(self) -> Mapping[str, JsonValue]:
        raise NotImplementedError

    def question(self, observed: Observed) -> JsonValue:
        """What is sent, as JSON."""
        raise NotImplementedError

    def reply_of(self, outcome: Outcome) -> str | NoVerdict:
        raise NotImplementedError

    def check(self) -> None:
        self._target.check()

    async def open(self) -> None:
        await self._target.open()

    async def close(self) -> None:
        await self._target.close()

    def prepare(self, observed: Observed) -> Prepared:
        return self._target.prepare(SlotView("", Case("judged", self.question(observed)), "", 1))

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        return await self._target.dispatch(prepared, dispatching)

    def read(self, reply: str) -> Verdict | NoVerdict:
        return self._parser.read(reply)

    def failed(self, outcome: Outcome) -> NoVerdict:
        """A whole reply that cannot be read is no verdict; everything else is the judge's error."""
        is_unreadable = outcome.reason in _UNREADABLE
        reason = NoVerdictReason.MALFORMED_VERDICT if is_unreadable else NoVerdictReason.JUDGE_ERROR
        return NoVerdict(reason, one_line(": ".join(filter(None, (outcome.reason, outcome.message)))))


def parts_of(observed: Observed, sees: Sequence[str]) -> dict[str, JsonValue]:
    """The named parts of an observation that are there."""
    found: dict[str, Any] = {
        "input": observed.case.input,
        "expected": observed.case.expected,
        "answer": observed.answer,
        "metadata": dict(observed.case.metadata),
        "evidence": dict(observed.evidence),
        "flags": list(observed.flags),
    }
    named: dict[str, JsonValue] = {}
    for part in sees:
        value = found[part] if part in found else observed.evidence.get(part.removeprefix("evidence."), _ABSENT)
        if not isinstance(value, Missing) and value is not _ABSENT:
            named[part.removeprefix("evidence.")] = value
    return named


_ABSENT: Any = object()


def checked_scale(scale: tuple[float, float] | None, pass_at: float | None, place: str) -> tuple[float, float] | None:
    """The scale, if it is one and ``pass_at`` lies on it; raises WorkOrderInvalid."""
    if scale is None:
        if pass_at is not None:
            raise WorkOrderInvalid(f"{place}: pass_at is a score, and there is no scale", "Give scale", place=place)
        return None
    low, high = (float(end) for end in scale)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise WorkOrderInvalid(f"{place}: a scale rises from one number to another", place=place)
    if pass_at is not None and not low < pass_at <= high:
        raise WorkOrderInvalid(f"{place}: pass_at is not on the scale above its lowest score", place=place)
    return low, high
