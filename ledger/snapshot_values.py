"""What the values of a snapshot's rows may be, beyond what the schema holds: what a ledger would never have written.

A row that fits every rule of the schema can still harm whoever reads it: text that is said to be JSON and is none, an
instant beyond the calendar, a fence so high that nobody can be given the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from .canonical import canonical_text, parse_json
from .driver import sqlite_version
from .ledger import Reader
from .snapshot_tables import SHARED_TABLES, count_of_unused

__all__ = ["AMOUNT_MAX", "INSTANT_MAX_US", "names_in", "no_json", "range_of", "strange_values"]

INSTANT_MAX_US: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999, the last one that dates know; spans are shorter."""
AMOUNT_MAX: Final = 1 << 62
"""Half of what the file can hold: one more, and a sum of two, are still numbers."""
_MAY_BE_NEGATIVE: Final = frozenset({"status"})  # of a program that a signal has ended
_FLAGS: Final = frozenset({"passed", "suspect", "solitary", "contaminated", "raw_cut", "replay", "qualified"})

_JSON: Final[Mapping[str, tuple[str, ...]]] = {
    "runs": ("work_order", "identity", "settings"),
    "cases": ("input", "expected", "metadata"),
    "variants": ("target",),
    "evaluations": ("document", "settings"),
    "evaluation_judges": ("identity", "requirement"),
    "calls": ("head",),
    "dispatches": ("usage",),
    "observations": ("answer", "evidence", "flags"),
    "turns": ("answer", "evidence", "flags"),
    "judgments": ("score",),
    "qualifications": ("document",),
    "events": ("body",),
}
_OF_ANY_KIND: Final = frozenset({"input", "expected", "answer", "score"})
_LISTS: Final = frozenset({("observations", "flags"), ("turns", "flags")})
_WHOLE: Final = "JOIN runs r ON r.run_key = t.run_key AND r.left_out IS NULL"
_ONCE: Final = (
    # Written without white space, an object in an array stands behind one of these.
    "(instr({0}, '[{{') = 0 AND instr({0}, ',{{') = 0 AND json_patch('{{}}', {0}) = {0})"
    if tuple(map(int, sqlite_version.split("."))) >= (3, 45)
    else "0"
)
"""Whether each key surely stands once: a patch of nothing keeps it once, but in arrays, and leaves out white space.

It takes half the time of looking at each key. Older versions of SQLite keep a key twice.
"""
_MANY_MEANINGS: Final = (
    f"(instr({{0}}, char(92)) OR (NOT {_ONCE} AND (SELECT count(*) <> count(DISTINCT fullkey) FROM json_tree({{0}}))))"
)
"""Whether a text may have a key twice: SQLite says so of keys that are spelled alike, and an escape may hide others."""
_PLAIN: Final = f"(instr({{0}}, char(92)) = 0 AND {_ONCE})"
"""Whether a text is surely written as SQLite writes it, and no key stands twice: most events are so."""
_STRANGE: Final[Mapping[str, str]] = {
    "a run is forked from itself": "SELECT run_id FROM runs WHERE forked_from = run_id",
    "a score is no number": (
        "SELECT 'slot ' || slot_no FROM judgments WHERE score IS NOT NULL AND (json_type(score) NOT IN"
        " ('integer', 'real') OR CAST(score AS REAL) NOT BETWEEN -1.7e308 AND 1.7e308)"
    ),
    "a request has another size than is said": (
        f"SELECT 'call ' || t.call_id FROM calls t {_WHOLE} WHERE length(t.payload) <> t.payload_size"
    ),
}


def range_of(column: str) -> tuple[int, int]:
    """The least and the greatest number that a column of numbers may hold."""
    if column in _FLAGS:
        return 0, 1
    least = -AMOUNT_MAX if column in _MAY_BE_NEGATIVE else 0
    return least, INSTANT_MAX_US if column.endswith("_us") else AMOUNT_MAX


def strange_values(reader: Reader) -> Iterator[str]:
    """One text for each kind of value that no ledger writes, with the first place; JSON is looked at first."""
    if (what := next(no_json(reader), None)) is not None:
        yield what
        return
    yield from _with_two_meanings(reader)
    for what, sql in _STRANGE.items():
        if (found := reader.row(f"{sql} LIMIT 1")) is not None:
            yield f"{what}: {found[0]}"
    for shared in SHARED_TABLES:
        if shared.name != "workers" and (count := reader.row(count_of_unused(shared))[0]):
            yield f"nothing refers to {count} rows of {shared.name}"


def no_json(reader: Reader) -> Iterator[str]:
    """One text for each column with JSON that is none, or an object where there is to be a list, or the like."""
    for table, columns in _JSON.items():
        for column in columns:
            # `json_valid` is strict where it is asked for nothing else; numbers and names of no JSON are none for it.
            is_strange = f"(NOT json_valid({column}) OR {_is_of_another_kind(table, column)})"
            if count := reader.row(f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL AND {is_strange}")[0]:
                yield f"{column} is no JSON, or not of its kind, in {count} rows of {table}"


def _is_of_another_kind(table: str, column: str) -> str:
    """SQL for whether JSON is no object where it must be one, or no list; the ledger begins neither with a space."""
    if column in _OF_ANY_KIND:
        return "0"
    if (table, column) == ("evaluations", "document"):  # a list of judges for the run's own, else a work order
        return f"substr({column}, 1, 1) <> iif(evaluation_no = 1, '[', '{{')"
    return f"substr({column}, 1, 1) <> '{'[' if (table, column) in _LISTS else '{'}'"


def _with_two_meanings(reader: Reader) -> Iterator[str]:
    """Objects with a key twice, of which SQLite takes the first and Python the last, and events in another form.

    One place of each column. What SQLite sees nothing in is not parsed again.
    """
    for table, columns in _JSON.items():
        for column in columns:
            is_event = table == "events"
            condition = f"instr({column}, ':') AND {_MANY_MEANINGS.format(column)}"  # no colon, no key
            if is_event:
                condition = f"NOT {_PLAIN.format(column)} AND (json({column}) <> {column} OR {condition})"
            for (text,) in reader.each(f"SELECT {column} FROM {table} WHERE {condition}"):
                if (fault := _fault_of(text, is_canonical=is_event)) is not None:
                    yield f"{column} of a row of {table}: {fault}"
                    break


def _fault_of(text: str, *, is_canonical: bool) -> str | None:
    try:
        value = parse_json(text)
        is_other = is_canonical and canonical_text(value) != text
    except ValueError as problem:
        return str(problem)
    return "it is not written as the ledger writes it" if is_other else None


def names_in(left_out: str | None) -> list[str]:
    """The rules by which something was left out, from the row of a run; raises ValueError."""
    found = [] if left_out is None else json.loads(left_out)
    if type(found) is not list or not all(type(name) is str for name in found) or (left_out is not None and not found):
        raise ValueError("what was left out is no list of rules")
    return sorted(found)
