"""Writing many rows from another file: hidden ones in bounded batches, and what shows them in one. For imports alone.

The scribe binds and checks every value of every row, as it must where things happen. Rows that were verified before,
and belong to a run that is hidden, can be copied by SQLite itself, in a third of the time: on a connection of its own,
behind the same turnstile, each batch one durable transaction. Foreign keys are not looked at again (the verification
did, with the same words and the same rules); everything else of the schema is. A kill or a failure leaves whole
batches of a hidden run, which the next import removes.

Moving a copy forward replaces rows that readers see, so it is one transaction; by this way it is a short one.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from . import driver
from .errors import CommitUnknown, LedgerFailed
from .failures import is_full
from .transaction import Transaction
from .turnstile import Turnstile

__all__ = ["SOURCE", "BulkWriter", "bulk_writer"]

SOURCE: Final = "source"
"""The name of the other file's tables in SQL: ``source.slots``."""

_LOG_GROWTH_MAX: Final = 16 * 1024 * 1024


class BulkWriter:
    """Belongs to one thread; see `bulk_writer`."""

    def __init__(
        self,
        path: Path,
        turnstile: Turnstile,
        connection: driver.Connection,
        transaction: Callable[[driver.Connection], Transaction],
    ) -> None:
        self._log = path.with_name(path.name + "-wal")
        self._turnstile = turnstile
        self._connection = connection
        self._transaction = transaction
        self._log_before = 0

    def write(self, sql: str, parameters: tuple[Any, ...]) -> int:
        """Run one statement in a transaction of its own and return how many rows it wrote, once they are durable.

        Raises what a rule of the schema refuses as the driver does, and LedgerFailed when the disk fails.
        """
        with self._inside():
            count: int = self._connection.execute(sql, parameters).rowcount
            self._connection.execute("COMMIT")
            self._checkpoint()
        return count

    def show(self, work: Callable[[Transaction], None]) -> None:
        """Run the work, which sees the other file's tables, in one transaction, and return once it is durable.

        Raises what the work raises, as `write` what the schema or the disk refuses, and CommitUnknown.
        """
        with self._inside():
            work(self._transaction(self._connection))
            try:
                self._connection.execute("COMMIT")
            except driver.SqliteError as problem:
                raise CommitUnknown(
                    f"whether an import was committed is unknown ({str(problem).splitlines()[0]})",
                    _remedy(problem),
                ) from problem
            self._checkpoint()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """A transaction behind the turnstile, which who is inside commits; else it is rolled back."""
        with self._turnstile:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
            except driver.StatementError as problem:
                raise LedgerFailed(
                    f"rows of an import could not be written ({str(problem).splitlines()[0]})",
                    "free space on the ledger's disk, or end what keeps its file locked, then import again",
                ) from problem
            finally:
                if self._connection.in_transaction:
                    with contextlib.suppress(driver.SqliteError):  # a full disk has rolled it back already
                        self._connection.execute("ROLLBACK")

    def _checkpoint(self) -> None:
        """After a commit, which stands whatever becomes of this; raises LedgerFailed."""
        size = self._log.stat().st_size if self._log.exists() else 0
        if size - self._log_before > _LOG_GROWTH_MAX:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except driver.StatementError as problem:
                raise LedgerFailed(
                    f"rows of an import are written, and stay in the log ({str(problem).splitlines()[0]})",
                    _remedy(problem),
                ) from problem
            self._log_before = size


@contextlib.contextmanager
def bulk_writer(
    path: Path, turnstile: Turnstile, source: Path, *, transaction: Callable[[driver.Connection], Transaction]
) -> Iterator[BulkWriter]:
    """A writer for the ledger at that path, with the tables of another file, which nobody writes to meanwhile."""
    connection = driver.harden(driver.connect(path))
    try:
        connection.execute("PRAGMA foreign_keys=OFF").fetchone()
        uri = f"file:{urllib.parse.quote(str(source))}?mode=ro&immutable=1"
        connection.execute(f"ATTACH ? AS {SOURCE}", (uri,))
        yield BulkWriter(path, turnstile, connection, transaction)
    finally:
        with turnstile:
            connection.close()


def _remedy(problem: BaseException) -> str:
    first = "free space on" if is_full(problem) else "see to"
    return f"{first} the ledger's disk, then import again: what is there already is not taken in twice"
