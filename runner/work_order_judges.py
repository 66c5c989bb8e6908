"""The ``[[judges]]`` of a work order and of a judge work order: tables, or objects that were given from Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from ..ledger.canonical import JsonValue
from .protocols import GIVEN, Judge
from .work_order_files import Place, refuse_foreign
from .work_order_models import JudgeTable, RequireTable, check, shown_value

__all__ = ["AnyJudge", "JudgeSettings", "JudgeSpec", "foreign", "judge_table", "read_judges", "settings_of_judges"]

_OURS: Final = ("kind", "name", "samples", "require")


@attrs.frozen
class JudgeSettings:
    """What the work order asks of a judge beyond its kind.

    ``samples`` is how often it judges each observation, each time anew. ``require`` has the least values of its
    qualification (``accuracy``, ``kappa``) before its verdicts count; empty: nothing is required.
    """

    samples: int = 1
    require: Mapping[str, float] = attrs.field(factory=dict)


@attrs.frozen
class JudgeSpec:
    """A judge as a table; its name is its kind unless it says another."""

    kind: str
    name: str
    options: Mapping[str, JsonValue] = attrs.field(factory=dict)
    settings: JudgeSettings = JudgeSettings()


AnyJudge: TypeAlias = Judge | JudgeSpec


def read_judges(given: Sequence[Any], place: Place) -> tuple[AnyJudge, ...]:
    """Each judge once, under its name; raises WorkOrderInvalid."""
    found: dict[str, AnyJudge] = {}
    for index, one in enumerate(given):
        judge = _judge(one, place.at(index))
        if judge.name in found:
            place.at(index).refuse(f"a second judge is named {judge.name!r}", "Give each judge a name of its own")
        found[judge.name] = judge
    return tuple(found.values())


def settings_of_judges(judges: Iterable[AnyJudge]) -> dict[str, JudgeSettings]:
    """What is asked of each judge, by name; an object may say its own ``samples`` and ``require``."""
    return {judge.name: _settings(judge) for judge in judges}


def judge_table(judge: AnyJudge) -> dict[str, JsonValue]:
    """The table that `read_judges` reads back; an object is only told, and has to be given again."""
    more = _settings_table(_settings(judge))
    if isinstance(judge, JudgeSpec):
        return {"kind": judge.kind, "name": judge.name, **more, **judge.options}
    return {"kind": GIVEN, "name": judge.name, **more, "of": judge.kind, "identity": dict(judge.identity())}


def foreign(given: object, wanted: str) -> tuple[str, str]:
    """What is wrong with an object that is no target or judge, and the remedy."""
    if inspect.isroutine(given):
        return f"the function {given.__name__} is no {wanted} yet", f"Decorate it with @ts.{wanted}"
    return f"{shown_value(given)} is no {wanted}", f"Give a {wanted}, or a table with a kind"


def _judge(given: Any, place: Place) -> AnyJudge:
    if isinstance(given, Mapping):
        refuse_foreign(given, place=place)
        table = check(JudgeTable, given, place=place)
        require = {} if table.require is None else _required(table.require, place.at("require"))
        options = {key: value for key, value in given.items() if key not in _OURS}
        return JudgeSpec(table.kind, table.name or table.kind, options, JudgeSettings(table.samples, require))
    if not isinstance(given, JudgeSpec) and not callable(getattr(given, "identity", None)):
        place.refuse(*foreign(given, "judge"))
    judge: AnyJudge = given
    return judge


def _required(given: Mapping[str, Any], place: Place) -> dict[str, float]:
    table = check(RequireTable, given, place=place)
    found = table.model_dump(exclude_none=True)
    if not found:
        place.refuse("nothing is required here", "Write { accuracy = 0.9 }, or leave it out")
    return found


def _settings(judge: AnyJudge) -> JudgeSettings:
    if isinstance(judge, JudgeSpec):
        return judge.settings
    return JudgeSettings(int(getattr(judge, "samples", 1)), dict(getattr(judge, "require", {})))


def _settings_table(settings: JudgeSettings) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    if settings.samples != 1:
        found["samples"] = settings.samples
    if settings.require:
        found["require"] = dict(settings.require)
    return found
