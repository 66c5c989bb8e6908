"""Budgets: reserved before, settled after, never passed, whatever runs at once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.ledger import attempts, budgets
from tallystick.ledger.errors import BudgetExhausted, UsageError
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts, DispatchKey
from tallystick.ledger.states import DispatchState
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import (
    answered,
    begin,
    budget,
    budget_row,
    every,
    facts,
    hold,
    lost,
    new_ledger,
    new_run,
    observe,
    one,
    slot_state,
)

TEN_CENTS = 100_000_000  # nano-USD


def end(ledger: Ledger, key: DispatchKey, told: DispatchFacts) -> None:
    ledger.write(lambda tx: observe(tx, key, told))


def test_exactly_what_fits_is_admitted_across_processes_and_threads(ledger: Ledger) -> None:
    run_key = new_run(ledger, 100, budgets=(budget(limit=10),)).run_key
    children = [Child("spend", ledger.path, run_key, 25 * number, 25) for number in range(4)]
    try:
        assert [child.line() for child in children] == ["ready"] * 4
        for child in children:
            child.say()
        told = [line for child in children for line in child.lines()]
    finally:
        for child in children:
            child.__exit__(None, None, None)
    assert sorted(told) == ["admitted"] * 10 + ["budget.exhausted"] * 90
    assert budget_row(ledger, run_key) == (10, 0, 0, 0)
    assert one(ledger, "SELECT count(*) FROM dispatches") == (10,)
    assert one(ledger, "SELECT count(*) FROM slots WHERE state = 'in_flight'") == (10,)


def test_ten_times_ten_cents_fit_one_dollar_exactly(ledger: Ledger) -> None:
    run_key = new_run(ledger, 11, budgets=(budget(unit="nanousd", limit=10 * TEN_CENTS),)).run_key
    money = hold(1, TEN_CENTS, unit="nanousd")
    keys = [begin(ledger, run_key, slot_no, holds=(money,)).key for slot_no in range(1, 11)]
    with pytest.raises(BudgetExhausted, match=r"of usd has no room for \$0\.1 more: limit \$1, spent \$0, held \$1"):
        begin(ledger, run_key, 11, holds=(money,))
    for key in keys:
        end(ledger, key, answered(cost_nanousd=TEN_CENTS))
    assert budget_row(ledger, run_key) == (0, 10 * TEN_CENTS, 0, 0)
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 11, holds=(money,))


def test_what_was_not_used_can_be_used_by_others(ledger: Ledger) -> None:
    run_key = new_run(ledger, budgets=(budget(unit="tokens_out", limit=100),)).run_key
    key = begin(ledger, run_key, 1, holds=(hold(1, 100, unit="tokens_out"),)).key
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 2, holds=(hold(1, 1, unit="tokens_out"),))
    end(ledger, key, answered(tokens_out=40))
    begin(ledger, run_key, 2, holds=(hold(1, 60, unit="tokens_out"),))
    assert budget_row(ledger, run_key) == (60, 40, 0, 0)


def test_an_answer_dearer_than_its_bound_is_kept_and_nothing_more_is_dispatched(ledger: Ledger) -> None:
    run_key = new_run(ledger, budgets=(budget(unit="tokens_out", limit=100),)).run_key
    first, second = (begin(ledger, run_key, slot, holds=(hold(1, 10, unit="tokens_out"),)).key for slot in (1, 2))
    end(ledger, first, answered(tokens_out=150))
    assert slot_state(ledger, run_key, 1) == "selected"
    assert budget_row(ledger, run_key) == (10, 150, 60, 0)
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 3, holds=(hold(1, 1, unit="tokens_out"),))
    # What was in flight is kept too, and counts.
    end(ledger, second, answered(tokens_out=30))
    assert budget_row(ledger, run_key) == (0, 180, 80, 0)
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 3, holds=(hold(1, 0, unit="tokens_out"),))


def test_unreported_use_counts_at_its_bound_and_as_unknown(ledger: Ledger) -> None:
    run_key = new_run(ledger, budgets=(budget(unit="tokens", limit=100),)).run_key
    key = begin(ledger, run_key, holds=(hold(1, 30, unit="tokens"),)).key
    end(ledger, key, answered(tokens_in=5))
    assert budget_row(ledger, run_key) == (0, 30, 0, 1)


@pytest.mark.parametrize(
    ("unit", "told", "used"),
    [
        ("dispatches", DispatchFacts(DispatchState.ANSWERED), 1),
        ("dispatches", DispatchFacts(DispatchState.ANSWERED, wire_sends=3), 3),
        ("dispatches", DispatchFacts(DispatchState.ANSWERED, wire_sends=0), 1),
        ("tokens_in", DispatchFacts(DispatchState.ANSWERED, tokens_in=7), 7),
        ("tokens_out", DispatchFacts(DispatchState.ANSWERED, tokens_in=7), None),
        ("tokens", DispatchFacts(DispatchState.ANSWERED, tokens_in=7, tokens_out=0), 7),
        ("tokens", DispatchFacts(DispatchState.ANSWERED, tokens_in=7), None),
        ("nanousd", DispatchFacts(DispatchState.ANSWERED, cost_nanousd=0), 0),
        ("milliseconds", DispatchFacts(DispatchState.ANSWERED, duration_us=1), 1),
        ("milliseconds", DispatchFacts(DispatchState.ANSWERED, duration_us=2_000), 2),
        ("milliseconds", DispatchFacts(DispatchState.ANSWERED), None),
    ],
)
def test_each_unit_counts_what_it_says(unit: str, told: DispatchFacts, used: int | None) -> None:
    assert told.used(unit) == used


def test_a_unit_that_no_budget_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="joules"):
        DispatchFacts(DispatchState.ANSWERED).used("joules")


def test_a_refused_dispatch_counts_itself_and_nothing_else(ledger: Ledger) -> None:
    both = (budget(1), budget(2, unit="tokens", limit=100))
    run_key = new_run(ledger, budgets=both).run_key
    key = begin(ledger, run_key, holds=(hold(1), hold(2, 30, unit="tokens"))).key
    ledger.write(lambda tx: attempts.refuse(tx, key, facts(DispatchState.REFUSED, "http.429")))
    assert budget_row(ledger, run_key, 1) == (0, 1, 0, 0)
    assert budget_row(ledger, run_key, 2) == (0, 0, 0, 0)
    sql = "SELECT budget_no, state, settled FROM reservations ORDER BY budget_no"
    assert every(ledger, sql) == [(1, "settled", 1), (2, "released", None)]


def test_a_reservation_is_settled_once(ledger: Ledger) -> None:
    run_key = new_run(ledger, budgets=(budget(),)).run_key
    key = begin(ledger, run_key, holds=(hold(),)).key
    end(ledger, key, answered())
    for again in (budgets.settle_at_bound, budgets.release):
        with pytest.raises(Exception, match="reservation"):
            ledger.write(lambda tx, again=again: again(tx, key))  # type: ignore[misc]
    assert budget_row(ledger, run_key) == (0, 1, 0, 0)


def test_a_soft_budget_may_be_overrun_and_stops_new_work_once_reached(ledger: Ledger) -> None:
    run_key = new_run(ledger, budgets=(budget(unit="tokens_out", limit=100, kind="soft"),)).run_key
    soft = hold(1, 80, unit="tokens_out", hard=False)
    first, second = (begin(ledger, run_key, slot, holds=(soft,)).key for slot in (1, 2))
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 3, holds=(soft,))
    end(ledger, first, answered(tokens_out=90))
    end(ledger, second, answered(tokens_out=5))
    begin(ledger, run_key, 3, holds=(soft,))
    assert budget_row(ledger, run_key) == (80, 95, 70, 0)


def test_a_budget_that_the_run_does_not_have_is_named(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    with pytest.raises(UsageError, match="budget 7"):
        begin(ledger, run_key, holds=(hold(7),))
    with pytest.raises(UsageError, match="budget 7"):
        ledger.write(lambda tx: budgets.amend(tx, run_key, 7, limit=1, reason="r", made_by="me"))


def test_a_raised_limit_is_recorded_and_lets_what_it_stopped_wait_again(ledger: Ledger) -> None:
    run_key = new_run(ledger, budgets=(budget(limit=1),)).run_key
    end(ledger, begin(ledger, run_key, 1, holds=(hold(),)).key, answered())
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 2, holds=(hold(),))
    ledger.write(
        lambda tx: tx.change("UPDATE slots SET state = 'unavailable', reason = 'budget' WHERE slot_no > ?", (1,))
    )
    ledger.write(lambda tx: tx.change("UPDATE runs SET state = 'finished' WHERE run_key = ?", (run_key,)))
    ledger.write(lambda tx: budgets.amend(tx, run_key, 1, limit=2, reason="more", made_by="me"))
    begin(ledger, run_key, 2, holds=(hold(),))
    assert slot_state(ledger, run_key, 3) == "pending"
    assert one(ledger, "SELECT state FROM runs") == ("open",)
    sql = "SELECT amendment_no, old_limit, new_limit, reason, made_by FROM budget_amendments"
    assert every(ledger, sql) == [(1, 1, 2, "more", "me")]
    assert one(ledger, "SELECT count(*) FROM events WHERE kind = 'budget.amended'") == (1,)


def test_a_limit_cannot_be_lowered_below_what_is_spent_and_held(ledger: Ledger) -> None:
    run_key = new_run(ledger, budgets=(budget(limit=5),)).run_key
    end(ledger, begin(ledger, run_key, 1, holds=(hold(),)).key, answered())
    begin(ledger, run_key, 2, holds=(hold(),))
    with pytest.raises(UsageError, match="below the 2"):
        ledger.write(lambda tx: budgets.amend(tx, run_key, 1, limit=1, reason="r", made_by="me"))
    ledger.write(lambda tx: budgets.amend(tx, run_key, 1, limit=2, reason="r", made_by="me"))
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 3, holds=(hold(),))


def test_an_unknown_outcome_holds_until_it_is_settled_however_long(ledger: Ledger, clock: Any) -> None:
    run_key = new_run(ledger, budgets=(budget(limit=1),)).run_key
    key = begin(ledger, run_key, 1, holds=(hold(),)).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=None))
    clock.us += 10 * 365 * 86_400_000_000
    with pytest.raises(BudgetExhausted):
        begin(ledger, run_key, 2, holds=(hold(),))


def test_concurrent_awaits_never_pass_a_hard_budget(ledger: Ledger) -> None:
    run_key = new_run(ledger, 60, budgets=(budget(limit=7),)).run_key

    async def one_call(slot_no: int) -> str:
        from tests.unit.ledger.factories import intent

        wanted = intent(run_key, slot_no, holds=(hold(),))
        try:
            await ledger.write_async(lambda tx: attempts.begin(tx, wanted))
        except BudgetExhausted:
            return "refused"
        return "admitted"

    async def main() -> list[str]:
        return await asyncio.gather(*(one_call(slot_no) for slot_no in range(1, 61)))

    assert sorted(asyncio.run(main())) == ["admitted"] * 7 + ["refused"] * 53


def test_concurrent_threads_never_pass_a_hard_budget(ledger: Ledger) -> None:
    run_key = new_run(ledger, 40, budgets=(budget(limit=7),)).run_key
    admitted: list[int] = []

    def one_call(slot_no: int) -> None:
        try:
            begin(ledger, run_key, slot_no, holds=(hold(),))
        except BudgetExhausted:
            return
        admitted.append(slot_no)

    threads = [threading.Thread(target=one_call, args=(slot_no,)) for slot_no in range(1, 41)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 7


@attrs.frozen
class Move:
    kind: str
    amount: int
    used: int | None


MOVES = st.lists(
    st.builds(
        Move,
        st.sampled_from(["begin", "begin", "begin", "answer", "refuse", "lose", "settle", "release"]),
        st.integers(0, 40),
        st.none() | st.integers(0, 60),
    ),
    max_size=30,
)


@given(limit=st.integers(0, 100), moves=MOVES)
@settings(max_examples=40, deadline=None)
def test_a_hard_budget_is_never_passed_by_new_work(
    limit: int, moves: list[Move], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with new_ledger(tmp_path_factory.mktemp("budget")) as ledger:
        run_key = new_run(ledger, 40, budgets=(budget(unit="tokens_out", limit=limit),)).run_key
        running: list[DispatchKey] = []
        unknown: list[DispatchKey] = []
        amounts: dict[str, int] = {}
        held = settled = slot_no = 0
        for move in moves:
            if move.kind == "begin":
                fits = held + settled + move.amount <= limit
                slot_no += 1
                wanted = hold(1, move.amount, unit="tokens_out")
                if fits:
                    key = begin(ledger, run_key, slot_no, holds=(wanted,)).key
                    running.append(key)
                    amounts[key.call_id] = move.amount
                    held += move.amount
                else:
                    with pytest.raises(BudgetExhausted):
                        begin(ledger, run_key, slot_no, holds=(wanted,))
            elif move.kind in ("answer", "refuse", "lose") and running:
                key = running.pop(0)
                bound = amounts[key.call_id]
                if move.kind == "lose":
                    ledger.write(lambda tx, key=key: attempts.lose(tx, key, lost(), waiting=None))  # type: ignore[misc]
                    unknown.append(key)
                    continue
                held -= bound
                if move.kind == "answer":
                    settled += bound if move.used is None else move.used
                    end(ledger, key, answered(tokens_out=move.used))
                else:
                    refused = facts(DispatchState.REFUSED)
                    ledger.write(lambda tx, key=key, told=refused: attempts.refuse(tx, key, told))  # type: ignore[misc]
            elif unknown:
                key = unknown.pop(0)
                step = budgets.settle_at_bound if move.kind == "settle" else budgets.release
                held -= amounts[key.call_id]
                settled += amounts[key.call_id] if move.kind == "settle" else 0
                ledger.write(lambda tx, key=key, step=step: step(tx, key))  # type: ignore[misc]
            found = budget_row(ledger, run_key)
            assert found[:2] == (held, settled)
            assert held + settled <= limit + found[2]


def test_a_killed_process_leaves_its_reservations_held(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = new_run(ledger, 2, budgets=(budget(limit=2),)).run_key
        with Child("spend", ledger.path, run_key, 0, 1, crashpoint="scribe.commit.after@2") as child:
            child.line()
            child.say()
            assert child.end() == -9
        assert budget_row(ledger, run_key) == (1, 0, 0, 0)
        with Child("spend", ledger.path, run_key, 1, 1, crashpoint="scribe.commit.before@2") as child:
            child.line()
            child.say()
            assert child.end() == -9
        assert budget_row(ledger, run_key) == (1, 0, 0, 0)
