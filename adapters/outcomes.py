"""Small makers of outcomes, and text for people in one line."""

from __future__ import annotations

import json
from typing import Final

from ..ledger.canonical import JsonValue, canonical_text, printable

__all__ = ["NotJson", "as_json", "one_line"]

_MESSAGE_MAX: Final = 400
_SMALL: Final = 2**63


class NotJson(ValueError):
    """A value has no JSON form."""


def one_line(text: str, *, length_max: int = _MESSAGE_MAX) -> str:
    """The text in one printable line of a bounded length."""
    shown = " ".join(printable(text[: length_max * 4]).split())
    return shown if len(shown) <= length_max else shown[: length_max - 3] + "..."


def as_json(value: object) -> JsonValue:
    """A copy of the value as JSON gives it back (tuples as lists); raises NotJson.

    The copy is nobody else's: what a target changes in its own object afterwards does not change the answer.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None or (kind is int and -_SMALL < value < _SMALL):  # type: ignore[operator]
        return value  # type: ignore[return-value]
    try:
        copied: JsonValue = json.loads(canonical_text(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as fault:
        raise NotJson(str(fault) or type(fault).__name__) from fault
    return copied
