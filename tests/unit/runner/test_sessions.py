"""A work order that is run again: what it changed is taken over, recorded or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick._wiring import ADAPTERS
from tallystick.adapters.rule_judges import contains, exact
from tallystick.ledger import budgets
from tallystick.ledger.errors import IdentityChanged, UsageError
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Outcome, Usage
from tallystick.runner.sessions import find_or_create
from tests.unit.runner.scripted import ANSWERED, Scripted, again, always, execute, order_of


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


def every(ledger: Ledger, sql: str) -> list[Any]:
    with ledger.reading() as reader:
        return reader.rows(sql)


@pytest.mark.parametrize("judges", [[contains(name="exact")], [exact(ignore_case=True)], [], [exact(), contains()]])
def test_a_run_is_judged_by_the_judges_that_it_was_planned_with(ledger: Ledger, judges: list[Any]) -> None:
    execute(ledger, Scripted(always(ANSWERED)), judges=[exact()])
    with pytest.raises(IdentityChanged, match=r"judges\."):
        execute(ledger, Scripted(always(ANSWERED)), judges=judges)
    assert every(ledger, "SELECT count(*) FROM judgments") == [(1,)]


def test_judges_in_another_order_are_the_same_judges(ledger: Ledger) -> None:
    target = Scripted(always(ANSWERED))
    first = find_or_create(ledger, describe(order_of(target, judges=[exact(), contains()]), ADAPTERS))
    session = find_or_create(ledger, describe(order_of(target, judges=[contains(), exact()]), ADAPTERS))
    assert session.run.run_id == first.run.run_id
    assert [judge.name for judge in session.description.judges] == ["exact", "contains"]


def usd(limit: str, bound: str | None, kind: str = "hard") -> dict[str, Any]:
    table = {"limit": limit, "kind": kind}
    return {"usd": table if bound is None else {**table, "bound_per_dispatch": bound}}


CHEAP = Outcome(DispatchState.ANSWERED, answer="x", usage=Usage(cost_nanousd=1_000_000), bytes_sent=1)


def test_another_bound_and_kind_hold_from_the_next_dispatch_on_and_are_recorded(ledger: Ledger) -> None:
    target = Scripted(always(CHEAP))
    find_or_create(ledger, describe(order_of(target, budgets=usd("1.00", "0.01")), ADAPTERS))
    execute(ledger, target, budgets=usd("1.00", "0.50", "soft"))
    assert every(ledger, "SELECT held FROM reservations") == [(500_000_000,)]
    assert every(ledger, "SELECT kind, bound_amount FROM budgets") == [("soft", 500_000_000)]
    assert every(ledger, "SELECT count(*) FROM events WHERE kind = 'budget.bound_amended'") == [(1,)]


def test_a_budget_that_is_overspent_becomes_hard_only_with_a_limit_that_fits(ledger: Ledger) -> None:
    target = Scripted(always(CHEAP))
    execute(ledger, target, budgets=usd("0.0005", None, "soft"))
    with pytest.raises(UsageError, match="cannot be hard"):
        execute(ledger, target, budgets=usd("0.0005", "0.0005"))
    execute(ledger, target, budgets=usd("0.01", "0.001"))
    assert every(ledger, "SELECT kind, limit_amount FROM budgets") == [("hard", 10_000_000)]


def test_what_the_author_changes_of_one_budget_undoes_no_operators_amendment_of_another(ledger: Ledger) -> None:
    target = Scripted(always(CHEAP))
    find_or_create(ledger, describe(order_of(target, budgets={**usd("1.00", "0.01"), "dispatches": 5}), ADAPTERS))
    numbers = dict(every(ledger, "SELECT unit, budget_no FROM budgets"))
    for unit, limit in (("dispatches", 50), ("nanousd", 2_000_000_000)):
        number = numbers[unit]
        ledger.write(lambda tx, n=number, m=limit: budgets.amend(tx, 1, n, limit=m, reason="r", made_by="me"))  # type: ignore[misc]
    find_or_create(ledger, describe(order_of(target, budgets={**usd("1.00", "0.02"), "dispatches": 5}), ADAPTERS))
    found = every(ledger, "SELECT unit, limit_amount, bound_amount FROM budgets ORDER BY unit")
    assert found == [("dispatches", 50, 1), ("nanousd", 2_000_000_000, 20_000_000)]


def test_a_finished_run_is_held_by_nobody(ledger: Ledger) -> None:
    """End and release are one transaction: no death between them can leave a finished run held for ever."""
    target = Scripted(always(ANSWERED))
    session = find_or_create(ledger, describe(order_of(target), ADAPTERS))
    again(ledger, session)
    ended, released = every(
        ledger, "SELECT at_us FROM events WHERE kind IN ('run.finished', 'run.left') ORDER BY event_no"
    )
    assert ended == released
    assert every(ledger, "SELECT state FROM leases") == [("released",)]
