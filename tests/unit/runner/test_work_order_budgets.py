"""Both written forms of budgets say the same, and one that cannot hold is refused with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.records import UNITS as LEDGER_UNITS
from tallystick.ledger.states import BudgetKind
from tallystick.runner.budget_spec import ROLES, UNITS, BudgetScope, BudgetSpec, BudgetUnit
from tallystick.runner.work_order_budgets import budget_tables, read_budgets
from tallystick.runner.work_order_files import Place
from tallystick.runner.work_order_models import BudgetTable, UnitBudgetTable

VARIANTS = ("old", "new")
RUN, ROLE, VARIANT = BudgetScope.RUN, BudgetScope.ROLE, BudgetScope.VARIANT
HARD, SOFT = BudgetKind.HARD, BudgetKind.SOFT


def read(raw: Any) -> tuple[BudgetSpec, ...]:
    return read_budgets(raw, variants=VARIANTS, place=Place("o", ("budgets",)))


def test_a_number_is_a_hard_budget_of_the_run() -> None:
    assert read({"dispatches": 800}) == (BudgetSpec(RUN, "", BudgetUnit.DISPATCHES, HARD, 800, 1),)


def test_no_budget_is_no_budget() -> None:
    assert read({}) == read([]) == ()


def test_amounts_are_in_the_base_unit() -> None:
    found = read(
        {
            "usd": {"limit": "2.50", "bound_per_dispatch": "0.01"},
            "seconds": {"limit": 90, "bound_per_dispatch": 0.5},
            "tokens": {"limit": 1000, "kind": "soft"},
            "tokens_in": {"limit": 10, "bound_per_dispatch": 1},
            "tokens_out": {"limit": 10, "bound_per_dispatch": 0},
        }
    )
    assert [(spec.unit.value, spec.kind, spec.limit, spec.bound_per_dispatch) for spec in found] == [
        ("nanousd", HARD, 2_500_000_000, 10_000_000),
        ("milliseconds", HARD, 90_000, 500),
        ("tokens", SOFT, 1000, None),
        ("tokens_in", HARD, 10, 1),
        ("tokens_out", HARD, 10, 0),
    ]


def test_a_budget_per_variant_or_role_is_one_for_each() -> None:
    assert [spec.key for spec in read({"dispatches": {"limit": 5, "per": "variant"}})] == [
        ("variant", "old", "dispatches"),
        ("variant", "new", "dispatches"),
    ]
    assert [spec.scope_value for spec in read({"dispatches": {"limit": 5, "per": "role"}})] == list(ROLES)


def test_the_array_form_has_several_budgets_of_one_unit() -> None:
    found = read(
        [
            {"unit": "dispatches", "limit": 10},
            {"unit": "dispatches", "limit": 6, "variant": "new"},
            {"unit": "dispatches", "limit": 2, "role": "judge"},
        ]
    )
    assert [(spec.scope_kind, spec.scope_value, spec.limit) for spec in found] == [
        (RUN, "", 10),
        (VARIANT, "new", 6),
        (ROLE, "judge", 2),
    ]


def test_budgets_come_back_from_the_form_that_a_document_has() -> None:
    found = read(
        {
            "dispatches": {"limit": 5, "per": "role"},
            "usd": {"limit": "0.000000001", "bound_per_dispatch": "0"},
            "seconds": {"limit": 0.001, "kind": "soft", "per": "variant"},
        }
    )
    assert read(budget_tables(found)) == found
    assert read(list(found)) == found


def test_a_limit_of_nothing_allows_nothing_and_can_be_written() -> None:
    assert read({"dispatches": 0})[0].limit == 0


BOUND = 'Give bound_per_dispatch, or say kind = "soft"'


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"usd": "2.50"}, f"o: budgets.usd: a hard budget of usd needs the most that one dispatch can use. {BOUND}"),
        ({"tokens": 5}, "o: budgets.tokens: a hard budget of tokens needs the most that one dispatch can use"),
        ({"seconds": {"limit": 5}}, "o: budgets.seconds: a hard budget of seconds needs"),
        ({"usd": 2.5}, 'o: budgets.usd: 2.5 is a number, and money is never a float. Write it in quotes: "2.5"'),
        ({"usd": {"limit": "1", "bound_per_dispatch": 0.1}}, "o: budgets.usd.bound_per_dispatch: 0.1 is a number"),
        ({"usd": {"limit": "x", "kind": "soft"}}, "o: budgets.usd.limit: 'x' is no amount of US dollars"),
        ({"dispatches": "3"}, "o: budgets.dispatches: '3' is no count"),
        ({"dispatches": -1}, "o: budgets.dispatches: -1 is no count"),
        ({"dispatches": True}, "o: budgets.dispatches: True is no count"),
        ({"dispatches": None}, "o: budgets.dispatches: None is no count"),
        ({"dispatch": 3}, 'o: budgets.dispatch: there is no such unit. Did you mean "dispatches"?'),
        ({"dispatches": {"limit": 3, "bound_per_dispatch": 2}}, "o: budgets.dispatches: a dispatch counts as one"),
        ({"dispatches": {"limt": 3}}, 'o: budgets.dispatches.limt: there is no such key. Did you mean "limit"?'),
        ({"dispatches": {}}, "o: budgets.dispatches.limit: this key is missing"),
        ({"dispatches": {"limit": 3, "kind": "hrad"}}, 'o: budgets.dispatches.kind: "hrad" is not known here. Write'),
        ({"dispatches": {"limit": 3, "per": "case"}}, 'o: budgets.dispatches.per: "case" is not known here'),
        ({"dispatches": {"limit": 3, "variant": "nwe"}}, "o: budgets.dispatches.variant: there is no variant 'nwe'"),
        ({"dispatches": {"limit": 3, "role": "judges"}}, 'o: budgets.dispatches.role: "judges" is not known here'),
        ({"dispatches": {"limit": 3, "per": "role", "variant": "new"}}, "o: budgets.dispatches: per and variant"),
        ({"tokens": {"limit": 3, "bound_per_dispatch": 4}}, "o: budgets.tokens: bound_per_dispatch is above the limit"),
        ([{"unit": "dispatches", "limit": 3}] * 2, "o: budgets[1]: a second budget of dispatches"),
        ([{"unit": "dispatches", "limit": 3, "per": "variant"}, {"unit": "dispatches", "limit": 1, "variant": "new"}],
         "o: budgets[1]: a second budget of dispatches of variant new"),
        ([{"limit": 3}], "o: budgets[0].unit: this key is missing"),
        ([{"unit": "euro", "limit": 3}], 'o: budgets[0].unit: "euro" is not known here'),
        ([3], "o: budgets[0]: a table of keys is wanted here"),
        ("800", "o: budgets: a table of units, or an array of tables, is wanted here"),
    ],
)  # fmt: skip
def test_a_budget_that_cannot_hold_is_refused(raw: Any, told: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        read(raw)
    assert str(caught.value).startswith(told)
    assert caught.value.remedy


def test_units_are_those_that_the_ledger_counts() -> None:
    assert [unit.value for unit in BudgetUnit] == list(LEDGER_UNITS)
    assert list(UNITS) == list(BudgetUnit)


def test_the_keys_of_units_and_the_roles_are_those_of_the_models() -> None:
    def allowed(model: type[BudgetTable], field: str) -> set[str]:
        return set(model.model_json_schema()["properties"][field].get("enum") or _first_enum(model, field))

    assert allowed(UnitBudgetTable, "unit") == {form.key for form in UNITS.values()}
    assert allowed(BudgetTable, "role") == set(ROLES)


def _first_enum(model: type[BudgetTable], field: str) -> list[str]:
    options = model.model_json_schema()["properties"][field]["anyOf"]
    return next(list(option["enum"]) for option in options if "enum" in option)
