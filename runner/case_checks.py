"""One row at a time: what a case must have, and that no two cases are the same one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from ..ledger.canonical import JsonValue, digest_of_value
from ..ledger.errors import CaseFileInvalid
from .protocols import MISSING, Case, Missing
from .words import nearest

__all__ = ["ID_CHARACTERS_MAX", "CaseOrigin", "case_digest", "checked"]

ID_CHARACTERS_MAX: Final = 1000
_NUMBER_END: Final = 10**ID_CHARACTERS_MAX
_KEYS: Final = ("id", "input", "expected", "metadata")


@attrs.frozen
class CaseOrigin:
    """Where cases come from, and what is counted there: lines or rows of a file, or cases of a list."""

    name: str
    noun: str

    def fault(self, number: int, what: str, remedy: str) -> CaseFileInvalid:
        places = {"line": f"{self.name}:{number}", "row": f"{self.name}: row {number}"}
        place = places.get(self.noun, f"{self.noun} {number}") if number else self.name
        return CaseFileInvalid(f"{place}: {what}", remedy, path=self.name, line=number)


def case_digest(case: Case) -> str:
    """The digest of what the case is: id, input, metadata, and expected where it has one."""
    content: dict[str, JsonValue] = {"id": case.id, "input": case.input, "metadata": case.metadata}
    if not isinstance(case.expected, Missing):
        content["expected"] = case.expected
    return digest_of_value(content)


def checked(rows: Iterable[tuple[int, object]], source: CaseOrigin) -> Iterator[tuple[Case, str]]:
    """The numbered rows as cases with their digests; raises CaseFileInvalid at the first fault."""
    # An id that was written as a number is remembered as minus its line: 1 and "1" deserve words of their own.
    seen: dict[str, int] = {}
    for line, row in rows:
        if isinstance(row, Case):
            row = _row_of(row)
        case, is_number = _case(row, line, source)
        digest = _digest(case, line, source)
        before = seen.setdefault(case.id, -line if is_number else line)
        if abs(before) != line:
            raise _twice(case.id, before, line, is_number=is_number, source=source)
        yield case, digest


def _row_of(case: Case) -> dict[str, object]:
    row: dict[str, object] = {"id": case.id, "input": case.input, "metadata": case.metadata}
    return row if case.expected is MISSING else row | {"expected": case.expected}


def _case(row: object, line: int, source: CaseOrigin) -> tuple[Case, bool]:
    if not isinstance(row, Mapping):
        raise source.fault(line, f"a case is an object, not {_kind(row)}", 'Write {"id": ..., "input": ...}')
    for key in row:
        if key not in _KEYS:
            remedy = f"{nearest(str(key), _KEYS)} More about a case belongs into metadata"
            raise source.fault(line, f"there is no key {_shown(key)}", remedy)
    for key in ("id", "input"):
        if key not in row:
            raise source.fault(line, f'"{key}" is missing', "Every case has an id and an input")
    identifier, metadata = row["id"], row.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise source.fault(line, f'"metadata" is an object, not {_kind(metadata)}', 'Write "metadata": {...}')
    expected = row.get("expected", MISSING)
    case = Case(_identifier(identifier, line, source), row["input"], expected, metadata)
    return case, not isinstance(identifier, str)


def _digest(case: Case, line: int, source: CaseOrigin) -> str:
    try:
        return case_digest(case)
    except (TypeError, ValueError, RecursionError) as cause:
        raise source.fault(
            line, f"case {_shown(case.id)} cannot be kept ({cause})", "Write finite JSON values"
        ) from cause


def _identifier(value: object, line: int, source: CaseOrigin) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise source.fault(
            line, f"an id is text or a whole number, not {_kind(value)}", "Give every case an id of its own"
        )
    is_long = abs(value) >= _NUMBER_END if isinstance(value, int) else len(value) > ID_CHARACTERS_MAX
    if is_long:
        raise source.fault(
            line, f"the id is longer than {ID_CHARACTERS_MAX} characters", "Put what it says into metadata"
        )
    if not str(value).strip():
        raise source.fault(line, "the id is empty", "Give every case an id of its own")
    return str(value)


def _twice(identifier: str, before: int, line: int, *, is_number: bool, source: CaseOrigin) -> CaseFileInvalid:
    was_number, first = before < 0, f"{source.noun} {abs(before)}"
    if was_number == is_number:
        return source.fault(
            line, f"the id {_shown(identifier)} stands in {first} already", "Give every case an id of its own"
        )
    now, then = (identifier, _shown(identifier)) if is_number else (_shown(identifier), identifier)
    return source.fault(
        line, f"the id {now} and the id {then} in {first} would be one case", "Give every case an id of its own"
    )


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return f"the number {value!r}"[:60]
        case str():
            return "text"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _shown(value: object) -> str:
    text = json.dumps(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 60 else text[:57] + '..."'
