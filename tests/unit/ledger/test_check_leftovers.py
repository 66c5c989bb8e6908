"""What deaths and other programs leave is told, each with what clears it, and goes away when that is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallystick.ledger import attempts, check_leftovers, coordinators
from tallystick.ledger.check_rules import Severity
from tallystick.ledger.checks import Finding, check_ledger, require_sound
from tallystick.ledger.driver import sqlite
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.devices import device, granted_to, line_up, other_worker
from tests.unit.ledger.factories import begin, intent, new_run

A = device("atlas:A", lease_ms=600_000)


def found(ledger: Ledger) -> dict[str, Finding]:
    return {finding.code: finding for finding in check_ledger(ledger)}


def test_a_process_that_died_without_a_word_is_told(ledger: Ledger) -> None:
    ledger.write(lambda tx: None)
    assert check_ledger(ledger) == []
    worker_id = other_worker(ledger, "gone")
    [finding] = check_ledger(ledger)
    assert (finding.code, finding.severity) == ("worker.dead", Severity.WARNING)
    assert worker_id in finding.what
    assert "workers" in finding.remedy
    require_sound(ledger)


def test_a_run_with_something_in_flight_that_nobody_holds_is_told_until_it_is_gone_on_with(ledger: Ledger) -> None:
    run = new_run(ledger)
    begin(ledger, run.run_key, 1)
    finding = found(ledger)["run.left_in_flight"]
    assert run.run_id in finding.what
    assert "tallystick resume" in finding.remedy
    coordinators.open_run(ledger, run.run_id)
    assert check_ledger(ledger) == []


def test_a_device_in_quarantine_is_told(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, run_key=run_key)
    ledger.write(lambda tx: tx.change(
        "UPDATE leases SET state = 'lost' WHERE set_id = ?", (held.set_id,)
    ))  # fmt: skip
    ledger.write(lambda tx: tx.change(
        "UPDATE leases SET state = 'quarantined' WHERE set_id = ?", (held.set_id,)
    ))  # fmt: skip
    assert "tallystick device clear" in found(ledger)["device.quarantined"].remedy


def test_a_lease_that_ran_out_while_its_holder_lives_is_told(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    granted_to(ledger, A, run_key=run_key)
    assert "lease.expired" not in found(ledger)
    ledger.write(lambda tx: tx.change("UPDATE leases SET expires_boot_ns = 1 WHERE set_id IS NOT NULL", ()))
    assert "tallystick device release" in found(ledger)["lease.expired"].remedy


def test_who_died_while_standing_in_line_is_told(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    held = granted_to(ledger, A, run_key=run_key)
    line_up(ledger, A, run_key=run_key)
    assert "lease.dead_waiter" not in found(ledger)
    waiting = line_up(ledger, A, run_key=run_key, worker=other_worker(ledger, "gone"))
    told = found(ledger)
    assert told["lease.dead_waiter"].severity is Severity.WARNING
    assert "worker.dead" not in told, "what it left is told already"
    assert held.set_id != waiting


def test_a_large_log_is_told(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.write(lambda tx: None)
    monkeypatch.setattr(check_leftovers, "LOG_BYTES_MAX", 1)
    assert "end the program" in found(ledger)["log.large"].remedy


def test_a_half_written_file_of_an_artifact_is_told(ledger: Ledger) -> None:
    folder = ledger.artifacts / "ab"
    folder.mkdir(parents=True)
    (folder / "abcd.1-2.part").write_bytes(b"half")
    assert "abcd.1-2.part" in found(ledger)["artifact.orphan"].what


def unreadable(problem: Exception) -> Callable[..., Any]:
    def fails(*_: object, **__: object) -> Any:
        raise problem

    return fails


def test_a_part_that_cannot_be_read_is_a_finding_and_the_rest_is_looked_at(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(ledger)
    ledger.write(lambda tx: attempts.begin(tx, intent(run.run_key, 1)))
    problem = sqlite.DatabaseError("database disk image is malformed")
    problem.sqlite_errorcode = 11
    monkeypatch.setattr("tallystick.ledger.checks.differences", unreadable(problem))
    told = found(ledger)
    assert told["database.unreadable"].severity is Severity.ERROR
    assert "run.left_in_flight" in told

    problem.sqlite_errorcode = 1
    with pytest.raises(sqlite.DatabaseError):
        check_ledger(ledger)
