"""What the requests of a plan can use at most, told by their targets before any is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .budget_spec import BudgetSpec, BudgetUnit
from .case_files import survey
from .judge_protocols import is_calling
from .protocols import Case, SlotView
from .request_bounds import bounded_units_of

if TYPE_CHECKING:
    from .descriptions import Description

__all__ = ["sends_of", "told_of", "told_sums"]


def told_sums(description: Description, *, cases: Iterable[Case] | None = None) -> Mapping[tuple[str, str], int]:
    """By variant and unit of a budget, the most that one repetition of all cases can use, each request being sent once.

    Goes through the cases, and prepares each request, only where a budget has no bound of its own. Empty for
    conversations, whose requests are not known before. A request that cannot be made will fail, and uses nothing; where
    one can be made and its target tells no bound, there is no sum. ``cases`` stand for those of the work order.
    """
    units = {spec.unit.value for spec in description.order.budgets if spec.bound_per_dispatch is None}
    telling = {name: target for name, target in description.targets.items() if units & bounded_units_of(target)}
    sums: Counter[tuple[str, str]] = Counter()
    untold: set[tuple[str, str]] = set()
    if not telling or description.conversation is not None:
        return sums

    def add(case: Case) -> None:
        for name, target in telling.items():
            try:
                bounds = target.bounds_of(target.prepare(SlotView("", case, name, 1)))  # type: ignore[attr-defined]
            except Exception:  # noqa: BLE001, S112 - one case's fault is told when its turn comes
                continue
            sums.update({(name, unit): bounds[unit] for unit in bounds.keys() & units})
            untold.update((name, unit) for unit in (units & bounded_units_of(target)) - bounds.keys())

    if cases is None:
        survey(description.order.cases, look=add)
    else:
        for case in cases:
            add(case)
    for key in untold:
        sums.pop(key, None)
    return sums


def sends_of(adapter: object, spec: BudgetSpec) -> int:
    """As how much of the budget one dispatch counts at most: a redirect that is followed is a send of its own."""
    return int(getattr(adapter, "wire_sends_max", 1)) if spec.unit is BudgetUnit.DISPATCHES else 1


def told_of(description: Description, spec: BudgetSpec, sums: Mapping[tuple[str, str], int]) -> int | None:
    """What the plan can use of a budget without a bound at most, nothing being sent twice; None where nobody tells."""
    unit = spec.unit.value
    if spec.bound_per_dispatch is not None or (spec.counts_judges and any(map(is_calling, description.judges))):
        return None
    names = [name for name in description.targets if spec.counts_target(name)]
    if not names or not all((name, unit) in sums for name in names):
        return None
    return sum(sums[name, unit] for name in names) * description.order.repetitions
