"""Cases with several turns: the ``[conversation]`` table, and what it says once it was read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, TypedDict

import attrs

from ..ledger.canonical import JsonValue
from .protocols import GIVEN, User
from .work_order_files import Place, refuse_foreign
from .work_order_judges import foreign
from .work_order_models import ConversationTable, check

__all__ = [
    "TURNS_MAX",
    "Answering",
    "AnyUser",
    "ConversationOptions",
    "ConversationSpec",
    "GivenUser",
    "ResumeAt",
    "UserSpec",
    "conversation_limits",
    "conversation_table",
    "read_conversation",
    "with_limits",
]

TURNS_MAX: Final = 50
_USER_KEYS: Final = ("file", "arguments", "version")


class Answering(StrEnum):
    LAST = "last"  # the answer of the last turn
    ALL = "all"  # the list of all answers


class ResumeAt(StrEnum):
    AUTO = "auto"  # where its target can: history carried over, the newest checkpoint, else the beginning
    CHECKPOINT = "checkpoint"  # never by asking again what was answered: the case fails where there is no other way
    RESTART = "restart"  # at the beginning: every turn is asked again


class ConversationOptions(TypedDict, total=False):
    """The same keys for `WorkOrder` in Python."""

    turns: str
    user: User | str
    file: str
    arguments: Mapping[str, JsonValue]
    version: str
    turns_max: int
    answer: Literal["last", "all"]
    resume: Literal["auto", "checkpoint", "restart"]
    deadline_seconds: float


@attrs.frozen
class UserSpec:
    """A user function as a table; its keys are those of a Python target."""

    function: str
    options: Mapping[str, JsonValue] = attrs.field(factory=dict)


@attrs.frozen
class GivenUser:
    """A user function that was given from Python, and has to be given again."""

    told: Mapping[str, JsonValue]


AnyUser: TypeAlias = User | UserSpec | GivenUser


@attrs.frozen
class ConversationSpec:
    """The values in force, defaults included; ``docs/reference/work-order.md`` says what each means.

    Either ``turns`` (the path of a list of messages in the case's input) or ``user`` is set.
    """

    turns: str | None = None
    user: AnyUser | None = None
    turns_max: int = TURNS_MAX
    answer: Answering = Answering.LAST
    resume: ResumeAt = ResumeAt.AUTO
    deadline_seconds: float | None = None


def read_conversation(raw: object, *, place: Place) -> ConversationSpec | None:
    """The table as what it says, None where there is none; raises WorkOrderInvalid."""
    if raw is None:
        return None
    given, table = _checked(raw, place)
    said = [key for key in ("turns", "user", "given") if (given if key == "user" else getattr(table, key)) is not None]
    if len(said) != 1:
        what = f"{' and '.join(said)} exclude each other" if said else "nothing says what is said in it"
        place.refuse(what, "Give turns (the path of a list of messages in the input), or user (a Python function)")
    options: dict[str, JsonValue] = {key: getattr(table, key) for key in _USER_KEYS if key in table.model_fields_set}
    if options and not isinstance(given, str):
        key = next(iter(options))
        place.at(key).refuse("this belongs to a user function that is named", 'Name it: user = "module:function"')
    return ConversationSpec(
        table.turns, _user(given, table, options), table.turns_max, Answering(table.answer), ResumeAt(table.resume),
        table.deadline_seconds,
    )  # fmt: skip


def _checked(raw: object, place: Place) -> tuple[Any, ConversationTable]:
    """The user as it was given, an object perhaps, and the rest as a table."""
    given = raw.get("user") if isinstance(raw, Mapping) else None
    if given is None or isinstance(given, str):
        return given, check(ConversationTable, raw, place=place)
    assert isinstance(raw, Mapping)
    if not callable(getattr(given, "identity", None)):
        what, _ = foreign(given, "user")
        place.at("user").refuse(what, 'Decorate a function with @ts.user, or name one: user = "module:function"')
    rest = {key: value for key, value in raw.items() if key != "user"}
    refuse_foreign(rest, place=place)
    return given, check(ConversationTable, rest, place=place)


def _user(given: Any, table: ConversationTable, options: Mapping[str, JsonValue]) -> AnyUser | None:
    if table.given is not None:
        return GivenUser(table.given)
    if isinstance(given, str):
        return UserSpec(given, options)
    user: AnyUser | None = given
    return user


def conversation_table(spec: ConversationSpec) -> dict[str, JsonValue]:
    """The table that `read_conversation` reads back, every value written out; an object is only told."""
    table: dict[str, JsonValue] = {
        "turns_max": spec.turns_max, "answer": spec.answer.value, **conversation_limits(spec),
    }  # fmt: skip
    match spec.user:
        case None:
            return {"turns": spec.turns, **table}
        case UserSpec():
            return {"user": spec.user.function, **spec.user.options, **table}
        case GivenUser():
            return {"given": dict(spec.user.told), **table}
        case user:
            return {"given": {"kind": GIVEN, "of": user.kind, "identity": dict(user.identity())}, **table}


def conversation_limits(spec: ConversationSpec) -> dict[str, JsonValue]:
    """The keys that may change under a run."""
    limits: dict[str, JsonValue] = {"resume": spec.resume.value}
    if spec.deadline_seconds is not None:
        limits["deadline_seconds"] = spec.deadline_seconds
    return limits


def with_limits(spec: ConversationSpec, limits: Mapping[str, Any], *, place: Place) -> ConversationSpec:
    """The same under other limits, as `conversation_limits` tells them; raises WorkOrderInvalid."""
    table = check(ConversationTable, limits, place=place)
    return attrs.evolve(spec, resume=ResumeAt(table.resume), deadline_seconds=table.deadline_seconds)
