"""From ``[cases]`` to a source of cases, and back; the same from Python."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.errors import CaseFileInvalid
from .case_columns import CaseColumns
from .case_files import CaseFile, CaseList, CaseMaker, CasesInLedger, CaseSource, load_cases
from .case_selection import CaseSelection, ChosenCases, Condition, Split
from .protocols import Case
from .report_options import SliceTerm
from .work_order_files import Place
from .work_order_models import CasesTable, ColumnsTable, SplitTable, check, shown_value

__all__ = ["CASE_SOURCES", "GivenCases", "cases", "cases_table", "chosen", "narrowed", "source_of"]

GivenCases: TypeAlias = (
    CaseSource
    | str
    | Path
    | Iterable[Case | Mapping[str, JsonValue]]
    | Callable[[], Iterable[Case | Mapping[str, JsonValue]]]
)
CASE_SOURCES: Final = (CaseFile, CaseList, CaseMaker, CasesInLedger, ChosenCases)
_CHOOSING: Final = ("where", "split", "sample", "seed")
_OF_FILES: Final = ("format", "columns", "delimiter")


def cases(
    source: GivenCases,
    *,
    where: Mapping[str, JsonValue] | None = None,
    split: Mapping[str, Any] | None = None,
    sample: int | None = None,
    seed: int | None = None,
    format: str | None = None,  # noqa: A002 - the key's name
    columns: Mapping[str, Any] | None = None,
    delimiter: str | None = None,
) -> CaseSource:
    """Cases from a case file (relative to the current folder), from Case objects and dicts with the same keys, or from
    a function that makes them.

    A file is not opened yet. An iterable is gone through once, now, and kept; a function is called each time and
    nothing is kept. The options are those of ``[cases]``. Faults of cases raise CaseFileInvalid when they are gone
    through, faults of the options WorkOrderInvalid at once.
    """
    said = {"where": where and dict(where), "split": split and dict(split), "sample": sample, "seed": seed,
            "format": format, "columns": columns and dict(columns), "delimiter": delimiter}  # fmt: skip
    place = Place("cases")
    table = check(CasesTable, {key: value for key, value in said.items() if value is not None}, place=place)
    if isinstance(source, str | Path):
        found: CaseSource = load_cases(source, format=table.format, columns=_columns(table, place), delimiter=delimiter)
    else:
        for key in _OF_FILES:
            if getattr(table, key) is not None:
                place.at(key).refuse("these cases come from no file", "Leave it out")
        found = _given(source)
    return chosen(found, table, place)


def _given(source: Any) -> CaseSource:
    if isinstance(source, CASE_SOURCES):
        return source
    if isinstance(source, AsyncIterable) or inspect.isasyncgenfunction(source):
        what = "an asynchronous generator cannot be gone through here"
        raise CaseFileInvalid(what, "Collect its cases first, or give a plain generator", path="cases")
    if callable(source) and not isinstance(source, Iterable):
        return CaseMaker(source)
    if not isinstance(source, Iterable) or isinstance(source, bytes | Mapping):
        what = f"a {type(source).__name__} is no cases"
        raise CaseFileInvalid(what, "Give a path, a list of cases, or a function that makes them", path="cases")
    return CaseList(tuple(source))


def source_of(table: CasesTable, place: Place, folder: Path) -> CaseSource:
    """The cases of a checked table; raises WorkOrderInvalid."""
    said = [key for key in ("file", "items", "given") if getattr(table, key) is not None]
    if len(said) != 1:
        what = f"{' and '.join(said)} exclude each other" if said else "there are no cases"
        place.refuse(what, "Give file, or items")
    columns = _columns(table, place)
    if table.file is None:
        for key in _OF_FILES:
            if getattr(table, key) is not None:
                place.at(key).refuse("these cases come from no file", "Leave it out")
        if table.items is None:
            return CasesInLedger()  # what was given from Python lies in the ledger as it was chosen
        return chosen(CaseList(tuple(table.items), is_inline=True), table, place)
    try:
        found = load_cases(table.file, folder=folder, format=table.format, columns=columns, delimiter=table.delimiter)
    except CaseFileInvalid as cause:
        place.at("file").refuse(cause.what, cause.remedy, cause=cause)
    return chosen(found, table, place)


def chosen(source: CaseSource, table: CasesTable, place: Place) -> CaseSource:
    """The cases of the source that the table asks for; a choice that was made already is replaced, key by key."""
    if all(getattr(table, key) is None for key in _CHOOSING):
        return source
    source, selection = _parts(source)
    where = selection.where if table.where is None else _where(table.where, place.at("where"))
    split = selection.split if table.split is None else _split(table.split, place.at("split"))
    sample = selection.sample if table.sample is None else table.sample
    seed = selection.seed if table.seed is None else table.seed
    if table.seed is not None and sample is None:
        place.at("seed").refuse("there is no sample that it could decide on", "Add sample, or leave it out")
    return ChosenCases(source, CaseSelection(where, split, sample, seed))


def narrowed(
    source: CaseSource, terms: Sequence[SliceTerm], *, sample: int | None, seed: int | None, place: Place
) -> CaseSource:
    """Fewer cases: the terms besides what was asked for already (of one key, any), the sample instead of another.

    Raises WorkOrderInvalid for a key that the work order asks for itself: a table of conditions holds each key once.
    """
    table = check(CasesTable, {"sample": sample, "seed": seed}, place=place.at("cases"))
    found = chosen(source, table, place.at("cases"))
    wanted: dict[str, list[JsonValue]] = {}
    for term in terms:
        wanted.setdefault(term.key, []).append(term.text)
    if not wanted:
        return found
    inner, selection = _parts(found)
    if twice := next((one.key for one in selection.where if one.key in wanted), None):
        place.at("cases", "where", twice).refuse(
            "the work order asks for this key itself", "Change it there, or ask by another key"
        )
    more = tuple(Condition(key, tuple(values)) for key, values in wanted.items())
    return ChosenCases(inner, attrs.evolve(selection, where=selection.where + more))


def _parts(source: CaseSource) -> tuple[CaseSource, CaseSelection]:
    """What is chosen from, and what was asked for already."""
    return (source.source, source.selection) if isinstance(source, ChosenCases) else (source, CaseSelection())


def _columns(table: CasesTable, place: Place) -> CaseColumns | None:
    if table.columns is None:
        return None
    at = place.at("columns")
    found = check(ColumnsTable, table.columns, place=at)
    expected = None if found.expected is None else _names(found.expected, at.at("expected"))
    about = None if found.metadata is None else tuple(found.metadata)
    return CaseColumns(found.id, _names(found.input, at.at("input")), expected, about)


def _names(value: object, place: Place) -> str | tuple[str, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) and one for one in value):
        return tuple(value)
    return place.refuse(f"{shown_value(value)} names no column", "Write the column's name, or a list of names")


def _where(raw: Mapping[str, Any], place: Place) -> tuple[Condition, ...]:
    found = []
    for key, value in raw.items():
        values = value if isinstance(value, list | tuple) else [value]
        at = place.at(key)
        if not values:
            at.refuse("no value fits an empty list", "Name at least one value, or leave the key out")
        for one in values:
            if not isinstance(one, str | int | float | None):
                at.refuse(f"{shown_value(one)} is no value to look for", "Write text, a number, true or false")
        found.append(Condition(key, tuple(values)))
    return tuple(found)


def _split(raw: Mapping[str, Any], place: Place) -> Split:
    table = check(SplitTable, raw, place=place)
    for name, weight in table.of.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 10**12:
            place.at("of", name).refuse(f"{shown_value(weight)} is no weight", "Write a number above 0")
    if table.name not in table.of:
        place.at("name").refuse(f"there is no part {shown_value(table.name)}", f"Parts: {', '.join(sorted(table.of))}")
    return Split(table.name, dict(sorted(table.of.items())), table.seed, table.by)


def cases_table(source: CaseSource, folder: Path) -> dict[str, JsonValue]:
    """The table that says these cases; what was given from Python is only said to be so."""
    match source:
        case ChosenCases(source=inner, selection=selection):
            return {**cases_table(inner, folder), **_selection_table(selection)}
        case CaseFile():
            table: dict[str, JsonValue] = {"file": _without_root(Path(source.written), folder), "format": source.format}
            if source.columns is not None:
                table["columns"] = _columns_table(source.columns)
            return table if source.delimiter is None else table | {"delimiter": source.delimiter}
        case CaseList(rows=rows, is_inline=True):
            return {"items": [row for row in rows if not isinstance(row, Case)]}
        case _:
            return {"given": True}


def _selection_table(selection: CaseSelection) -> dict[str, JsonValue]:
    table: dict[str, JsonValue] = {}
    if selection.where:
        table["where"] = {one.key: list(one.values) for one in selection.where}
    if selection.split is not None:
        split = selection.split
        by: dict[str, JsonValue] = {} if split.by is None else {"by": split.by}
        table["split"] = {"name": split.name, "of": dict(split.parts), **by, "seed": split.seed}
    if selection.sample is not None:
        table |= {"sample": selection.sample, "seed": selection.seed}
    return table


def _columns_table(columns: CaseColumns) -> dict[str, JsonValue]:
    def listed(names: str | tuple[str, ...]) -> JsonValue:
        return names if isinstance(names, str) else list(names)

    table: dict[str, JsonValue] = {"id": columns.id, "input": listed(columns.input)}
    if columns.expected is not None:
        table["expected"] = listed(columns.expected)
    return table if columns.metadata is None else table | {"metadata": list(columns.metadata)}


def _without_root(path: Path, folder: Path) -> str:
    if not path.is_absolute():
        return path.as_posix()
    root = folder.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
