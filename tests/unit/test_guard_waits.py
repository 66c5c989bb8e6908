from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick import guard_waits, guarding
from tallystick.guard_waits import _HOLDERS, _WANTED, waiting
from tallystick.held_up_loops import holding_up_the_loop
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger

PATIENCE_SECONDS = 20


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "guard.db"
    assert (dict(_HOLDERS), dict(_WANTED)) == ({}, {})
    with Ledger.open(tmp_path / "guard.db") as ledger:
        assert check_ledger(ledger) == []


@pytest.fixture
def once_waited(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has a function called by whoever has entered a wait for another call's key."""

    def has_called(then: Callable[[], object]) -> None:
        @contextmanager
        def entered(*of: Any, **how: Any) -> Iterator[None]:
            with waiting(*of, **how):
                then()
                yield

        monkeypatch.setattr(guarding, "waiting", entered)

    return has_called


class Circle:
    """Keys whose first call waits until each of them is under way and then asks for the next one; a second is plain."""

    def __init__(self, guards: dict[str, ts.Guard]) -> None:
        self.guards = guards
        self.first = set(guards)
        self.all_inside = threading.Barrier(len(guards), timeout=PATIENCE_SECONDS)

    def after(self, key: str) -> str:
        keys = list(self.guards)
        return keys[(keys.index(key) + 1) % len(keys)]

    def ask(self, key: str) -> Any:
        return self.guards[key].call(key, self.work, key)

    def work(self, key: str) -> Any:
        if key not in self.first:
            return key
        self.first.discard(key)
        self.all_inside.wait()
        return [key, self.ask(self.after(key))]


def ended(works: list[Callable[[], Any]]) -> list[Any]:
    """What each came to on a thread of its own, or its exception; one that waits for ever is left behind."""
    told: list[Future[Any]] = [Future() for _ in works]

    def end(work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            future.set_result(work())
        except Exception as problem:
            future.set_exception(problem)

    for work, future in zip(works, told, strict=True):
        threading.Thread(target=end, args=(work, future), daemon=True).start()
    return [one.exception(PATIENCE_SECONDS) or one.result() for one in told]


def in_a_loop_beside(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What it comes to on another thread's loop, whose context is of this one as that of a map's threads is."""
    context = copy_context()
    return ended([lambda: context.run(asyncio.run, make())])[0]


def deadlocks(found: list[Any]) -> list[ts.GuardDeadlock]:
    return [one for one in found if isinstance(one, ts.GuardDeadlock)]


@pytest.mark.parametrize("keys", ["ab", "abcd"])
def test_threads_that_ask_for_each_others_keys_are_told_so_in_one_of_them(path: Path, keys: str) -> None:
    with ts.guard("g", if_unknown="repeat", ledger=path) as guard:
        circle = Circle(dict.fromkeys(keys, guard))
        found = ended([lambda key=key: circle.ask(key) for key in keys])  # type: ignore[misc]
        (told,) = deadlocks(found)
        assert told.code == "guard.deadlock"
        asking = keys[keys.index(told.key) - 1]
        before = keys[keys.index(told.key) - 2]
        assert f'key "{told.key}" is asked for inside of key "{asking}", which its own call waits for' in str(told)
        assert ("by way of" in str(told)) is (len(keys) > 2)
        assert found[keys.index(before)] == [before, asking]  # it waited for who was told, and called that key itself
        assert guard.call(asking, circle.work, asking) == asking


def test_two_guards_of_a_process_are_one_circle(path: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(ts.guard("one", ledger=path))
        two = stack.enter_context(ts.guard("two", ledger=tmp_path / "other.db"))
        circle = Circle({"a": one, "b": two})
        assert len(deadlocks(ended([lambda: circle.ask("a"), lambda: circle.ask("b")]))) == 1


def test_items_of_a_map_that_ask_for_each_other_end_it_instead_of_waiting(path: Path) -> None:
    with ts.guard("g", ledger=path) as guard:
        circle = Circle({"a": guard, "b": guard})
        (found,) = ended([lambda: guard.map(circle.work, ["a", "b"], concurrency=2, return_exceptions=True)])
        assert len(deadlocks(found)) == 1


def test_tasks_that_ask_for_each_others_keys_are_told_so_in_one_of_them(path: Path) -> None:
    async def main() -> list[Any]:
        inside, first = asyncio.Barrier(2), {"a", "b"}
        async with ts.guard("g", ledger=path) as guard:

            async def work(key: str) -> Any:
                if key not in first:
                    return key
                first.discard(key)
                await inside.wait()
                other = "b" if key == "a" else "a"
                # A task of its own, too, is inside of the call that it was begun in.
                return await asyncio.create_task(guard.call(other, work, other))

            asked = [guard.call(key, work, key) for key in ("a", "b")]
            return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE_SECONDS)

    found = asyncio.run(main())
    assert len(deadlocks(found)) == 1
    assert {"a", "b"} & {one for one in found if isinstance(one, str)}


def test_a_blocking_call_that_waits_for_a_task_of_its_own_loop_is_refused(path: Path) -> None:
    async def main() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def work(key: str) -> str:
            inside.set()
            await go_on.wait()
            return key

        async with ts.guard("g", ledger=path) as guard:
            task = asyncio.create_task(guard.call("a", work, "a"))
            await inside.wait()
            with pytest.raises(ts.GuardDeadlock, match=r"asyncio\.to_thread"):
                guard.call("a", str, "a")
            with pytest.raises(ts.GuardDeadlock, match="to_thread"):
                guard.map(lambda key: guard.call("a", str, key), ["x", "y"], concurrency=2)
            go_on.set()
            assert await task == "a"

    assert ended([lambda: asyncio.run(main())]) == [None]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_loop_inside_of_a_map_that_waits_for_the_loop_that_the_map_holds_up_is_refused(
    path: Path, is_async: bool
) -> None:
    async def main() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def work(key: str) -> str:
            inside.set()
            await go_on.wait()
            return key

        async with ts.guard("g", ledger=path) as guard:

            async def ask() -> Any:
                return await guard.call("a", work, "a") if is_async else guard.call("a", str, "a")

            def beside(key: str) -> Any:
                return deadlocks([in_a_loop_beside(ask)])[0].key

            task = asyncio.create_task(guard.call("a", work, "a"))
            await inside.wait()
            found = guard.map(beside, ["x", "y"], concurrency=2, return_exceptions=True)
            go_on.set()
            assert (found, await task) == (["a", "a"], "a")

    asyncio.run(main())


def test_a_target_of_a_run_in_a_cell_that_waits_for_a_task_of_the_cells_loop_is_refused(
    path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()
        told: list[Any] = []

        async def work(key: str) -> str:
            inside.set()
            await go_on.wait()
            return key

        async with ts.guard("g", ledger=path) as guard:

            @ts.target(if_unknown="repeat")
            async def bot(case: ts.Case) -> str:
                try:
                    await asyncio.wait_for(guard.call("a", work, "a"), PATIENCE_SECONDS)
                except (ts.GuardDeadlock, TimeoutError) as problem:
                    told.append(problem)
                return case.id

            task = asyncio.create_task(guard.call("a", work, "a"))
            await inside.wait()
            outcome = ts.run(
                ts.WorkOrder("o", cases=[{"id": "x", "input": "x"}], target=bot), ledger=tmp_path / "run.db"
            )
            go_on.set()
            assert (outcome.state, await task) == ("finished", "a")
            assert [one.key for one in deadlocks(told)] == ["a"]

    asyncio.run(main())


@pytest.mark.parametrize("where", ["thread", "loop beside a loop that is held up"])
def test_a_wait_for_a_call_that_waits_for_nobody_is_no_deadlock(
    path: Path, where: str, once_waited: Callable[[Callable[[], object]], None]
) -> None:
    go_on = threading.Event()
    once_waited(go_on.set)
    inside = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def slow(key: str) -> str:
        inside.wait()
        assert go_on.wait(PATIENCE_SECONDS)
        return key

    async def never(key: str) -> str:
        raise AssertionError(key)

    with ts.guard("g", ledger=path, changed="reuse") as guard:

        def outer() -> Any:
            inside.wait()
            if where == "thread":
                return guard.call("slow", slow, "slow")
            return in_a_loop_beside(lambda: guard.call("slow", never, "slow"))

        async def cell() -> Any:
            return guard.call("outer", outer) if where == "thread" else guard.map(lambda _: outer(), ["x"])[0]

        found = ended([lambda: guard.call("slow", slow, "slow"), lambda: asyncio.run(cell())])
        assert found == ["slow", "slow"]
    assert go_on.is_set()


def test_what_a_map_left_behind_no_longer_holds_up_its_loop(
    path: Path, once_waited: Callable[[Callable[[], object]], None]
) -> None:
    async def main() -> Any:
        inside, go_on = asyncio.Event(), asyncio.Event()
        loop, contexts = asyncio.get_running_loop(), []
        once_waited(lambda: loop.call_soon_threadsafe(go_on.set))

        async def work(key: str) -> str:
            inside.set()
            await asyncio.wait_for(go_on.wait(), PATIENCE_SECONDS)
            return key

        async with ts.guard("g", ledger=path, changed="reuse") as guard:
            task = asyncio.create_task(guard.call("a", work, "a"))
            await inside.wait()
            guard.map(lambda _: contexts.append(copy_context()), ["x"])
            return await asyncio.to_thread(contexts[0].run, guard.call, "a", str, "a"), await task

    assert asyncio.run(main()) == ("a", "a")


def test_a_loop_that_goes_on_inside_of_its_own_hold_up_may_wait_for_its_tasks(
    path: Path, once_waited: Callable[[Callable[[], object]], None]
) -> None:
    async def main() -> Any:
        inside, go_on = asyncio.Event(), asyncio.Event()
        once_waited(go_on.set)

        async def work(key: str) -> str:
            inside.set()
            await asyncio.wait_for(go_on.wait(), PATIENCE_SECONDS)
            return key

        async with ts.guard("g", ledger=path) as guard:
            task = asyncio.create_task(guard.call("a", work, "a"))
            await inside.wait()
            with holding_up_the_loop():  # as where a loop may be run inside of itself
                return await guard.call("a", work, "a"), await task

    assert asyncio.run(main()) == ("a", "a")


def test_a_task_that_has_outlived_its_call_may_ask_for_that_calls_key(path: Path) -> None:
    async def main() -> Any:
        over = asyncio.Event()
        tasks: list[asyncio.Task[Any]] = []
        async with ts.guard("g", ledger=path) as guard:

            async def later() -> Any:
                await over.wait()
                return await guard.call("a", begin)

            async def begin() -> str:
                tasks.append(asyncio.create_task(later()))
                return "done"

            await guard.call("a", begin)
            over.set()
            return await tasks[0]

    assert asyncio.run(main()) == "done"


class Heard(logging.Handler):
    """Keeps what is told to a log, and calls a function then."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.then = then
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.then()


@pytest.fixture
def listening() -> Iterator[Callable[[Heard], None]]:
    logger, added = logging.getLogger("tallystick"), list[Heard]()
    level = logger.level

    def listen(heard: Heard) -> None:
        added.append(heard)
        logger.setLevel(logging.INFO)
        logger.addHandler(heard)

    yield listen
    logger.setLevel(level)
    for heard in added:
        logger.removeHandler(heard)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_long_wait_says_once_in_the_log_for_which_key_and_thread_and_is_not_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, listening: Callable[[Heard], None], is_async: bool
) -> None:
    monkeypatch.setattr(guard_waits, "_LONG_SECONDS", 0.0)
    inside, go_on = threading.Event(), threading.Event()
    heard = Heard(go_on.set)
    listening(heard)

    def work(key: str) -> str:
        inside.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return key

    async def work_async(key: str) -> str:
        raise AssertionError("its key has a result")

    with ts.guard("g", ledger=path, changed="reuse") as guard, ThreadPoolExecutor(1, "first") as pool:
        first = pool.submit(guard.call, "a", work, "a")
        assert inside.wait(PATIENCE_SECONDS)
        assert (asyncio.run(guard.call("a", work_async, "a")) if is_async else guard.call("a", work, "a")) == "a"
        assert first.result(PATIENCE_SECONDS) == "a"
    (record,) = heard.records
    assert record.levelno == logging.INFO  # it reaches nobody's standard error
    assert record.getMessage().startswith('the key "a" has been waited for for 0 s')
    assert record.getMessage().endswith("on the thread first_0")
    assert vars(record)["event"] == "guard.waits"


def test_a_pool_of_the_function_itself_is_known_to_be_inside_where_it_has_the_context_of_the_call(path: Path) -> None:
    def work(key: str) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            told = [pool.submit(copy_context().run, guard.call, one, work, one) for one in key[1:]]
            return [key, *(one.result(PATIENCE_SECONDS) for one in told)]

    def round_it(key: str) -> Any:
        with ThreadPoolExecutor(1) as pool:
            inner = pool.submit(copy_context().run, guard.call, key, round_it, key)
            return str(inner.exception(PATIENCE_SECONDS))

    with ts.guard("g", ledger=path) as guard:
        assert guard.call("abc", work, "abc") == ["abc", ["b"], ["c"]]
        assert "inside of its own call" in guard.call("round", round_it, "round")
