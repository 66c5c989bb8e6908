"""A target that keeps the state of its sessions, and does with each turn what a test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from tallystick.ledger.canonical import JsonValue, canonical_bytes, parse_json
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.runner.device_protocols import SESSION_LOST, Resuming
from tallystick.runner.protocols import (
    Dispatching,
    Outcome,
    Prepared,
    QueryAnswer,
    QueryState,
    SlotView,
    Turn,
)
from tallystick.runner.work_order import WorkOrder

Rule = Callable[["Talker", Turn], Awaitable[Outcome | None]]


async def plain(target: Talker, turn: Turn) -> Outcome | None:
    """Nothing special: the turn is answered."""
    return None


@attrs.define(eq=False)
class Talker:
    """Answers each turn with all that was said in its session, joined by "+"; ``rule`` may answer otherwise before.

    ``asked`` has ``(session, turn, message)`` of every dispatch; ``told`` what each request told of the history.
    """

    resuming: Resuming = Resuming.HISTORY
    rule: Rule = plain
    if_unknown: IfUnknown = IfUnknown.REPEAT
    begins: list[Outcome] = attrs.field(factory=list)
    query_answer: QueryAnswer = QueryAnswer(QueryState.NO_PROOF)
    kind: str = "talker"
    key_valid_seconds: float | None = None
    is_wire_visible: bool = True
    asked: list[tuple[str, int, JsonValue]] = attrs.field(factory=list)
    told: list[list[JsonValue]] = attrs.field(factory=list)
    said: dict[str, list[str]] = attrs.field(factory=dict)
    begun: list[tuple[str, int, bytes | None]] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)
    queries: int = 0

    def identity(self) -> Mapping[str, JsonValue]:
        return {"talker": True}

    def check(self) -> None:
        """Everything is here."""

    def prepare(self, slot: SlotView) -> Prepared:
        turn = slot.turn
        assert turn is not None
        history: list[JsonValue] = [[one.message, one.answer] for one in turn.history]
        return Prepared(
            canonical_bytes({"session": turn.session, "turn": turn.number, "message": turn.message, "history": history})
        )

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        told: Any = parse_json(prepared.payload)
        turn = dispatching.slot.turn
        assert turn is not None
        self.asked.append((told["session"], told["turn"], told["message"]))
        self.told.append([answer for _, answer in told["history"]])
        dispatching.progress.bytes_sent = 1
        ruled = await self.rule(self, turn)
        return self.answered(turn, [*self.told[-1], told["message"]]) if ruled is None else ruled

    def answered(self, turn: Turn, heard: list[Any]) -> Outcome:
        if self.resuming is Resuming.HISTORY:
            return Outcome(DispatchState.ANSWERED, answer=f"{turn.message}", bytes_sent=1)
        if turn.session not in self.said:
            return Outcome(DispatchState.REFUSED, SESSION_LOST, "no such session")
        self.said[turn.session].append(str(heard[-1]))
        state = "+".join(self.said[turn.session])
        checkpoint = state.encode() if self.resuming is Resuming.CHECKPOINT else None
        return Outcome(DispatchState.ANSWERED, answer=state, bytes_sent=1, checkpoint=checkpoint)

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:
        self.queries += 1
        return self.query_answer

    async def begin_session(self, turn: Turn, checkpoint: bytes | None) -> Outcome:
        self.begun.append((turn.session, turn.number, checkpoint))
        outcome = self.begins.pop(0) if self.begins else Outcome(DispatchState.ANSWERED, answer=None)
        if outcome.state is DispatchState.ANSWERED:
            self.said[turn.session] = checkpoint.decode().split("+") if checkpoint else []
        return outcome

    async def end_session(self, session: str) -> None:
        self.ended.append(session)
        self.said.pop(session, None)


def talks(target: Any, *messages: JsonValue, cases: int = 1, **options: Any) -> WorkOrder:
    """A work order for conversations of these messages."""
    settings = {"backoff": {"first_seconds": 0.001, "max_seconds": 0.002}, "concurrency": 1, "grace_seconds": 0.2}
    rows: list[Mapping[str, JsonValue]] = [
        {"id": f"c{number}", "input": {"turns": list(messages)}} for number in range(cases)
    ]
    rows = options.pop("rows", rows)
    conversation = options.pop("conversation", {"turns": "$.turns"})
    name = options.pop("name", "talks")
    return WorkOrder(name, cases=rows, target=target, conversation=conversation, **{**settings, **options})
