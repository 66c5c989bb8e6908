"""Consistent views of the ledger, and the end of those that are in the way.

A view (a read transaction) keeps SQLite from writing the write-ahead log from its start again: while somebody looks at
an old instant, the log grows with everything that is written. So a view has a maximum age, from which on it is ended as
soon as the log has grown beyond a bound; one that is in nobody's way may last. Each process ends its own, by a thread
that looks once a second while there are any.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from . import driver
from .errors import ReadingEnded

__all__ = ["LOG_BYTES_MAX", "READING_SECONDS_MAX", "Reader", "ReaderWatch"]

logger = logging.getLogger(__name__)

READING_SECONDS_MAX: Final = 10.0
"""The age from which on a view may be ended."""

LOG_BYTES_MAX: Final = 128 * 1024 * 1024
"""The size of the write-ahead log from which on a view of that age is ended."""

_LOOK_SECONDS: Final = 1.0
_IDLE_LOOKS_MAX: Final = 30
_ROWS_AT_ONCE: Final = 64
_INTERRUPTS_MAX: Final = 100
_INTERRUPT_SECONDS: Final = 0.05


class Reader:
    """A consistent view of the ledger at one instant. Close it soon; used by one thread at a time.

    Every method raises ReadingEnded once the view was ended because it was in the way of writers.
    """

    __slots__ = ("_connection", "_cursors", "_ended", "_lock", "artifacts", "began")

    def __init__(self, connection: driver.Connection, artifacts: Path) -> None:
        self._connection = connection
        self._cursors: set[Any] = set()
        self._ended = False
        self._lock = threading.Lock()
        self.artifacts = artifacts
        self.began = time.monotonic()

    def row(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The first row, or None."""
        with self._statement():
            return self._connection.execute(sql, parameters).fetchone()

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """All rows; for queries with a bound of their own."""
        with self._statement():
            rows: list[Any] = self._connection.execute(sql, parameters).fetchall()
            return rows

    def each(self, sql: str, parameters: tuple[Any, ...] = ()) -> Iterator[Any]:
        """The rows one by one, whatever their number."""
        with self._statement():
            cursor = self._connection.execute(sql, parameters)
            self._cursors.add(cursor)
        try:
            while True:
                with self._statement():
                    rows = cursor.fetchmany(_ROWS_AT_ONCE)
                if not rows:
                    return
                yield from rows
        finally:
            with self._lock:
                self._cursors.discard(cursor)
                with contextlib.suppress(driver.SqliteError):  # its connection was closed, and it with it
                    cursor.close()

    @property
    def is_ended(self) -> bool:
        """Whether it was ended from outside."""
        return self._ended

    @contextlib.contextmanager
    def _statement(self) -> Iterator[None]:
        # Nothing else may be done on the connection while a statement runs, the end of the view included.
        with self._lock:
            if self._ended:
                raise _ended()
            try:
                yield
            except driver.SqliteError as problem:
                if self._ended:
                    raise _ended() from problem
                raise

    def end(self) -> bool:
        """End the view from another thread: what runs is interrupted. Says whether that could be done by now."""
        self._ended = True
        for _ in range(_INTERRUPTS_MAX):
            if self._lock.acquire(timeout=_INTERRUPT_SECONDS):
                break
            with contextlib.suppress(driver.SqliteError):  # closed meanwhile
                self._connection.interrupt()
        else:
            return False
        try:
            for cursor in self._cursors:
                cursor.close()
            with contextlib.suppress(driver.SqliteError):  # closed meanwhile
                self._connection.execute("ROLLBACK")
        finally:
            self._lock.release()
        return True


def _ended() -> ReadingEnded:
    return ReadingEnded(
        f"a reading of more than {READING_SECONDS_MAX:g} s was ended: it kept the write-ahead log growing while others "
        "wrote",
        "do it again, best when no run is writing, or on a copy made by `tallystick ledger backup PATH`",
    )


class ReaderWatch:
    """Ends the views of this process that are in the way of writers, of whatever process. Safe for threads."""

    def __init__(
        self,
        log_bytes: Callable[[], int],
        *,
        seconds_max: float = READING_SECONDS_MAX,
        bytes_max: int = LOG_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log_bytes = log_bytes
        self._clock = clock
        self.seconds_max = seconds_max
        self.bytes_max = bytes_max
        self._gate = threading.Lock()
        self._open: set[Reader] = set()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def add(self, reader: Reader) -> None:
        """Look after a view until it is removed."""
        with self._gate:
            self._open.add(reader)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._serve, name="tallystick-readers", daemon=True)
                self._thread.start()

    def remove(self, reader: Reader) -> None:
        """The view was closed."""
        with self._gate:
            self._open.discard(reader)

    def look(self) -> None:
        """End what is in the way now."""
        with self._gate:
            old = [one for one in self._open if self._clock() - one.began > self.seconds_max]
        if not old or (size := self._log_bytes()) <= self.bytes_max:
            return
        for reader in old:
            logger.warning("a reading is ended: it is in the way of writers", extra={
                "event": "reader.ended", "log_bytes": size, "done": reader.end(),
            })  # fmt: skip

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _serve(self) -> None:
        idle = 0
        while not self._closed.wait(_LOOK_SECONDS):
            self.look()
            with self._gate:
                idle = 0 if self._open else idle + 1
                if idle > _IDLE_LOOKS_MAX:
                    self._thread = None
                    return
