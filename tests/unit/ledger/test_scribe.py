"""What a caller of the scribe is told, whatever fails, is cancelled, forks or is closed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger import driver, scribe
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import CommitUnknown, LedgerClosed, LedgerFailed
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import every, new_ledger, new_run, one, raw

OperationalError = driver.sqlite.OperationalError


class Batch:
    """Keeps the scribe busy with a first piece of work, so that what is asked meanwhile shares one batch with it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._begun, self._end = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self.outcomes: dict[str, Any] = {}

    def __enter__(self) -> Batch:
        self.ask("first", self._occupy)
        assert self._begun.wait(30)
        return self

    def _occupy(self, tx: Transaction) -> str:
        self._begun.set()
        assert self._end.wait(30)
        return "occupied"

    def ask(self, name: str, work: Callable[[Transaction], Any]) -> None:
        """Ask in a thread of its own; its result or error will be in `outcomes`."""
        waiting = self._ledger._shared.scribe()._queue.qsize()

        def run() -> None:
            try:
                self.outcomes[name] = self._ledger.write(work)
            except BaseException as problem:
                self.outcomes[name] = problem

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)
        if name != "first":
            while self._ledger._shared.scribe()._queue.qsize() == waiting:
                os.sched_yield()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def put(name: str, value: str = "x") -> Callable[[Transaction], str]:
    def work(tx: Transaction) -> str:
        tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", (name, value))
        return name

    return work


def fails(problem: BaseException) -> Callable[[Transaction], None]:
    """Work that writes something and then raises."""

    def work(tx: Transaction) -> None:
        put(f"half of {problem!r}")(tx)
        raise problem

    return work


def stored(ledger: Ledger) -> set[str]:
    return {name for (name,) in every(ledger, "SELECT name FROM facts")} - {"marker"}


# One piece of work among others.


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


def fill_disk(ledger: Ledger) -> None:
    """From now on the ledger's file may not grow."""

    def work(tx: Transaction) -> None:
        pages = tx.row("PRAGMA page_count")[0]
        tx.row(f"PRAGMA max_page_count={pages}")

    ledger.write(work)


def test_a_full_disk_fails_the_whole_batch_and_closes_the_ledger(ledger: Ledger) -> None:
    ledger.write(put("kept"))
    fill_disk(ledger)
    with Batch(ledger) as batch:
        batch.ask("before", put("before"))
        batch.ask("large", put("large", "x" * 200_000))
    assert set(batch.outcomes) == {"first", "before", "large"}
    for problem in batch.outcomes.values():
        assert isinstance(problem, LedgerFailed)
        assert "free space" in problem.remedy
    assert stored(ledger) == {"kept"}
    assert isinstance(ledger.failure, LedgerFailed)
    with pytest.raises(LedgerClosed, match="full"):
        ledger.write(put("after"))


def test_a_statement_that_failed_alone_harms_its_own_work_only(ledger: Ledger) -> None:
    with Batch(ledger) as batch:
        batch.ask("one", put("same"))
        batch.ask("two", put("same"))
    assert batch.outcomes["one"] == "same"
    assert isinstance(batch.outcomes["two"], driver.sqlite.IntegrityError)
    assert stored(ledger) == {"same"}


def test_the_ledger_can_be_opened_again_after_a_failure(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        fill_disk(ledger)
        with pytest.raises(LedgerFailed):
            ledger.write(put("large", "x" * 200_000))
    with new_ledger(tmp_path) as ledger:
        assert ledger.write(put("again")) == "again"


def test_a_transaction_that_cannot_begin_fails_its_batch_and_the_next_is_tried(ledger: Ledger) -> None:
    ledger.write(put("kept"))
    shared = ledger._shared
    assert shared._desk is not None
    shared._desk.connection().execute("PRAGMA busy_timeout=0").fetchone()
    other = raw(ledger.path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerFailed, match="locked"):
        ledger.write(put("blocked"))
    other.execute("ROLLBACK")
    other.close()
    assert ledger.write(put("after")) == "after"
    assert stored(ledger) == {"kept", "after"}


# Failed commits: the connection lies about what COMMIT did.


@attrs.define
class Lying:
    """A connection whose next COMMIT raises, with or without having been done."""

    real: Any
    does_it: bool

    def cursor(self) -> LyingCursor:
        return LyingCursor(self.real.cursor(), self)

    @property
    def in_transaction(self) -> bool:
        return bool(self.real.in_transaction)

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        return self.real.execute(sql, parameters)

    def close(self) -> None:
        self.real.close()


@attrs.define
class LyingCursor:
    real: Any
    connection: Lying

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        if sql == "COMMIT":
            if self.connection.does_it:
                self.real.execute(sql)
            raise OperationalError("disk I/O error")
        return self.real.execute(sql, parameters)


def lie(ledger: Ledger, *, does_it: bool) -> None:
    desk = ledger._shared._desk
    assert desk is not None
    desk._connection = Lying(desk.connection(), does_it)


def lied_to(ledger: Ledger, *, does_it: bool) -> dict[str, Any]:
    ledger.write(put("kept"))
    lie(ledger, does_it=does_it)
    with Batch(ledger) as batch:
        batch.ask("one", put("one"))
        batch.ask("two", put("two"))
        batch.ask("own", fails(LookupError("mine")))
    return batch.outcomes


def test_a_commit_that_raised_and_was_not_done_fails_every_caller(ledger: Ledger) -> None:
    outcomes = lied_to(ledger, does_it=False)
    for name in ("first", "one", "two"):
        assert isinstance(outcomes[name], LedgerFailed), name
    assert isinstance(outcomes["own"], LookupError)
    assert stored(ledger) == {"kept"}
    with pytest.raises(LedgerClosed):
        ledger.write(put("after"))


def test_a_commit_that_raised_and_was_durable_gives_every_caller_its_result(ledger: Ledger) -> None:
    outcomes = lied_to(ledger, does_it=True)
    assert outcomes["one"] == "one"
    assert outcomes["two"] == "two"
    assert isinstance(outcomes["own"], LookupError)
    assert stored(ledger) == {"kept", "one", "two"}
    assert isinstance(ledger.failure, LedgerFailed)
    with pytest.raises(LedgerClosed):
        ledger.write(put("after"))


@pytest.mark.parametrize("does_it", [True, False])
def test_a_commit_of_which_nothing_can_be_read_is_unknown_to_every_caller(
    does_it: bool, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.write(put("kept"))

    def unreadable(*_: object, **__: object) -> None:
        raise OperationalError("unable to open database file")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "connect", unreadable)
        outcomes = lied_to_once(ledger, does_it=does_it)
    for name in ("first", "one"):
        assert isinstance(outcomes[name], CommitUnknown), name
        assert "disk I/O error" in str(outcomes[name])
        assert "unable to open" in str(outcomes[name])
    assert isinstance(ledger.failure, CommitUnknown)
    with pytest.raises(LedgerClosed):
        ledger.write(put("after"))


def lied_to_once(ledger: Ledger, *, does_it: bool) -> dict[str, Any]:
    lie(ledger, does_it=does_it)
    with Batch(ledger) as batch:
        batch.ask("one", put("one"))
    return batch.outcomes


@pytest.mark.parametrize("does_it", [True, False])
def test_before_a_failed_commit_is_looked_for_a_marker_is_committed(does_it: bool, ledger: Ledger) -> None:
    lied_to(ledger, does_it=does_it)
    assert one(ledger, "SELECT count(*) FROM facts WHERE name = 'marker'") == (1,)


def test_the_first_commit_of_all_that_fails_makes_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_ledger(tmp_path) as ledger:
        real = driver.harden
        with monkeypatch.context() as patch:
            patch.setattr(driver, "harden", lambda found, **more: Lying(real(found, **more), does_it=False))
            with pytest.raises((LedgerFailed, CommitUnknown)):
                ledger.write(put("one"))
        assert list((tmp_path / "t.db.d" / "workers").iterdir()) == []
        assert ledger.write(put("two")) == "two"
        assert stored(ledger) == {"two"}


def test_after_a_failed_checkpoint_the_batch_is_kept_and_nothing_more_is_written(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.write(put("kept"))
    desk = ledger._shared._desk

    def fails_to_sync() -> None:
        raise OperationalError("disk I/O error")

    monkeypatch.setattr(desk, "committed", fails_to_sync)
    assert ledger.write(put("last")) == "last"
    with pytest.raises(LedgerClosed, match="checkpoint"):
        ledger.write(put("after"))
    assert stored(ledger) == {"kept", "last"}


def test_a_log_that_cannot_be_looked_at_is_a_failed_checkpoint_and_keeps_nobody_waiting(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.write(put("kept"))

    def cannot_look() -> bool:
        raise PermissionError("stat")

    monkeypatch.setattr(ledger._shared._desk, "is_checkpoint_due", cannot_look)
    last = threading.Thread(target=ledger.write, args=(put("last"),), daemon=True)
    last.start()
    last.join(30)
    assert not last.is_alive()
    with pytest.raises(LedgerClosed, match="checkpoint"):
        ledger.write(put("after"))
    assert stored(ledger) == {"kept", "last"}


# Event loops.


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
) -> bool:
    """Ask for the work, cancel the await while the scribe is busy, and say whether it ended as cancelled."""

    async def main() -> bool:
        with Batch(ledger):
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


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_cancelled_await_is_compensated_however_often_it_is_cancelled(times: int, ledger: Ledger) -> None:
    assert cancelled(ledger, put("asked"), undo=take_back, times=times)
    assert stored(ledger) == {"asked taken back"}


def test_a_cancelled_await_without_an_undo_keeps_what_was_asked(ledger: Ledger) -> None:
    assert cancelled(ledger, put("asked"))
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
