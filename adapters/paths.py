"""Where a value stands in a JSON document: a JSONPath (RFC 9535) or a JSON pointer (RFC 6901).

What names one place (``$.a.b[0]``, ``/a/b/0``) is walked here, and gives that value or `MISSING`. Every other JSONPath
gives the list of all that it finds, `MISSING` where it finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.errors import WorkOrderInvalid
from ..runner.protocols import MISSING, Missing

__all__ = ["Path", "read_path"]

_NAME: Final = r"\.(?P<name>[^\W\d][\w-]*)"
_INDEX: Final = r"\[(?P<index>0|-?[1-9][0-9]{0,9})\]"
_QUOTED: Final = r"""\[(?:'(?P<single>[^'\\]*)'|"(?P<double>[^"\\]*)")\]"""
_STEP: Final = re.compile(f"{_NAME}|{_INDEX}|{_QUOTED}")


@attrs.frozen
class Path:
    """A compiled path; ``text`` is how it was written."""

    text: str
    _find: Callable[[JsonValue], JsonValue | Missing] = attrs.field(eq=False, repr=False)

    def find(self, document: JsonValue) -> JsonValue | Missing:
        """The value, null included; MISSING where there is none."""
        return self._find(document)


def read_path(text: str, *, place: str) -> Path:
    """Compile a path that begins with ``$`` or ``/``; raises WorkOrderInvalid."""
    if text.startswith("/"):
        return Path(text, _walker([_unescaped(part) for part in text[1:].split("/")], is_pointer=True))
    if not text.startswith("$"):
        remedy = 'Write a JSONPath such as "$.answer" or a JSON pointer such as "/answer"'
        raise WorkOrderInvalid(f'{place}: "{text}" is not a path', remedy, place=place)
    steps = _single_place(text)
    return Path(text, _walker(steps, is_pointer=False) if steps is not None else _many(text, place))


def _single_place(text: str) -> list[str | int] | None:
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            return None
        position = match.end()
        if match["index"] is not None:
            steps.append(int(match["index"]))
        else:
            steps.append(next(part for part in (match["name"], match["single"], match["double"]) if part is not None))
    return steps


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _walker(steps: Sequence[str | int], *, is_pointer: bool) -> Callable[[JsonValue], JsonValue | Missing]:
    def find(document: JsonValue) -> JsonValue | Missing:
        found = document
        for step in steps:
            if isinstance(found, dict):
                if not isinstance(step, str) or step not in found:
                    return MISSING
                found = found[step]
            elif isinstance(found, list):
                index = _pointer_index(step) if is_pointer else step
                if not isinstance(index, int) or not -len(found) <= index < len(found):
                    return MISSING
                found = found[index]
            else:
                return MISSING
        return found

    return find


def _pointer_index(step: str | int) -> int | None:
    return int(step) if isinstance(step, str) and re.fullmatch(r"0|[1-9][0-9]{0,9}", step, re.ASCII) else None


def _many(text: str, place: str) -> Callable[[JsonValue], JsonValue | Missing]:
    import jsonpath

    try:
        compiled = jsonpath.compile(text, strict=True)
    except jsonpath.JSONPathError as fault:
        told = str(fault).splitlines()[0]
        raise WorkOrderInvalid(
            f'{place}: "{text}" is not a JSONPath ({told})', "See RFC 9535 for the syntax", place=place
        ) from None

    def find(document: JsonValue) -> JsonValue | Missing:
        if not isinstance(document, dict | list):
            return MISSING
        found: list[JsonValue] = compiled.findall(document)  # type: ignore[assignment]
        return found or MISSING

    return find
