"""What a request can use at most, where its target can tell that from the request itself.

A target, or a judge, that can says so by ``bounded_units`` and ``bounds_of``. Then a hard budget needs no
``bound_per_dispatch``, and where it has one as well, the lower of the two is set aside: both are bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from ..ledger.errors import UsageError
from ..ledger.records import BudgetPlan, Hold
from ..ledger.states import BudgetKind
from .budget_spec import UNITS, BudgetScope, BudgetSpec, BudgetUnit
from .judge_protocols import is_calling
from .protocols import Judge, Prepared, Target
from .work_order_files import Place

if TYPE_CHECKING:
    from .executor import VariantSide
    from .judge_orders import JudgeOrder
    from .work_order import WorkOrder

__all__ = [
    "UNBOUNDED",
    "BoundingTarget",
    "RequestBounds",
    "bounded",
    "bounded_units_of",
    "refuse_unbounded",
    "request_bounds",
]

UNBOUNDED: Final = "budget"
"""Why a call that is to be sent again waits: its budget has lost what bounded it. The same as where it has no room,
because the same lets it go on: an amendment, or other prices."""


class BoundingTarget(Protocol):
    """A target that can tell from a request what it can use at most."""

    @property
    def bounded_units(self) -> frozenset[str]:
        """The units of budgets (``tokens``, ``nanousd``) that it can tell for requests of the usual kind."""

    def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
        """The most that one dispatch of the request can use, by unit; without a unit that it cannot tell.

        A method ``why_untold(unit)`` may say, in a few words for people, what it lacks to tell a unit.
        """


@attrs.frozen
class RequestBounds:
    """How the holds of a variant follow from each request; ``undeclared`` are hard budgets without a bound."""

    bounds_of: Callable[[Prepared], Mapping[str, int]]
    undeclared: frozenset[int]

    def holds(self, holds: Sequence[Hold], prepared: Prepared) -> tuple[Hold, ...]:
        """What a dispatch of the request sets aside; raises UsageError where a hard budget has no bound for it."""
        bounds = self.bounds_of(prepared)
        return tuple(self._hold(hold, bounds.get(hold.unit)) for hold in holds)

    def _hold(self, hold: Hold, bound: int | None) -> Hold:
        if hold.budget_no in self.undeclared:
            if bound is None and hold.hard:
                raise _unbounded(hold.unit)
            return hold if bound is None else attrs.evolve(hold, amount=bound)
        return hold if bound is None else attrs.evolve(hold, amount=min(bound, hold.amount))


def bounded(side: VariantSide, prepared: Prepared) -> VariantSide:
    """The side with what a dispatch of this request sets aside; raises UsageError where that has no bound."""
    if side.bounds is None:
        return side
    return attrs.evolve(side, holds=side.bounds.holds(side.holds, prepared))


def request_bounds(target: Target | Judge, plans: Sequence[BudgetPlan]) -> RequestBounds | None:
    """How holds follow from requests; None where no budget counts what the target can tell."""
    units = bounded_units_of(target)
    if not any(plan.unit in units for plan in plans):
        return None
    bounds_of: Callable[[Prepared], Mapping[str, int]] = target.bounds_of  # type: ignore[union-attr]  # it has units
    return RequestBounds(bounds_of, frozenset(plan.budget_no for plan in plans if plan.bound_amount is None))


def bounded_units_of(target: object) -> frozenset[str]:
    """What the target can tell by itself; nothing for most."""
    found: frozenset[str] = getattr(target, "bounded_units", frozenset())
    return found


def refuse_unbounded(order: WorkOrder | JudgeOrder, targets: Mapping[str, Target], judges: Sequence[Judge]) -> None:
    """Refuse a hard budget that has no bound, and counts what somebody sends who cannot tell one."""
    for spec in order.budgets:
        if spec.kind is not BudgetKind.HARD or spec.bound_per_dispatch is not None:
            continue
        key = UNITS[spec.unit].key
        for who in _counted(spec, targets, judges):
            Place(order.source).at("budgets", key).refuse(
                f"a hard budget of {key} needs the most that one dispatch can use, and {who}",
                'Give bound_per_dispatch, or say kind = "soft" and accept that it may be overrun',
            )


def _counted(spec: BudgetSpec, targets: Mapping[str, Target], judges: Sequence[Judge]) -> list[str]:
    """Whom the budget counts, as far as they cannot tell what a request uses at most, and why where they say so."""
    found = [
        _told(f"{target.kind} target {name}" if len(targets) > 1 else f"{_a(target.kind)} target", target, spec)
        for name, target in targets.items()
        if spec.unit.value not in bounded_units_of(target) and spec.counts_target(name)
    ]
    if spec.counts_judges:
        found += [
            _told(f"judge {judge.name}", judge, spec)
            for judge in judges
            if is_calling(judge) and spec.unit.value not in bounded_units_of(judge)
        ]
    if spec.scope_kind is BudgetScope.ROLE and spec.scope_value == "device":
        found += ["a device cannot tell it" for target in targets.values() if hasattr(target, "devices")]
    return found


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "http" or kind.startswith(("a", "e", "i", "o", "u")) else f"a {kind}"


def _told(who: str, adapter: object, spec: BudgetSpec) -> str:
    why: Callable[[str], str] | None = getattr(adapter, "why_untold", None)
    return f"{who} cannot tell it" + (f": {why(spec.unit.value)}" if why is not None else "")


def _unbounded(unit: str) -> UsageError:
    key = UNITS[BudgetUnit(unit)].key
    return UsageError(
        f"the target cannot tell how much of the budget of {key} this request can use",
        "Give the budget bound_per_dispatch, or the target what bounds a request (tokens_in_max, max_tokens, prices)",
    )
