"""What a dispatch of each variant sets aside in each budget of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..ledger.errors import UsageError
from ..ledger.records import BudgetPlan, Hold
from .budget_spec import UNITS, BudgetUnit

__all__ = ["holds_by_variant", "holds_of_judge", "holds_of_leases"]


def holds_by_variant(
    budgets: Iterable[BudgetPlan],
    variants: Mapping[int, str],
    *,
    wire_sends_max: Mapping[int, int] | None = None,
    told: Mapping[int, Collection[str]] | None = None,
    role: str = "target",
) -> dict[int, tuple[Hold, ...]]:
    """Holds by variant number. A soft budget without an estimate holds nothing, and still stops new work once reached.

    ``wire_sends_max`` says how many wire requests one dispatch of a variant may be (redirects that are followed),
    ``told`` of which units its target tells the bound of each request (`request_bounds`). Raises UsageError where a
    hard budget has no bound at all.
    """
    rows = list(budgets)
    return {
        number: tuple(
            _hold(row, (wire_sends_max or {}).get(number, 1), (told or {}).get(number, ()))
            for row in rows
            if _applies(row, name, role)
        )
        for number, name in variants.items()
    }


def holds_of_leases(budgets: Iterable[BudgetPlan]) -> tuple[Hold, ...]:
    """What a call of a lease (a reset, a drain) sets aside: only budgets of the role ``device`` count it.

    Where a target works on a device, a hard one without a bound was refused with the work order.
    """
    return tuple(_hold(row, 1, (row.unit,)) for row in budgets if row.scope == "role" and row.scope_value == "device")


def holds_of_judge(
    budgets: Iterable[BudgetPlan],
    evaluation_id: str | None,
    *,
    wire_sends_max: int = 1,
    told: Collection[str] = (),
) -> tuple[Hold, ...]:
    """What a judge's dispatch sets aside: in the budgets of the run, of judges, and of its own evaluation.

    ``told`` names the units of which the judge tells the bound of each request. Raises as `holds_by_variant`.
    """
    return tuple(
        _hold(row, wire_sends_max, told)
        for row in budgets
        if row.scope == "run" or (row.scope, row.scope_value) in (("role", "judge"), ("evaluation", evaluation_id))
    )


def _hold(row: BudgetPlan, wire_sends: int, told: Collection[str] = ()) -> Hold:
    is_hard = row.kind == "hard"
    if row.unit == "dispatches":
        return Hold(row.budget_no, row.unit, wire_sends, is_hard)
    if is_hard and row.bound_amount is None and row.unit not in told:
        key = UNITS[BudgetUnit(row.unit)].key
        raise UsageError(
            f"the hard budget of {key} has no bound for everything that it counts",
            "Give it bound_per_dispatch in the run's work order, or make it soft",
        )
    return Hold(row.budget_no, row.unit, row.bound_amount or 0, is_hard)


def _applies(row: BudgetPlan, variant: str, role: str) -> bool:
    match row.scope:
        case "evaluation":
            return False
        case "run":
            return True
        case "role":
            return row.scope_value == role
        case "variant":
            return row.scope_value == variant
    raise ValueError(f"no budget has the scope {row.scope}")
