"""Read models of reports: what is in trouble, what was wasted, what unknown outcomes hold. Pure; one row class each."""

from __future__ import annotations

import attrs

from .ledger import Reader
from .open_calls import AttemptCalls, calls_of
from .schema import IN_TROUBLE_OF_S
from .states import SlotState

__all__ = [
    "InFlight",
    "TroubledSlot",
    "flag_counts",
    "held_by_unknown",
    "in_flight_slots",
    "troubled_slots",
    "unknown_reasons",
]

_TROUBLED = (SlotState.FAILED, SlotState.UNKNOWN, SlotState.UNAVAILABLE, SlotState.PARKED)


@attrs.frozen
class TroubledSlot:
    """A planned observation that there is none of, and what its newest attempt said."""

    case_id: str
    variant: str
    repetition: int
    state: str
    reason: str
    attempts: int
    message: str


def troubled_slots(reader: Reader, run_key: int, *, limit: int) -> list[TroubledSlot]:
    """Slots that are failed, unknown, unavailable or parked, by state and number."""
    marks = ", ".join("?" * len(_TROUBLED))
    return [
        TroubledSlot(*row)
        for row in reader.rows(
            "SELECT c.case_id, v.name, s.repetition, s.state, coalesce(s.reason, ''), s.attempts,"
            " coalesce(a.message, '') FROM slots s"
            " JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no"
            " JOIN variants v ON v.run_key = s.run_key AND v.variant_no = s.variant_no"
            " LEFT JOIN attempts a ON a.run_key = s.run_key AND a.slot_no = s.slot_no AND a.attempt_no = s.attempts"
            f" WHERE s.run_key = ? AND {IN_TROUBLE_OF_S} AND s.state IN ({marks})"
            " ORDER BY s.state, s.slot_no LIMIT ?",
            (run_key, *_TROUBLED, limit),
        )
    ]


def flag_counts(reader: Reader, run_key: int) -> list[tuple[str, str, int]]:
    """How many selected answers of each variant have each list of flags (canonical JSON text) that is not empty."""
    return reader.rows(
        "SELECT v.name, o.flags, count(*) FROM slots s JOIN observations o ON o.run_key = s.run_key"
        " AND o.slot_no = s.slot_no AND o.attempt_no = s.selected_attempt"
        " JOIN variants v ON v.run_key = s.run_key AND v.variant_no = s.variant_no"
        " WHERE s.run_key = ? AND s.state = 'selected' AND o.flags <> '[]'"
        " GROUP BY s.variant_no, o.flags ORDER BY s.variant_no, o.flags",
        (run_key,),
    )


def unknown_reasons(reader: Reader, run_key: int) -> dict[str, int]:
    """How many outcomes are unknown, by reason; also those whose slot has gone on since."""
    return dict(
        reader.rows(
            "SELECT coalesce(reason, ''), count(*) FROM dispatches WHERE run_key = ?"
            " AND state IN ('intended', 'unknown') AND state = 'unknown'"
            # A reset of a device is the next holder's to find out about; nobody settles it.
            " AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.call_id = dispatches.call_id AND c.owner = 'lease')"
            " GROUP BY 1 ORDER BY 1",
            (run_key,),
        )
    )


def held_by_unknown(reader: Reader, run_key: int) -> dict[int, int]:
    """What unknown outcomes hold, by budget number."""
    return dict(
        reader.rows(
            "SELECT r.budget_no, sum(r.held) FROM dispatches d JOIN reservations r"
            " ON r.call_id = d.call_id AND r.dispatch_no = d.dispatch_no"
            " WHERE d.run_key = ? AND d.state IN ('intended', 'unknown') AND d.state = 'unknown' AND r.state = 'held'"
            " GROUP BY r.budget_no",
            (run_key,),
        )
    )


@attrs.frozen
class InFlight:
    """A slot whose newest attempt is going on, or was when its coordinator died."""

    case_id: str
    variant: str
    repetition: int
    attempt_no: int
    calls: AttemptCalls


def in_flight_slots(reader: Reader, run_key: int) -> list[InFlight]:
    """Every slot in flight with its newest attempt's calls; bounded by the concurrency that the run had."""
    rows = reader.rows(
        "SELECT slot_no, case_no, variant_no, repetition, attempts FROM slots"
        " INDEXED BY slots_in_flight WHERE run_key = ? AND state = 'in_flight' ORDER BY slot_no",
        (run_key,),
    )
    return [_in_flight(reader, run_key, *row) for row in rows]


def _in_flight(reader: Reader, run_key: int, slot_no: int, case_no: int, variant: int, rep: int, no: int) -> InFlight:
    case_id = reader.row("SELECT case_id FROM cases WHERE run_key = ? AND case_no = ?", (run_key, case_no))[0]
    name = reader.row("SELECT name FROM variants WHERE run_key = ? AND variant_no = ?", (run_key, variant))[0]
    return InFlight(case_id, name, rep, no, calls_of(reader, run_key, slot_no, no))
