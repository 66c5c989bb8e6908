"""The writing side of one ledger in this process: a connection behind the turnstile."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from . import driver
from .crashpoints import crashpoint
from .durable import sync_folder
from .errors import LedgerFailed
from .failures import is_locked
from .transaction import Transaction

if TYPE_CHECKING:
    from .sharing import Shared

__all__ = ["Desk", "size_of"]

logger = logging.getLogger(__name__)

_MARK_BATCH: Final = "UPDATE workers SET last_batch = ? WHERE worker_id = ?"
_LAST_BATCH: Final = "SELECT last_batch FROM workers WHERE worker_id = ?"
_BUSY_TRIES: Final = 6
"""How often a transaction is begun while another program has the file locked; each try waits for SQLite's time-out."""

_PAGES_PER_CHECKPOINT: Final = 4_096
_PAGES_OF_A_COMMIT: Final = 16
_ROWS_OF_A_PAGE: Final = 14
_WAL_GROWTH_MAX: Final = 16 * 1024 * 1024
_WAL_BYTES_MAX: Final = 64 * 1024 * 1024

_Identity: TypeAlias = tuple[int, int] | None


class Desk:
    """The writing side: a connection behind the turnstile. Used by the scribe's thread alone."""

    def __init__(self, ledger: Shared) -> None:
        self._ledger = ledger
        self._connection: driver.Connection | None = None
        self._batch = 0
        self._commits = 0
        self._rows_before = 0
        self._wal_bytes_before = self._wal_bytes = 0
        self._is_due = False
        self._inside = False
        self._files: tuple[_Identity, _Identity] | None = None
        self._names = str(ledger.path), str(ledger.wal_path)

    def connection(self) -> driver.Connection:
        if self._connection is None:
            self._connection = driver.harden(driver.connect(self._ledger.path))
        return self._connection

    def begin(self) -> Transaction:
        self._ledger.turnstile.__enter__()
        self._inside = True
        connection = self.connection()
        _begin(connection)
        self._refuse_if_gone()
        shared = self._ledger
        return Transaction(connection, clock=shared.clock, ids=shared.ids, worker_id=shared.worker_id)

    def _refuse_if_gone(self) -> None:
        """SQLite goes on writing into files that have been removed or moved, and nobody would find those answers."""
        shared = self._ledger
        file, log = _stat(self._names[0]), _stat(self._names[1])
        found = _identity(file), _identity(log)
        self._wal_bytes = 0 if log is None else log.st_size
        known = self._files or found
        if found != known or None in found:
            path = shared.path if found[0] != known[0] or found[0] is None else shared.wal_path
            raise LedgerFailed(
                f"{path} was removed, moved or replaced while it was in use",
                f"put {shared.path} and what lies beside it back to their place, then resume",
            )
        if self._files is None:
            # The log may be new. SQLite syncs its name and does not look whether that failed (os_unix.c, unixSync).
            sync_folder(shared.path.parent)
            self._files = found

    def mark(self, transaction: Transaction) -> int:
        self._batch += 1
        transaction.execute(_MARK_BATCH, (self._batch, self._ledger.worker_id))
        return self._batch

    def is_checkpoint_due(self) -> bool:
        """After a commit: whether the write-ahead log has taken in so much that `committed` will copy it back.

        A large log makes one long copy, for which every other process stands in line: 80 MB took 110 to 170 ms. Its
        pages are estimated, since its file keeps its size when it is written from the start again; of that, what it was
        when this transaction began.
        """
        self._commits += 1
        rows = self.connection().total_changes - self._rows_before
        pages = self._commits * _PAGES_OF_A_COMMIT + rows // _ROWS_OF_A_PAGE
        growth = self._wal_bytes - self._wal_bytes_before
        self._is_due = pages >= _PAGES_PER_CHECKPOINT or growth > _WAL_GROWTH_MAX
        return self._is_due

    def committed(self) -> None:
        if self._is_due:
            self.checkpoint()

    def checkpoint(self) -> None:
        # TRUNCATE would make each later commit grow the file again, which costs a journal commit of the file system;
        # PASSIVE lets the log be overwritten in place. It waits for nobody.
        large = size_of(self._ledger.wal_path) > _WAL_BYTES_MAX
        connection = self.connection()
        if large:
            connection.execute("PRAGMA busy_timeout=0").fetchone()
        try:
            connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if large else 'PASSIVE'})").fetchone()
        finally:
            if large:
                connection.execute("PRAGMA busy_timeout=5000").fetchone()
        self._is_due, self._commits = False, 0
        self._rows_before = connection.total_changes
        self._wal_bytes_before = size_of(self._ledger.wal_path)
        crashpoint("checkpoint.after")

    def leave(self) -> None:
        if not self._inside:
            return
        self._inside = False
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except driver.SqliteError:
            self._drop()
        finally:
            self._ledger.turnstile.__exit__(None, None, None)

    def look_again(self, number: int) -> bool:
        """Still inside the turnstile: a marker is committed first, so that a half-written commit cannot come back."""
        self._drop()
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO facts (name, value) VALUES ('marker', ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (self._ledger.ids.next(),),
        )
        found = connection.execute(_LAST_BATCH, (self._ledger.worker_id,)).fetchone()
        connection.execute("COMMIT")
        return bool(found and found[0] == number)

    def close(self) -> None:
        if self._connection is not None:
            with self._ledger.turnstile:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._rows_before = 0
        self._files = None  # the last connection that closes removes the log, and the next makes another
        if connection is not None:
            with contextlib.suppress(driver.SqliteError):  # it is being thrown away because it failed
                connection.close()


def _begin(connection: driver.Connection) -> None:
    """Begin the one write transaction. No worker of this ledger is in the way here, only a program that knows nothing
    of the turnstile; an answer that was paid for is worth waiting for that one.
    """
    for left in reversed(range(_BUSY_TRIES)):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except driver.SqliteError as problem:
            if not left or not is_locked(problem):
                raise
            logger.warning(
                "another program keeps the ledger locked", extra={"event": "desk.locked", "tries_left": left}
            )
        else:
            return


def size_of(path: Path) -> int:
    """The size of a file in bytes, 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116 - asked twice a commit, and through Path it takes twice as long
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result | None) -> _Identity:
    return None if found is None else (found.st_dev, found.st_ino)
