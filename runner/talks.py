"""Where a conversation stands: what earlier attempts at it left, and what the one that goes on has come to."""

from __future__ import annotations

import math
from typing import Any

import attrs

from ..ledger.canonical import JsonValue, canonical_text, parse_json
from ..ledger.ledger import Reader
from ..ledger.records import DispatchKey, PendingSlot
from ..ledger.states import AttemptState, IfUnknown
from ..ledger.turns import SessionRow, TurnRow, replays_of, sessions_of
from .call_steps import Asking
from .conversations import Said, Unsayable
from .device_protocols import CHECKPOINT_REFUSED, ConversationTarget, Resuming
from .protocols import MISSING, Case, Exchange, Missing, SlotView, Target, Turn
from .work_order_conversation import ResumeAt

__all__ = ["Past", "Start", "Talk", "read_past", "resuming_of", "start_after"]


@attrs.frozen
class Past:
    """What the newest session of a slot left.

    ``checkpoints`` has the digest of each turn's checkpoint, None where it has none. ``asked`` is the message of a turn
    that was asked and has no answer, and may have happened where the attempt ``is_unknown``. ``reason`` is why the
    attempt ended. Up to turn ``replays`` some attempt of the slot has an answer.
    """

    attempt_no: int
    turns: tuple[Said, ...]
    checkpoints: tuple[str | None, ...]
    asked: JsonValue | Missing
    is_unknown: bool
    reason: str
    replays: int


@attrs.frozen
class Start:
    """Where a new attempt begins: after so many turns that it carries over, restored from a checkpoint's digest."""

    carried: int = 0
    checkpoint: str | None = None


@attrs.define
class Talk:
    """A conversation while an attempt at it goes on, in this process alone; what is durable stands in the ledger.

    ``message`` is that of the turn which is asked now, and stays until it is answered. ``attempt`` is None until the
    attempt is begun; ``last_call`` brought the newest committed answer. ``is_live``: this process has begun the
    session on a target that keeps state, and has not left it. ``is_between``: the attempt runs, and none of its calls
    is under way. ``ends`` is when its whole time is over, as `time.monotonic` tells it.
    """

    slot: PendingSlot
    asking: Asking
    solitary: bool
    session: str
    past: Past | None
    start: Start = Start()
    turns: list[Said] = attrs.field(factory=list)
    message: JsonValue | Missing = MISSING
    attempt: DispatchKey | None = None
    last_call: DispatchKey | None = None
    is_live: bool = False
    is_between: bool = False
    nevers: int = 0
    ends: float = math.inf

    @property
    def case(self) -> Case:
        return self.asking.view.case

    @property
    def number(self) -> int:
        """Of the next turn, from 1."""
        return len(self.turns) + 1

    @property
    def is_replay(self) -> bool:
        """Whether the next turn was answered before, in an earlier attempt."""
        return self.past is not None and self.number <= self.past.replays

    @property
    def keeps_state(self) -> bool:
        """Whether its target keeps something of the conversation between two turns."""
        return resuming_of(self.asking.side.target) is not Resuming.HISTORY

    @property
    def history(self) -> tuple[Exchange, ...]:
        """The committed turns of this attempt, as requests and a user function see them."""
        return tuple(turn.exchange for turn in self.turns)

    def asking_now(self, message: JsonValue) -> Asking:
        """Whom the next turn asks, with what it says."""
        turn = Turn(self.session, self.number, message, self.history)
        view: SlotView = attrs.evolve(self.asking.view, turn=turn)
        return attrs.evolve(self.asking, view=view)

    def known_message(self) -> JsonValue | Missing:
        """What was said at this place before, with the very same history; MISSING where it has to be asked for."""
        if not isinstance(self.message, Missing):
            return self.message
        past, count = self.past, len(self.turns)
        if past is None or not all(map(_is_same, self.turns, past.turns)) or count > len(past.turns):
            return MISSING
        return past.asked if count == len(past.turns) else past.turns[count].message


def _is_same(now: Said, then: Said) -> bool:
    return now.answer_digest == then.answer_digest and canonical_text(now.message) == canonical_text(then.message)


def resuming_of(target: Target) -> Resuming:
    """How the target's conversations go on; any ordinary target is told the whole history."""
    return target.resuming if isinstance(target, ConversationTarget) else Resuming.HISTORY


def start_after(past: Past | None, target: Target, resume: ResumeAt) -> Start:
    """Where a new attempt begins; raises Unsayable where only turns could be asked again and none may."""
    if past is None or not past.turns or resume is ResumeAt.RESTART:
        return Start()
    count = len(past.turns)
    match resuming_of(target):
        case _ if past.is_unknown and target.if_unknown is IfUnknown.RESTART:
            found = Start()  # what became of the unknown turn may have changed all that came before it
        case Resuming.HISTORY:
            return Start(count)
        case Resuming.CHECKPOINT if past.reason != CHECKPOINT_REFUSED:
            kept = max((number for number, digest in enumerate(past.checkpoints, 1) if digest is not None), default=0)
            found = Start(kept, past.checkpoints[kept - 1] if kept else None)
        case _:
            found = Start()
    if found.carried < count and resume is ResumeAt.CHECKPOINT:
        raise Unsayable(
            "checkpoint.missing",
            f"it has {count} answered turns, and its target can go on after {found.carried} of them;"
            ' with resume = "auto" the others are asked again',
        )
    return found


def read_past(reader: Reader, run_key: int, slot_no: int) -> Past | None:
    """What earlier attempts at the slot's conversation left, None where there was none."""
    sessions = sessions_of(reader, run_key, slot_no)
    if not sessions:
        return None
    newest = sessions[max(sessions)]
    asked: JsonValue | Missing = MISSING
    if newest.turn > len(newest.turns) and newest.message is not None:
        asked = parse_json(newest.message)
    return Past(
        newest.attempt_no,
        tuple(_said(row, sessions) for row in newest.turns),
        tuple(row.checkpoint for row in newest.turns),
        asked,
        newest.state == AttemptState.UNKNOWN,
        newest.reason,
        replays_of(reader, run_key, slot_no),
    )


def _said(row: TurnRow, sessions: dict[int, SessionRow]) -> Said:
    evidence: Any = parse_json(row.evidence)
    flags: Any = parse_json(row.flags)
    origin = row
    if row.carried_from is not None:
        origin = sessions[row.carried_from].turns[row.turn - 1]
    return Said(
        parse_json(row.message), parse_json(row.answer), row.answer_digest, evidence, tuple(flags), origin.source,
        origin.replay,
    )  # fmt: skip
