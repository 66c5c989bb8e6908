"""A target that answers as a test says, and what it takes to execute a work order with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from tallystick._wiring import ADAPTERS
from tallystick.ledger.canonical import JsonValue, canonical_bytes
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import budgets_of
from tallystick.ledger.slot_reads import case_page
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import (
    Dispatching,
    Outcome,
    Prepared,
    QueryAnswer,
    QueryState,
    SlotView,
)
from tallystick.runner.results import RunOutcome
from tallystick.runner.sessions import Session, find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tallystick.runner.work_order import WorkOrder

ANSWERED = Outcome(DispatchState.ANSWERED, answer="x", bytes_sent=1)
REFUSED = Outcome(DispatchState.REFUSED, "connect.refused", "nobody listens", bytes_sent=0)
FAILED = Outcome(DispatchState.FAILED, "http.status.500", "500", status=500)
UNKNOWN = Outcome(DispatchState.UNKNOWN, "reset", "the connection was reset", bytes_sent=10)

Reply = Callable[["Scripted", Dispatching], Awaitable[Outcome]]


@attrs.define(eq=False)
class Scripted:
    """A target that answers by a function and keeps what it was asked."""

    reply: Reply
    if_unknown: IfUnknown = IfUnknown.KEEP
    key_valid_seconds: float | None = None
    may_answer_late: bool = False
    wire_sends_max: int = 1
    kind: str = "scripted"
    is_wire_visible: bool = True
    asked: list[Dispatching] = attrs.field(factory=list)
    sent: list[bytes] = attrs.field(factory=list)
    queries: list[str] = attrs.field(factory=list)
    query_answer: QueryAnswer = QueryAnswer(QueryState.NO_PROOF)
    unprepared: frozenset[str] = frozenset()

    def identity(self) -> Mapping[str, JsonValue]:
        return {"scripted": True}

    def check(self) -> None:
        """Everything is here."""

    def prepare(self, slot: SlotView) -> Prepared:
        if slot.case.id in self.unprepared:
            raise ValueError("it has no field x")
        return Prepared(canonical_bytes({"input": slot.case.input}), {"to": "nowhere"})

    async def open(self) -> None:
        """Nothing to open."""

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        self.asked.append(dispatching)
        self.sent.append(prepared.payload)
        return await self.reply(self, dispatching)

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:
        self.queries.append(request_id)
        return self.query_answer

    async def close(self) -> None:
        """Nothing to close."""


def always(outcome: Outcome) -> Reply:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        return outcome

    return reply


def in_turn(*outcomes: Outcome) -> Reply:
    """The first outcome for the first dispatch, and so on; the last one from then on."""

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        return outcomes[min(len(target.asked), len(outcomes)) - 1]

    return reply


def order_of(target: Scripted | Mapping[str, Scripted], *, cases: int = 1, **options: Any) -> WorkOrder:
    sides = target if isinstance(target, Mapping) else {"default": target}
    settings = {"backoff": {"first_seconds": 0.001, "max_seconds": 0.002}, "concurrency": 4, "grace_seconds": 0.2}
    rows: list[Mapping[str, JsonValue]] = [{"id": f"c{number}", "input": number} for number in range(cases)]
    return WorkOrder("scripted", cases=rows, variants=dict(sides), **{**settings, **options})


def execute(
    ledger: Ledger,
    target: Scripted | Mapping[str, Scripted],
    *,
    stop: StopSwitch | None = None,
    new: bool = False,
    **options: Any,
) -> RunOutcome:
    session = find_or_create(ledger, describe(order_of(target, **options), ADAPTERS), new=new)
    return asyncio.run(run_session(ledger, session, stop=stop))


def again(ledger: Ledger, session: Session) -> RunOutcome:
    return asyncio.run(run_session(ledger, session))


def page(ledger: Ledger, outcome: RunOutcome, case_id: str = "c0") -> Any:
    with ledger.reading() as reader:
        run_key = reader.row("SELECT run_key FROM runs WHERE run_id = ?", (outcome.run_id,))[0]
        return case_page(reader, run_key, case_id)[0]


def held_and_settled(ledger: Ledger) -> list[tuple[int, int, int]]:
    with ledger.reading() as reader:
        return [(row.held, row.settled, row.unknown_uses) for row in budgets_of(reader, 1)]
