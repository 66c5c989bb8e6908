"""What came back for the recorded requests of an attempt, read for many at a time, since a replay asks for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .artifacts import bytes_of
from .inner_calls import RecordedCall
from .readers import Reader

__all__ = ["CALLS_MAX", "kept_answers", "large_answer"]

CALLS_MAX: Final = 64
"""How many calls' answers are read at once; of each, what is kept in its row, which is bounded."""


def kept_answers(reader: Reader, calls: Sequence[RecordedCall]) -> dict[str, bytes | str | None]:
    """By call id, what came back: its bytes, the digest of those that are large, or None where nothing did."""
    wanted = {call.call_id: call.dispatch_no for call in calls[:CALLS_MAX]}
    marks = ",".join("?" * len(wanted))
    sql = f"SELECT call_id, dispatch_no, coalesce(raw, raw_artifact) FROM dispatches WHERE call_id IN ({marks})"
    rows = reader.rows(sql, tuple(wanted))
    return {call_id: kept for call_id, dispatch_no, kept in rows if wanted[call_id] == dispatch_no}


def large_answer(reader: Reader, kept: str) -> bytes | None:
    """The bytes of a digest."""
    return bytes_of(reader, kept)
