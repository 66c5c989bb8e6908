"""Connections to the ledger's file: which SQLite, which settings, and proof that they hold.

Python's own SQLite is often older than 3.51.3, which can lose data when a checkpoint races a writer; `pysqlite3` brings
a newer one where it has a wheel. Elsewhere the standard library's serves: checkpoints are made inside the turnstile
only, so the race cannot happen (sqlite.org/wal.html, "The WAL-Reset Bug"). A process must open the ledger with one of
the two, never with both: closing a file drops every POSIX lock that the process holds on it.
"""

from __future__ import annotations

import importlib
import sys
import urllib.parse
from pathlib import Path
from typing import Any, Final, TypeAlias

from .errors import LedgerFailed

__all__ = [
    "APPLICATION_ID",
    "Connection",
    "DatabaseError",
    "SqliteError",
    "StatementError",
    "connect",
    "connect_frozen",
    "harden",
    "sqlite",
    "sqlite_version",
]

APPLICATION_ID: Final = 0x74616C79  # "taly"
_BUSY_MILLISECONDS: Final = 5_000
_CACHED_STATEMENTS: Final = 512


def _choose() -> Any:
    try:
        return importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return importlib.import_module("sqlite3")


sqlite: Final[Any] = _choose()
sqlite_version: Final[str] = sqlite.sqlite_version
Connection: TypeAlias = Any  # the two drivers' classes share an interface and no base
SqliteError: Final[type[Exception]] = sqlite.Error
DatabaseError: Final[type[Exception]] = sqlite.DatabaseError
StatementError: Final[type[Exception]] = sqlite.OperationalError
"""What the disk or the file did to a statement; what a rule of the schema refused is another error."""


def connect(path: Path, *, create: bool = False, read_only: bool = False) -> Connection:
    """Open the file without changing it; the caller owns the connection and may pass it between threads.

    Raises the driver's error when the file cannot be opened.
    """
    mode = "ro" if read_only else "rwc" if create else "rw"
    uri = f"file:{urllib.parse.quote(str(path))}?mode={mode}"
    connection = sqlite.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=_CACHED_STATEMENTS
    )
    connection.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}").fetchone()
    return connection


def connect_frozen(path: Path) -> Connection:
    """Read a whole ledger's file that nobody writes to, without a lock and without a log beside it."""
    uri = f"file:{urllib.parse.quote(str(path))}?mode=ro&immutable=1"
    return sqlite.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def harden(connection: Connection, *, query_only: bool = False) -> Connection:
    """Set what durability needs and read every setting back; raises LedgerFailed when one does not hold."""
    wanted: list[tuple[str, str, object]] = [
        ("journal_mode", "WAL", "wal"),
        ("synchronous", "FULL", 2),
        ("foreign_keys", "ON", 1),
        ("recursive_triggers", "ON", 1),
        ("wal_autocheckpoint", "0", 0),
        ("cache_size", "-16384", -16384),
        ("query_only", "ON" if query_only else "OFF", int(query_only)),
    ]
    if sys.platform == "darwin":
        wanted += [("fullfsync", "ON", 1), ("checkpoint_fullfsync", "ON", 1)]
    for name, value, expected in wanted:
        connection.execute(f"PRAGMA {name}={value}").fetchall()
        found = connection.execute(f"PRAGMA {name}").fetchone()
        if found is None or found[0] != expected:
            raise LedgerFailed(
                f"the ledger's setting {name} is {found and found[0]!r} and not {expected!r}",
                "use a local disk and an SQLite that supports write-ahead logging",
            )
    return connection
