"""How a run is executed: the ``[execution]`` table, and what it says once it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import attrs

from ..ledger.canonical import JsonValue
from .work_order_files import Place
from .work_order_models import BackoffTable, ExecutionTable, check

__all__ = ["BackoffOptions", "ExecutionOptions", "ExecutionSpec", "execution_table", "read_execution"]


class BackoffOptions(TypedDict, total=False):
    first_seconds: float
    max_seconds: float


class ExecutionOptions(TypedDict, total=False):
    """The same keys for `WorkOrder` in Python."""

    concurrency: int
    deadline_seconds: float
    attempts_max: int
    dispatches_max: int
    retry: Sequence[str]
    solitary_deaths_max: int
    backoff: BackoffOptions
    rate_per_second: float | None
    grace_seconds: float


@attrs.frozen
class ExecutionSpec:
    """The values in force, defaults included; ``docs/reference/work-order.md`` says what each means.

    ``defaulted`` names the keys that the work order did not say, so that a later default of ours is not taken for a
    change of its author's.
    """

    concurrency: int = 8
    deadline_seconds: float = 120.0
    attempts_max: int = 3
    dispatches_max: int = 5
    retry: tuple[str, ...] = ()
    solitary_deaths_max: int = 3
    backoff_first_seconds: float = 1.0
    backoff_max_seconds: float = 60.0
    rate_per_second: float | None = None
    grace_seconds: float = 10.0
    defaulted: frozenset[str] = attrs.field(default=frozenset(), eq=False)


def read_execution(raw: object, *, place: Place) -> ExecutionSpec:
    """The table as what it says; raises WorkOrderInvalid."""
    if isinstance(raw, Mapping) and isinstance(raw.get("retry"), tuple):
        raw = {**raw, "retry": list(raw["retry"])}
    table = check(ExecutionTable, raw, place=place)
    backoff = check(BackoffTable, table.backoff, place=place.at("backoff"))
    if backoff.first_seconds > backoff.max_seconds:
        place.at("backoff").refuse("first_seconds is above max_seconds", "Raise max_seconds")
    flat = table.model_dump(exclude={"backoff", "retry"})
    waits = {f"backoff_{key}": value for key, value in backoff.model_dump().items()}
    said = table.model_fields_set - {"backoff"} | {f"backoff_{key}" for key in backoff.model_fields_set}
    fields = {field.name for field in attrs.fields(ExecutionSpec)} - {"defaulted"}
    return ExecutionSpec(**flat, **waits, retry=tuple(table.retry), defaulted=frozenset(fields - said))


def execution_table(spec: ExecutionSpec) -> dict[str, JsonValue]:
    """The table that `read_execution` reads back, every value written out."""
    table: dict[str, Any] = attrs.asdict(spec, filter=attrs.filters.exclude("defaulted"))
    table["retry"] = list(spec.retry)
    table["backoff"] = {
        "first_seconds": table.pop("backoff_first_seconds"),
        "max_seconds": table.pop("backoff_max_seconds"),
    }
    if table["rate_per_second"] is None:
        del table["rate_per_second"]
    return table
