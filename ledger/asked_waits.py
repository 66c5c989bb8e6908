"""Who asked to be left alone (``Retry-After``), and until when: read from what is stored of their dispatches."""

from __future__ import annotations

from typing import Final

from .ledger import Reader

__all__ = ["asked_to_wait_until", "judges_asked_to_wait_until"]

_DAY_US: Final = 86_400_000_000
_UNTIL: Final = (
    f"max(d.ended_us + min(d.retry_after_us, {_DAY_US})) FROM dispatches d INDEXED BY dispatches_asked_to_wait"
    " JOIN calls c ON c.call_id = d.call_id"
)
_LATELY: Final = "d.run_key = ? AND d.ended_us > ? AND d.retry_after_us IS NOT NULL"


def asked_to_wait_until(reader: Reader, run_key: int, *, now_us: int) -> dict[int, int]:
    """Until when each variant's target asked to be left alone: instants that are still ahead.

    A day at most: who asked for longer has it in the slot's own ``not_before_us``, and holds up no other for a year.
    """
    rows = reader.rows(
        f"SELECT s.variant_no, {_UNTIL} JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no"
        f" WHERE {_LATELY} AND c.owner = 'attempt' GROUP BY s.variant_no",
        (run_key, now_us - _DAY_US),
    )
    return {variant_no: until for variant_no, until in rows if until > now_us}


def judges_asked_to_wait_until(reader: Reader, run_key: int, evaluation_no: int, *, now_us: int) -> dict[int, int]:
    """The same of each judge of an evaluation, by its number."""
    rows = reader.rows(
        f"SELECT c.judge_no, {_UNTIL} WHERE {_LATELY} AND c.owner = 'judgment' AND c.evaluation_no = ?"
        " GROUP BY c.judge_no",
        (run_key, now_us - _DAY_US, evaluation_no),
    )
    return {judge_no: until for judge_no, until in rows if until > now_us}
