"""Which rows travel in a snapshot, read from the tables themselves, so that a new column or table travels by itself.

Rows of a run are those of every table with a ``run_key``; a snapshot has no ``run_key``. What they refer to beyond
their run is *shared*: workers, judges' qualifications, artifacts, and the fences of what the run has leased.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sqlalchemy import LargeBinary, Table

from .schema import metadata
from .schema_rules import vocabularies

__all__ = [
    "COLUMNS_LEFT_OUT",
    "FILLERS",
    "RUN_TABLES",
    "SHARED_TABLES",
    "TABLES_LEFT_OUT",
    "bytes_columns",
    "columns_of",
    "copy_stretch",
    "count_of_unused",
    "insert_into",
    "is_same_in_run",
    "key_of",
    "lines_of_run",
    "lines_of_shared",
    "rows_between",
    "rows_of_run",
    "rows_of_shared",
]

TABLES_LEFT_OUT: Final[dict[str, str]] = {
    "facts": "what only this machine knows: folders of work orders, the ledger's own id and place",
    "imports": "how runs came into this ledger",
    "devices": "what this ledger last saw of a device; what the run saw of it stands in its events",
    "transitions": "part of the schema",
    **dict.fromkeys(vocabularies(), "part of the schema"),
}
"""Tables of which nothing travels, and why."""

COLUMNS_LEFT_OUT: Final[dict[str, dict[str, str]]] = {
    "runs": {
        "custody": "stands in the manifest, as the snapshot gives it",
        "custody_epoch": "stands in the manifest",
    },
    "workers": {
        "pid": "of the machine",
        "start_ticks": "of the machine",
        "boot_id": "of the machine",
        "host": "of the machine",
        "last_batch": "of the ledger",
    },
    "leases": {"boot_id": "of the machine", "expires_boot_ns": "of the machine"},
    "artifacts": {"created_us": "when the bytes came into this ledger"},
}
"""Columns that do not travel, and why; every ``run_key`` is one more."""

FILLERS: Final[dict[str, dict[str, object]]] = {
    "workers": {"pid": 0, "start_ticks": 0, "boot_id": "", "host": ""},
    "artifacts": {"created_us": 0},
}
"""What stands in columns that did not travel and must hold something. No worker has these, so none is mistaken."""

SHARED_TABLES: Final[tuple[Table, ...]] = tuple(
    table for table in metadata.sorted_tables if table.name in ("workers", "qualifications", "artifacts", "fences")
)
RUN_TABLES: Final[tuple[Table, ...]] = tuple(
    table for table in metadata.sorted_tables if "run_key" in table.c and table.name not in TABLES_LEFT_OUT
)
"""In an order in which rows can be inserted."""

# In another ledger nobody holds, waits or has a resource to look after.
_ENDED_LEASE: Final = "state IN ('held', 'waiting', 'quarantined')"
_EXPRESSIONS: Final[dict[tuple[str, str], str]] = {
    ("leases", "state"): f"CASE WHEN {_ENDED_LEASE} THEN 'lost' ELSE state END",
    ("leases", "reason"): f"CASE WHEN {_ENDED_LEASE} THEN 'left behind by a snapshot' ELSE reason END",
    ("runs", "state"): (
        "CASE WHEN state IN ('moving', 'moved') THEN (SELECT json_extract(e.body, '$.state') FROM events e"
        " WHERE e.run_key = runs.run_key AND e.kind IN ('run.moving', 'run.custody_lost')"
        " ORDER BY e.event_no DESC LIMIT 1) ELSE state END"
    ),
}


def columns_of(table: Table) -> list[str]:
    """The columns that travel, in their order."""
    left_out = COLUMNS_LEFT_OUT.get(table.name, {})
    return [column.name for column in table.columns if column.name != "run_key" and column.name not in left_out]


def key_of(table: Table) -> list[str]:
    """What a row is known by within its run."""
    if table.name == "runs":
        return ["run_id"]
    return [column.name for column in table.primary_key if column.name != "run_key"]


def bytes_columns(table: Table) -> frozenset[str]:
    """The columns that hold bytes; a snapshot has them as lower-case hexadecimal text."""
    return frozenset(column.name for column in table.columns if isinstance(column.type, LargeBinary))


def rows_of_run(table: Table, run_key: int) -> str:
    """SQL for the run's rows as values, in their order."""
    return f"SELECT {', '.join(_expressions(table))} {_of_run(table, run_key)}"


def rows_between(table: Table, run_key: int, *, is_first: bool) -> str:
    """The same after one key and up to another; takes both keys, and only the last where it ``is_first``."""
    key, marks = ", ".join(key_of(table)), ", ".join("?" * len(key_of(table)))
    after = "" if is_first else f" AND ({key}) > ({marks})"
    return (
        f"SELECT {', '.join(_expressions(table))} FROM {table.name}"
        f" WHERE run_key = {int(run_key)}{after} AND ({key}) <= ({marks}) ORDER BY {key}"
    )


def lines_of_run(table: Table, run_key: int, *, without: Collection[str] = ()) -> str:
    """SQL for the same as JSON texts, but for some columns."""
    texts = [text for name, text in zip(columns_of(table), _texts(table), strict=True) if name not in without]
    return f"SELECT json_array({', '.join(texts)}) {_of_run(table, run_key)}"


def is_same_in_run(table: Table, run_key: int, names: Sequence[str]) -> str:
    """SQL for whether each of the columns says the same in every row of the run; takes what they say, in order."""
    expressions = dict(zip(columns_of(table), _expressions(table), strict=True))
    tests = ", ".join(f"min({expressions[name]} IS ?)" for name in names)
    return f"SELECT {tests} FROM {table.name} WHERE run_key = {int(run_key)}"


def rows_of_shared(table: Table, run_keys: Iterable[int] | None) -> str:
    """SQL for the shared rows that rows of these runs refer to, as values, in their order; None: for all there are."""
    found = _of_shared(table, run_keys) if run_keys is not None else f"FROM {table.name} ORDER BY {key_of(table)[0]}"
    return f"SELECT {', '.join(_expressions(table))} {found}"


def lines_of_shared(table: Table, run_keys: Iterable[int]) -> str:
    """SQL for the same as JSON texts."""
    return f"SELECT json_array({', '.join(_texts(table))}) {_of_shared(table, run_keys)}"


def insert_into(table: Table, *, run_key: int | None = None, created_us: int = 0) -> tuple[str, tuple[object, ...]]:
    """SQL that adds a row as it travels, and the values of the columns that did not, which come first."""
    given = {**FILLERS.get(table.name, {}), **({} if run_key is None else {"run_key": run_key})}
    if "created_us" in given:
        given["created_us"] = created_us
    names = [*given, *columns_of(table)]
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", tuple(
        given.values()
    )


def copy_stretch(table: Table, source: str, *, run_key: int, is_first: bool) -> str:
    """SQL that copies rows of a run from the same table of an attached file, up to a key and after another.

    Takes their run's number there, the key after which it begins (unless it is the first), and the last key.
    """
    names, key = ", ".join(columns_of(table)), ", ".join(key_of(table))
    marks = ", ".join("?" * len(key_of(table)))
    after = "" if is_first else f" AND ({key}) > ({marks})"
    return (
        f"INSERT INTO main.{table.name} (run_key, {names}) SELECT {int(run_key)}, {names} FROM {source}.{table.name}"
        f" WHERE run_key = ?{after} AND ({key}) <= ({marks}) ORDER BY {key}"
    )


def _expressions(table: Table) -> list[str]:
    return [_EXPRESSIONS.get((table.name, name), name) for name in columns_of(table)]


def _texts(table: Table) -> list[str]:
    binary = bytes_columns(table)
    return [
        f"CASE WHEN {name} IS NULL THEN NULL ELSE lower(hex({name})) END" if name in binary else expression
        for name, expression in zip(columns_of(table), _expressions(table), strict=True)
    ]


def _of_run(table: Table, run_key: int) -> str:
    order = [] if table.name == "runs" else key_of(table)
    ordered = f" ORDER BY {', '.join(order)}" if order else ""
    return f"FROM {table.name} WHERE run_key = {int(run_key)}{ordered}"


def count_of_unused(table: Table) -> str:
    """SQL for how many shared rows there are that no row of a run refers to."""
    (key,) = key_of(table)
    referring = " UNION ".join(
        f"SELECT {column} FROM {other} WHERE {column} IS NOT NULL" for column, other in _referring(table)
    )
    return f"SELECT count(*) FROM {table.name} WHERE {key} NOT IN ({referring})"


def _of_shared(table: Table, run_keys: Iterable[int]) -> str:
    keys = ", ".join(str(int(key)) for key in run_keys)
    (key,) = key_of(table)
    referring = " UNION ".join(
        f"SELECT {column} FROM {other} WHERE run_key IN ({keys})" for column, other in _referring(table)
    )
    return f"FROM {table.name} WHERE {key} IN ({referring}) ORDER BY {key}"


def _referring(table: Table) -> list[tuple[str, str]]:
    """The columns that refer to a shared table, each with its table."""
    if table.name == "fences":
        return [("resource", "leases")]
    return [
        (str(foreign.parent.name), other.name)
        for other in RUN_TABLES
        for foreign in sorted(other.foreign_keys, key=lambda one: str(one.parent.name))
        if foreign.column.table is table
    ]
