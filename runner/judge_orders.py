"""The judge work order: judges for observations that are there already, and within which limits they may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Unpack

import attrs

from ..ledger.canonical import JsonValue
from .budget_spec import BudgetScope, BudgetSpec
from .price_use import WrittenPrices
from .work_order_budgets import budget_tables, read_budgets
from .work_order_execution import ExecutionOptions, ExecutionSpec, execution_table, read_execution
from .work_order_files import Place, parse_work_order, read_text, refuse_foreign
from .work_order_judges import AnyJudge, JudgeSettings, judge_table, read_judges, settings_of_judges
from .work_order_models import JudgeOrderTable, check

__all__ = ["JudgeOrder", "load_judge_order"]

_OF_A_RUN: Final = frozenset({"cases", "target", "variants", "device"})


@attrs.frozen(init=False)
class JudgeOrder:
    """A judge work order, whole and checked.

    Budgets are for this evaluation alone and beside those of the run; the other options are as in ``[execution]``.
    ``folder`` is where relative paths begin. Raises WorkOrderInvalid.
    """

    name: str
    judges: tuple[AnyJudge, ...]
    cache: bool
    budgets: tuple[BudgetSpec, ...]
    execution: ExecutionSpec
    prices: WrittenPrices | None
    folder: Path = attrs.field(eq=False)
    source: str = attrs.field(eq=False)

    def __init__(
        self,
        name: str,
        *,
        judges: Sequence[AnyJudge | Mapping[str, JsonValue]],
        cache: bool = True,
        budgets: Mapping[str, object] | Sequence[object] = (),
        prices: WrittenPrices | None = None,
        folder: str | Path = "",
        **execution: Unpack[ExecutionOptions],
    ) -> None:
        root = Place(f"JudgeOrder({name!r})")
        written = dict(prices) if isinstance(prices, Mapping) else prices
        head = {"version": 1, "name": name, "judges": [], "cache": cache, "prices": written}
        self._init(check(JudgeOrderTable, head, place=root), judges, budgets, dict(execution), root, Path(folder))

    def _init(
        self,
        table: JudgeOrderTable,
        judges: Sequence[Any],
        budgets: object,
        execution: object,
        root: Place,
        folder: Path,
    ) -> None:
        found = read_judges(judges, root.at("judges"))
        if not found:
            root.at("judges").refuse("there is no judge", "Give at least one [[judges]]")
        self.__attrs_init__(
            name=table.name,
            judges=found,
            cache=table.cache,
            budgets=_budgets(budgets, root.at("budgets")),
            execution=read_execution(execution, place=root.at("execution")),
            prices=table.prices,
            folder=folder,
            source=root.source,
        )

    def replaced(self, **fields: Any) -> JudgeOrder:
        """The same with other fields, which are not checked again."""
        copy = JudgeOrder.__new__(JudgeOrder)
        now = {field.name: getattr(self, field.name) for field in attrs.fields(JudgeOrder)}
        copy.__attrs_init__(**now | fields)
        return copy

    def settings(self) -> dict[str, JudgeSettings]:
        """What is asked of each judge, by name."""
        return settings_of_judges(self.judges)

    def to_document(self) -> dict[str, JsonValue]:
        """A judge work order in JSON form with every value written out, defaults included."""
        return {
            "version": 1,
            "name": self.name,
            "judges": [judge_table(judge) for judge in self.judges],
            **self.how(),
        }

    def how(self) -> dict[str, JsonValue]:
        """The part on which no verdict depends."""
        return {
            "cache": self.cache,
            "budgets": budget_tables(self.budgets),
            "execution": execution_table(self.execution),
            **({} if self.prices is None else {"prices": self.prices}),
        }


def load_judge_order(path: str | Path) -> JudgeOrder:
    """The judge work order in a TOML file, or in a JSON file (``.json``); raises WorkOrderInvalid with the place."""
    source = str(path)
    raw, root = parse_work_order(read_text(Path(path), source=source), source=source)
    refuse_foreign(raw, place=root)
    for key in raw:
        if key in _OF_A_RUN:
            root.at(key).refuse(
                "a judge work order asks no target", "Leave it out: what is judged are the run's observations"
            )
    table = check(JudgeOrderTable, raw, place=root)
    made = JudgeOrder.__new__(JudgeOrder)
    made._init(table, table.judges, table.budgets, table.execution, root, Path(path).parent)
    return made


def _budgets(raw: object, place: Place) -> tuple[BudgetSpec, ...]:
    found = read_budgets(raw, variants=(), place=place, may_be_told=True)
    if any(spec.scope_kind is not BudgetScope.RUN for spec in found):
        place.refuse("a budget here is for the whole evaluation", "Leave out per, role and variant")
    return found
