from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.guard_mapping import GuardMapping
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "guard.db"
    with Ledger.open(tmp_path / "guard.db") as ledger:
        assert check_ledger(ledger) == []


def test_map_gives_results_in_order_and_raises_the_first_failure_once_nothing_is_under_way(path: Path) -> None:
    def picky(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    with ts.guard("g", ledger=path) as guard:
        with pytest.raises(ValueError, match="three"):
            guard.map(picky, range(6), concurrency=2)
        results = guard.map(picky, range(6), concurrency=2, return_exceptions=True)
        assert [number for number in results if isinstance(number, int)] == [0, 1, 2, 4, 5]
        assert isinstance(results[3], ValueError)


def test_map_says_which_item_has_no_key_and_which_two_have_the_same(path: Path) -> None:
    with ts.guard("g", ledger=path) as guard:
        with pytest.raises(ts.UsageError, match=r"key=\.\.\."):
            guard.map(len, [{"id": 1}])
        with pytest.raises(ts.UsageError, match='two items have the key "x"'):
            guard.map(len, ["a", "bc"], key=lambda item: "x")
        for odd in (0, 2.5, None, "2"):
            with pytest.raises(ts.UsageError, match="at a time"):
                guard.map(len, ["a"], concurrency=odd)  # type: ignore[arg-type]


def test_an_exit_on_another_thread_ends_the_map_and_its_call_is_unknown(path: Path) -> None:
    on_both = threading.Barrier(2, timeout=10)

    def leave(number: int) -> int:
        on_both.wait()
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(3)
        return number

    with ts.guard("g", ledger=path) as guard:
        with pytest.raises(SystemExit):
            guard.map(leave, [1, 2], concurrency=2, return_exceptions=True)
        summary = guard.summary()
    assert (summary.called, summary.unknown) == (2, 1)


@pytest.mark.parametrize("interrupted", ["start", "join"])
def test_an_interrupt_of_a_map_anywhere_leaves_no_thread_behind_that_goes_on_to_pay(
    interrupted: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_called, is_stopped, done = threading.Event(), threading.Event(), list[int]()
    real, stop, left = getattr(threading.Thread, interrupted), GuardMapping.stop, [True]

    def work(number: int) -> int:
        done.append(number)
        if threading.current_thread() is threading.main_thread():
            assert is_called.wait(30)
        else:
            is_called.set()
            assert is_stopped.wait(30)
        return number

    def interrupt(thread: threading.Thread, *args: Any) -> None:
        if thread.name == "tallystick-guard" and (interrupted == "join" or is_called.is_set()) and left:
            left.clear()
            raise KeyboardInterrupt
        real(thread, *args)
        if interrupted == "start" and thread.name == "tallystick-guard":
            assert is_called.wait(30)

    def stopped(mapping: GuardMapping) -> None:
        stop(mapping)
        is_stopped.set()

    monkeypatch.setattr(GuardMapping, "stop", stopped)
    with ts.guard("g", ledger=path) as guard:
        monkeypatch.setattr(threading.Thread, interrupted, interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                guard.map(work, range(9 if interrupted == "start" else 2), concurrency=3)
            assert [one for one in threading.enumerate() if one.name == "tallystick-guard"] == []
        finally:
            is_stopped.set()
        assert guard.summary().called == len(done) == {"start": 1, "join": 2}[interrupted]
