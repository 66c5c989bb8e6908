"""What only the page of a single case needs: what was asked, and who settled what."""

from __future__ import annotations

from .history import RunHistory
from .ledger import Reader
from .report_rows import CaseRow, SettlementRow
from .turns import TurnRow, sessions_of

__all__ = ["case_texts", "has_turns", "settlements_at", "turns_at"]


def case_texts(reader: Reader, run_key: int, case_no: int, *, count: int) -> dict[int, CaseRow]:
    """The inputs of that case and of those after it, and what is expected, by number."""
    rows = reader.rows(
        "SELECT case_no, input, expected FROM cases WHERE run_key = ? AND case_no >= ? AND case_no < ?",
        (run_key, case_no, case_no + count),
    )
    return {number: CaseRow(asked, expected) for number, asked, expected in rows}


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


def has_turns(reader: Reader, history: RunHistory) -> bool:
    """Whether the run has conversations."""
    return bool(reader.row("SELECT EXISTS (SELECT 1 FROM turns WHERE run_key = ?)", (history.run_key,))[0])


def turns_at(reader: Reader, history: RunHistory, slot_no: int) -> dict[int, tuple[TurnRow, ...]]:
    """The turns of a slot that were committed up to the event, by attempt."""
    return {
        attempt_no: tuple(turn for turn in session.turns if _was_committed(turn, history))
        for attempt_no, session in sessions_of(reader, history.run_key, slot_no).items()
        if attempt_no <= history.attempts[slot_no]
    }


def _was_committed(turn: TurnRow, history: RunHistory) -> bool:
    """One that was carried came with its attempt, any other with the outcome of its call."""
    if turn.call_id is None or turn.dispatch_no is None:
        return True
    key = (turn.call_id, turn.dispatch_no)
    return key not in history.open_dispatches and key not in history.later_dispatches
