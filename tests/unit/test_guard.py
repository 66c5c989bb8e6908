from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

import tallystick as ts
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState
from tests.unit.ledger.batches import Batch


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "guard.db"
    with Ledger.open(tmp_path / "guard.db") as ledger:
        assert check_ledger(ledger) == []


calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


def double(number: int) -> int:
    calls.append(number)
    return 2 * number


def triple(number: int) -> int:
    calls.append(number)
    return 3 * number


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no text of it can be had")


async def double_async(number: int) -> int:
    calls.append(number)
    await asyncio.sleep(0)
    return 2 * number


def test_a_key_is_called_once_in_all_runs_of_a_script(path: Path) -> None:
    for reused in (0, 2):
        with ts.guard("g", ledger=path) as guard:
            assert [guard.call(key, double, key) for key in (1, 2)] == [2, 4]
            assert (guard.summary().reused, guard.summary().called) == (reused, 2 - reused)
    assert calls == [1, 2]


def test_the_same_key_twice_in_one_script_is_one_call(path: Path) -> None:
    with ts.guard("g", ledger=path) as guard:
        assert guard.call("a", double, 1) == guard.call("a", double, 1)
        assert guard.map(double, [5, 5, 6]) == [10, 10, 12]
    assert sorted(calls) == [1, 5, 6]


def test_two_functions_under_one_key_are_told_apart(path: Path) -> None:
    with ts.guard("g", ledger=path) as guard:
        guard.call("a", double, 1)
        with pytest.raises(ts.GuardKeyChanged, match=r'key "a" stands for .*triple, not .*double as before'):
            guard.call("a", triple, 1)
    assert calls == [1]


def test_a_changed_argument_or_code_under_a_key_is_refused_and_may_be_reused_by_word(path: Path) -> None:
    def made(factor: int) -> Any:
        source = f"def scaled(number):\n    return {factor} * number\n"
        space: dict[str, Any] = {"__name__": "made"}
        exec(source, space)
        return space["scaled"]

    with ts.guard("g", ledger=path) as guard:
        assert guard.call("a", made(2), 1) == 2
        with pytest.raises(ts.GuardKeyChanged, match="other arguments of made:scaled"):
            guard.call("a", made(2), 7)
        with pytest.raises(ts.GuardKeyChanged, match="another code of made:scaled"):
            guard.call("a", made(3), 1)
    with ts.guard("g", ledger=path, changed="reuse") as guard:
        assert guard.call("a", made(3), 7) == 2


def test_a_changed_default_of_a_parameter_is_changed_code(path: Path) -> None:
    def made(temperature: float) -> Any:
        def ask(text: str, heat: float = temperature, *, seed: int = 1) -> float:
            return heat

        return ask

    with ts.guard("g", ledger=path) as guard:
        assert guard.call("a", made(0.2), "x") == 0.2
        assert guard.call("a", made(0.2), "x") == 0.2
        with pytest.raises(ts.GuardKeyChanged, match="another code of"):
            guard.call("a", made(0.9), "x")


def test_a_default_counts_whether_it_is_true_or_not_and_is_not_asked_for_its_truth(path: Path) -> None:
    class Rows:
        def __bool__(self) -> bool:
            raise ValueError("the truth of several values is ambiguous")

    def made(given: Any) -> Any:
        def ask(text: str, given: Any = given) -> str:
            return text

        return ask

    with ts.guard("g", ledger=path) as guard:
        assert guard.call("rows", made(Rows()), "x") == "x"
        assert guard.call("a", made(0), "x") == "x"
        for other in (None, False, ""):
            with pytest.raises(ts.GuardKeyChanged, match="another code of"):
                guard.call("a", made(other), "x")


def test_what_a_call_is_given_counts_also_through_partials_and_classes(path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Document:
        text: str

    def length(document: Document, extra: int = 0) -> int:
        return len(document.text) + extra

    with ts.guard("g", ledger=path) as guard:
        assert guard.call("a", functools.partial(length, extra=1), Document("ab")) == 3
        assert guard.call("a", length, Document("ab"), extra=1) == 3
        with pytest.raises(ts.GuardKeyChanged):
            guard.call("a", length, Document("abc"), extra=1)


def test_a_part_of_an_argument_without_a_json_form_hides_no_change_of_what_stands_beside_it(path: Path) -> None:
    circle: list[Any] = [b"same"]
    circle.append(circle)

    def asks(document: Any) -> int:
        calls.append(document)
        return len(calls)

    given: list[tuple[Any, Any]] = [
        (b"one", b"two"),
        ({"at": date(2026, 1, 1), "text": "one"}, {"at": date(2026, 1, 2), "text": "two"}),
        ({1: "one"}, {1: "two"}),
        ([Path("a"), {"image": b"one"}], [Path("a"), {"image": b"two"}]),
        ([circle, "one"], [circle, "two"]),
    ]
    with ts.guard("g", ledger=path) as guard:
        for key, (before, after) in enumerate(given):
            assert guard.call(key, asks, before) == guard.call(key, asks, before) == key + 1
            with pytest.raises(ts.GuardKeyChanged, match="other arguments"):
                guard.call(key, asks, after)
        assert guard.call("day", asks, date(2026, 1, 1)) == guard.call("day", asks, date(2026, 1, 2))


def test_what_a_function_raises_goes_on_and_its_key_is_called_again_next_time(path: Path) -> None:
    def fails_once(number: int) -> int:
        calls.append(number)
        if len(calls) == 1:
            raise KeyError("not yet")
        return number

    with ts.guard("g", ledger=path) as guard, pytest.raises(KeyError, match="not yet"):
        guard.call("a", fails_once, 1)
    with ts.guard("g", ledger=path) as guard:
        assert guard.call("a", fails_once, 1) == 1
        assert guard.summary().spent == {}
    with ts.open(path) as ledger:
        (page,) = ledger.case("g", "a")
        assert (page.attempts[0].state, page.attempts[0].reason) == ("failed", "python.exception")
        assert ledger.report("g") is not None


def test_what_a_call_used_that_raised_counts_at_its_bound_unless_it_says_that_nothing_was_done(path: Path) -> None:
    def turned_away(problem: str) -> None:
        raise ts.Refused("no such key") if problem == "refused" else PermissionError("401: no such key")

    def used(guard: ts.Guard) -> tuple[int, int, int]:
        summary = guard.summary()
        return summary.spent["dispatches"], summary.spent["nanousd"], summary.held["nanousd"]

    budget = ts.Budget(dispatches=9, usd="1.00", usd_bound="0.10")
    with ts.guard("g", ledger=path, budget=budget) as guard:
        with pytest.raises(ts.Refused):
            guard.call("a", turned_away, "refused")
        assert used(guard) == (1, 0, 0)
        with pytest.raises(PermissionError):
            guard.call("b", turned_away, "failed")
        assert used(guard) == (2, 100_000_000, 0)


def test_an_unknown_outcome_is_not_called_again_by_itself(path: Path) -> None:
    def times_out(number: int) -> int:
        calls.append(number)
        raise TimeoutError("no answer")

    with ts.guard("g", ledger=path) as guard:
        with pytest.raises(TimeoutError):
            guard.call("a", times_out, 1)
        with pytest.raises(ts.EarlierCallUnknown, match="tallystick reconcile"):
            guard.call("a", times_out, 1)
        assert guard.summary().unknown_keys == 1
    assert calls == [1]


def test_an_unknown_outcome_is_called_again_where_that_is_declared(path: Path) -> None:
    answers = iter([TimeoutError("no answer"), 7])
    seen: list[str] = []

    def flaky() -> object:
        seen.append(ts.request_id())
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    for name, policy, ids in (("again", "repeat", 2), ("resent", "resend", 1)):
        answers = iter([TimeoutError("no answer"), 7])
        seen.clear()
        with ts.guard(name, ledger=path, if_unknown=policy, budget=ts.Budget(dispatches=9)) as guard:
            with pytest.raises(TimeoutError):
                guard.call("a", flaky)
            assert guard.call("a", flaky) == 7
            assert guard.summary().held == {"dispatches": 1}
        assert len(set(seen)) == ids


def test_a_full_budget_stops_before_the_call_and_a_larger_one_goes_on(path: Path) -> None:
    with ts.guard("g", ledger=path, budget=ts.Budget(dispatches=2)) as guard:
        assert guard.map(double, [1, 2]) == [2, 4]
        with pytest.raises(ts.BudgetExhausted):
            guard.call(3, double, 3)
    assert calls.count(3) == 0
    with ts.guard("g", ledger=path, budget={"dispatches": 3}) as guard:
        assert guard.map(double, [1, 2, 3]) == [2, 4, 6]


def test_usage_of_an_answer_is_counted(path: Path) -> None:
    def paid() -> ts.Answer:
        return ts.Answer("text", usage={"cost_usd": "0.25", "tokens_in": 4, "tokens_out": 6})

    budget = ts.Budget(usd="5.00", usd_bound="1.00", tokens=1000)
    with ts.guard("g", ledger=path, budget=budget) as guard:
        assert guard.call("a", paid) == "text"
        assert guard.summary().spent == {"nanousd": 250_000_000, "tokens": 10}
        assert "$0.2500 spent" in str(guard.summary())


@pytest.mark.parametrize("key", ["", True, 1.5, None, ("a",), Unshown()])
def test_a_key_that_is_none_is_refused(path: Path, key: Any) -> None:
    with ts.guard("g", ledger=path) as guard, pytest.raises(ts.UsageError, match="a key is a text or an integer"):
        guard.call(key, double, 1)


def test_generators_and_results_that_are_not_json_are_refused_with_their_remedy(path: Path) -> None:
    def parts() -> Iterator[int]:
        yield 1

    with ts.guard("g", ledger=path) as guard:
        with pytest.raises(ts.UsageError, match="is a generator"):
            guard.call("a", parts)
        with pytest.raises(ts.UsageError, match="is no function, but of type int"):
            guard.call("a", double(1))  # type: ignore[arg-type]
        assert guard.summary().called == 0
        with pytest.raises(ts.UsageError, match='the result of key "b" cannot be kept'):
            guard.call("b", object)
        with pytest.raises(ts.UsageError, match="cannot be kept"):
            guard.call("c", lambda: (number for number in range(3)))
        assert guard.call("d", lambda: (1, 2)) == [1, 2], "as it will come back the next time"


def test_threads_that_come_to_one_key_at_the_same_time_make_one_call(path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow() -> int:
        calls.append("slow")
        begun.set()
        assert go.wait(30)
        return 1

    results: list[int] = []
    with ts.guard("g", ledger=path) as guard:
        threads = [threading.Thread(target=lambda: results.append(guard.call("a", slow))) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        go.set()
        for thread in threads:
            thread.join()
    assert results == [1] * 4
    assert calls == ["slow"]


def test_a_guard_works_on_a_running_loop_and_awaits_async_functions(path: Path) -> None:
    async def notebook() -> None:
        with ts.guard("g", ledger=path) as guard:  # a blocking guard in a cell
            assert guard.call("sync", double, 1) == 2
            assert await guard.call("async", double_async, 2) == 4
        async with ts.guard("g", ledger=path) as guard:
            assert await guard.map(double_async, [3, 4, 3]) == [6, 8, 6]
            assert await guard.call("async", double_async, 2) == 4

    asyncio.run(notebook())
    assert sorted(calls) == [1, 2, 3, 4]


def test_a_cancelled_call_has_an_unknown_outcome(path: Path) -> None:
    async def cancelled() -> None:
        begun = asyncio.Event()

        async def hangs() -> None:
            begun.set()
            await asyncio.Event().wait()

        with ts.guard("g", ledger=path) as guard:
            task = asyncio.ensure_future(guard.call("a", hangs))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert guard.summary().unknown_keys == 1

    asyncio.run(cancelled())


def test_a_call_that_is_cancelled_while_its_result_is_committed_lets_nobody_at_its_key_before(path: Path) -> None:
    async def cancelled() -> None:
        returned = asyncio.Event()

        async def returns() -> int:
            calls.append("a")
            returned.set()
            return 1

        with ts.guard("g", ledger=path) as guard, Ledger.open(path) as ledger:
            first = asyncio.ensure_future(guard.call("a", returns))
            await returned.wait()
            with Batch(ledger):  # the scribe is busy: nothing is committed before this block ends
                await asyncio.sleep(0)
                first.cancel()
                second = asyncio.ensure_future(guard.call("a", returns))
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not first.done()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert await second == 1

    asyncio.run(cancelled())
    assert calls == ["a"]


def test_a_guard_can_be_opened_and_closed_by_hand_and_is_refused_outside(path: Path) -> None:
    guard = ts.guard("g", ledger=path).open()
    assert guard.call("a", double, 1) == 2
    with pytest.raises(ts.UsageError, match="entered already"):
        guard.open()
    with pytest.raises(ts.RunBusy):
        ts.guard("g", ledger=path).open()
    guard.close()
    guard.close()
    with pytest.raises(ts.LedgerError, match="not entered"):
        guard.call("a", double, 1)


def test_a_guard_of_another_promise_is_refused_instead_of_paid_for_again(path: Path) -> None:
    with ts.guard("g", ledger=path) as guard:
        guard.call("a", double, 1)
    with pytest.raises(ts.IdentityChanged, match="if_unknown"):
        ts.guard("g", ledger=path, if_unknown="repeat").open()
    with pytest.raises(ts.UsageError, match='no if_unknown = "query"'):
        ts.guard("g", ledger=path, if_unknown="query")
    with pytest.raises(ts.UsageError, match="no if_unknown"):
        ts.guard("g", ledger=path, if_unknown="sometimes")
    with pytest.raises(ts.UsageError, match="usd_bound and no usd"):
        ts.guard("h", ledger=path, budget=ts.Budget(usd_bound="1")).open()
    with pytest.raises(ts.UsageError, match="budgets: a table of units"):
        ts.guard("h", ledger=path, budget=cast("Any", 5)).open()
    with pytest.raises(ts.UsageError, match=r"budgets\.dispatchs: there is no such unit"):
        ts.guard("h", ledger=path, budget={"dispatchs": 5}).open()


def test_the_report_of_a_guard_is_the_same_later_though_its_keys_have_grown(path: Path) -> None:
    with ts.guard("g", ledger=path) as guard:
        guard.map(double, range(3))
    with ts.open(path) as ledger:
        then = ledger.report("g")
        counts = ledger.counts("g")
    with ts.guard("g", ledger=path) as guard:
        guard.map(double, range(5))
    with ts.open(path) as ledger:
        assert ledger.report("g", at=then.event).model_dump_json() == then.model_dump_json()
        assert (counts[SlotState.SELECTED], ledger.counts("g")[SlotState.SELECTED]) == (3, 5)


def test_a_guard_is_exported_before_and_after_it_has_grown_and_goes_on_where_it_was_adopted(
    path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    for count in (3, 6):
        with ts.guard("g", ledger=path) as guard:
            guard.map(double, range(count))
        with ts.open(path) as ledger:
            ledger.export("g", to=tmp_path / f"{count}.snapshot")
    with ts.open(other, create=True) as ledger:
        for count in (3, 6):
            ledger.import_(tmp_path / f"{count}.snapshot")
        assert ledger.counts("g")[SlotState.SELECTED] == 6
    with pytest.raises(ts.RefusedError, match="tallystick adopt"):
        ts.guard("g", ledger=other).open()
    with ts.open(other) as ledger:
        ledger.adopt("g", reason="a test", made_by="test")
    calls.clear()
    with ts.guard("g", ledger=other) as guard:
        assert guard.map(double, range(8)) == [2 * number for number in range(8)]
    assert sorted(calls) == [6, 7]
    with Ledger.open(other) as opened:
        assert check_ledger(opened) == []


def test_a_call_that_asks_for_its_own_key_is_refused_instead_of_waiting_for_itself(path: Path) -> None:
    with ts.guard("g", ledger=path) as guard:

        def outer() -> Any:
            return guard.call("between", lambda: guard.call("own", double, 1))

        with pytest.raises(ts.UsageError, match='key "own" is asked for inside of its own call'):
            guard.call("own", outer)

        async def again() -> Any:
            return await guard.call("async", double_async, 1)

        with pytest.raises(ts.UsageError, match='key "async" is asked for inside'):
            asyncio.run(guard.call("async", again))


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


def test_an_exception_that_counts_as_false_is_given_back_like_any_other(path: Path) -> None:
    def fail(number: int) -> int:
        raise Falsy(number)

    with ts.guard("g", ledger=path) as guard:
        found = guard.map(fail, [1, 2], return_exceptions=True)
    assert [type(one) for one in found] == [Falsy, Falsy]
