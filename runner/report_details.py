"""Everything about each planned observation: what was asked, its attempts, calls, evidence, verdicts, settlements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from ..ledger.report_rows import AttemptRow, CaseRow, DispatchRow, SettlementRow
from ..ledger.report_texts import case_texts, has_turns, settlements_at, turns_at
from ..ledger.turns import TurnRow
from .report_reading import Report
from .report_slots import ListedSlot

__all__ = ["SlotDetails", "slot_details"]

_CASES_AT_ONCE: Final = 100


@attrs.frozen
class SlotDetails:
    """A planned observation with its whole history; ``input`` and ``expected`` are canonical JSON texts.

    ``turns`` are those of a conversation, by attempt.
    """

    line: ListedSlot
    case_no: int
    input: str
    expected: str | None
    attempts: tuple[AttemptRow, ...]
    dispatches: tuple[DispatchRow, ...]
    settlements: tuple[SettlementRow, ...]
    turns: Mapping[int, tuple[TurnRow, ...]]

    def sends_of(self, attempt_no: int) -> list[DispatchRow]:
        """The sends of one attempt."""
        return [one for one in self.dispatches if one.attempt_no == attempt_no]


def slot_details(report: Report) -> Iterator[SlotDetails]:
    """Every planned observation of the slice, in the order of the plan."""
    source = report.source
    settled, talks = settlements_at(source.reader, source.history), has_turns(source.reader, source.history)
    texts: dict[int, CaseRow] = {}
    for row, metadata in source.rows():
        if row.case_no not in texts:
            texts = case_texts(source.reader, source.history.run_key, row.case_no, count=_CASES_AT_ONCE)
        turns = turns_at(source.reader, source.history, row.slot_no) if talks else {}
        line, case = source.line(row, metadata), texts[row.case_no]
        yield SlotDetails(
            line, row.case_no, case.input, case.expected, row.attempts, row.dispatches,
            tuple(settled.get(row.slot_no, ())), turns,
        )  # fmt: skip
