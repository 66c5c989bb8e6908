"""The tables of a work order, as they are written: one pydantic model each, with no unknown key allowed.

Every field says what it means and which class its key has (`KeyClass`); ``docs/reference/work-order.md`` is made from
that. Targets and judges are checked here for their ``kind`` alone: the rest of their table belongs to their adapter.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..ledger.canonical import printable
from ..ledger.states import BudgetKind
from .words import nearest
from .work_order_case_models import CasesTable, ColumnsTable, SplitTable
from .work_order_files import Place
from .work_order_keys import KeyClass, Name, Table, a_name
from .work_order_keys import key as _key

__all__ = [
    "TABLES",
    "BackoffTable",
    "BudgetTable",
    "CasesTable",
    "ColumnsTable",
    "ConversationTable",
    "DeviceTable",
    "ExecutionTable",
    "ForkTable",
    "GatesTable",
    "JudgeOrderTable",
    "JudgeTable",
    "KeyClass",
    "OrderTable",
    "RequireTable",
    "SplitTable",
    "TargetTable",
    "UnitBudgetTable",
    "VariantTable",
    "a_name",
    "check",
    "shown_value",
]

T = TypeVar("T", bound=BaseModel)


class OrderTable(Table):
    version: Literal[1] = _key(..., KeyClass.FORM, "Version of the work order's form.")
    name: Name = _key(..., KeyClass.IDENTITY, "Name of the run, for people and for `resume`.")
    cases: dict[str, Any] = _key(..., KeyClass.IDENTITY, "What is asked: a file, or the cases themselves.")
    target: dict[str, Any] | None = _key(
        None, KeyClass.IDENTITY, "The one target; it makes one variant, `default`. Instead of `variants`."
    )
    variants: dict[str, Any] | None = _key(
        None, KeyClass.IDENTITY, "Several targets, one table `[variants.NAME.target]` each. Instead of `target`."
    )
    grid: dict[str, Any] | None = _key(
        None, KeyClass.FORM, "Axes of values for keys of the target: one variant for each combination of them."
    )
    judges: list[dict[str, Any]] = _key(
        [], KeyClass.EVALUATION, "What is said of each observation, one table `[[judges]]` each."
    )
    budgets: Any = _key(
        {},
        KeyClass.LIMIT,
        "How much may be used: one table `[budgets]`, or several `[[budgets]]`.",
        form="table, or list of tables",
    )
    prices: str | dict[str, Any] | None = _key(
        None,
        KeyClass.LIMIT,
        "What tokens cost: a price file, or its table; for targets and judges without their own.",
        form="text, or table",
    )
    execution: dict[str, Any] = _key({}, KeyClass.LIMIT, "How the run is executed.")
    device: dict[str, Any] = _key({}, KeyClass.LIMIT, "How devices are held; for targets that work on one.")
    fork: dict[str, Any] = _key({}, KeyClass.LIMIT, "What `fork` does with what the earlier run has.")
    conversation: dict[str, Any] | None = _key(
        None, KeyClass.IDENTITY, "What is said in each case, turn after turn. Without it a case is one request."
    )
    gates: dict[str, Any] | None = _key(None, KeyClass.LIMIT, "What `tallystick gate` holds the run to.")


class VariantTable(Table):
    target: dict[str, Any] = _key(..., KeyClass.IDENTITY, "The variant's target.")


class TargetTable(Table):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)
    kind: Name = _key(
        ..., KeyClass.IDENTITY, "Which adapter it is: `python`, `http`, `process`, …; it owns the other keys."
    )


class JudgeTable(Table):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)
    kind: Name = _key(..., KeyClass.EVALUATION, "Which judge it is: `exact`, `contains`, …; it owns the other keys.")
    name: Name | None = _key(None, KeyClass.EVALUATION, "What it is called in reports; its kind where absent.")
    samples: int = _key(1, KeyClass.EVALUATION, "How often it judges each observation, each time anew.", ge=1, le=1000)
    require: dict[str, Any] | None = _key(
        None, KeyClass.LIMIT, "What its qualification has to reach before its verdicts count."
    )


class RequireTable(Table):
    accuracy: float | None = _key(
        None, KeyClass.LIMIT, "The least part of the labelled observations that it judges as they are labelled.",
        gt=0, le=1,
    )  # fmt: skip
    accuracy_low: float | None = _key(
        None, KeyClass.LIMIT, "The same for the lower end of the 95 % interval.", gt=0, le=1
    )
    kappa: float | None = _key(None, KeyClass.LIMIT, "The least agreement beyond chance (Cohen).", gt=0, le=1)
    coverage: float | None = _key(
        None, KeyClass.LIMIT, "The least part of the labelled observations that it gives a verdict on.", gt=0, le=1
    )
    labels: int | None = _key(None, KeyClass.LIMIT, "The least number of labelled observations.", ge=1)


class JudgeOrderTable(Table):
    """A judge work order: what judges observations that are there already."""

    version: Literal[1] = _key(..., KeyClass.FORM, "Version of the judge work order's form.")
    name: Name = _key(..., KeyClass.FORM, "Name of the evaluation, for people and for reports.")
    judges: list[dict[str, Any]] = _key(
        ..., KeyClass.EVALUATION, "What judges each observation, one table `[[judges]]` each."
    )
    cache: bool = _key(
        True, KeyClass.THROUGHPUT, "Whether a verdict that was given on the very same is used again, without a call."
    )
    budgets: Any = _key(
        {},
        KeyClass.LIMIT,
        "How much this evaluation may use, beside what the run's own budgets allow.",
        form="table, or list of tables",
    )
    prices: str | dict[str, Any] | None = _key(
        None,
        KeyClass.LIMIT,
        "What tokens cost: a price file, or its table; for judges without their own.",
        form="text, or table",
    )
    execution: dict[str, Any] = _key({}, KeyClass.LIMIT, "How the evaluation is executed: the keys of `[execution]`.")


class BudgetTable(Table):
    """One budget under its unit's key."""

    limit: Any = _key(..., KeyClass.LIMIT, "The most that may be used, in the unit of the key.", form="amount")
    kind: Literal["hard", "soft"] = _key(
        BudgetKind.HARD.value,
        KeyClass.LIMIT,
        "`hard`: set aside before each dispatch, never passed. `soft`: stops new work once reached, may be overrun.",
    )
    bound_per_dispatch: Any = _key(
        None,
        KeyClass.LIMIT,
        "The most that one dispatch can use. A hard budget needs it, save of `dispatches` or where targets tell it.",
        form="amount",
    )
    per: Literal["run", "role", "variant"] = _key(
        "run", KeyClass.LIMIT, "`role`, `variant`: the same budget once for each role or each variant."
    )
    role: Literal["target", "judge", "device"] | None = _key(
        None, KeyClass.LIMIT, "For this role alone. Instead of `per`."
    )
    variant: str | None = _key(None, KeyClass.LIMIT, "For this variant alone. Instead of `per`.")


class UnitBudgetTable(BudgetTable):
    """One budget of the array form."""

    unit: Literal["dispatches", "tokens_in", "tokens_out", "tokens", "usd", "seconds"] = _key(
        ..., KeyClass.LIMIT, "What is counted; the keys of the table form `[budgets]`."
    )


class ExecutionTable(Table):
    concurrency: int = _key(8, KeyClass.THROUGHPUT, "How many attempts are under way at once.", ge=1, le=100_000)
    deadline_seconds: float = _key(120.0, KeyClass.LIMIT, "The whole time that one attempt may take.", gt=0)
    attempts_max: int = _key(
        3, KeyClass.LIMIT, "How many attempts a slot may have: the first, repeats, retries.", ge=1, le=1000
    )
    dispatches_max: int = _key(
        5, KeyClass.LIMIT, "How often one call may be sent while its target refuses it.", ge=1, le=1000
    )
    retry: list[Annotated[str, Field(min_length=1)]] = _key(
        [],
        KeyClass.LIMIT,
        "Reasons of a failure that get a new attempt: a whole reason, its beginning before a dot, or `*` for all.",
    )
    solitary_deaths_max: int = _key(
        3,
        KeyClass.LIMIT,
        "How often a case may kill its process while it is alone, before it is parked.",
        ge=1,
        le=1000,
    )
    backoff: dict[str, Any] = _key({}, KeyClass.THROUGHPUT, "How long to wait before the next dispatch or attempt.")
    rate_per_second: float | None = _key(
        None, KeyClass.THROUGHPUT, "The most dispatches that begin in a second; no limit where absent.", gt=0
    )
    grace_seconds: float = _key(
        10.0, KeyClass.THROUGHPUT, "How long the first Ctrl-C waits for what is under way.", ge=0
    )


class BackoffTable(Table):
    first_seconds: float = _key(
        1.0, KeyClass.THROUGHPUT, "The longest first wait; the next may be twice as long.", gt=0
    )
    max_seconds: float = _key(60.0, KeyClass.THROUGHPUT, "The longest wait of all.", gt=0)


class DeviceTable(Table):
    lease_seconds: float = _key(
        30.0,
        KeyClass.THROUGHPUT,
        "How long a lease lasts unless it is renewed, which is done after each third of it; how long a runner that"
        " hangs may keep a device that compares fences.",
        ge=0.5,
        le=3600,
    )
    tenure_seconds: float = _key(
        60.0,
        KeyClass.THROUGHPUT,
        "How long the run keeps a device that another runner waits for; it lets go between two attempts.",
        ge=0,
        le=86_400,
    )
    on_reboot: Literal["refuse", "new_generation"] = _key(
        "refuse",
        KeyClass.LIMIT,
        "What to do when a device has rebooted since this run saw it: end the session, or record it and go on.",
    )


class ForkTable(Table):
    budgets: Literal["new", "continue"] = _key(
        "new",
        KeyClass.LIMIT,
        "`new`: a fork has the whole limits. `continue`: what the earlier run has used or holds counts against them.",
    )
    failed: Literal["again", "keep"] = _key(
        "again",
        KeyClass.LIMIT,
        "What failed in the earlier run: `again` asks, and pays, for it again, `keep` leaves it failed in the fork.",
    )


class ConversationTable(Table):
    turns: Annotated[str, Field(min_length=1)] | None = _key(
        None,
        KeyClass.IDENTITY,
        "Path of a list of messages in the case's input (`$.turns`): what is said in each turn. Instead of `user`.",
    )
    user: Annotated[str, Field(min_length=1)] | None = _key(
        None,
        KeyClass.IDENTITY,
        "Python function (`module:name`, or a name in `file`) that says the next message from what was answered.",
    )
    file: Annotated[str, Field(min_length=1)] | None = _key(
        None, KeyClass.IDENTITY, "Python file of `user`, relative to the work order's folder."
    )
    arguments: dict[str, Any] = _key({}, KeyClass.IDENTITY, "Passed to `user` by name.")
    version: str | None = _key(
        None, KeyClass.IDENTITY, "Stands for the code of `user` in the run's identity, instead of its digest."
    )
    given: dict[str, Any] | None = _key(
        None, KeyClass.FORM, "Written by tallystick into the ledger where the user function was given from Python."
    )
    turns_max: int = _key(50, KeyClass.IDENTITY, "The most turns of a conversation; then it is over.", ge=1, le=10_000)
    answer: Literal["last", "all"] = _key(
        "last",
        KeyClass.IDENTITY,
        "What the observation's answer is: that of the last turn, or the list of all. The evidence has all turns.",
    )
    resume: Literal["auto", "checkpoint", "restart"] = _key(
        "auto",
        KeyClass.LIMIT,
        "Where a conversation that broke off goes on: `auto` as its target can, `checkpoint` never by asking again what"
        " was answered, `restart` always at the beginning.",
    )
    deadline_seconds: float | None = _key(
        None,
        KeyClass.LIMIT,
        "The whole time that one attempt at a conversation may take; no limit where absent. That of `[execution]`"
        " counts for each turn.",
        gt=0,
    )


class GatesTable(Table):
    baseline: Annotated[str, Field(min_length=1)] | None = _key(
        None,
        KeyClass.LIMIT,
        "What it is compared to: a variant, or another run as `compare` names it. Where absent and a gate"
        " compares, the first variant of several.",
    )
    variant: str | None = _key(
        None, KeyClass.LIMIT, "The one variant that is held to the gates; all but the baseline where absent."
    )
    decide_by: Literal["value", "interval"] = _key(
        "value",
        KeyClass.LIMIT,
        "`value`: the figure itself decides. `interval`: its whole interval must be on one side of the limit, else the"
        " gate is inconclusive.",
    )
    min_coverage: float = _key(
        1.0,
        KeyClass.LIMIT,
        "What share of the planned observations must have a verdict; below it every gate on it is inconclusive.",
        ge=0,
        le=1,
    )
    min_score: Any = _key(
        None,
        KeyClass.LIMIT,
        "The least mean score of each judge, or the least share passed where a judge gives no scores.",
        form="number, or table of numbers by judge",
    )
    min_pass_rate: Any = _key(
        None, KeyClass.LIMIT, "The least share passed of each judge.", form="number, or table of numbers by judge"
    )
    max_regression: Any = _key(
        None,
        KeyClass.LIMIT,
        "How far below the baseline's a judge's figure may be, over pairs of the same case and repetition.",
        form="number, or table of numbers by judge",
    )
    max_slowdown: float | None = _key(
        None, KeyClass.LIMIT, "How many times the baseline's median duration the median may be, over pairs.", gt=0
    )
    max_median_seconds: float | None = _key(None, KeyClass.LIMIT, "The longest median duration.", gt=0)
    max_p95_seconds: float | None = _key(
        None, KeyClass.LIMIT, "The longest duration of the quickest 95 % of observations.", gt=0
    )
    max_failed: int | None = _key(None, KeyClass.LIMIT, "How many planned observations may have failed.", ge=0)
    max_unknown: int | None = _key(None, KeyClass.LIMIT, "How many planned observations may be unknown.", ge=0)
    max_usd: Any = _key(
        None, KeyClass.LIMIT, "What the run may have cost, its judges too; inconclusive where a cost is unknown.",
        form="amount",
    )  # fmt: skip


TABLES: Final[Mapping[str, type[Table]]] = {
    "": OrderTable,
    "cases": CasesTable,
    "cases.columns": ColumnsTable,
    "cases.split": SplitTable,
    "variants.NAME": VariantTable,
    "target": TargetTable,
    "judges[]": JudgeTable,
    "judges[].require": RequireTable,
    "(judge work order)": JudgeOrderTable,
    "budgets.UNIT": BudgetTable,
    "budgets[]": UnitBudgetTable,
    "execution": ExecutionTable,
    "execution.backoff": BackoffTable,
    "device": DeviceTable,
    "fork": ForkTable,
    "conversation": ConversationTable,
    "gates": GatesTable,
}


def check(model: type[T], raw: object, *, place: Place) -> T:
    """The table as a model; raises WorkOrderInvalid for its first fault (unknown keys before all others)."""
    if not isinstance(raw, Mapping):
        place.refuse("a table of keys is wanted here", f"Its keys: {', '.join(model.model_fields)}")
    try:
        return model.model_validate(dict(raw))
    except ValidationError as cause:
        faults = sorted(cause.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
        fault = faults[0]
        what, remedy = _told(fault, model)
        keys = [key for key in fault["loc"] if not (isinstance(key, str) and "[" in key)]
        place.at(*_standing(keys, raw, is_missing=fault["type"] == "missing")).refuse(what, remedy)


def _standing(keys: Sequence[int | str], raw: Any, *, is_missing: bool) -> list[int | str]:
    """Without what pydantic adds for unions, so that only keys are named that stand in the text."""
    if is_missing:
        return list(keys)
    standing: list[int | str] = []
    for key in keys:
        is_there = key in raw if isinstance(raw, Mapping) else isinstance(raw, list) and isinstance(key, int)
        if is_there:
            raw = raw[key]
            standing.append(key)
    return standing


def _told(fault: Mapping[str, Any], model: type[BaseModel]) -> tuple[str, str]:
    key = str(fault["loc"][-1]) if fault["loc"] else ""
    kind, context, shown = fault["type"], fault.get("ctx", {}), shown_value(fault["input"])
    match kind:
        case "extra_forbidden":
            return "there is no such key", nearest(key, model.model_fields)
        case "missing":
            return "this key is missing", _addition(key, model)
        case "literal_error":
            return f"{shown} is not known here", "Write " + context["expected"].replace("'", '"')
        case "value_error":
            return f"{shown} cannot stand here", f"Write another: {context['error']}"
        case "list_type" if isinstance(fault["input"], Mapping):
            return f"{shown} is no list", f"Write a list; of tables, each begins with [[{key}]], in two brackets"
        case _ if kind in _WANTED:
            wanted, remedy = _WANTED[kind]
            return f"{shown} is {wanted}", remedy.format(**context)
        case _:
            return f"{shown} cannot stand here: {fault['msg'][:1].lower()}{fault['msg'][1:]}", "Correct it"


def _addition(key: str, model: type[BaseModel]) -> str:
    field = model.model_fields[key]
    if typing.get_origin(field.annotation) is Literal and len(only := typing.get_args(field.annotation)) == 1:
        return f"Write {key} = {json.dumps(only[0])}"
    return f"Add it: {field.description}".replace("`", '"')


# pydantic's type of a fault: what the value is, and the remedy.
_WANTED: Final[Mapping[str, tuple[str, str]]] = {
    "int_type": ("no whole number", "Write a whole number"),
    "float_type": ("no number", "Write a number"),
    "string_type": ("no text", "Write text in quotes"),
    "string_unicode": ("text that UTF-8 cannot hold", "Take out the lone surrogates"),
    "string_too_short": ("empty", "Write some text"),
    "string_too_long": ("too long", "Write {max_length} or fewer characters"),
    "list_type": ("no list", "Write a list in square brackets"),
    "dict_type": ("no table", "Write a table of keys"),
    "greater_than_equal": ("too small", "Write {ge:g} or more"),
    "greater_than": ("too small", "Write more than {gt:g}"),
    "less_than_equal": ("too large", "Write {le} or less"),
    "less_than": ("too large", "Write less than {lt}"),
}


def shown_value(value: object) -> str:
    """A value for people: one line, as JSON writes it, cut where it is long."""
    text = printable(json.dumps(value, ensure_ascii=False, default=repr))
    return text if len(text) <= 60 else text[:57] + "..."
