"""Ledgers with runs of every kind, and snapshots of them, for the tests of snapshots and custody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tallystick.ledger import artifacts, attempts, coordinators, judgments
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.late import keep_late
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import PlannedRun
from tallystick.ledger.records import DispatchFacts, JudgmentRow, Waiting
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.snapshot_export import Exported, export_runs
from tallystick.ledger.states import DispatchState, NextStep
from tests.unit.ledger.factories import answered, begin, budget, every, hold, lost, new_run, observe

LARGE = b"large \xff" * 20_000
LARGE_ANSWER = '"' + "x" * 100_000 + '"'


def large_answer(ledger: Ledger, key: Any) -> None:
    """An answer that lies in a file."""
    stored = artifacts.prepare(ledger, LARGE_ANSWER.encode(), media_type="application/json")
    facts = attrs.evolve(answered(tokens_in=3), raw_artifact=artifacts.prepare(ledger, LARGE))
    ledger.write(lambda tx: attempts.observe(tx, key, facts, answer=stored, answer_digest=stored.digest))


def full_run(ledger: Ledger, *, name: str = "full", leave: bool = True) -> PlannedRun:
    """A run with a slot in every state that a coordinator leaves; with ``leave`` its coordinator left in good order.

    Slot 1 is selected and judged, 2 failed, 3 unknown, 4 late and then selected, 5 given up, 6 selected with an answer
    in a file, 7 in flight (unless ``leave``), 8 waits.
    """
    run = new_run(ledger, 8, budgets=(budget(limit=20), budget(2, unit="tokens", limit=900)), judges=("exact",),
                  name=name)  # fmt: skip
    coordinator = coordinators.open_run(ledger, run.run_id)
    both = (hold(1), hold(2, 30, unit="tokens"))
    keys = {slot: begin(ledger, run.run_key, slot, holds=both).key for slot in range(1, 7 if leave else 8)}
    late = DispatchFacts(DispatchState.LATE, tokens_in=1, tokens_out=1)
    ledger.write(lambda tx: observe(tx, keys[1], answered(tokens_in=1, tokens_out=2)))
    ledger.write(lambda tx: judgments.add_judgments(tx, run.run_key, 1, [JudgmentRow(1, 1, 1, passed=True)]))
    failed = DispatchFacts(DispatchState.FAILED, "http.500", raw=b"\x00\xff not text")
    ledger.write(lambda tx: attempts.fail(tx, keys[2], failed, waiting=None))
    ledger.write(lambda tx: attempts.lose(tx, keys[3], lost(), waiting=None))
    ledger.write(lambda tx: attempts.lose(tx, keys[4], lost(), waiting=Waiting(NextStep.NEW)))
    again = begin(ledger, run.run_key, 4, holds=both).key
    answer = '"perhaps so"'
    ledger.write(lambda tx: keep_late(tx, keys[4], late, answer=answer, answer_digest=digest_of_bytes(answer.encode())))
    ledger.write(lambda tx: observe(tx, again))
    ledger.write(lambda tx: attempts.lose(tx, keys[5], lost(), waiting=None))
    given_up = Settlement(keys[5].call_id, 1, Decision.GIVE_UP, "me", "nobody knows")
    ledger.write(lambda tx: settle_unknown(tx, given_up))
    large_answer(ledger, keys[6])
    if leave:
        ledger.write(lambda tx: coordinators.release_run(tx, coordinator, reason="ended", active_us=5))
    return run


def go_on(ledger: Ledger, run_id: str, slot_no: int = 8) -> None:
    """One more answer, by a coordinator that leaves in good order."""
    coordinator = coordinators.open_run(ledger, run_id)
    key = begin(ledger, coordinator.run_key, slot_no, holds=(hold(1),)).key
    ledger.write(lambda tx: observe(tx, key))
    ledger.write(lambda tx: coordinators.release_run(tx, coordinator, reason="ended", active_us=5))


def exported(ledger: Ledger, run_id: str, path: Path, **options: Any) -> Exported:
    return export_runs(ledger, [run_id], path, force=True, **options)


def rows_of(ledger: Ledger, run_id: str) -> dict[str, list[Any]]:
    """Every row of the run that travels, by table."""
    from tallystick.ledger.snapshot_tables import RUN_TABLES, rows_of_run

    run_key = every(ledger, "SELECT run_key FROM runs WHERE run_id = ?", run_id)[0][0]
    return {table.name: every(ledger, rows_of_run(table, run_key)) for table in RUN_TABLES}
