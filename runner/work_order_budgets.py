"""Budgets between their two written forms, ``[budgets]`` and ``[[budgets]]``, and `BudgetSpec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..ledger.canonical import JsonValue
from ..ledger.states import BudgetKind
from .budget_spec import ROLES, UNITS, BudgetScope, BudgetSpec, BudgetUnit, UnitForm, faults_of
from .errors import AmountInvalid
from .words import nearest
from .work_order_files import Place
from .work_order_models import BudgetTable, UnitBudgetTable, check

__all__ = ["budget_tables", "read_budgets"]

_BY_KEY: Final[Mapping[str, BudgetUnit]] = {form.key: unit for unit, form in UNITS.items()}


def read_budgets(
    raw: object, *, variants: Sequence[str], place: Place, may_be_told: bool = False
) -> tuple[BudgetSpec, ...]:
    """All budgets, one for each scope and unit; ``may_be_told`` is as in `faults_of`. Raises WorkOrderInvalid."""
    found: dict[tuple[str, str, str], BudgetSpec] = {}
    for unit, table, where in _tables(raw, place):
        for scope, value in _scopes(table, variants, where):
            spec = _spec(unit, table, scope, value, where, may_be_told=may_be_told)
            if found.setdefault(spec.key, spec) is not spec:
                of = f" of {scope.value} {value}" if value else ""
                where.refuse(f"a second budget of {UNITS[unit].key}{of}", "Write one for each unit and scope")
    return tuple(found.values())


def budget_tables(specs: Sequence[BudgetSpec]) -> list[JsonValue]:
    """The array form that `read_budgets` reads back."""
    return [_table_of(spec) for spec in specs]


def _tables(raw: object, place: Place) -> Iterator[tuple[BudgetUnit, BudgetTable, Place]]:
    if isinstance(raw, Mapping):
        for key, entry in raw.items():
            where = place.at(key)
            if key not in _BY_KEY:
                where.refuse("there is no such unit", nearest(str(key), _BY_KEY))
            is_short = not isinstance(entry, Mapping)
            table = check(BudgetTable, {"limit": entry} if is_short else entry, place=where)
            yield _BY_KEY[key], table, where
    elif isinstance(raw, list | tuple):
        for index, entry in enumerate(raw):
            where = place.at(index)
            entry = _table_of(entry) if isinstance(entry, BudgetSpec) else entry
            table = check(UnitBudgetTable, entry, place=where)
            yield _BY_KEY[table.unit], table, where
    else:
        place.refuse("a table of units, or an array of tables, is wanted here", "Write [budgets] dispatches = 800")


def _scopes(table: BudgetTable, variants: Sequence[str], place: Place) -> list[tuple[BudgetScope, str]]:
    said = [key for key in ("per", "role", "variant") if key in table.model_fields_set]
    if len(said) > 1:
        place.refuse(f"{' and '.join(said)} exclude each other", "Keep one of them")
    if table.role is not None:
        return [(BudgetScope.ROLE, table.role)]
    if table.variant is not None:
        if table.variant not in variants:
            place.at("variant").refuse(f"there is no variant {table.variant!r}", nearest(table.variant, variants))
        return [(BudgetScope.VARIANT, table.variant)]
    match table.per:
        case "variant":
            return [(BudgetScope.VARIANT, name) for name in variants]
        case "role":
            return [(BudgetScope.ROLE, name) for name in ROLES]
        case "run":
            return [(BudgetScope.RUN, "")]


def _spec(
    unit: BudgetUnit, table: BudgetTable, scope: BudgetScope, value: str, place: Place, *, may_be_told: bool
) -> BudgetSpec:
    form = UNITS[unit]
    is_short = isinstance(place.keys[-1], str) and table.model_fields_set == {"limit"}
    limit = _amount(form, table.limit, place if is_short else place.at("limit"))
    said = table.bound_per_dispatch
    bound = None if said is None else _amount(form, said, place.at("bound_per_dispatch"))
    if unit is BudgetUnit.DISPATCHES and bound is None:
        bound = 1
    spec = BudgetSpec(scope, value, unit, BudgetKind(table.kind), limit, bound)
    if fault := faults_of(spec, may_be_told=may_be_told):
        place.refuse(*fault)
    return spec


def _amount(form: UnitForm, value: object, place: Place) -> int:
    try:
        return form.parse(value)
    except AmountInvalid as cause:
        place.refuse(cause.what, cause.remedy, cause=cause)


def _table_of(spec: BudgetSpec) -> dict[str, Any]:
    form = UNITS[spec.unit]
    table: dict[str, Any] = {"unit": form.key, "limit": form.show(spec.limit), "kind": spec.kind.value}
    if spec.bound_per_dispatch is not None and spec.unit is not BudgetUnit.DISPATCHES:
        table["bound_per_dispatch"] = form.show(spec.bound_per_dispatch)
    if spec.scope_kind is not BudgetScope.RUN:
        table[spec.scope_kind.value] = spec.scope_value
    return table
