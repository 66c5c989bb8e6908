"""Runs of conversations with a `Talker`, and what the ledger says of them afterwards."""

from __future__ import annotations

import asyncio

import tallystick as ts
from tallystick._wiring import ADAPTERS
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState
from tallystick.runner.descriptions import describe
from tallystick.runner.device_protocols import Resuming
from tallystick.runner.protocols import Outcome, Turn
from tallystick.runner.results import RunOutcome
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tests.unit.runner.scripted import page
from tests.unit.runner.talker import Rule, Talker

UNKNOWN = Outcome(DispatchState.UNKNOWN, "wire.reset", "the connection was reset", bytes_sent=1)
FAILED = Outcome(DispatchState.FAILED, "http.status.500", "500", status=500, bytes_sent=1)
STATEFUL = [Resuming.CHECKPOINT, Resuming.RESTART]


def run(ledger: Ledger, order: ts.WorkOrder, *, stop: StopSwitch | None = None) -> RunOutcome:
    session = find_or_create(ledger, describe(order, ADAPTERS))
    return asyncio.run(run_session(ledger, session, stop=stop))


def once(turn_no: int, outcome: Outcome) -> Rule:
    """That outcome for the first dispatch of that turn, and plain answers for all else."""
    left = [outcome]

    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        return left.pop() if turn.number == turn_no and left else None

    return rule


def always(turn_no: int, outcome: Outcome) -> Rule:
    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        return outcome if turn.number == turn_no else None

    return rule


def asked(target: Talker) -> list[tuple[int, JsonValue]]:
    return [(turn, message) for _, turn, message in target.asked]


def states(ledger: Ledger, outcome: RunOutcome, case_id: str = "c0") -> list[tuple[str, str | None]]:
    return [(one.state, one.reason) for one in page(ledger, outcome, case_id).attempts]


def replays(ledger: Ledger) -> int:
    with ledger.reading() as reader:
        return int(reader.row("SELECT count(*) FROM dispatches WHERE replay = 1")[0])
