"""The calls of a run's attempts, one send after the other, for whoever embeds the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from .canonical import unescaped_text
from .ledger import Ledger
from .states import DispatchState

__all__ = ["CallRow", "calls"]

_AT_ONCE: Final = 500
_FIRST: Final = (0, 0, 0, 0)
_ROWS: Final = (
    "SELECT k.slot_no, k.attempt_no, k.position, d.dispatch_no, k.call_id, c.case_id, s.repetition, k.head, d.state,"
    " d.reason, d.message, d.status, d.tokens_in, d.tokens_out, d.cost_nanousd, d.intended_us, d.duration_us"
    " FROM calls k JOIN dispatches d ON d.call_id = k.call_id"
    " JOIN slots s ON s.run_key = k.run_key AND s.slot_no = k.slot_no"
    " JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no"
    " WHERE k.run_key = ? AND k.owner = 'attempt' AND k.reused_from IS NULL"
    " AND (k.slot_no, k.attempt_no, k.position, d.dispatch_no) > (?, ?, ?, ?)"
    " AND k.slot_no >= ? ORDER BY k.slot_no, k.attempt_no, k.position, d.dispatch_no LIMIT ?"
)


@attrs.frozen
class CallRow:
    """One send of a call; ``head`` is what it was asked with, as canonical JSON text. Counts are None where unknown."""

    slot_no: int
    attempt_no: int
    position: int
    dispatch_no: int
    call_id: str
    case_id: str
    repetition: int
    head: str
    state: DispatchState
    reason: str
    message: str
    status: int | None
    tokens_in: int | None
    tokens_out: int | None
    cost_nanousd: int | None
    intended_us: int
    duration_us: int | None


def calls(ledger: Ledger, run_key: int) -> Iterator[CallRow]:
    """Every send by slot, attempt and position; holds no view of the ledger between some hundred of them."""
    after = _FIRST
    while True:
        with ledger.reading() as reader:
            rows = reader.rows(_ROWS, (run_key, *after, after[0], _AT_ONCE))
        for row in rows:
            slot, attempt, position, send, call_id, case_id, repetition, head, state, reason, message, *counts = row
            yield CallRow(
                slot, attempt, position, send, call_id, unescaped_text(case_id), repetition, head,
                DispatchState(state), reason or "", message or "", *counts,
            )  # fmt: skip
        if len(rows) < _AT_ONCE:
            return
        after = rows[-1][:4]
