from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

import pytest

import tallystick as ts
from tallystick.blocking import blocking
from tallystick.ledger.states import SlotState

PATIENCE_SECONDS = 20


def beside_a_loop(work: object) -> object:
    """What the function comes to where a loop runs in this thread, and an interrupt is one, as in a notebook."""

    async def cell() -> object:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            assert callable(work)
            return work()
        finally:
            signal.signal(signal.SIGINT, before)

    return asyncio.run(cell())


def test_an_interrupted_cell_leaves_no_run_behind_and_the_next_one_goes_on_with_it(tmp_path: Path) -> None:
    asked: list[str] = []

    @ts.target(if_unknown="repeat")
    async def bot(case: ts.Case) -> str:
        asked.append(case.id)
        if len(asked) == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        return "x"

    cases = [{"id": name, "input": name} for name in "abc"]
    order = ts.WorkOrder("cells", cases=cases, target=bot, concurrency=1)

    def cell() -> ts.RunOutcome:
        return ts.run(order, ledger=tmp_path / "notebook.db")

    with pytest.raises(KeyboardInterrupt):
        beside_a_loop(cell)
    with ts.open(tmp_path / "notebook.db") as ledger:
        assert ledger.counts("cells")[SlotState.IN_FLIGHT] == 0
    outcome = beside_a_loop(cell)
    assert isinstance(outcome, ts.RunOutcome)
    assert (outcome.state, outcome.reused) == ("finished", 1)
    assert sorted(asked) == ["a", "b", "b", "c"]


def test_what_the_work_comes_to_or_raises_comes_back_from_the_other_thread() -> None:
    async def fail() -> str:
        raise LookupError("not there")

    async def where() -> str:
        return threading.current_thread().name

    assert beside_a_loop(lambda: blocking(where)) == "tallystick-run"
    assert blocking(where) == threading.current_thread().name
    with pytest.raises(LookupError, match="not there"):
        beside_a_loop(lambda: blocking(fail))


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupt_in_the_start_of_the_thread_leaves_nothing_behind_either(
    has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    told: list[str] = []
    under_way, is_left = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    async def pay() -> None:
        told.append("begun")
        under_way.set()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE_SECONDS)
        finally:
            told.append("ended")

    def interrupted_start(thread: threading.Thread) -> None:
        """The thread goes on, before or after the interrupt is raised, and has told its starter nothing of itself."""

        def go() -> None:
            assert has_begun or is_left.wait(PATIENCE_SECONDS)
            thread.run()

        threads.append(threading.Thread(target=go))
        start(threads[0])
        assert not has_begun or under_way.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        beside_a_loop(lambda: blocking(pay))
    ended_by_then = list(told)
    is_left.set()
    threads[0].join(2 * PATIENCE_SECONDS)
    assert not threads[0].is_alive()
    assert told == ended_by_then == (["begun", "ended"] if has_begun else [])
