"""What a dispatch of each variant sets aside in each budget of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..ledger.records import BudgetPlan, Hold

__all__ = ["holds_by_variant", "holds_of_judge", "holds_of_leases"]


def holds_by_variant(
    budgets: Iterable[BudgetPlan],
    variants: Mapping[int, str],
    *,
    wire_sends_max: Mapping[int, int] | None = None,
    role: str = "target",
) -> dict[int, tuple[Hold, ...]]:
    """Holds by variant number. A soft budget without an estimate holds nothing, and still stops new work once reached.

    ``wire_sends_max`` says how many wire requests one dispatch of a variant may be (redirects that are followed).
    """
    rows = list(budgets)
    return {
        number: tuple(
            Hold(row.budget_no, row.unit, _amount(row, (wire_sends_max or {}).get(number, 1)), row.kind == "hard")
            for row in rows
            if _applies(row, name, role)
        )
        for number, name in variants.items()
    }


def holds_of_leases(budgets: Iterable[BudgetPlan]) -> tuple[Hold, ...]:
    """What a call of a lease (a reset, a drain) sets aside: only budgets of the role ``device`` count it."""
    return tuple(
        Hold(row.budget_no, row.unit, _amount(row, 1), row.kind == "hard")
        for row in budgets
        if row.scope == "role" and row.scope_value == "device"
    )


def holds_of_judge(
    budgets: Iterable[BudgetPlan], evaluation_id: str | None, *, wire_sends_max: int = 1
) -> tuple[Hold, ...]:
    """What a judge's dispatch sets aside: in the budgets of the run, of judges, and of its own evaluation."""
    return tuple(
        Hold(row.budget_no, row.unit, _amount(row, wire_sends_max), row.kind == "hard")
        for row in budgets
        if row.scope == "run" or (row.scope, row.scope_value) in (("role", "judge"), ("evaluation", evaluation_id))
    )


def _amount(row: BudgetPlan, wire_sends: int) -> int:
    return wire_sends if row.unit == "dispatches" else row.bound_amount or 0


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
