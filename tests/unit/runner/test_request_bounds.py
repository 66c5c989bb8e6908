"""A target that tells what each of its requests can use at most: hard budgets hold by that alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick._wiring import ADAPTERS
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, SlotState
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Outcome, Prepared, Usage
from tallystick.runner.results import NextMove
from tests.unit.runner.benches import OnBench
from tests.unit.runner.scripted import ANSWERED, REFUSED, UNKNOWN, Scripted, always, execute, in_turn, order_of
from tests.unit.runner.scripted import held_and_settled as budgets_of


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


@attrs.define(eq=False)
class Telling(Scripted):
    """Case number N uses at most 100 + N tokens, and a nano-dollar for each."""

    bounded_units: frozenset[str] = frozenset({"tokens", "nanousd"})
    untold: frozenset[int] = frozenset()

    def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
        number = json.loads(prepared.payload)["input"]
        return {} if number in self.untold else {"tokens": 100 + number, "nanousd": 100 + number}


def held_amounts(ledger: Ledger) -> list[int]:
    with ledger.reading() as reader:
        return [held for (held,) in reader.rows("SELECT held FROM reservations ORDER BY call_id, dispatch_no")]


def test_hard_budget_without_a_declared_bound_sets_aside_what_each_request_can_use(ledger: Ledger) -> None:
    cheap = Outcome(DispatchState.ANSWERED, answer=1, bytes_sent=1, usage=Usage(tokens_in=3, tokens_out=4))
    outcome = execute(ledger, Telling(always(cheap)), cases=3, budgets={"tokens": 1000}, concurrency=1)
    assert outcome.counts[SlotState.SELECTED] == 3
    assert sorted(held_amounts(ledger)) == [100, 101, 102]
    assert budgets_of(ledger) == [(0, 21, 0)]


def test_nothing_is_sent_whose_bound_does_not_fit(ledger: Ledger) -> None:
    target = Telling(always(ANSWERED))  # says nothing of its use, so each is settled at its bound
    outcome = execute(ledger, target, cases=4, budgets={"usd": "0.000000250"}, concurrency=4)
    assert len(target.asked) == 2
    assert outcome.counts[SlotState.UNAVAILABLE] == 2
    assert outcome.next is NextMove.FUND
    assert budgets_of(ledger)[0][1] <= 250


def test_of_a_declared_and_a_told_bound_the_lower_is_set_aside(ledger: Ledger) -> None:
    budgets = {"tokens": {"limit": 1000, "bound_per_dispatch": 101}}
    execute(ledger, Telling(always(ANSWERED)), cases=4, budgets=budgets)
    assert sorted(held_amounts(ledger)) == [100, 101, 101, 101]


def test_soft_budget_without_an_estimate_holds_what_is_told(ledger: Ledger) -> None:
    execute(ledger, Telling(always(UNKNOWN)), budgets={"tokens": {"limit": 50, "kind": "soft"}})
    assert held_amounts(ledger) == [100]
    assert budgets_of(ledger) == [(100, 0, 0)]


def test_a_request_that_is_sent_again_sets_the_same_aside(ledger: Ledger) -> None:
    execute(ledger, Telling(in_turn(REFUSED, ANSWERED)), budgets={"tokens": 1000})
    assert held_amounts(ledger) == [100, 100]


def test_a_request_whose_bound_cannot_be_told_is_not_sent_and_no_other_is_kept_from_going_on(ledger: Ledger) -> None:
    target = Telling(always(ANSWERED), untold=frozenset({1}))
    outcome = execute(ledger, target, cases=3, budgets={"tokens": 1000})
    assert len(target.asked) == 2
    assert (outcome.counts[SlotState.SELECTED], outcome.counts[SlotState.FAILED]) == (2, 1)
    with ledger.reading() as reader:
        ((reason, message),) = reader.rows("SELECT reason, message FROM attempts WHERE state = 'failed'")
    assert reason == "request.not_prepared"
    assert "cannot tell how much of the budget of tokens this request can use" in message


TOLD = "budgets.usd: a hard budget of usd needs the most that one dispatch can use, and {who} cannot tell it"


@pytest.mark.parametrize(
    ("targets", "budgets", "who"),
    [
        ({"default": Scripted(always(ANSWERED))}, {"usd": "1"}, "a scripted target"),
        ({"a": Telling(always(ANSWERED)), "b": Scripted(always(ANSWERED))}, {"usd": "1"}, "scripted target b"),
        ({"a": OnBench()}, {"usd": {"limit": "1", "per": "role"}}, "a bench target"),
        ({"a": OnBench()}, [{"unit": "usd", "limit": "1", "role": "device"}], "a device"),
    ],
    ids=["none", "one of two", "a device's target", "device"],
)
def test_hard_budget_is_refused_where_somebody_cannot_tell(
    targets: dict[str, Scripted], budgets: Any, who: str
) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        describe(order_of(targets, budgets=budgets), ADAPTERS)
    assert TOLD.format(who=who) in str(caught.value)
    assert "Give bound_per_dispatch" in str(caught.value)


def test_hard_budgets_of_roles_ask_those_who_play_them(ledger: Ledger) -> None:
    target = Telling(always(ANSWERED))
    outcome = execute(ledger, target, budgets={"usd": {"limit": "1", "per": "role"}})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert sorted(held_amounts(ledger)) == [100]


def test_hard_budget_of_a_variant_asks_that_variant_alone() -> None:
    targets = {"a": Telling(always(ANSWERED)), "b": Scripted(always(ANSWERED))}
    budgets = [{"unit": "usd", "limit": "1", "variant": "a"}]
    assert describe(order_of(targets, budgets=budgets), ADAPTERS).planned == 2


def test_a_judge_that_calls_needs_a_declared_bound_of_the_runs_budget() -> None:
    judge = {"kind": "llm", "url": "http://127.0.0.1:1/", "model": "m", "rubric": "r"}
    order = order_of(Telling(always(ANSWERED)), budgets={"usd": "1"}, judges=[judge])
    with pytest.raises(WorkOrderInvalid) as caught:
        describe(order, ADAPTERS)
    assert TOLD.format(who="judge llm") in str(caught.value)
    roled = [{"unit": "usd", "limit": "1", "role": "target"}]
    assert describe(order_of(Telling(always(ANSWERED)), budgets=roled, judges=[judge]), ADAPTERS).planned == 1
