"""What the preflight of a run says of budgets whose bounds targets tell for each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

from tallystick._wiring import ADAPTERS
from tallystick.runner.descriptions import describe
from tallystick.runner.fork_budgets import fork_budgets
from tallystick.runner.preflight import BudgetOutlook, preflight_of
from tallystick.runner.protocols import Prepared
from tests.unit.runner.scripted import ANSWERED, Scripted, always, order_of

BUDGETS: Mapping[str, Any] = {"tokens": 1000}


@attrs.define(eq=False)
class Telling(Scripted):
    """Each request uses at most ten tokens for each byte of it, ``{"input":N}``."""

    reply: Any = always(ANSWERED)
    bounded_units: frozenset[str] = frozenset({"tokens"})
    each: int = 10

    def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
        return {"tokens": self.each * len(prepared.payload)}


def outlook(target: Any, *, budgets: Any = BUDGETS, action: Any = "create", **options: Any) -> Sequence[BudgetOutlook]:
    described = describe(order_of(target, budgets=budgets, **options), ADAPTERS)
    return preflight_of(described, ledger="l", ledger_exists=False, action=action).budgets


def test_it_is_the_sum_over_all_requests_and_with_retries_a_multiple() -> None:
    (found,) = outlook(Telling(), cases=3, repetitions=2, attempts_max=2, dispatches_max=4)
    assert (found.least, found.worst, found.bound_per_dispatch) == (3 * 110 * 2, 3 * 110 * 2 * 8, None)


def test_each_budget_counts_its_own_variants() -> None:
    sides = {"a": Telling(), "b": Telling(each=1)}
    budgets = [{"unit": "tokens", "limit": 1000}, {"unit": "tokens", "limit": 1000, "variant": "b"}]
    assert [one.least for one in outlook(sides, budgets=budgets)] == [121, 11]


def test_a_declared_bound_is_what_counts() -> None:
    (found,) = outlook(Telling(), budgets={"tokens": {"limit": 1000, "bound_per_dispatch": 50}})
    assert found.least == 50


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (Telling(), {"action": "continue"}),
        (Telling(), {"budgets": {"tokens": {"limit": 9, "kind": "soft", "per": "role"}}}),
        (Scripted(always(ANSWERED)), {"budgets": {"tokens": {"limit": 9, "kind": "soft"}}}),
    ],
    ids=["a run that goes on", "roles that nobody tells of", "nobody tells"],
)
def test_where_nobody_tells_it_is_not_known(target: Any, options: dict[str, Any]) -> None:
    assert [one.least for one in outlook(target, **options) if one.name != "target"] in ([None], [None, None])


def test_a_case_that_cannot_be_asked_hides_no_other() -> None:
    (found,) = outlook(Telling(unprepared=frozenset({"c1"})), cases=3)
    assert found.least == 220


def test_a_request_whose_bound_its_target_does_not_tell_leaves_no_sum() -> None:
    class Sometimes(Telling):
        def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
            return {} if prepared.payload.endswith(b"2}") else super().bounds_of(prepared)

    assert [one.least for one in outlook(Sometimes(), cases=2)] == [220]
    assert [one.least for one in outlook(Sometimes(), cases=3)] == [None]


def test_a_fork_counts_what_is_to_pay_and_of_a_part_of_the_cases_the_mean() -> None:
    described = describe(
        order_of({"a": Telling(), "b": Telling()}, cases=3, budgets=BUDGETS, attempts_max=2, dispatches_max=4), ADAPTERS
    )
    (found,) = fork_budgets(described, {"a": 0, "b": 2}, {})
    assert (found.least, found.worst, found.is_enough) == (220, 220 * 8, True)
    (none,) = fork_budgets(describe(order_of(Scripted(always(ANSWERED)), budgets={
        "tokens": {"limit": 9, "kind": "soft"},
    }), ADAPTERS), {"default": 1}, {})  # fmt: skip
    assert (none.least, none.is_enough) == (None, None)
