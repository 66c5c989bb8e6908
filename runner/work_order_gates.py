"""The gates of a work order: the ``[gates]`` table, and what it says once it was read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from ..ledger.canonical import JsonValue
from .amounts import nanousd, usd_text
from .errors import AmountInvalid
from .judge_protocols import gives_pass
from .protocols import Judge
from .words import nearest
from .work_order_files import Place
from .work_order_models import GatesTable, check

__all__ = ["EVERY_JUDGE", "GatesSpec", "gates_table", "read_gates", "refuse_unreachable_gates"]

EVERY_JUDGE: Final = ""
"""The key of a limit that is the same for every judge."""

_BY_JUDGE: Final = ("min_score", "min_pass_rate", "max_regression")


@attrs.frozen
class GatesSpec:
    """What a run is held to; ``docs/reference/work-order.md`` says what each key means. Limits by judge have its name.

    Gates are limits: they are no part of a run's identity, and may be changed after it.
    """

    baseline: str | None = None
    variant: str | None = None
    decide_by: Literal["value", "interval"] = "value"
    min_coverage: float = 1.0
    min_score: Mapping[str, float] = attrs.field(factory=dict)
    min_pass_rate: Mapping[str, float] = attrs.field(factory=dict)
    max_regression: Mapping[str, float] = attrs.field(factory=dict)
    max_slowdown: float | None = None
    max_median_seconds: float | None = None
    max_p95_seconds: float | None = None
    max_failed: int | None = None
    max_unknown: int | None = None
    max_nanousd: int | None = None

    @property
    def compares(self) -> bool:
        """Whether some gate needs a baseline."""
        return bool(self.max_regression) or self.max_slowdown is not None


def read_gates(
    raw: object, *, variants: Sequence[str] = (), judges: Sequence[str] = (), place: Place
) -> GatesSpec | None:
    """The table as what it says, None where there is none; raises WorkOrderInvalid."""
    if raw is None:
        return None
    table = check(GatesTable, raw, place=place)
    if table.variant is not None and variants and table.variant not in variants:
        place.at("variant").refuse(f"there is no variant {table.variant!r}", nearest(table.variant, variants))
    limits: dict[str, Any] = {key: _by_judge(getattr(table, key), judges, place.at(key)) for key in _BY_JUDGE}
    plain = table.model_dump(exclude={*_BY_JUDGE, "max_usd"})
    return GatesSpec(**plain, **limits, max_nanousd=_money(table.max_usd, place.at("max_usd")))


def refuse_unreachable_gates(spec: GatesSpec | None, judges: Sequence[Judge], *, source: str) -> None:
    """Refuse a share of passes wanted of a judge that only gives scores: it would be found out after all is paid."""
    for name in () if spec is None else spec.min_pass_rate:
        for judge in judges:
            if name in (EVERY_JUDGE, judge.name) and not gives_pass(judge):
                Place(source).at("gates", "min_pass_rate", *([name] if name else [])).refuse(
                    f"the judge {judge.name} gives scores and passes nothing",
                    "Give it the least score that passes (pass_at, or at_least of a similarity), or say min_score",
                )


def gates_table(spec: GatesSpec) -> dict[str, JsonValue]:
    """The table that `read_gates` reads back."""
    table: dict[str, Any] = attrs.asdict(spec, filter=lambda field, value: value is not None and value != {})
    amount = table.pop("max_nanousd", None)
    if amount is not None:
        table["max_usd"] = usd_text(amount)
    for key in _BY_JUDGE:
        if EVERY_JUDGE in table.get(key, {}):
            table[key] = table[key][EVERY_JUDGE]
    return table


def _by_judge(value: object, judges: Sequence[str], place: Place) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return {EVERY_JUDGE: _number(value, place)}
    for name in value:
        if judges and name not in judges:
            place.at(name).refuse(f"there is no judge {name!r}", nearest(str(name), judges))
    return {str(name): _number(limit, place.at(name)) for name, limit in value.items()}


def _number(value: object, place: Place) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        place.refuse("a number is wanted here, or a table of numbers by judge", "Write 0.9, or { JUDGE = 0.9 }")
    if not math.isfinite(value):
        place.refuse(f"{value} is no limit", "Write a finite number, such as 0.9")
    return float(value)


def _money(value: object, place: Place) -> int | None:
    if value is None:
        return None
    try:
        return nanousd(value)
    except AmountInvalid as cause:
        place.refuse(cause.what, cause.remedy, cause=cause)
