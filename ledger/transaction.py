"""What a piece of work sees of the ledger while it writes: one cursor, one instant, one chain of events."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

from .canonical import JsonValue, canonical_text
from .clocks import Clock
from .driver import Connection
from .errors import TransitionRefused
from .identifiers import IdSource
from .schema import events
from .statements import hot_insert

__all__ = ["Transaction", "chained_hash", "storable"]

_LAST_EVENT: Final = "SELECT event_no, hash FROM events WHERE run_key = ? ORDER BY event_no DESC LIMIT 1"
_ADD_EVENT: Final = hot_insert(events, "run_key", "event_no", "kind", "at_us", "body", "hash")
_FIRST: Final = (0, b"")


def chained_hash(previous: bytes, event_no: int, kind: str, at_us: int, body: str) -> bytes:
    """The sha256 that binds an event to all before it (``previous`` is empty for the first)."""
    return hashlib.sha256(previous + f"\n{event_no}\n{kind}\n{at_us}\n{body}".encode()).digest()


def storable(data: bytes) -> bytearray:
    """The same bytes as the driver binds them at once; for `bytes`, it first looks for somebody's adapter."""
    return bytearray(data)


class Transaction:
    """Belongs to the scribe's thread and to one batch. Inside: no network, no user code, no sleep.

    ``now_us`` is the batch's instant: every row written by the batch carries the same.
    """

    __slots__ = ("_heads", "clock", "cursor", "execute", "ids", "now_us", "worker_id")

    def __init__(self, connection: Connection, *, clock: Clock, ids: IdSource, worker_id: str) -> None:
        self.cursor = connection.cursor()
        self.execute = self.cursor.execute
        self.clock = clock
        self.ids = ids
        self.worker_id = worker_id
        self.now_us = clock.now_us()
        self._heads: dict[int, tuple[int, bytes]] = {}

    def row(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The first row of a query, or None."""
        return self.execute(sql, parameters).fetchone()

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of a query; for queries that are bounded by their own LIMIT or by what was in flight."""
        rows: list[Any] = self.execute(sql, parameters).fetchall()
        return rows

    def change(self, sql: str, parameters: tuple[Any, ...]) -> int:
        """Run an UPDATE, INSERT or DELETE and return the number of rows that it changed."""
        count: int = self.execute(sql, parameters).rowcount
        return count

    def change_all(self, sql: str, rows: list[tuple[Any, ...]]) -> bool:
        """Run the statement for every row; whether each of them changed exactly one row of the ledger in sum."""
        return not rows or bool(self.cursor.executemany(sql, rows).rowcount == len(rows))

    def move(self, machine: str, wanted: str, sql: str, parameters: tuple[Any, ...]) -> None:
        """A guarded transition: exactly one row must change, else TransitionRefused and nothing of this work stays."""
        if self.execute(sql, parameters).rowcount != 1:
            raise TransitionRefused(
                f"the {machine} is not in a state from which it can become {wanted}",
                "look at its case (`tallystick show RUN CASE`); somebody else may have settled it",
                machine,
                wanted,
            )

    def event(self, run_key: int, kind: str, body: JsonValue) -> int:
        """Append to the run's history and return the event's number."""
        return self.events(run_key, kind, (canonical_text(body),))

    def events(self, run_key: int, kind: str, bodies: Iterable[str]) -> int:
        """Append several of one kind, each body as canonical text, and return the number of the last."""
        number, digest = self._heads.get(run_key) or self.row(_LAST_EVENT, (run_key,)) or _FIRST
        now_us, rows = self.now_us, []
        for body in bodies:
            number += 1
            digest = chained_hash(digest, number, kind, now_us, body)
            rows.append((run_key, number, kind, now_us, body, storable(digest)))
        self.cursor.executemany(_ADD_EVENT, rows)
        self._heads[run_key] = (number, digest)
        return number

    def forget_heads(self) -> None:
        """After a rollback to a savepoint: what was remembered of the chains may not be there."""
        self._heads.clear()
