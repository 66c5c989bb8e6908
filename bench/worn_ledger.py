"""A ledger as a long run leaves it: all but a few slots selected, written in bulk and not by a day of calls.

The rows are those that `attempts.begin` and `attempts.observe` leave, the chain of events with its hashes included; the
run's last coordinator died with calls in flight, for real.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scratch_runs import ANSWER, ANSWER_DIGEST, FACTS, PAYLOAD, PAYLOAD_DIGEST, holds_of, intent_of, plan_run

from tallystick.ledger import attempts, driver
from tallystick.ledger.canonical import JsonValue, canonical_text
from tallystick.ledger.coordinators import open_run
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import IfUnknown
from tallystick.ledger.transaction import chained_hash

__all__ = ["die_with_calls_in_flight", "plan_and_wear"]

_BEGAN_US = 1_760_000_000_000_000
_EVENTS_PER_BATCH = 100_000
_DONE = "FROM slots WHERE run_key = :run AND slot_no <= :worn"
_CALL_ID = "printf('%026d', slot_no)"
_WORN = (
    "UPDATE slots SET state = 'selected', attempts = 1, selected_attempt = 1 WHERE run_key = :run AND slot_no <= :worn",
    f"""
    INSERT INTO attempts (
        run_key, slot_no, attempt_no, state, worker_id, fingerprint, began_us, ended_us, reason, message
    ) SELECT :run, slot_no, 1, 'observed', :worker, 'sha256:fingerprint', :began + slot_no, :began + slot_no + 5, '', ''
    {_DONE}
    """,
    f"""
    INSERT INTO calls (
        call_id, run_key, owner, slot_no, attempt_no, head, payload, payload_digest, payload_size, if_unknown,
        intended_us
    ) SELECT {_CALL_ID}, :run, 'attempt', slot_no, 1, :head, :payload, :payload_digest, length(:payload), 'repeat',
        :began + slot_no {_DONE}
    """,
    f"""
    INSERT INTO dispatches (
        call_id, dispatch_no, run_key, state, worker_id, intended_us, ended_us, duration_us, bytes_sent, wire_sends,
        status, reason, message, settled_by, raw, tokens_in, tokens_out, cost_nanousd
    ) SELECT {_CALL_ID}, 1, :run, 'answered', :worker, :began + slot_no, :began + slot_no + 5, 5, length(:payload), 1,
        200, '', '', 'wire', :raw, 7, 3, 1100 {_DONE}
    """,
    f"""
    INSERT INTO reservations (call_id, dispatch_no, budget_no, run_key, state, held, settled)
    SELECT {_CALL_ID}, 1, 1, :run, 'settled', 1, 1 {_DONE}
    """,
    "UPDATE budgets SET settled = :worn WHERE run_key = :run AND budget_no = 1",
    f"""
    INSERT INTO observations (
        run_key, slot_no, attempt_no, call_id, dispatch_no, answer, answer_digest, evidence, flags, source, observed_us
    ) SELECT :run, slot_no, 1, {_CALL_ID}, 1, :answer, :answer_digest, '{{}}', '[]', 'wire',
        :began + slot_no + 5 {_DONE}
    """,
    f"""
    INSERT INTO judgments (run_key, evaluation_no, judge_no, slot_no, attempt_no, state, passed, worker_id, judged_us)
    SELECT :run, 1, 1, slot_no, 1, 'judged', 1, :worker, :began + slot_no + 9 {_DONE}
    """,
)
_ADD_EVENT = "INSERT INTO events (run_key, event_no, kind, at_us, body, hash) VALUES (?, ?, ?, ?, ?, ?)"


def plan_and_wear(path: Path, slots: int, *, left: int) -> str:
    """Plan a run and write what executing all but ``left`` of its slots leaves; returns its id."""
    with Ledger.open(path, create=True) as ledger:
        run = plan_run(ledger, slots, budgets=1)
        worker_id = ledger.worker_id
    connection = driver.harden(driver.connect(path))
    connection.execute("PRAGMA foreign_keys=OFF").fetchone()  # right by construction; checked at a small size
    values = {
        "run": run.run_key,
        "worn": slots - left,
        "worker": worker_id,
        "began": _BEGAN_US,
        "head": '{"kind":"bench"}',
        "payload": PAYLOAD,
        "payload_digest": PAYLOAD_DIGEST,
        "raw": FACTS.raw,
        "answer": ANSWER,
        "answer_digest": ANSWER_DIGEST,
    }
    for statement in _WORN:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(statement, values)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_ADD_EVENT, _events(connection, run.run_key, slots - left))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if slots <= _EVENTS_PER_BATCH and (broken := connection.execute("PRAGMA foreign_key_check").fetchone()):
        raise SystemExit(f"a row refers to nothing: {broken}")
    connection.close()
    return run.run_id


def die_with_calls_in_flight(path: Path, run_id: str, count: int) -> None:
    """Become the run's coordinator, begin that many attempts, and be killed."""
    ledger = Ledger.open(path)
    run_key = open_run(ledger, run_id).run_key
    with ledger.reading() as reader:
        waiting = reader.rows(
            "SELECT slot_no FROM slots WHERE run_key = ? AND state = 'pending' LIMIT ?", (run_key, count)
        )
    for (slot_no,) in waiting:
        intent = intent_of(run_key, slot_no, ledger.ids.next(), holds_of(1), IfUnknown.REPEAT)
        ledger.write(lambda tx, intent=intent: attempts.begin(tx, intent))  # type: ignore[misc]
    os.kill(os.getpid(), signal.SIGKILL)


def _events(connection: driver.Connection, run_key: int, worn: int) -> Iterator[tuple[Any, ...]]:
    number, digest = connection.execute(
        "SELECT event_no, hash FROM events WHERE run_key = ? ORDER BY event_no DESC LIMIT 1", (run_key,)
    ).fetchone()
    intended: dict[str, JsonValue] = {"payload": PAYLOAD_DIGEST, "held": {"1": 1}}
    observed: dict[str, JsonValue] = {"reason": "", "by": "wire", "answer": ANSWER_DIGEST}
    for slot_no in range(1, worn + 1):
        about: dict[str, JsonValue] = {"slot": slot_no, "attempt": 1, "call": f"{slot_no:026d}", "dispatch": 1}
        for kind, more in (("dispatch.intended", intended), ("attempt.observed", observed)):
            number, text, at_us = number + 1, canonical_text({**about, **more}), _BEGAN_US + slot_no
            digest = chained_hash(digest, number, kind, at_us, text)
            yield run_key, number, kind, at_us, text, digest
