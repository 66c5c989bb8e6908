"""Everything about each planned observation: what was asked, its attempts, calls, evidence, verdicts, settlements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from ..ledger.report_rows import AttemptRow, DispatchRow, SettlementRow, SlotRow
from ..ledger.report_texts import case_texts, settlements_at
from .report_document import SlotLine
from .report_reading import Report

__all__ = ["SlotDetails", "slot_details"]


@attrs.frozen
class SlotDetails:
    """A planned observation with its whole history; ``input`` and ``expected`` are canonical JSON texts."""

    line: SlotLine
    case_no: int
    input: str
    expected: str | None
    attempts: tuple[AttemptRow, ...]
    dispatches: tuple[DispatchRow, ...]
    settlements: tuple[SettlementRow, ...]

    def sends_of(self, attempt_no: int) -> list[DispatchRow]:
        """The sends of one attempt."""
        return [one for one in self.dispatches if one.attempt_no == attempt_no]


def slot_details(report: Report) -> Iterator[SlotDetails]:
    """Every planned observation of the slice, in the order of the plan."""
    source = report.source
    settled = settlements_at(source.reader, source.history)
    known: tuple[int, Any] = (0, None)
    for row, metadata in source.rows():
        if known[0] != row.case_no:
            known = row.case_no, case_texts(source.reader, source.history.run_key, row.case_no)
        yield _details(row, source.line(row, metadata), known[1], settled)


def _details(row: SlotRow, line: SlotLine, case: Any, settled: dict[int, list[SettlementRow]]) -> SlotDetails:
    return SlotDetails(
        line, row.case_no, case.input, case.expected, row.attempts, row.dispatches, tuple(settled.get(row.slot_no, ()))
    )
