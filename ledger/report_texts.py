"""What only the page of a single case needs: what was asked, and who settled what."""

from __future__ import annotations

from .history import RunHistory
from .ledger import Reader
from .report_rows import CaseRow, SettlementRow

__all__ = ["case_texts", "settlements_at"]


def case_texts(reader: Reader, run_key: int, case_no: int) -> CaseRow:
    """The case's input and what is expected."""
    found, expected = reader.row("SELECT input, expected FROM cases WHERE run_key = ? AND case_no = ?",
                                 (run_key, case_no))  # fmt: skip
    return CaseRow(found, expected)


def settlements_at(reader: Reader, history: RunHistory) -> dict[int, list[SettlementRow]]:
    """Every settlement of the run up to the event, by slot."""
    found: dict[int, list[SettlementRow]] = {}
    rows = reader.each(
        "SELECT c.slot_no, c.attempt_no, t.decision, t.made_by, t.reason, t.made_us, t.call_id, t.dispatch_no"
        " FROM settlements t JOIN calls c ON c.call_id = t.call_id WHERE c.run_key = ? AND c.owner = 'attempt'"
        " ORDER BY c.slot_no, t.made_us, t.call_id",
        (history.run_key,),
    )
    for slot_no, attempt_no, decision, made_by, reason, made_us, call_id, dispatch_no in rows:
        # Settled since: at the event its outcome was still unknown.
        if (call_id, dispatch_no) not in history.open_dispatches:
            found.setdefault(slot_no, []).append(SettlementRow(attempt_no, decision, made_by, reason, made_us))
    return found
