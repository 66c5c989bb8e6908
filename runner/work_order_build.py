"""From the tables of a work order to targets and judges, by whatever finds the adapter of a kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..ledger.canonical import JsonValue
from ..ledger.states import BudgetKind
from .budget_spec import BudgetScope, BudgetSpec, BudgetUnit
from .protocols import GIVEN, Judge, Target
from .work_order import DEFAULT_VARIANT, TargetSpec, WorkOrder
from .work_order_files import Place
from .work_order_judges import AnyJudge, JudgeSpec

__all__ = ["Maker", "build_judges", "build_judges_of", "build_targets"]


class Maker(Protocol):
    """Makes a target or a judge of a kind from the other keys of its table.

    ``folder`` is where relative paths begin, ``place`` what the text of an error begins with. Raises a UsageError for
    an unknown kind and for whatever is wrong in the table.
    """

    def __call__(self, kind: str, table: Mapping[str, JsonValue], *, folder: Path, place: str) -> Any: ...


def build_targets(order: WorkOrder, make: Maker) -> dict[str, Target]:
    """The target of each variant: those that were given, and the others made from their tables.

    Raises WorkOrderInvalid for a target that was given from Python and has to be given again.
    """
    is_alone = list(order.variants) == [DEFAULT_VARIANT]
    built: dict[str, Target] = {}
    for name, target in order.variants.items():
        place = Place(order.source).at(*(("target",) if is_alone else ("variants", name, "target")))
        if not isinstance(target, TargetSpec):
            built[name] = target
        elif target.kind == GIVEN:
            place.refuse(
                "this target was given from Python",
                "Run the program again that began the run, or give the same targets to ts.resume",
            )
        else:
            built[name] = make(target.kind, target.options, folder=order.folder, place=str(place))
        _refuse_going_around(order, name, built[name], place)
    return built


def _refuse_going_around(order: WorkOrder, name: str, target: Target, place: Place) -> None:
    """Refuse, under a hard budget of dispatches, a target whose code is seen to send where nobody counts."""
    around: tuple[str, ...] = getattr(target, "goes_around", tuple)()
    if around and any(_counts_dispatches(spec, name) for spec in order.budgets):
        place.refuse(
            f"it can send through {', '.join(around)}, which no budget counts, and a hard budget of dispatches is set",
            "Let it send through its http or ts.httpx_client(), wrap the work in ts.step, or make the budget soft",
        )


def _counts_dispatches(spec: BudgetSpec, variant: str) -> bool:
    is_hard = spec.unit is BudgetUnit.DISPATCHES and spec.kind is BudgetKind.HARD
    return is_hard and (spec.scope_kind is not BudgetScope.VARIANT or spec.scope_value == variant)


def build_judges(order: WorkOrder, make: Maker) -> list[Judge]:
    """The judges, as `build_targets` does with targets; the table of each says its ``name``."""
    return build_judges_of(order.judges, make, source=order.source, folder=order.folder)


def build_judges_of(judges: Iterable[AnyJudge], make: Maker, *, source: str, folder: Path) -> list[Judge]:
    """The same for any list of judges; ``source`` is what faults are reported under."""
    built: list[Judge] = []
    for index, judge in enumerate(judges):
        place = Place(source).at("judges", index)
        if not isinstance(judge, JudgeSpec):
            built.append(judge)
        elif judge.kind == GIVEN:
            what = f"the judge {judge.name!r} was given from Python"
            place.refuse(what, "Run the program again that began the run, or give the same judges to ts.resume")
        else:
            table = {"name": judge.name, **judge.options}
            built.append(make(judge.kind, table, folder=folder, place=str(place)))
    return built
