"""What is said in a conversation: by a script in the case, or by a user function; and what is observed of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs

from ..ledger.canonical import JsonValue, canonical_text, parse_json, printable
from .protocols import MISSING, Case, Exchange, Missing, Target, User
from .work_order import WorkOrder
from .work_order_conversation import Answering, ConversationSpec, GivenUser, UserSpec
from .work_order_files import Place

__all__ = [
    "Conversation",
    "Finder",
    "Observation",
    "PathMaker",
    "Said",
    "Unsayable",
    "UserMaker",
    "build_conversation",
    "build_user",
    "refuse_unfit_targets",
]

Finder: TypeAlias = "Callable[[JsonValue], JsonValue | Missing]"


class PathMaker(Protocol):
    """Compiles the path of a value in a JSON document; raises WorkOrderInvalid."""

    def __call__(self, text: str, *, place: str) -> Finder: ...


class UserMaker(Protocol):
    """Finds a user function by its name; ``options`` are the keys ``file``, ``arguments`` and ``version``."""

    def __call__(self, function: str, options: Mapping[str, Any], *, folder: Path, place: str) -> User: ...


class Unsayable(Exception):
    """There is no next message, and the conversation is not over; ``reason`` is a stable dotted token."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@attrs.frozen
class Said:
    """A committed turn as the runner holds it: values, not texts. ``source`` is as in the ledger's ``turns``."""

    message: JsonValue
    answer: JsonValue
    answer_digest: str
    evidence: Mapping[str, JsonValue] = attrs.field(factory=dict)
    flags: tuple[str, ...] = ()
    source: str = "wire"
    is_replay: bool = False

    @property
    def exchange(self) -> Exchange:
        """What its target's next request may tell of it."""
        return Exchange(self.message, self.answer)


@attrs.frozen
class Observation:
    """What is observed of a whole conversation."""

    answer: JsonValue
    evidence: dict[str, JsonValue]
    flags: tuple[str, ...]


@attrs.frozen
class Conversation:
    """What a work order's ``[conversation]`` comes to: a script, found by ``script`` in a case's input, or a user."""

    spec: ConversationSpec
    script: Finder | None = None
    user: User | None = None

    def messages_of(self, case: Case) -> Sequence[JsonValue]:
        """The case's script; raises Unsayable where there is none, or one that is too long."""
        assert self.script is not None
        found = self.script(case.input)
        if not isinstance(found, list | tuple) or not found:
            raise Unsayable("turns.missing", f"its input has no list of messages at {self.spec.turns}")
        if len(found) > self.spec.turns_max:
            raise Unsayable("turns.too_many", f"it has {len(found)} turns, and turns_max allows {self.spec.turns_max}")
        return found

    async def next_message(
        self, case: Case, history: Sequence[Exchange], *, deadline_seconds: float
    ) -> JsonValue | Missing:
        """What is said after these turns; MISSING where the conversation is over. Raises Unsayable."""
        if self.user is None:
            messages = self.messages_of(case)
            return messages[len(history)] if len(history) < len(messages) else MISSING
        if len(history) >= self.spec.turns_max:
            return MISSING
        said = await self._asked(self.user, case, history, deadline_seconds)
        if said is MISSING and not history:
            raise Unsayable("turns.missing", "its user function said nothing at all")
        return said

    async def _asked(
        self, user: User, case: Case, history: Sequence[Exchange], deadline_seconds: float
    ) -> JsonValue | Missing:
        known = Case(case.id, case.input, MISSING, case.metadata)
        try:
            said = await user.say(known, tuple(history), deadline_seconds=deadline_seconds)
            return said if isinstance(said, Missing) else parse_json(canonical_text(said))
        except TimeoutError as raised:
            raise Unsayable(
                "user.deadline", f"its user function said nothing within {deadline_seconds:g} s"
            ) from raised
        except Exception as raised:
            what = printable(f"{type(raised).__name__}: {raised}").splitlines()
            raise Unsayable("user.raised", f"its user function raised {what[0] if what else 'an error'}") from raised

    def is_last(self, case: Case, turn: int) -> bool:
        """Whether the conversation is known to be over once that turn is answered."""
        return turn >= (self.spec.turns_max if self.user is not None else len(self.messages_of(case)))

    def observed(self, turns: Sequence[Said]) -> Observation:
        """The observation of a conversation that is over: its answer, with every turn in the evidence."""
        last = turns[-1]
        is_last = self.spec.answer is Answering.LAST
        flags = last.flags if is_last else tuple(dict.fromkeys(flag for turn in turns for flag in turn.flags))
        if self.user is not None and len(turns) >= self.spec.turns_max:
            flags = (*flags, "turns_max")
        told: list[JsonValue] = [_told(number, turn) for number, turn in enumerate(turns, start=1)]
        answer = last.answer if is_last else [turn.answer for turn in turns]
        return Observation(answer, {**last.evidence, "turns": told}, flags)


def _told(number: int, turn: Said) -> JsonValue:
    told: dict[str, JsonValue] = {"turn": number, "message": turn.message, "answer": turn.answer}
    if turn.evidence:
        told["evidence"] = dict(turn.evidence)
    if turn.flags:
        told["flags"] = list(turn.flags)
    if turn.source != "wire":
        told["source"] = turn.source
    return {**told, "replay": True} if turn.is_replay else told


def build_conversation(order: WorkOrder, user: User | None, *, path: PathMaker) -> Conversation | None:
    """What the work order's conversation comes to, None where a case is one request; raises WorkOrderInvalid."""
    spec = order.conversation
    if spec is None:
        return None
    place = str(Place(order.source).at("conversation", "turns"))
    return Conversation(spec, None if spec.turns is None else path(spec.turns, place=place), user)


def build_user(order: WorkOrder, make: UserMaker) -> User | None:
    """The user of the work order's conversation, found and checked, None where it has none; raises a UsageError."""
    given = None if order.conversation is None else order.conversation.user
    place = Place(order.source).at("conversation", "user")
    match given:
        case None:
            return None
        case UserSpec():
            user = make(given.function, given.options, folder=order.folder, place=str(place))
        case GivenUser():
            place.refuse(
                "this user was given from Python",
                "Run the program again that began the run, or give the same user to ts.resume",
            )
        case _:
            user = given
    user.check()
    return user


def refuse_unfit_targets(order: WorkOrder, targets: Mapping[str, Target]) -> None:
    """Refuse a target that would not hear what is said, and one that asks for a turn where there is none.

    A target says of itself: ``takes_turns``, whether its request depends on the turn's message; ``needs_turns``,
    whether it cannot be asked outside of a conversation. One that says nothing is taken at its word.
    """
    for name, target in targets.items():
        place = Place(order.source).at("variants", name, "target")
        if order.conversation is not None and not getattr(target, "takes_turns", True):
            place.refuse(
                "nothing of what is said in a turn would reach it",
                "Put {{message}} or {{history}} into its request, or give its function a parameter named turn",
            )
        if order.conversation is None and getattr(target, "needs_turns", False):
            place.refuse(
                "it asks for the turn of a conversation, and the cases are single requests",
                "Add a [conversation], or ask for {{input}} instead",
            )
