"""What a fork may cost, and what its budgets carry on from the run that it comes of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ..ledger.records import BudgetPlan
from ..ledger.run_reads import BudgetState
from .budget_spec import BudgetSpec, shown_amount, unit_key
from .descriptions import Description
from .fork_document import ForkBudget
from .protocols import Case
from .told_outlooks import sends_of, told_of, told_sums
from .work_order_fork import ForkBudgets

__all__ = ["carried_amounts", "fork_budgets", "with_carried"]


def carried_amounts(description: Description, before: Sequence[BudgetState]) -> dict[tuple[str, str, str], int]:
    """By budget, what counts against its limit already: all that the earlier run has used or holds, and carries itself.

    Nothing where the work order says that a fork's budgets are new.
    """
    if description.order.fork.budgets is ForkBudgets.NEW:
        return {}
    return {
        (state.plan.scope, state.plan.scope_value, state.plan.unit): state.plan.carried + state.settled + state.held
        for state in before
    }


def with_carried(plans: Sequence[BudgetPlan], carried: Mapping[tuple[str, str, str], int]) -> tuple[BudgetPlan, ...]:
    """The budgets with what they carry, and with what that leaves of their limits."""
    found = []
    for plan in plans:
        amount = carried.get((plan.scope, plan.scope_value, plan.unit), 0)
        found.append(attrs.evolve(plan, limit_amount=max(0, plan.limit_amount - amount), carried=amount))
    return tuple(found)


def fork_budgets(
    description: Description,
    to_pay: Mapping[str, int],
    carried: Mapping[tuple[str, str, str], int],
    *,
    cases: Iterable[Case] | None = None,
) -> list[ForkBudget]:
    """Each budget, with what the observations to pay (by variant) may use of it; ``cases`` as for `told_sums`."""
    sums = told_sums(description, cases=cases)
    return [_line(description, spec, to_pay, carried.get(spec.key, 0), sums) for spec in description.order.budgets]


def _line(
    description: Description,
    spec: BudgetSpec,
    to_pay: Mapping[str, int],
    carried: int,
    sums: Mapping[tuple[str, str], int],
) -> ForkBudget:
    bound, limit, execution = spec.bound_per_dispatch, max(0, spec.limit - carried), description.order.execution
    counted = {name: count for name, count in to_pay.items() if spec.counts_target(name)}
    least = worst = None
    if told_of(description, spec, sums) is not None:
        least = sum(_told(description, sums[name, spec.unit.value], count) for name, count in counted.items())
        worst = least * execution.attempts_max * execution.dispatches_max
    elif bound is not None:
        least = bound * _fewest(description, sum(counted.values()))
        worst = bound * sum(_most(description, spec, name, count) for name, count in counted.items())
    return ForkBudget(
        scope=spec.scope_kind.value, name=spec.scope_value, unit=unit_key(spec.unit.value), kind=spec.kind.value,
        limit=shown_amount(spec.unit.value, limit), carried=shown_amount(spec.unit.value, carried),
        bound_per_dispatch=None if bound is None else shown_amount(spec.unit.value, bound),
        least=None if least is None else shown_amount(spec.unit.value, least),
        worst=None if worst is None else shown_amount(spec.unit.value, worst),
        is_enough=None if least is None else least <= limit,
    )  # fmt: skip


def _told(description: Description, of_all_cases: int, count: int) -> int:
    """What so many requests can use by their own telling; the mean, since which cases they are differs."""
    return -(-of_all_cases * count // max(1, description.case_count))


def _fewest(description: Description, count: int) -> int:
    """How many calls so many observations need at least; of scripts the mean, since which cases they are differs."""
    if description.turns is None or not description.case_count:
        return count
    return -(-count * description.turns // description.case_count)


def _most(description: Description, spec: BudgetSpec, variant: str, count: int) -> int:
    execution, talk = description.order.execution, description.conversation
    calls = 1 if talk is None else talk.spec.turns_max
    sends = sends_of(description.targets[variant], spec)
    return count * calls * sends * execution.attempts_max * execution.dispatches_max
