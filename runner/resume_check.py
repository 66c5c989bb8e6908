"""What ``resume`` would find and do, told without changing anything."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..ledger.ledger import Ledger
from ..ledger.open_calls import next_of
from ..ledger.report_reads import InFlight, in_flight_slots
from ..ledger.run_reads import RunRow, slot_counts, slot_reasons
from ..ledger.states import SlotState
from .report_models import Executing, Population
from .reports import executing_now, population_of

__all__ = ["FoundInFlight", "ResumeCheck", "resume_check"]


class FoundInFlight(BaseModel):
    """A case that was in flight, and what recovery would say of it: unknown, again or interrupted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: str
    variant: str
    repetition: int
    attempt: int
    becomes: Literal["unknown", "again", "interrupted"]


class ResumeCheck(BaseModel):
    """What ``resume --check`` says. ``waits_again`` counts what ``--retry`` and ``--amend`` would let wait again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.resume_check/1"] = "tallystick.resume_check/1"
    ledger: str
    run: str
    name: str
    state: str
    population: Population
    executing: Executing | None
    in_flight: list[FoundInFlight]
    waits_again: int
    amendments: list[str]


def resume_check(
    ledger: Ledger, run: RunRow, *, retried: tuple[tuple[str, str | None], ...] = (), amendments: tuple[str, ...] = ()
) -> ResumeCheck:
    """Read what a resume would begin with. ``retried`` has states, each with a reason or None for all reasons."""
    now_us = ledger.clock.now_us()
    with ledger.reading() as reader:
        counts = slot_counts(reader, run.run_key)
        reasons = slot_reasons(reader, run.run_key)
        flown = in_flight_slots(reader, run.run_key) if counts[SlotState.IN_FLIGHT] else []
    holder = executing_now(ledger, run.run_id)
    is_left = holder is None or not holder.alive
    return ResumeCheck(
        ledger=str(ledger.path), run=run.run_id, name=run.name, state=run.state, population=population_of(counts),
        executing=holder, in_flight=[_found(one, now_us) for one in flown] if is_left else [],
        waits_again=sum(
            count
            for state, reason, count in reasons
            if any(state == wanted and _is_named(reason, why) for wanted, why in retried)
        ),
        amendments=list(amendments),
    )  # fmt: skip


def _is_named(reason: str, why: str | None) -> bool:
    return why is None or reason == why or reason.startswith(f"{why}.")


def _found(one: InFlight, now_us: int) -> FoundInFlight:
    becomes: Literal["unknown", "again", "interrupted"] = "interrupted"
    if one.calls.open:
        becomes = "unknown" if next_of(one.calls.open, now_us=now_us) is None else "again"
    return FoundInFlight(
        case=one.case_id, variant=one.variant, repetition=one.repetition, attempt=one.attempt_no, becomes=becomes
    )
