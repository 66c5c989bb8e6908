"""Cases as the ledger keeps them, made into cases again."""

from __future__ import annotations

from ..ledger.canonical import parse_json, unescaped_text
from .protocols import MISSING, Case

__all__ = ["case_of"]


def case_of(case_id: str, case_input: str, expected: str | None, metadata: str) -> Case:
    """A case from its stored texts."""
    found = {} if metadata == "{}" else parse_json(metadata)
    assert isinstance(found, dict)
    wanted = MISSING if expected is None else parse_json(expected)
    return Case(unescaped_text(case_id), parse_json(case_input), wanted, found)
