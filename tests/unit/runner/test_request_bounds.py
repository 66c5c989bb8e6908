"""A target that tells what each of its requests can use at most: hard budgets hold by that alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick._wiring import ADAPTERS
from tallystick.ledger.budgets import amend_bound
from tallystick.ledger.checks import require_sound
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import find_run
from tallystick.ledger.run_settings import change_prices
from tallystick.ledger.states import BudgetKind, DispatchState, IfUnknown, SlotState
from tallystick.runner.descriptions import describe
from tallystick.runner.device_protocols import Resuming
from tallystick.runner.price_use import PricesUsed
from tallystick.runner.protocols import Dispatching, Outcome, Prepared, Turn, Usage
from tallystick.runner.results import NextMove
from tallystick.runner.sessions import Session, find_or_create
from tests.unit.runner.benches import OnBench
from tests.unit.runner.scripted import (
    ANSWERED,
    REFUSED,
    UNKNOWN,
    Scripted,
    again,
    always,
    execute,
    in_turn,
    order_of,
    page,
)
from tests.unit.runner.scripted import held_and_settled as budgets_of
from tests.unit.runner.talker import Talker, talks


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


@attrs.define(eq=False)
class Speaking(Talker):
    """A `Talker` that tells what each turn can use, as long as it can."""

    bounded_units: frozenset[str] = frozenset({"tokens"})
    is_told: bool = True

    def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
        return {"tokens": 100} if self.is_told else {}


async def unknown_at_first(target: Scripted, dispatching: Dispatching) -> Outcome:
    """The first send takes with it what its request could use at most."""
    assert isinstance(target, Telling)
    if len(target.asked) > 1:
        return ANSWERED
    target.untold = frozenset({0})
    return UNKNOWN


def test_a_resend_whose_bound_is_lost_is_held_back_alone_until_it_has_one(ledger: Ledger) -> None:
    target = Telling(unknown_at_first, IfUnknown.RESEND)
    order = order_of(target, cases=2, budgets={"tokens": 1000}, concurrency=1)
    session = find_or_create(ledger, describe(order, ADAPTERS))
    outcome = again(ledger, session)
    assert (outcome.counts[SlotState.SELECTED], outcome.counts[SlotState.UNKNOWN]) == (1, 1)
    assert (outcome.next, page(ledger, outcome).reason, page(ledger, outcome).next_step) == (
        NextMove.FUND, "budget", "resend",
    )  # fmt: skip
    assert len(target.asked) == 2
    require_sound(ledger)
    target.untold = frozenset()
    ledger.write(lambda tx: change_prices(tx, 1, [], "prices: none -> some"))
    assert again(ledger, session).counts[SlotState.SELECTED] == 2
    assert [one.request_id for one in target.asked].count(target.asked[0].request_id) == 2
    require_sound(ledger)


def test_a_finished_run_goes_on_with_what_other_prices_bound(ledger: Ledger) -> None:
    target = Telling(unknown_at_first, IfUnknown.RESEND)
    description = describe(order_of(target, cases=2, budgets={"tokens": 1000}, concurrency=1), ADAPTERS)
    first = again(ledger, find_or_create(ledger, description))
    target.untold = frozenset()
    with ledger.reading() as reader:
        run = find_run(reader, first.run_id)
    assert (run.state, first.counts[SlotState.UNKNOWN]) == ("finished", 1)
    same = again(ledger, Session(run, description))
    assert (same.counts[SlotState.UNKNOWN], len(target.asked)) == (1, 2), "with the same prices it stays as it is"
    other = attrs.evolve(description, prices=(PricesUsed("2026-11-30", "sha256:other", "prices.toml"),))
    assert again(ledger, Session(run, other)).counts[SlotState.SELECTED] == 2
    assert len(target.asked) == 3
    require_sound(ledger)


@pytest.mark.parametrize("resuming", [Resuming.HISTORY, Resuming.CHECKPOINT])
def test_a_turn_whose_bound_is_lost_before_it_is_sent_again_is_held_back_alone(
    ledger: Ledger, resuming: Resuming
) -> None:
    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        assert isinstance(target, Speaking)
        target.is_told = len(target.asked) > 1
        return None if target.is_told else UNKNOWN

    target = Speaking(resuming, rule, IfUnknown.RESEND)
    session = find_or_create(ledger, describe(talks(target, "a", "b", budgets={"tokens": 1000}), ADAPTERS))
    outcome = again(ledger, session)
    assert (page(ledger, outcome).state, page(ledger, outcome).reason) == ("unknown", "budget")
    assert len(target.asked) == 1
    bound = {"kind": BudgetKind.HARD, "bound": 50, "reason": "it is known now", "made_by": "me"}
    ledger.write(lambda tx: amend_bound(tx, 1, 1, **bound))  # type: ignore[arg-type]
    again(ledger, session)
    assert [turn for _, turn, _ in target.asked][:2] == [1, 1]
    require_sound(ledger)


def test_a_turn_is_sent_again_under_the_bound_that_its_intent_has_committed(ledger: Ledger) -> None:
    """Between the intent and the send nothing is asked of the target, which may have forgotten its bounds by then."""

    class Forgetful(Speaking):
        left = 2

        def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
            self.left -= 1
            return {"tokens": 100} if self.left >= 0 else {}

    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        return UNKNOWN if len(target.asked) == 1 else None

    target = Forgetful(Resuming.HISTORY, rule, IfUnknown.RESEND)
    outcome = again(ledger, find_or_create(ledger, describe(talks(target, "a", budgets={"tokens": 1000}), ADAPTERS)))
    assert outcome.counts[SlotState.SELECTED] == 1


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
