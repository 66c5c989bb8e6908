"""Unknown outcomes as people and ``--json`` see them, and what settling them would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import attrs
from pydantic import BaseModel, ConfigDict

from ..ledger.canonical import parse_json
from ..ledger.run_reads import RunRow
from ..ledger.settlements import Decision
from ..ledger.slot_reads import Unknown
from ..ledger.states import NextStep, SlotState
from .budget_spec import shown_amount, unit_key
from .case_pages import BytesPart, bytes_part
from .report_models import Amount
from .reports import instant

__all__ = ["Preview", "UnknownLine", "UnknownList", "preview", "unknown_list"]

_OPEN = (SlotState.UNKNOWN, SlotState.PENDING)


class UnknownLine(BaseModel):
    """One unknown outcome with its evidence. ``state`` is how its planned observation stands now.

    With ``is_newest`` false the case has gone on since: an answer is kept as evidence and selects nothing. The same
    holds for the call of a ``judge``. In a conversation ``turn`` says which turn it asked: an answer commits that turn,
    and the case waits to go on. In a fork, ``sent_as`` is the request id under which it was sent in another run,
    ``taken_from`` names that run, its slot and attempt; what it holds is held there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    call: str
    dispatch: int
    case: str
    variant: str
    repetition: int
    attempt: int
    is_newest: bool
    state: str
    if_unknown: str
    intended_at: str
    ended_at: str | None
    bytes_sent: int | None
    reason: str
    message: str
    head: Any
    request: BytesPart | None
    request_digest: str
    received: BytesPart | None
    held: dict[str, Amount]
    judge: str | None = None
    turn: int | None = None
    sent_as: str | None = None
    taken_from: str | None = None


class UnknownList(BaseModel):
    """What ``reconcile`` says without a decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.unknown/1"] = "tallystick.unknown/1"
    ledger: str
    run: str
    name: str
    next: str
    command: str
    exit_status: int
    count: int
    unknown: list[UnknownLine]


def unknown_list(
    ledger: str, run: RunRow, found: Sequence[Unknown], *, next_move: str, command: str, exit_status: int
) -> UnknownList:
    """The unknown outcomes as a model."""
    return UnknownList(
        ledger=ledger, run=run.run_id, name=run.name, next=next_move, command=command, exit_status=exit_status,
        count=len(found), unknown=[_line(one) for one in found],
    )  # fmt: skip


def _line(one: Unknown) -> UnknownLine:
    return UnknownLine(
        call=one.call_id, dispatch=one.dispatch_no, case=one.case_id, variant=one.variant, repetition=one.repetition,
        attempt=one.attempt_no, is_newest=one.is_newest, state=one.slot_state, if_unknown=one.if_unknown,
        intended_at=instant(one.intended_us), ended_at=None if one.ended_us is None else instant(one.ended_us),
        bytes_sent=one.bytes_sent, reason=one.reason, message=one.message, head=parse_json(one.head),
        request=bytes_part(one.payload), request_digest=one.payload_digest, received=bytes_part(one.raw),
        held={unit_key(unit): shown_amount(unit, amount) for unit, amount in one.held.items()}, judge=one.judge,
        turn=one.turn, sent_as=one.sent_as, taken_from=one.taken_from,
    )  # fmt: skip


@attrs.frozen
class Preview:
    """What settling would do. ``states`` counts what becomes of planned observations, ``kept`` those left as they are.

    ``held`` is what the chosen outcomes hold now, by unit, once a dispatch.
    """

    count: int
    states: dict[str, int]
    kept: int
    held: dict[str, int]


def preview(chosen: Sequence[Unknown], everything: Iterable[Unknown], decision: Decision, *, run: RunRow) -> Preview:
    """What settling the chosen ones would do, told from what was read; nothing is changed.

    ``everything`` has all unknown outcomes of the run: an attempt with another unknown dispatch stays unknown, but for
    one of a turn that was answered when it was sent again.
    """
    left = Counter((one.slot_no, one.attempt_no) for one in everything if one.is_newest)
    left.subtract((one.slot_no, one.attempt_no) for one in chosen if one.is_newest)
    states: dict[str, int] = {}
    kept: set[int] = set()
    settled: set[int] = set()
    for one in chosen:
        state = _becomes(one, decision, run=run, others_left=left[one.slot_no, one.attempt_no] > 0)
        if state is None:
            kept.add(one.slot_no)
        elif one.slot_no not in settled:
            settled.add(one.slot_no)
            states[state] = states.get(state, 0) + 1
    held: Counter[str] = Counter()
    for one in chosen:
        held.update(one.held)
    return Preview(len(chosen), states, len(kept - settled), dict(held))


def _becomes(one: Unknown, decision: Decision, *, run: RunRow, others_left: bool) -> str | None:
    if not one.is_newest or one.slot_state not in _OPEN:
        return None
    again = (SlotState.CANCELLED if run.state == "cancelled" else SlotState.PENDING).value
    if decision is Decision.LANDED and one.turn is None:
        return SlotState.SELECTED.value
    if others_left or (decision is Decision.GIVE_UP and _goes_on(one)):
        return None
    if decision in (Decision.LANDED, Decision.NOT_LANDED):
        return again
    return SlotState.FAILED.value


def _goes_on(one: Unknown) -> bool:
    """Whether its case waits for a new attempt whatever became of this one."""
    return one.slot_state == SlotState.PENDING and one.next_step == NextStep.NEW
