"""Writing what an import brings past the scribe: a commit or a checkpoint that fails, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import bulk, driver
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import CommitUnknown, LedgerFailed
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.snapshot_import import import_snapshot
from tests.unit.ledger.factories import every
from tests.unit.ledger.snapshots import exported, full_run, go_on, rows_of


class FailingDisk:
    """A connection one of whose statements is done, or is not, and is said to have failed."""

    def __init__(self, connection: Any, statement: str, *, is_done: bool) -> None:
        self._connection = connection
        self._statement = statement
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *parameters: Any) -> Any:
        if not sql.startswith(self._statement):
            return self._connection.execute(sql, *parameters)
        if self._is_done:
            self._connection.execute(sql, *parameters)
        raise driver.StatementError("disk I/O error")


def fail(monkeypatch: pytest.MonkeyPatch, statement: str, *, is_done: bool) -> None:
    harden = driver.harden

    def failing(connection: Any, **options: Any) -> Any:
        return FailingDisk(harden(connection, **options), statement, is_done=is_done)

    monkeypatch.setattr(driver, "harden", failing)


def later_snapshot(ledger: Ledger, other: Ledger, folder: Path) -> tuple[str, Path]:
    """A run that is a copy in the other ledger, and a snapshot of how it went on."""
    run = full_run(ledger)
    exported(ledger, run.run_id, folder / "s.zip")
    import_snapshot(other, folder / "s.zip")
    go_on(ledger, run.run_id)
    exported(ledger, run.run_id, folder / "later.zip")
    return run.run_id, folder / "later.zip"


@pytest.mark.parametrize("is_done", [True, False], ids=["durable", "undone"])
def test_a_commit_that_fails_may_be_durable_and_the_next_import_finds_out(
    is_done: bool, ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, later = later_snapshot(ledger, other, tmp_path)
    before = rows_of(other, run_id)
    with monkeypatch.context() as patched:
        fail(patched, "COMMIT", is_done=is_done)
        with pytest.raises(CommitUnknown, match="import again"):
            import_snapshot(other, later)
    assert rows_of(other, run_id) == (rows_of(ledger, run_id) if is_done else before)
    assert every(other, "SELECT state FROM runs") == [("open",)]
    assert import_snapshot(other, later).changed is not is_done
    assert rows_of(other, run_id) == rows_of(ledger, run_id)
    assert check_ledger(other) == []


def test_a_checkpoint_that_fails_after_a_commit_takes_nothing_back_and_says_so(
    ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, later = later_snapshot(ledger, other, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(bulk, "_LOG_GROWTH_MAX", 0)
        fail(patched, "PRAGMA wal_checkpoint", is_done=False)
        with pytest.raises(LedgerFailed, match="are written"):
            import_snapshot(other, later)
    assert rows_of(other, run_id) == rows_of(ledger, run_id)
    assert not import_snapshot(other, later).changed


def test_rows_that_break_off_leave_the_ledger_to_others(
    ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, later = later_snapshot(ledger, other, tmp_path)
    before = rows_of(other, run_id)
    with monkeypatch.context() as patched:
        patched.setattr("tallystick.ledger.snapshot_forward.Forward.apply", _break_off)
        with pytest.raises(ZeroDivisionError):
            import_snapshot(other, later)
    assert rows_of(other, run_id) == before
    other.write(lambda tx: None)  # nobody has it locked
    assert import_snapshot(other, later).changed


def _break_off(forward: Any, tx: Any) -> None:
    tx.change("UPDATE runs SET name = 'half done'", ())
    raise ZeroDivisionError
