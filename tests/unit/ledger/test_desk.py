from __future__ import annotations

import threading
from typing import Any

import pytest

from tallystick.ledger import desk as desks
from tallystick.ledger import slot_reads
from tallystick.ledger.desk import Desk
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.factories import new_run, one


def a_fact(name: str) -> Any:
    return lambda tx: tx.change("INSERT INTO facts (name, value) VALUES (?, ?)", (name, "x" * 100))


def counted_checkpoints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    real = Desk.checkpoint

    def counts(desk: Desk) -> None:
        made.append("checkpoint")
        real(desk)

    monkeypatch.setattr(Desk, "checkpoint", counts)
    return made


def test_a_checkpoint_is_made_once_the_log_has_taken_in_so_many_commits(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.write(a_fact("first"))
    made = counted_checkpoints(monkeypatch)
    monkeypatch.setattr(desks, "_PAGES_PER_CHECKPOINT", 10 * desks._PAGES_OF_A_COMMIT)
    for number in range(25):
        ledger.write(a_fact(str(number)))
    assert 2 <= len(made) <= 4


def test_a_large_piece_of_work_counts_for_its_rows(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.write(a_fact("first"))
    made = counted_checkpoints(monkeypatch)
    many = [(f"fact {number}", "x") for number in range(desks._PAGES_PER_CHECKPOINT * desks._ROWS_OF_A_PAGE)]
    ledger.write(lambda tx: tx.cursor.executemany("INSERT INTO facts (name, value) VALUES (?, ?)", many))
    assert made == ["checkpoint"]


def test_a_log_that_grew_by_large_payloads_is_checkpointed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.write(a_fact("first"))
    made = counted_checkpoints(monkeypatch)
    big = "x" * (desks._WAL_GROWTH_MAX + 1)
    ledger.write(lambda tx: tx.change("INSERT INTO facts (name, value) VALUES ('big', ?)", (big,)))
    assert made == ["checkpoint"]


def test_callers_are_told_before_the_checkpoint_that_their_commit_made_due(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.write(a_fact("first"))
    told = threading.Event()
    waited: list[bool] = []
    monkeypatch.setattr(Desk, "checkpoint", lambda desk: waited.append(told.wait(30)))
    monkeypatch.setattr(desks, "_PAGES_PER_CHECKPOINT", 1)
    ledger.write(a_fact("due"))
    told.set()
    ledger.write(a_fact("after"))
    assert waited[0] is True


def test_what_arrives_while_a_batch_runs_is_committed_with_it(ledger: Ledger) -> None:
    ledger.write(a_fact("first"))
    batch_before = one(ledger, "SELECT last_batch FROM workers")[0]
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        begun.set()
        assert go_on.wait(30)
        a_fact("slow")(tx)

    threads = [threading.Thread(target=ledger.write, args=(slow,))]
    threads[0].start()
    assert begun.wait(30)
    scribe = ledger._shared.scribe()
    for number in range(5):
        threads.append(threading.Thread(target=ledger.write, args=(a_fact(f"late {number}"),)))
        threads[-1].start()
    while scribe._queue.qsize() < 5:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join()
    assert one(ledger, "SELECT last_batch FROM workers")[0] == batch_before + 1


def test_a_missing_judgment_is_looked_for_by_the_whole_key_of_judgments(ledger: Ledger) -> None:
    run = new_run(ledger)
    seen: list[tuple[str, Any]] = []

    class Explaining:
        def rows(self, sql: str, parameters: tuple[Any, ...]) -> list[Any]:
            seen.append((sql, parameters))
            return []

    slot_reads.unjudged(Explaining(), run.run_key, evaluation_no=1, judges=1, after_slot=0, limit=9)  # type: ignore[arg-type]
    with ledger.reading() as reader:
        plan = [row[3] for row in reader.rows(f"EXPLAIN QUERY PLAN {seen[0][0]}", seen[0][1])]
    steps = [step for step in plan if " j " in step]
    assert steps
    assert all("slot_no=?" in step for step in steps), plan
