"""Columns that say the same in every row of a run: said once, in the manifest, instead of a hundred thousand times.

Most columns of most rows are such (what nobody used, what went as usual), and most of the time of an import goes into
taking rows apart, value by value.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Table

from .ledger import Reader
from .snapshot_format import SAME_MAX
from .snapshot_tables import columns_of, is_same_in_run, rows_of_run

__all__ = ["ROWS_MIN", "same_of"]

ROWS_MIN: Final = 100
"""Smaller tables are written whole: they are read by people."""


def same_of(reader: Reader, table: Table, run_key: int) -> dict[str, int | str | None]:
    """Those columns of the run's table, with what they say; a few rows are looked at first, where most differ."""
    first = reader.rows(f"{rows_of_run(table, run_key)} LIMIT {ROWS_MIN}")
    if len(first) < ROWS_MIN:
        return {}
    likely = {
        name: values[0]
        for name, values in zip(columns_of(table), zip(*first, strict=True), strict=True)
        if _fits(values[0]) and all(value == values[0] for value in values)
    }
    if not likely:
        return {}
    found = reader.row(is_same_in_run(table, run_key, list(likely)), tuple(likely.values()))
    return {name: value for (name, value), is_same in zip(likely.items(), found, strict=True) if is_same}


def _fits(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= SAME_MAX
    return value is None or isinstance(value, int)
