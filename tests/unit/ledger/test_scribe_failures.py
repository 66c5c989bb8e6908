"""What callers are told when the disk, a commit or a checkpoint fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger import driver
from tallystick.ledger.errors import CommitUnknown, LedgerClosed, LedgerFailed
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.batches import Batch, fails, put, stored
from tests.unit.ledger.factories import new_ledger, one, raw

OperationalError = driver.sqlite.OperationalError


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


def test_nobody_is_told_that_work_is_done_whose_transaction_is_gone(ledger: Ledger) -> None:
    """As after a full disk, where the work has swallowed what its statement raised."""

    def work(tx: Transaction) -> str:
        put("lost")(tx)
        tx.execute("ROLLBACK")
        return "done"

    with pytest.raises(LedgerFailed, match="gone before its commit"):
        ledger.write(work)
    assert stored(ledger) == set()


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


def test_a_program_that_keeps_the_file_locked_for_a_while_is_waited_for(ledger: Ledger) -> None:
    ledger.write(put("kept"))
    desk = ledger._shared._desk
    assert desk is not None
    real = desk.connection()
    tries: list[str] = []

    class Locked(Lying):
        def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
            if sql == "BEGIN IMMEDIATE" and len(tries) < 5:
                tries.append(sql)
                problem = OperationalError("database is locked")
                problem.sqlite_errorcode = 5
                raise problem
            return super().execute(sql, parameters)

    desk._connection = Locked(real, does_it=True)
    assert ledger.write(put("after")) == "after"
    assert len(tries) == 5
    desk._connection = real


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
