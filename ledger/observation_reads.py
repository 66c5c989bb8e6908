"""The observations of a run, one after the other, for whoever embeds the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from .artifacts import ANSWER, text_of
from .canonical import unescaped_text
from .ledger import Ledger

__all__ = ["ObservationRow", "observations"]

_AT_ONCE: Final = 500
_ROWS: Final = (
    f"SELECT s.slot_no, c.case_id, s.repetition, v.name, s.selected_attempt, {ANSWER}, o.answer_digest, o.evidence,"
    " o.flags, o.observed_us FROM slots s JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no"
    " JOIN variants v ON v.run_key = s.run_key AND v.variant_no = s.variant_no"
    " JOIN observations o ON o.run_key = s.run_key AND o.slot_no = s.slot_no AND o.attempt_no = s.selected_attempt"
    " WHERE s.run_key = ? AND s.slot_no > ? AND s.state = 'selected' ORDER BY s.slot_no LIMIT ?"
)


@attrs.frozen
class ObservationRow:
    """One selected observation; answer, evidence and flags are canonical JSON texts."""

    slot_no: int
    case_id: str
    repetition: int
    variant: str
    attempt_no: int
    answer: str
    answer_digest: str
    evidence: str
    flags: str
    observed_us: int


def observations(ledger: Ledger, run_key: int) -> Iterator[ObservationRow]:
    """Every selected observation by number; holds no view of the ledger between some hundred of them."""
    after = 0
    while True:
        with ledger.reading() as reader:
            rows = reader.rows(_ROWS, (run_key, after, _AT_ONCE))
            found = [_row(row, text_of(reader, row[5])) for row in rows]
        if not found:
            return
        yield from found
        after = found[-1].slot_no


def _row(row: tuple[Any, ...], answer: str | None) -> ObservationRow:
    assert answer is not None, "it is selected"
    slot_no, case_id, repetition, variant, attempt_no, _, digest, evidence, flags, observed_us = row
    return ObservationRow(
        slot_no, unescaped_text(case_id), repetition, variant, attempt_no, answer, digest, evidence, flags, observed_us
    )
