"""A database of its own, beside the ledger, that a snapshot's rows are put into before anything is believed of them.

It has the schema that the snapshot was made with and is brought to the newest one by the migrations themselves, so
that a snapshot of an older schema is taken in like any other. It has the rules of the schema, and the same queries look
through it as through a ledger. Nothing of it is durable, and it is removed when it has served.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from . import driver
from .ahead import ahead
from .failures import is_of_file
from .ledger import Reader
from .migrate import apply_migration
from .schema import SCHEMA_NUMBER
from .snapshot_tables import FILLERS
from .snapshot_values import range_of

__all__ = ["LINE_MAX", "READS_JSON", "RowsUnfit", "Scratch"]

LINE_MAX: Final = 64 << 20
"""No row is longer; a snapshot with a longer one is neither written nor read."""
_LARGE: Final = 8 << 20
"""Longer blocks, which is long rows, are decoded by Python: SQLite would hold them some ten times over."""
_KINDS: Final = {"INTEGER": "integer", "TEXT": "text", "BLOB": "blob"}
_LOOKED_AT_LATER: Final = "events_without_gaps"
"""A trigger that takes a third of the time of putting events down; the chain is gone through in any case."""
_SETTINGS: Final = ("page_size=32768", "journal_mode=OFF", "synchronous=OFF", "cache_size=-32768", "foreign_keys=OFF")


class RowsUnfit(ValueError):
    """Rows that cannot be what they are said to be; the text names the place."""


_VERSION: Final = tuple(map(int, driver.sqlite_version.split(".")))
READS_JSON: bool = _VERSION >= (3, 45)
"""Whether SQLite can be told to take strict JSON only. Then it decodes rows itself, in half the time."""
_EACH: Final = "jsonb_each" if _VERSION >= (3, 51) else "json_each"
"""The newer one gives each row as it has parsed it, so that it is not parsed again for its values."""
_ESCAPED: Final = re.compile(rb"\\u(?:[dD]|0000)")
"""Escapes of surrogates and of NUL: Python refuses the ones that are no text, SQLite does not."""


@attrs.frozen
class _Block:
    """Rows as one JSON array; ``text`` is None where Python has to decode them."""

    data: bytes
    text: str | None
    count: int


@attrs.frozen
class _Target:
    """Where rows go: a table's columns with their kinds, and what others hold.

    ``fixed`` are those that do not travel, as SQL, ``same`` those that the manifest speaks of, as values.
    """

    table: str
    columns: list[str]
    kinds: list[str]
    fixed: dict[str, str]
    same: dict[str, Any]

    @property
    def insert(self) -> str:
        """For values, those of ``same`` first."""
        marks = ", ".join([*self.fixed.values(), *("?" * (len(self.same) + len(self.columns)))])
        return f"INSERT INTO {self.table} ({self._names}) VALUES ({marks})"

    @property
    def insert_from_json(self) -> str:
        """For the values of ``same``, a JSON array of rows, and how many values each has."""
        values = [
            # What is no hexadecimal text must not become NULL; it stays what it is, and is refused as no bytes.
            f"coalesce(unhex(value ->> {index}), value ->> {index})" if kind == "blob" else f"value ->> {index}"
            for index, kind in enumerate(self.kinds)
        ]
        return (
            f"INSERT INTO {self.table} ({self._names})"
            f" SELECT {', '.join([*self.fixed.values(), *('?' * len(self.same)), *values])}"
            f" FROM {_EACH}(?) WHERE type = 'array' AND json_array_length(value) = ?"
        )

    @property
    def _names(self) -> str:
        return ", ".join([*self.fixed, *self.same, *self.columns])

    def decoded(self, data: bytes, count: int) -> list[list[Any]]:
        """The rows of a JSON array as values."""
        rows: list[list[Any]] = json.loads(data)
        if len(rows) != count or any(type(row) is not list or len(row) != len(self.columns) for row in rows):
            raise ValueError(f"a row is no list of {len(self.columns)} values")
        for index, kind in enumerate(self.kinds):
            for row in rows if kind == "blob" else ():
                if row[index] is not None:
                    # As the driver binds it at once; for bytes it first looks for somebody's adapter.
                    row[index] = bytearray.fromhex(row[index])
        return rows


class Scratch:
    """Belongs to one thread; a context manager that removes the file at ``path``."""

    def __init__(self, folder: Path, *, schema_number: int) -> None:
        self.path = folder / "rows.db"
        self._connection = driver.sqlite.connect(str(self.path), isolation_level=None, check_same_thread=False)
        try:
            self._later = self._make_tables(schema_number)
        except BaseException:
            self.close()  # its file would keep the room of a full disk for as long as it is open
            raise
        self._schema_number = schema_number
        self._kinds: dict[str, dict[str, str]] = {}
        self._varying: defaultdict[str, set[str]] = defaultdict(set)
        self._run_keys: defaultdict[str, set[int]] = defaultdict(set)
        self.reader = Reader(self._connection, folder)

    def _make_tables(self, schema_number: int) -> tuple[str] | None:
        """Returns the statement of the rule that is left for later, None where the schema has none."""
        for setting in _SETTINGS:
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        for number in range(1, schema_number + 1):
            apply_migration(self._connection, number)
        found: tuple[str] | None = self._connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?", (_LOOKED_AT_LATER,)
        ).fetchone()
        self._connection.execute(f"DROP TRIGGER IF EXISTS {_LOOKED_AT_LATER}")
        return found

    def load(
        self,
        table: str,
        columns: list[str],
        chunks: Iterable[bytes],
        *,
        run_key: int | None,
        place: str,
        same: Mapping[str, int | str | None] = MappingProxyType({}),
        count_max: int = LINE_MAX,
    ) -> int:
        """Put the rows of one member in and return their number; raises RowsUnfit, also for more than ``count_max``.

        ``same`` are columns that its rows do not have, with what they hold in each.
        """
        kinds = self._columns(table, [*same, *columns], place, is_of_run=run_key is not None)
        given = {**FILLERS.get(table, {}), **({} if run_key is None else {"run_key": run_key})}
        fixed = {name: repr(value) for name, value in given.items() if name not in kinds}
        if strange := [name for name, value in same.items() if value is not None and kinds[name] == "blob"]:
            raise RowsUnfit(f"{place}: {strange[0]} is no column that can be the same in every row")
        self._varying[table].update(columns)
        if run_key is not None:
            self._run_keys[table].add(run_key)
        target = _Target(table, columns, [kinds[name] for name in columns], fixed, dict(same))
        count = 0
        self._connection.execute("BEGIN")
        with contextlib.closing(ahead(_blocks(chunks, place))) as blocks:
            for block in blocks:
                if count + block.count > count_max:
                    raise RowsUnfit(f"{place} has more rows than it is said to have")
                try:
                    self._put(target, block)
                except (driver.SqliteError, OverflowError, ValueError, TypeError, RecursionError) as problem:
                    if is_of_file(problem):
                        raise  # a full disk is no fault of the rows
                    where = f"{place}, row {count + 1} or one of the {block.count} from there"
                    raise RowsUnfit(f"{where}: {_first_line(problem)}") from problem
                count += block.count
        self._connection.execute("COMMIT")
        return count

    def _put(self, target: _Target, block: _Block) -> None:
        """Insert the rows of a block; by SQLite itself where it reads JSON as strictly as Python does."""
        if block.text is None:
            rows = target.decoded(block.data, block.count)
            self._connection.executemany(target.insert, ((*target.same.values(), *row) for row in rows))
            return
        values = (*target.same.values(), block.text, len(target.columns))
        count = self._connection.execute(target.insert_from_json, values).rowcount
        if count != block.count:
            raise ValueError(f"a row is no list of {len(target.columns)} values")

    def add_run(self, run_key: int, *, epoch: int) -> None:
        """What the manifest says of a run, in its row; until it is shown it is a copy."""
        self._connection.execute(
            "UPDATE runs SET custody = 'copy', custody_epoch = ? WHERE run_key = ?", (epoch, run_key)
        )

    def look_at_kinds(self, reader: Reader) -> None:
        """Numbers are numbers that a ledger has, and bytes are bytes; raises RowsUnfit.

        A column of text makes text of everything.
        """
        for table, columns in self._kinds.items():
            kinds = {name: kind for name, kind in columns.items() if kind != "text"}
            varying = self._varying[table]
            _refuse_strange(reader, table, {name: kind for name, kind in kinds.items() if name in varying}, table)
            same = {name: kind for name, kind in kinds.items() if name not in varying}
            for run_key in self._run_keys[table]:  # what is the same in all rows of a run is looked at in one
                one = f"(SELECT * FROM {table} WHERE run_key = {run_key} LIMIT 1)"
                _refuse_strange(reader, table, same, one)

    @property
    def is_older(self) -> bool:
        """Whether the rows have an older schema than the newest."""
        return self._schema_number < SCHEMA_NUMBER

    def upgrade(self) -> None:
        """Bring the schema to the newest."""
        if self._later is not None:
            self._connection.execute(self._later[0])  # migrations find what they know
        for number in range(self._schema_number + 1, SCHEMA_NUMBER + 1):
            apply_migration(self._connection, number)

    @contextlib.contextmanager
    def another_reader(self) -> Iterator[Reader]:
        """A reader for another thread, on a connection of its own, of the tables that are complete.

        It takes no lock. Pages of a table are changed by rows of that table alone, so others may be filled meanwhile;
        only the first page changes with every commit, and that is kept from here on.
        """
        with contextlib.closing(driver.connect_frozen(self.path)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield Reader(connection, self.reader.artifacts)

    def stretches(self, table: str, key: list[str], run_key: int, each: int) -> Iterator[tuple[Any, ...]]:
        """The last key of every so many rows of a run, in the order of keys, and then the last of all."""
        names, marks = ", ".join(key), ", ".join("?" * len(key))
        at: tuple[Any, ...] | None = None
        while True:
            after = "" if at is None else f" AND ({names}) > ({marks})"
            rows = f"SELECT {names} FROM {table} WHERE run_key = ?{after} ORDER BY {names}"
            parameters = (run_key, *(at or ()))
            found = self.reader.row(f"{rows} LIMIT 1 OFFSET ?", (*parameters, each - 1))
            if found is None:
                last = ", ".join(f"{name} DESC" for name in key)
                rest = f"SELECT {names} FROM {table} WHERE run_key = ?{after} ORDER BY {last} LIMIT 1"
                found = self.reader.row(rest, parameters)
                if found is not None:
                    yield tuple(found)
                return
            at = tuple(found)
            yield at

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
        self.path.unlink(missing_ok=True)

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


def _blocks(chunks: Iterable[bytes], place: str) -> Iterator[_Block]:
    """Whole lines, about a megabyte of them at a time."""
    left: list[bytes] = []  # of a row that is not whole; joined once, because it may be long
    size = 0
    with contextlib.closing(driver.sqlite.connect(":memory:", check_same_thread=False)) as strict:
        for chunk in chunks:
            head, found, rest = chunk.rpartition(b"\n")
            if found:
                yield _block(b"".join([*left, head]), strict)
                left, size = [], 0
            left.append(rest)
            size += len(rest)
            if size > LINE_MAX:
                raise RowsUnfit(f"{place} has a row of more than {LINE_MAX} bytes")
    if size:
        raise RowsUnfit(f"{place} does not end with a whole row")


def _block(lines: bytes, strict: driver.Connection) -> _Block:
    # No row has a line break within itself: JSON escapes them.
    data, count = b"[" + lines.replace(b"\n", b",") + b"]", lines.count(b"\n") + 1
    if not READS_JSON or len(data) > _LARGE or _ESCAPED.search(data):
        return _Block(data, None, count)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _Block(data, None, count)  # Python says what is wrong with it
    is_strict = strict.execute("SELECT json_valid(?, 1)", (text,)).fetchone()[0]
    return _Block(data, text if is_strict else None, count)


def _refuse_strange(reader: Reader, table: str, kinds: dict[str, str], rows: str) -> None:
    """Raise RowsUnfit for a row of that table, or of what is selected of it, with a value of another kind."""
    if not kinds:
        return
    strange = " OR ".join(_is_strange(name, kind) for name, kind in kinds.items())
    found = reader.row(f"SELECT {', '.join(kinds)} FROM {rows} WHERE {strange} LIMIT 1")
    if found is not None:
        raise RowsUnfit(f"a row of {table} holds a value of another kind, or beyond all bounds: {_short(found)}")


def _is_strange(name: str, kind: str) -> str:
    if kind != "integer":
        return f"typeof({name}) NOT IN ('{kind}', 'null')"
    least, most = range_of(name)
    return f"iif(typeof({name}) = 'integer', {name} NOT BETWEEN {least} AND {most}, {name} IS NOT NULL)"


def _first_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0][:200]


def _short(row: Iterable[object]) -> str:
    return ", ".join(repr(value)[:60] for value in row)[:300]
