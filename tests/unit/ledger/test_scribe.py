"""What a caller of the scribe is told, whatever raises, is cancelled, forks or is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import driver, scribe
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import LedgerClosed
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.batches import Batch, fails, put, stored
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import every, new_ledger, new_run, one

OperationalError = driver.sqlite.OperationalError


def test_work_that_raises_is_undone_alone_and_its_batch_goes_on(ledger: Ledger) -> None:
    problem = LookupError("mine")
    with Batch(ledger) as batch:
        batch.ask("before", put("before"))
        batch.ask("failing", fails(problem))
        batch.ask("after", put("after"))
    assert batch.outcomes == {"first": "occupied", "before": "before", "failing": problem, "after": "after"}
    assert stored(ledger) == {"before", "after"}
    assert ledger.failure is None


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_work_may_raise_anything_without_ending_the_scribe(problem: BaseException, ledger: Ledger) -> None:
    with pytest.raises(type(problem)):
        ledger.write(fails(problem))
    assert ledger.write(put("after")) == "after"
    assert stored(ledger) == {"after"}, "and nothing of it stays"


def test_the_history_goes_on_from_what_is_there_when_its_last_event_was_undone_in_the_same_batch(
    ledger: Ledger,
) -> None:
    run_key = new_run(ledger).run_key

    def fails_after_an_event(tx: Transaction) -> None:
        tx.event(run_key, "never", {})
        raise LookupError

    with Batch(ledger) as batch:
        batch.ask("one", lambda tx: tx.event(run_key, "one", {}))
        batch.ask("never", fails_after_an_event)
        batch.ask("two", lambda tx: tx.event(run_key, "two", {}))
    assert (batch.outcomes["one"], batch.outcomes["two"]) == (2, 3)
    assert check_ledger(ledger) == []


def test_what_waits_while_a_commit_is_made_shares_the_next_one(ledger: Ledger) -> None:
    ledger.write(lambda tx: None)
    before = batches(ledger)
    with Batch(ledger) as batch:
        for number in range(20):
            batch.ask(f"n{number}", put(f"n{number}"))
    assert len(stored(ledger)) == 20
    assert batches(ledger) - before <= 2


def batches(ledger: Ledger) -> int:
    return int(one(ledger, "SELECT last_batch FROM workers WHERE worker_id = ?", ledger.worker_id)[0])


def test_nobody_is_told_before_the_commit_is_durable(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = new_run(ledger).run_key
        with Child("write_once", ledger.path, run_key, pause_at="scribe.commit.before@2") as child:
            child.wait_until_there()
            child.kill()
            assert child.lines() == []
        assert one(ledger, "SELECT count(*) FROM events WHERE kind = 'theirs'") == (0,)
        with Child("write_once", ledger.path, run_key, crashpoint="scribe.commit.after@2") as child:
            assert child.lines() == []
        assert one(ledger, "SELECT count(*) FROM events WHERE kind = 'theirs'") == (1,)


# Failed statements.


def test_an_awaited_work_gives_its_result_or_its_own_error(ledger: Ledger) -> None:
    async def main() -> Any:
        return await asyncio.gather(
            ledger.write_async(put("a")),
            ledger.write_async(fails(LookupError("mine"))),
            ledger.write_async(put("b")),
            return_exceptions=True,
        )

    found = asyncio.run(main())
    assert found[0] == "a"
    assert isinstance(found[1], LookupError)
    assert found[2] == "b"
    assert stored(ledger) == {"a", "b"}


def cancelled(
    ledger: Ledger,
    work: Callable[[Transaction], Any],
    *,
    undo: Callable[[Transaction, Any], object] | None = None,
    times: int = 1,
    is_full: bool = False,
) -> bool:
    """Ask for the work, cancel the await while the scribe is busy, and say whether it ended as cancelled.

    ``is_full``: there is no room for it in the queue yet.
    """

    async def main() -> bool:
        with Batch(ledger) as batch, pytest.MonkeyPatch.context() as patch:
            if is_full:
                patch.setattr(scribe, "QUEUE_MAX", 1)
                batch.ask("fills the queue", lambda tx: None)
            task = asyncio.ensure_future(ledger.write_async(work, undo=undo))
            for _ in range(times):
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.sleep(0)
            assert not task.done(), "a cancelled await waits for what it asked for"
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    return asyncio.run(main())


def take_back(tx: Transaction, name: str) -> None:
    tx.execute("DELETE FROM facts WHERE name = ?", (name,))
    put(f"{name} taken back")(tx)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_cancelled_await_is_compensated_however_often_it_is_cancelled(
    times: int, is_full: bool, ledger: Ledger
) -> None:
    assert cancelled(ledger, put("asked"), undo=take_back, times=times, is_full=is_full)
    assert stored(ledger) == {"asked taken back"}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_cancelled_await_without_an_undo_keeps_what_was_asked(is_full: bool, ledger: Ledger) -> None:
    assert cancelled(ledger, put("asked"), times=2, is_full=is_full)
    assert stored(ledger) == {"asked"}


def test_a_cancelled_await_whose_work_failed_has_nothing_to_undo(ledger: Ledger) -> None:
    assert cancelled(ledger, fails(LookupError()), undo=take_back)
    assert stored(ledger) == set()


def test_a_cancellation_during_the_undo_does_not_stop_it(ledger: Ledger) -> None:
    async def main() -> None:
        undoing, go_on = threading.Event(), threading.Event()

        def slow_undo(tx: Transaction, name: str) -> None:
            undoing.set()
            assert go_on.wait(30)
            take_back(tx, name)

        with Batch(ledger):
            task = asyncio.ensure_future(ledger.write_async(put("asked"), undo=slow_undo))
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.to_thread(undoing.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ledger.write_async(lambda tx: None)

    asyncio.run(main())
    assert stored(ledger) == {"asked taken back"}


def test_a_loop_that_closed_in_the_meantime_does_not_harm_the_others(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    with Batch(ledger) as batch:
        task = loop.create_task(ledger.write_async(put("orphan")))
        loop.run_until_complete(asyncio.sleep(0))
        batch.ask("other", put("other"))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
    del task
    assert batch.outcomes["other"] == "other"
    ledger.write(put("next"))  # after which the scribe has told everybody of the batch before
    assert stored(ledger) == {"orphan", "other", "next"}
    assert "scribe.loop_closed" in {getattr(record, "event", "") for record in caplog.records}


def test_several_loops_and_threads_share_one_scribe(ledger: Ledger) -> None:
    async def ten(prefix: str) -> None:
        await asyncio.gather(*(ledger.write_async(put(f"{prefix}{number}")) for number in range(10)))

    def ten_blocking(prefix: str) -> None:
        for number in range(10):
            ledger.write(put(f"{prefix}{number}"))

    threads = [threading.Thread(target=asyncio.run, args=(ten(name),)) for name in "abc"]
    threads += [threading.Thread(target=ten_blocking, args=(name,)) for name in "def"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored(ledger)) == 60


def test_the_queue_is_bounded_for_a_flood_of_awaits(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "QUEUE_MAX", 8)

    async def main() -> int:
        with Batch(ledger):
            tasks = [asyncio.ensure_future(ledger.write_async(put(str(number)))) for number in range(100)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting = ledger._shared.scribe()._queue.qsize()
        await asyncio.gather(*tasks)
        return waiting

    assert asyncio.run(main()) == 8
    assert len(stored(ledger)) == 100


def test_a_batch_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "BATCH_MAX", 5)
    ledger.write(lambda tx: None)
    before = batches(ledger)
    with Batch(ledger) as batch:
        for number in range(20):
            batch.ask(f"n{number}", put(f"n{number}"))
    assert batches(ledger) - before >= 4


# Closing and forking.


def test_closing_commits_what_is_queued(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    with Batch(ledger) as batch:
        batch.ask("last", put("last"))
        closing = threading.Thread(target=ledger.close)
        closing.start()
    closing.join()
    assert batch.outcomes["last"] == "last"
    with new_ledger(tmp_path) as again:
        assert stored(again) == {"last"}


def test_a_scribe_of_a_closed_ledger_refuses(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.write(put("a"))
    inner = ledger._shared.scribe()
    ledger.close()
    with pytest.raises(LedgerClosed):
        inner.run(put("b"))

    async def main() -> None:
        await inner.run_async(put("c"))

    with pytest.raises(LedgerClosed):
        asyncio.run(main())


def test_a_forked_child_is_refused_and_neither_its_use_nor_its_end_harms_the_parent(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = new_run(ledger).run_key
    with Child("fork_and_use", tmp_path / "t.db", run_key) as child:
        assert child.lines() == [
            "child write ledger.forked",
            "child reading ledger.forked",
            "child opens its own",
            "child ended 0",
            "parent is still the worker",
            "parent written",
        ]
    with new_ledger(tmp_path) as ledger:
        assert [kind for (kind,) in every(ledger, "SELECT kind FROM events ORDER BY event_no")] == [
            "run.planned", "before", "from the child", "from the parent",
        ]  # fmt: skip
        assert one(ledger, "PRAGMA integrity_check") == ("ok",)
