"""Case files in Parquet, read batch by batch with pyarrow (``pip install 'tallystick[parquet]'``).

Text, numbers, true and false, null, lists and structs are what they are in JSON; a map with text as keys is an object.
Dates and times become ISO 8601 text and decimals text with all their digits, where they are a column of their own;
bytes, durations, and dates or decimals inside of lists and structs are refused. A null is no ``expected`` and no entry
of ``metadata``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Final, TypeAlias

from ..ledger.canonical import JsonValue, printable
from ..ledger.errors import CaseFileInvalid
from .case_checks import CaseOrigin
from .case_columns import CaseColumns, no_cases, row_maker

__all__ = ["parquet_rows"]

_Values: TypeAlias = Callable[[Any], Sequence[JsonValue]]
_BATCH_ROWS: Final = 1000
_EXTRA: Final = "Install it with `pip install 'tallystick[parquet]'`, or save the cases as JSON lines or CSV"
_REMEDY: Final = "Save it as text, or name the columns that count in [cases] columns"
_OFFSET: Final = re.compile(r"([+-]\d\d)(\d\d)$")


def parquet_rows(file: IO[bytes], written: str, *, columns: CaseColumns) -> Iterator[tuple[int, JsonValue]]:
    """Row numbers from 1, and the case that stands there; raises CaseFileInvalid at the first fault."""
    arrow, parquet = _pyarrow(written)
    number = 0
    try:
        with parquet.ParquetFile(file, pre_buffer=False) as opened:
            for number, row in enumerate(_rows(opened, arrow, written, columns), start=1):
                yield number, row
    except (arrow.ArrowException, OSError) as cause:
        told = printable(" ".join(str(cause).split())).partition(". ")[0][:200]
        what = f"{written}: row {number + 1}: cannot be read ({told})" if number else f"{written}: not Parquet ({told})"
        raise CaseFileInvalid(what, "Write the file anew", path=written, line=number and number + 1) from cause
    if not number:
        raise no_cases(written, "Write one case a row")


def _rows(opened: Any, arrow: Any, written: str, columns: CaseColumns) -> Iterator[JsonValue]:
    schema, origin = opened.schema_arrow, CaseOrigin(written, "row")
    names: list[str] = list(schema.names)
    whole = "metadata" in names and _is_object(arrow.types, schema.field(names.index("metadata")).type)
    made = row_maker(columns, names, origin, line=0, absent=None, whole=whole)
    used = columns.used(names, whole=whole)
    places = [names.index(name) for name in used]
    readers = [_values_of(arrow, schema.field(at).type, name, origin) for name, at in zip(used, places, strict=True)]
    for batch in opened.iter_batches(batch_size=_BATCH_ROWS, columns=used, use_threads=False):
        values = [read(batch.column(name)) for read, name in zip(readers, used, strict=True)]
        row: list[JsonValue] = [None] * len(names)
        for found in zip(*values, strict=True):
            for at, value in zip(places, found, strict=True):
                row[at] = value
            yield made(row)


def _pyarrow(written: str) -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as cause:
        what = f"{written}: Parquet is read by pyarrow, which is not installed"
        raise CaseFileInvalid(what, _EXTRA, path=written) from cause
    return pa, parquet


def _values_of(arrow: Any, kind: Any, name: str, origin: CaseOrigin) -> _Values:
    """What turns a column of this type into JSON values; refuses types that have none."""
    types = arrow.types
    if types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        # Arrow's own text keeps nanoseconds, for which Python has no type.
        return lambda column: [None if text is None else _iso(text) for text in column.cast(arrow.string()).to_pylist()]
    if types.is_decimal(kind):
        return lambda column: [None if value is None else f"{value:f}" for value in column.to_pylist()]
    foreign = _foreign(types, kind)
    if foreign is not None:
        raise origin.fault(0, f'column "{name}" has values of type {foreign}, which JSON has not', _REMEDY)
    if types.is_nested(kind):
        return lambda column: _nested(column, name, origin)
    return lambda column: column.to_pylist()


def _nested(column: Any, name: str, origin: CaseOrigin) -> Sequence[JsonValue]:
    try:
        found: Sequence[JsonValue] = column.to_pylist(maps_as_pydicts="strict")
    except KeyError as cause:
        raise origin.fault(0, f'a map in column "{name}" has a key twice', "Write each key once") from cause
    return found


def _foreign(types: Any, kind: Any) -> str | None:
    """The first type in it that JSON has no form for."""
    if types.is_dictionary(kind):
        return _foreign(types, kind.value_type)
    if types.is_map(kind):
        return _foreign(types, kind.item_type) if _is_text(types, kind.key_type) else str(kind)
    if types.is_struct(kind):
        return next((found for field in kind if (found := _foreign(types, field.type)) is not None), None)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _foreign(types, kind.value_type)
    plain = types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return None if plain or _is_text(types, kind) else str(kind)


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_object(types: Any, kind: Any) -> bool:
    return bool(types.is_struct(kind) or types.is_map(kind))


def _iso(text: str) -> str:
    return _OFFSET.sub(r"\1:\2", text.replace(" ", "T", 1)) if " " in text else text
