"""Files of columns: which column is what of a case, and a case's row made from the values of one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.errors import CaseFileInvalid
from .case_checks import CaseOrigin
from .words import nearest

__all__ = ["CaseColumns", "RowMaker", "no_cases", "row_maker"]

RowMaker: TypeAlias = Callable[[Sequence[JsonValue]], dict[str, JsonValue]]
_REMEDY: Final = "Say what stands where: [cases] columns = { id = ..., input = ..., expected = ..., metadata = [...] }"


@attrs.frozen
class CaseColumns:
    """Which columns make the parts of a case; several make an object with their names as keys.

    ``expected`` is None where it was not said: the column of that name, where there is one. ``metadata`` is None for
    all columns that are nothing else.
    """

    id: str = "id"
    input: str | tuple[str, ...] = "input"
    expected: str | tuple[str, ...] | None = None
    metadata: tuple[str, ...] | None = None

    def used(self, header: Sequence[str], *, whole: bool = False) -> list[str]:
        """The columns that a case needs, in the header's order; all where the metadata is what is left."""
        if self.metadata is None and not whole:
            return list(header)
        about = ("metadata",) if self.metadata is None else self.metadata
        answer = ("expected",) if self.expected is None else _listed(self.expected)
        wanted = {self.id, *_listed(self.input), *answer, *about}
        return [name for name in header if name in wanted]


@attrs.frozen
class _Part:
    """Where the values of a part stand; ``names`` is None for one value that is the part itself."""

    at: tuple[int, ...]
    names: tuple[str, ...] | None

    def of(self, values: Sequence[JsonValue]) -> JsonValue:
        if self.names is None:
            return values[self.at[0]]
        return {name: values[at] for name, at in zip(self.names, self.at, strict=True)}

    def is_absent(self, values: Sequence[JsonValue], absent: JsonValue) -> bool:
        return all(values[at] == absent for at in self.at)


def row_maker(
    columns: CaseColumns,
    header: Sequence[str],
    origin: CaseOrigin,
    *,
    line: int,
    absent: JsonValue,
    whole: bool = False,
) -> RowMaker:
    """What makes a case's row from the values of one line; raises CaseFileInvalid for a header that does not do.

    ``line`` is where the header stands, 0 for a file whose header is no line.

    A value that is ``absent`` (empty text, null) makes no ``expected`` and no entry of ``metadata``. ``whole`` says
    that the column ``metadata`` holds the whole metadata as an object.
    """
    _check_header(header, origin, line)
    places = {name: at for at, name in enumerate(header)}
    wanted = "expected" if columns.expected is None and "expected" in places else columns.expected
    identifier = _part(columns.id, places, origin, line)
    asked = _part(columns.input, places, origin, line)
    answer = None if wanted is None else _part(wanted, places, origin, line)
    used = {*identifier.at, *asked.at, *(() if answer is None else answer.at)}
    others = columns.metadata
    if others is None:
        others = ("metadata",) if whole else tuple(name for name, at in places.items() if at not in used)
    about = _part(others, places, origin, line)

    def made(values: Sequence[JsonValue]) -> dict[str, JsonValue]:
        row: dict[str, JsonValue] = {"id": identifier.of(values), "input": asked.of(values)}
        if answer is not None and not answer.is_absent(values, absent):
            row["expected"] = answer.of(values)
        found = about.of(values)
        assert isinstance(found, Mapping)
        if whole and columns.metadata is None:
            row["metadata"] = {} if found["metadata"] == absent else found["metadata"]
        else:
            row["metadata"] = {name: value for name, value in found.items() if value != absent}
        return row

    return made


def _part(names: str | tuple[str, ...], places: Mapping[str, int], origin: CaseOrigin, line: int) -> _Part:
    listed = _listed(names)
    for name in listed:
        if name not in places:
            raise origin.fault(line, f'there is no column "{name}"', f"{nearest(name, places)} {_REMEDY}")
    return _Part(tuple(places[name] for name in listed), None if isinstance(names, str) else listed)


def _listed(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _check_header(header: Sequence[str], origin: CaseOrigin, line: int) -> None:
    seen: set[str] = set()
    for number, name in enumerate(header, start=1):
        if not name.strip():
            raise origin.fault(line, f"column {number} has no name", "Give every column a name, or take it out")
        if name in seen:
            raise origin.fault(line, f'the column "{name}" stands twice', "Give every column a name of its own")
        seen.add(name)


def no_cases(written: str, remedy: str) -> CaseFileInvalid:
    """The fault of a file that has a header and nothing else, or not even that."""
    return CaseFileInvalid(f"{written}: there are no cases in it", remedy, path=written)
