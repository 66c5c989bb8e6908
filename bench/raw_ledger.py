"""The practical limit: the rows of the ledger, written by hand with the bare driver.

The same file made by the same migration (its indexes, foreign keys, checks and triggers), the same settings, the same
rows and updates, the same group commit: a thread, a queue, a savepoint for each piece of work, one durable commit for
all that were waiting or came meanwhile, one call into the event loop for a batch, the same checkpoints. What it leaves
out is what the library adds: the turnstile, canonical JSON, guards that are looked at, records with names,
cancellation, failure handling.
"""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from tallystick.ledger import driver

__all__ = ["RawLedger"]

Execute: TypeAlias = Callable[..., Any]
Work: TypeAlias = Callable[..., None]

_PAGES_PER_CHECKPOINT: Final = 4_096
_PAGES_OF_A_COMMIT: Final = 16
_ROWS_OF_A_PAGE: Final = 14
_BATCH_MAX: Final = 256

_CLAIM = (
    "UPDATE slots SET state='in_flight', attempts=attempts+1 WHERE run_key=? AND slot_no=? AND state='pending'"
    " RETURNING attempts"
)
_RESERVE = "UPDATE budgets SET held=held+? WHERE run_key=? AND budget_no=? AND held+settled+?<=limit_amount"
_ADD_ATTEMPT = (
    "INSERT INTO attempts (run_key,slot_no,attempt_no,state,worker_id,fingerprint,solitary,began_us)"
    " VALUES (?,?,?,'running',?,?,0,?)"
)
_ADD_CALL = (
    "INSERT INTO calls (call_id,run_key,owner,slot_no,attempt_no,head,payload,payload_digest,payload_size,if_unknown,"
    "key_until_us,fence,intended_us) VALUES (?,?,'attempt',?,?,?,?,?,?,'keep',NULL,NULL,?)"
)
_ADD_DISPATCH = (
    "INSERT INTO dispatches (call_id,dispatch_no,run_key,state,worker_id,intended_us) VALUES (?,1,?,'intended',?,?)"
)
_ADD_RESERVATION = (
    "INSERT INTO reservations (call_id,dispatch_no,budget_no,run_key,state,held) VALUES (?,1,?,?,'held',?)"
)
_ADD_EVENT = "INSERT INTO events (run_key,event_no,kind,at_us,body,hash) VALUES (?,?,?,?,?,?)"
_END_DISPATCH = (
    "UPDATE dispatches SET state='answered',ended_us=?,duration_us=?,bytes_sent=?,wire_sends=?,status=?,reason='',"
    "message='',settled_by='wire',raw=?,raw_cut=0,retry_after_us=NULL,tokens_in=?,tokens_out=?,cost_nanousd=?,"
    "usage=NULL WHERE call_id=? AND dispatch_no=1 AND state='intended'"
)
_SETTLE = (
    "UPDATE reservations SET state='settled',settled=? WHERE call_id=? AND dispatch_no=1 AND budget_no=?"
    " AND state='held'"
)
_SETTLE_BUDGET = (
    "UPDATE budgets SET held=held-?,settled=settled+?,overrun=max(overrun,held-?+settled+?-limit_amount),"
    "unknown_uses=unknown_uses+0 WHERE run_key=? AND budget_no=?"
)
_END_ATTEMPT = (
    "UPDATE attempts SET state='observed',ended_us=?,reason='',message=''"
    " WHERE run_key=? AND slot_no=? AND attempt_no=? AND state='running'"
)
_ADD_OBSERVATION = (
    "INSERT INTO observations (run_key,slot_no,attempt_no,call_id,dispatch_no,answer,answer_digest,evidence,flags,"
    "source,observed_us) VALUES (?,?,?,?,1,?,?,'{}','[]','wire',?)"
)
_END_SLOT = (
    "UPDATE slots SET state='selected',selected_attempt=?,next_step='new',not_before_us=0,reason=NULL,suspect=0"
    " WHERE run_key=? AND slot_no=? AND state='in_flight' AND attempts=?"
)


class RawLedger:
    """Begins and observes calls of one run. ``budgets`` lists ``(budget_no, bound, used)``."""

    def __init__(self, path: Path, *, run_key: int, worker_id: str, budgets: list[tuple[int, int, int]]) -> None:
        self.connection = driver.harden(driver.connect(path))
        self.execute: Execute = self.connection.cursor().execute
        self.run_key = run_key
        self.worker_id = worker_id
        self.budgets = budgets
        self.held = ",".join(f'"{number}":{bound}' for number, bound, _ in budgets)
        self.now_us = 0
        self.batches = 0
        self.commits = 0
        self.rows = 0
        row = self.execute(
            "SELECT event_no, hash FROM events WHERE run_key=? ORDER BY event_no DESC LIMIT 1", (run_key,)
        ).fetchone()
        self.event_no, self.event_hash = row
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    async def write(self, loop: asyncio.AbstractEventLoop, work: Work, *arguments: Any) -> None:
        """Wait until the work is durable."""
        waiter = loop.create_future()
        self.queue.put((work, arguments, waiter, loop))
        await waiter

    def begin(
        self, call_id: str, slot_no: int, head: str, payload: bytes, payload_digest: str, fingerprint: str
    ) -> None:
        """Write the rows of an intent."""
        execute, run_key, worker_id, now = self.execute, self.run_key, self.worker_id, self.now_us
        attempt_no = execute(_CLAIM, (run_key, slot_no)).fetchall()[0][0]
        for number, bound, _ in self.budgets:
            execute(_RESERVE, (bound, run_key, number, bound))
        execute(_ADD_ATTEMPT, (run_key, slot_no, attempt_no, worker_id, fingerprint, now))
        execute(_ADD_CALL, (call_id, run_key, slot_no, attempt_no, head, payload, payload_digest, len(payload), now))
        execute(_ADD_DISPATCH, (call_id, run_key, worker_id, now))
        for number, bound, _ in self.budgets:
            execute(_ADD_RESERVATION, (call_id, number, run_key, bound))
        self.event(
            "dispatch.intended",
            f'{{"attempt":{attempt_no},"call":"{call_id}","dispatch":1,"held":{{{self.held}}},'
            f'"payload":"{payload_digest}","slot":{slot_no}}}',
        )

    def observe(self, call_id: str, slot_no: int, answer: str, answer_digest: str, raw: bytes) -> None:
        """Write the rows of an answer to the first attempt."""
        execute, run_key, now = self.execute, self.run_key, self.now_us
        execute(_END_DISPATCH, (now, 5, 54, 1, 200, raw, 7, 3, 1100, call_id))
        for number, bound, used in self.budgets:
            execute(_SETTLE, (used, call_id, number))
            execute(_SETTLE_BUDGET, (bound, used, bound, used, run_key, number))
        execute(_END_ATTEMPT, (now, run_key, slot_no, 1))
        execute(_ADD_OBSERVATION, (run_key, slot_no, 1, call_id, answer, answer_digest, now))
        execute(_END_SLOT, (1, run_key, slot_no, 1))
        self.event(
            "attempt.observed",
            f'{{"answer":"{answer_digest}","attempt":1,"by":"wire","call":"{call_id}","dispatch":1,"reason":"",'
            f'"slot":{slot_no}}}',
        )

    def event(self, kind: str, body: str) -> None:
        """Append to the chain."""
        number, now = self.event_no + 1, self.now_us
        digest = hashlib.sha256(self.event_hash + f"\n{number}\n{kind}\n{now}\n{body}".encode()).digest()
        self.execute(_ADD_EVENT, (self.run_key, number, kind, now, body, digest))
        self.event_no, self.event_hash = number, digest

    def close(self) -> None:
        """End the thread once everything is durable."""
        self.queue.put(None)
        self.thread.join()
        self.connection.close()

    def serve(self) -> None:
        """The writing thread."""
        execute = self.execute
        while (first := self.queue.get()) is not None:
            execute("BEGIN IMMEDIATE")
            self.now_us = time.time_ns() // 1000
            waiters = self.run_all(first)
            self.batches += 1
            execute("UPDATE workers SET last_batch=? WHERE worker_id=?", (self.batches, self.worker_id))
            execute("COMMIT")
            self.commits += 1
            self.checkpoint_if_due()
            first[3].call_soon_threadsafe(_wake, waiters)

    def checkpoint_if_due(self) -> None:
        """By the same estimate of the log's pages as the ledger's."""
        pages = self.commits * _PAGES_OF_A_COMMIT + (self.connection.total_changes - self.rows) // _ROWS_OF_A_PAGE
        if pages >= _PAGES_PER_CHECKPOINT:
            self.commits, self.rows = 0, self.connection.total_changes
            self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def run_all(self, item: Any) -> list[asyncio.Future[None]]:
        """Run this piece of work and all that waits by then."""
        execute, waiters = self.execute, []
        while True:
            work, arguments, waiter, _ = item
            execute("SAVEPOINT work")
            work(*arguments)
            execute("RELEASE work")
            waiters.append(waiter)
            if len(waiters) == _BATCH_MAX or self.queue.empty():
                return waiters
            item = self.queue.get_nowait()
            if item is None:
                self.queue.put(None)
                return waiters


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        waiter.set_result(None)
