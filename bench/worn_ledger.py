"""A ledger as a long run leaves it: all but a few slots selected, written in bulk and not by an hour of calls.

The run is planned by `tallystick run` from a work order, and its last coordinator is a `tallystick resume` that is
killed with calls in flight. Only the middle is written here: the rows that `attempts.begin` and `attempts.observe`
leave, the chain of events with its hashes included.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import environment
from scratch_runs import ANSWER, ANSWER_DIGEST, FACTS, PAYLOAD, PAYLOAD_DIGEST, write_cases

from tallystick.ledger import driver
from tallystick.ledger.canonical import JsonValue, canonical_text
from tallystick.ledger.transaction import chained_hash

__all__ = ["CONCURRENCY", "die_with_calls_in_flight", "seconds_of_status", "seconds_to_first_dispatch", "wear"]

CONCURRENCY = 64
_BEGAN_US = 1_760_000_000_000_000
_CHECKED_MAX = 100_000
_WORK_ORDER = f"""
version = 1
name = "worn"

[cases]
file = "cases.jsonl"

[target]
kind = "python"
file = "target.py"
function = "answer"
version = "1"
if_unknown = "repeat"

[[judges]]
kind = "exact"

[budgets]
dispatches = 1_000_000_000

[execution]
concurrency = {CONCURRENCY}
"""
_TARGET = """
import asyncio
import os
import signal
import time
from pathlib import Path

in_flight = 0


async def answer(case):
    global in_flight
    in_flight += 1
    if "BENCH_FIRST_CALL" in os.environ and in_flight == 1:
        Path(os.environ["BENCH_FIRST_CALL"]).write_text(str(time.monotonic()))
    if "BENCH_DIE_AT" in os.environ:
        if in_flight == int(os.environ["BENCH_DIE_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()
    return "en"
"""

_DONE = "FROM slots WHERE run_key = 1 AND slot_no > 1 AND slot_no <= :worn"
_CALL_ID = "printf('%026d', slot_no)"
_WORN = (
    """
    UPDATE slots SET state = 'selected', attempts = 1, selected_attempt = 1
    WHERE run_key = 1 AND slot_no > 1 AND slot_no <= :worn
    """,
    f"""
    INSERT INTO attempts (
        run_key, slot_no, attempt_no, state, worker_id, fingerprint, began_us, ended_us, reason, message
    ) SELECT 1, slot_no, 1, 'observed', :worker, 'sha256:fingerprint', :began + slot_no, :began + slot_no + 5, '', ''
    {_DONE}
    """,
    f"""
    INSERT INTO calls (
        call_id, run_key, owner, slot_no, attempt_no, head, payload, payload_digest, payload_size, if_unknown,
        intended_us
    ) SELECT {_CALL_ID}, 1, 'attempt', slot_no, 1, '{{}}', :payload, :payload_digest, length(:payload), 'repeat',
        :began + slot_no {_DONE}
    """,
    f"""
    INSERT INTO dispatches (
        call_id, dispatch_no, run_key, state, worker_id, intended_us, ended_us, duration_us, bytes_sent, wire_sends,
        status, reason, message, settled_by, raw, tokens_in, tokens_out, cost_nanousd
    ) SELECT {_CALL_ID}, 1, 1, 'answered', :worker, :began + slot_no, :began + slot_no + 5, 5, length(:payload), 1,
        200, '', '', 'wire', :raw, 7, 3, 1100 {_DONE}
    """,
    f"""
    INSERT INTO reservations (call_id, dispatch_no, budget_no, run_key, state, held, settled)
    SELECT {_CALL_ID}, 1, 1, 1, 'settled', 1, 1 {_DONE}
    """,
    "UPDATE budgets SET settled = :worn WHERE run_key = 1 AND budget_no = 1",
    f"""
    INSERT INTO observations (
        run_key, slot_no, attempt_no, call_id, dispatch_no, answer, answer_digest, evidence, flags, source, observed_us
    ) SELECT 1, slot_no, 1, {_CALL_ID}, 1, :answer, :answer_digest, '{{}}', '[]', 'wire',
        :began + slot_no + 5 {_DONE}
    """,
    f"""
    INSERT INTO judgments (run_key, evaluation_no, judge_no, slot_no, attempt_no, state, passed, worker_id, judged_us)
    SELECT 1, 1, 1, slot_no, 1, 'judged', 1, :worker, :began + slot_no + 9 {_DONE}
    """,
)
_ADD_EVENT = "INSERT INTO events (run_key, event_no, kind, at_us, body, hash) VALUES (1, ?, ?, ?, ?, ?)"


def wear(folder: Path, slots: int, *, left: int) -> None:
    """Plan a run in that folder, execute one slot, and write what executing all but ``left`` of the others leaves."""
    (folder / "order.toml").write_text(_WORK_ORDER)
    (folder / "target.py").write_text(_TARGET)
    write_cases(folder / "cases.jsonl", slots)
    _tallystick(folder, "run", "order.toml", "--limit", "1", expected=75)
    with contextlib.closing(driver.harden(driver.connect(folder / "ledger.db"))) as connection:
        connection.execute("PRAGMA foreign_keys=OFF").fetchone()  # right by construction; checked at small sizes
        _write_middle(connection, slots - left)
        if slots <= _CHECKED_MAX and (broken := connection.execute("PRAGMA foreign_key_check").fetchone()):
            raise SystemExit(f"a row refers to nothing: {broken}")


def die_with_calls_in_flight(folder: Path) -> None:
    """Let a coordinator go on until so many calls are in flight, and kill it then."""
    _tallystick(folder, "resume", "--limit", str(CONCURRENCY), expected=75)  # what an earlier death left goes first
    _tallystick(folder, "resume", BENCH_DIE_AT=str(CONCURRENCY), expected=-9)


def seconds_to_first_dispatch(folder: Path) -> float:
    """From the start of a `tallystick resume` process to the first call of its target."""
    said = folder / "first-call"
    said.unlink(missing_ok=True)
    began = time.monotonic()
    _tallystick(folder, "resume", "--limit", "1", BENCH_FIRST_CALL=str(said), expected=75)
    return float(said.read_text()) - began  # one clock for all processes of a machine


def seconds_of_status(folder: Path) -> float:
    """The whole of a `tallystick status` process."""
    began = time.monotonic()
    _tallystick(folder, "status", "--json", expected=0)
    return time.monotonic() - began


def _tallystick(folder: Path, *arguments: str, expected: int, **variables: str) -> None:
    command = [sys.executable, "-m", "tallystick", *arguments, "--ledger", str(folder / "ledger.db")]
    ended = subprocess.run(
        command, cwd=folder, env={**environment(), **variables}, check=False, capture_output=True, text=True
    )
    if ended.returncode != expected:
        raise SystemExit(f"{command} ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")


def _write_middle(connection: driver.Connection, worn: int) -> None:
    values = {
        "worn": worn,
        "worker": connection.execute("SELECT worker_id FROM workers LIMIT 1").fetchone()[0],
        "began": _BEGAN_US,
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
    connection.executemany(_ADD_EVENT, _events(connection, worn))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _events(connection: driver.Connection, worn: int) -> Iterator[tuple[Any, ...]]:
    number, digest = connection.execute(
        "SELECT event_no, hash FROM events WHERE run_key = 1 ORDER BY event_no DESC LIMIT 1"
    ).fetchone()
    intended: dict[str, JsonValue] = {"payload": PAYLOAD_DIGEST, "held": {"1": 1}}
    observed: dict[str, JsonValue] = {"reason": "", "by": "wire", "answer": ANSWER_DIGEST}
    for slot_no in range(2, worn + 1):
        about: dict[str, JsonValue] = {"slot": slot_no, "attempt": 1, "call": f"{slot_no:026d}", "dispatch": 1}
        judged: dict[str, JsonValue] = {"evaluation": 1, "rows": [[1, slot_no, 1, True, None, None, 1]]}
        for kind, body in (
            ("dispatch.intended", {**about, **intended}),
            ("attempt.observed", {**about, **observed}),
            ("observation.judged", judged),
        ):
            number, text, at_us = number + 1, canonical_text(body), _BEGAN_US + slot_no
            digest = chained_hash(digest, number, kind, at_us, text)
            yield number, kind, at_us, text, digest
