"""A database of its own, beside the ledger, that a snapshot's rows are put into before anything is believed of them.

It has the schema that the snapshot was made with and is brought to the newest one by the migrations themselves, so
that a snapshot of an older schema is taken in like any other. It has the rules of the schema, and the same queries look
through it as through a ledger. Nothing of it is durable, and it is removed when it has served.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from . import driver
from .ledger import Reader
from .migrate import apply_migration
from .schema import SCHEMA_NUMBER
from .snapshot_tables import FILLERS

__all__ = ["LINE_MAX", "RowsUnfit", "Scratch"]

LINE_MAX: Final = 64 << 20
"""No row is longer; a snapshot with a longer one is neither written nor read."""
_BLOCK: Final = 1 << 20
_KINDS: Final = {"INTEGER": "integer", "TEXT": "text", "BLOB": "blob"}


class RowsUnfit(ValueError):
    """Rows that cannot be what they are said to be; the text names the place."""


class Scratch:
    """Belongs to one thread; a context manager that removes the file."""

    def __init__(self, folder: Path, *, schema_number: int) -> None:
        self._path = folder / "rows.db"
        self._connection = driver.sqlite.connect(str(self._path), isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-65536", "locking_mode=EXCLUSIVE",
                        "foreign_keys=OFF", "recursive_triggers=ON"):  # fmt: skip
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        for number in range(1, schema_number + 1):
            apply_migration(self._connection, number)
        self._schema_number = schema_number
        self._kinds: dict[str, dict[str, str]] = {}
        self.reader = Reader(self._connection, folder)

    def load(self, table: str, columns: list[str], chunks: Iterable[bytes], *, run_key: int | None, place: str) -> int:
        """Put the rows of one member in and return their number; raises RowsUnfit."""
        kinds = self._columns(table, columns, place, is_of_run=run_key is not None)
        binary = [index for index, name in enumerate(columns) if kinds[name] == "blob"]
        given = {**FILLERS.get(table, {}), **({} if run_key is None else {"run_key": run_key})}
        fixed = [value for name, value in given.items() if name not in columns]
        names = [*(name for name in given if name not in columns), *columns]
        insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        count = 0
        self._connection.execute("BEGIN")
        for lines in _blocks(chunks, place):
            rows = _rows(
                lines, len(columns), binary, fixed, f"{place}, row {count + 1} or one of the {len(lines)} from there"
            )
            try:
                self._connection.executemany(insert, rows)
            except (driver.SqliteError, OverflowError, ValueError, TypeError) as problem:
                raise RowsUnfit(f"{place}, from row {count + 1} on: {_first_line(problem)}") from problem
            count += len(lines)
        self._connection.execute("COMMIT")
        return count

    def add_run(self, run_key: int, *, custody: str, epoch: int) -> None:
        """What the manifest says of a run, in its row."""
        self._connection.execute(
            "UPDATE runs SET custody = ?, custody_epoch = ? WHERE run_key = ?", (custody, epoch, run_key)
        )

    def finish(self) -> None:
        """Look at the kinds of all values, and bring the schema to the newest; raises RowsUnfit."""
        for table, kinds in self._kinds.items():
            strange = " OR ".join(f"typeof({name}) NOT IN ('{kind}', 'null')" for name, kind in kinds.items())
            if (
                found := self.reader.row(f"SELECT {', '.join(kinds)} FROM {table} WHERE {strange} LIMIT 1")
            ) is not None:
                raise RowsUnfit(f"a row of {table} holds a value of another kind: {_short(found)}")
        for number in range(self._schema_number + 1, SCHEMA_NUMBER + 1):
            apply_migration(self._connection, number)

    def keep_aside(self, aside: str, table: str, columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Put rows of a table into another one beside it; they may come from a query to this very database."""
        self._connection.execute(f"CREATE TABLE {aside} AS SELECT {', '.join(columns)} FROM {table} WHERE 0")
        self._connection.execute("BEGIN")
        self._connection.executemany(f"INSERT INTO {aside} VALUES ({', '.join('?' * len(columns))})", rows)
        self._connection.execute("COMMIT")

    def forget(self, aside: str) -> None:
        """Remove such a table."""
        self._connection.execute(f"DROP TABLE IF EXISTS {aside}")

    def close(self) -> None:
        self._connection.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _columns(self, table: str, columns: list[str], place: str, *, is_of_run: bool) -> dict[str, str]:
        """The kind of each column, of the table as that schema has it."""
        there = {name: _KINDS[kind] for _, name, kind, *_ in self._connection.execute(f"PRAGMA table_info({table})")}
        strange = [name for name in columns if name not in there or name == "run_key"]
        if ("run_key" in there) is not is_of_run or strange or len(set(columns)) != len(columns):
            raise RowsUnfit(
                f"{place}: schema {self._schema_number} has no such columns of {table}: {strange or columns}"
            )
        kinds = {name: there[name] for name in columns}
        self._kinds.setdefault(table, kinds)
        return kinds


def _blocks(chunks: Iterable[bytes], place: str) -> Iterator[list[bytes]]:
    """Whole lines, about a megabyte of them at a time."""
    left = b""
    for chunk in chunks:
        data = left + chunk
        head, found, left = data.rpartition(b"\n")
        if found:
            yield head.split(b"\n")
        if len(left) > LINE_MAX:
            raise RowsUnfit(f"{place} has a row of more than {LINE_MAX} bytes")
    if left:
        raise RowsUnfit(f"{place} does not end with a whole row")


def _rows(lines: list[bytes], width: int, binary: list[int], fixed: list[object], place: str) -> list[list[Any]]:
    try:
        # One call for all: half the time of a call a line.
        rows = json.loads(b"[" + b",".join(lines) + b"]")
        if len(rows) != len(lines) or any(type(row) is not list or len(row) != width for row in rows):
            raise ValueError(f"a row is no list of {width} values")
        for index in binary:
            for row in rows:
                if row[index] is not None:
                    row[index] = bytes.fromhex(row[index])
    except (ValueError, TypeError, RecursionError) as problem:
        raise RowsUnfit(f"{place}: {_first_line(problem)}") from problem
    return [fixed + row for row in rows] if fixed else rows


def _first_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0][:200]


def _short(row: Iterable[object]) -> str:
    return ", ".join(repr(value)[:60] for value in row)[:300]
