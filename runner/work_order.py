"""The work order: what to run, on which targets, how often, how judged, within which limits.

Read from a file by `load_work_order`, made in Python by `WorkOrder`, kept in a ledger as the document of
`WorkOrder.to_document`, which is itself a work order in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, Unpack

import attrs

from ..ledger.canonical import JsonValue
from .budget_spec import BudgetSpec
from .case_files import CaseSource
from .price_use import WrittenPrices
from .protocols import GIVEN, Target
from .report_options import SliceTerm
from .work_order_budgets import budget_tables, read_budgets
from .work_order_cases import GivenCases, cases_table, narrowed, source_of
from .work_order_cases import cases as read_cases
from .work_order_conversation import (
    AnyUser,
    ConversationOptions,
    ConversationSpec,
    conversation_table,
    read_conversation,
)
from .work_order_device import DeviceOptions, DeviceSpec, device_table, read_device
from .work_order_execution import ExecutionOptions, ExecutionSpec, execution_table, read_execution
from .work_order_files import Place, parse_work_order, read_text, refuse_foreign
from .work_order_fork import ForkOptions, ForkSpec, fork_table, read_fork
from .work_order_gates import GatesSpec, gates_table, read_gates
from .work_order_grid import grid_tables
from .work_order_judges import AnyJudge, JudgeSpec, foreign, judge_table, read_judges
from .work_order_models import CasesTable, OrderTable, TargetTable, VariantTable, a_name, check, shown_value

__all__ = [
    "DEFAULT_VARIANT",
    "BudgetSpec",
    "ExecutionSpec",
    "JudgeSpec",
    "TargetSpec",
    "WorkOrder",
    "load_work_order",
]

DEFAULT_VARIANT: Final = "default"


@attrs.frozen
class TargetSpec:
    """A target as a table: its adapter's ``kind``, and the keys that are the adapter's own."""

    kind: str
    options: Mapping[str, JsonValue] = attrs.field(factory=dict)


AnyTarget: TypeAlias = Target | TargetSpec


@attrs.frozen(init=False)
class WorkOrder:
    """A work order, whole and checked; its cases are read only when they are gone through.

    ``variants`` are targets (objects with an ``identity()``) or tables with a ``kind``; ``target`` alone makes one
    variant, ``default``, and with ``grid``, written as in ``[grid]``, one for each combination of values.
    Budgets are written as in ``[budgets]`` or ``[[budgets]]``, ``device`` as in ``[device]``,
    ``conversation`` as in ``[conversation]`` (its ``user`` may be a function decorated with ``@ts.user``), ``gates`` as
    in ``[gates]``, ``fork`` as in ``[fork]``, the other options as in ``[execution]``. ``folder`` is where relative
    paths begin, ``source`` what faults are reported under.
    Raises WorkOrderInvalid.
    """

    name: str
    cases: CaseSource
    repetitions: int
    variants: Mapping[str, AnyTarget]
    judges: tuple[AnyJudge, ...]
    budgets: tuple[BudgetSpec, ...]
    execution: ExecutionSpec
    device: DeviceSpec
    conversation: ConversationSpec | None
    gates: GatesSpec | None
    prices: WrittenPrices | None
    fork: ForkSpec
    folder: Path = attrs.field(eq=False)
    source: str = attrs.field(eq=False)

    def __init__(
        self,
        name: str,
        *,
        cases: GivenCases,
        target: AnyTarget | Mapping[str, JsonValue] | None = None,
        variants: Mapping[str, AnyTarget | Mapping[str, JsonValue]] | None = None,
        grid: Mapping[str, object] | None = None,
        repetitions: int = 1,
        judges: Sequence[AnyJudge | Mapping[str, JsonValue]] = (),
        budgets: Mapping[str, object] | Sequence[object] = (),
        device: DeviceOptions | None = None,
        conversation: ConversationOptions | None = None,
        gates: Mapping[str, object] | None = None,
        prices: WrittenPrices | None = None,
        fork: ForkOptions | None = None,
        folder: str | Path = "",
        **execution: Unpack[ExecutionOptions],
    ) -> None:
        root = Place(f"WorkOrder({name!r})")
        written = dict(prices) if isinstance(prices, Mapping) else prices
        table = check(OrderTable, {"version": 1, "name": name, "cases": {}, "prices": written}, place=root)
        asked = check(CasesTable, {"repetitions": repetitions}, place=root)
        sides = _variants(target, variants, root, grid=grid)
        judged = read_judges(judges, root.at("judges"))
        self.__attrs_init__(
            name=table.name,
            cases=read_cases(cases),
            repetitions=asked.repetitions,
            variants=sides,
            judges=judged,
            budgets=read_budgets(budgets, variants=list(sides), place=root.at("budgets"), may_be_told=True),
            execution=read_execution(dict(execution), place=root),
            device=read_device(device or {}, place=root.at("device")),
            conversation=read_conversation(conversation, place=root.at("conversation")),
            gates=_read_gates(gates, sides, judged, root),
            prices=table.prices,
            fork=read_fork(fork or {}, place=root.at("fork")),
            folder=Path(folder),
            source=root.source,
        )

    @classmethod
    def from_document(
        cls,
        document: Mapping[str, Any],
        *,
        source: str = "work order",
        folder: str | Path = "",
        cases: GivenCases | None = None,
        targets: Mapping[str, AnyTarget] | None = None,
        judges: Mapping[str, AnyJudge] | None = None,
        user: AnyUser | None = None,
    ) -> WorkOrder:
        """The work order that a document says.

        What was given from Python (cases, targets by variant, judges by name, a conversation's user) can be given
        again here; where it is not, the work order can still be read, and `build_targets` tells what is missing.
        Raises WorkOrderInvalid.
        """
        root = Place(source)
        refuse_foreign(document, place=root)
        made = _read(document, root, Path(folder))
        talk = made.conversation
        return made.replaced(
            cases=made.cases if cases is None else read_cases(cases),
            variants={name: (targets or {}).get(name, target) for name, target in made.variants.items()},
            judges=tuple((judges or {}).get(judge.name, judge) for judge in made.judges),
            conversation=talk if talk is None or user is None else attrs.evolve(talk, user=user),
        )

    def to_document(self) -> dict[str, JsonValue]:
        """A work order in JSON form with every value written out, defaults included.

        It holds no absolute path and no secret beyond what its author wrote into a target's table. Cases from a file
        are named, cases from Python are not in it: a ledger keeps the cases of its runs.
        """
        variants = {name: {"target": _target_table(target)} for name, target in self.variants.items()}
        return {
            "version": 1,
            "name": self.name,
            "cases": {**cases_table(self.cases, self.folder), "repetitions": self.repetitions},
            "variants": variants,
            "judges": [judge_table(judge) for judge in self.judges],
            "budgets": budget_tables(self.budgets),
            "execution": execution_table(self.execution),
            "device": device_table(self.device),
            **({} if self.conversation is None else {"conversation": conversation_table(self.conversation)}),
            **({} if self.gates is None else {"gates": gates_table(self.gates)}),
            **({} if self.prices is None else {"prices": self.prices}),
            **({} if self.fork == ForkSpec() else {"fork": fork_table(self.fork)}),
        }

    def choosing(
        self, *, where: Sequence[SliceTerm] = (), sample: int | None = None, seed: int | None = None
    ) -> WorkOrder:
        """The same with fewer cases: these conditions besides its own, and this sample instead of its own."""
        return self.replaced(cases=narrowed(self.cases, where, sample=sample, seed=seed, place=Place(self.source)))

    def replaced(self, **fields: Any) -> WorkOrder:
        """The same with other fields, which are not checked again."""
        copy = WorkOrder.__new__(WorkOrder)
        now = {field.name: getattr(self, field.name) for field in attrs.fields(WorkOrder)}
        copy.__attrs_init__(**now | fields)
        return copy

    def with_execution(self, **options: Unpack[ExecutionOptions]) -> WorkOrder:
        """The same with other execution options; raises WorkOrderInvalid."""
        table = {**execution_table(self.execution), **options}
        changed = read_execution(table, place=Place(self.source, ("execution",)))
        said = {f"backoff_{key}" for key in options.get("backoff", {})} | set(options)
        return self.replaced(execution=attrs.evolve(changed, defaulted=self.execution.defaulted - said))


def load_work_order(path: str | Path) -> WorkOrder:
    """The work order in a TOML file, or in a JSON file (``.json``); raises WorkOrderInvalid with the place."""
    source = str(path)
    raw, root = parse_work_order(read_text(Path(path), source=source), source=source)
    return _read(raw, root, Path(path).parent)


def _read(raw: Mapping[str, Any], root: Place, folder: Path) -> WorkOrder:
    order = check(OrderTable, raw, place=root)
    asked = check(CasesTable, order.cases, place=root.at("cases"))
    variants = _variants(order.target, order.variants, root, grid=order.grid, is_nested=True)
    judged = read_judges(order.judges, root.at("judges"))
    made = WorkOrder.__new__(WorkOrder)
    made.__attrs_init__(
        name=order.name,
        cases=source_of(asked, root.at("cases"), folder),
        repetitions=asked.repetitions,
        variants=variants,
        judges=judged,
        budgets=read_budgets(order.budgets, variants=list(variants), place=root.at("budgets"), may_be_told=True),
        execution=read_execution(order.execution, place=root.at("execution")),
        device=read_device(order.device, place=root.at("device")),
        conversation=read_conversation(order.conversation, place=root.at("conversation")),
        gates=_read_gates(order.gates, variants, judged, root),
        prices=order.prices,
        fork=read_fork(order.fork, place=root.at("fork")),
        folder=folder,
        source=root.source,
    )
    return made


def _read_gates(
    raw: Mapping[str, object] | None, variants: Mapping[str, AnyTarget], judges: Sequence[AnyJudge], root: Place
) -> GatesSpec | None:
    return read_gates(raw, variants=list(variants), judges=[judge.name for judge in judges], place=root.at("gates"))


def _variants(
    target: Any, variants: Any, root: Place, *, grid: Any = None, is_nested: bool = False
) -> dict[str, AnyTarget]:
    """Targets by variant; in a document each stands in a table of its own, ``[variants.NAME.target]``."""
    if (target is None) == (variants is None):
        what = "there is no target" if target is None else "target and variants exclude each other"
        root.refuse(what, "Give [target], or [variants.NAME.target]")
    if grid is not None:
        if target is None:
            root.at("grid").refuse("a grid makes the variants itself", "Give [target] instead of [variants]")
        tables = grid_tables(target, grid, root=root)
        return {name: _target(table, root.at("target")) for name, table in tables.items()}
    if target is not None:
        return {DEFAULT_VARIANT: _target(target, root.at("target"))}
    found: dict[str, AnyTarget] = {}
    for name, side in variants.items():
        place = root.at("variants", name)
        _check_name(name, place)
        inner = check(VariantTable, side, place=place).target if is_nested else side
        found[name] = _target(inner, place.at("target") if is_nested else place)
    if not found:
        root.at("variants").refuse("there is no variant", "Give at least one [variants.NAME.target]")
    return found


def _check_name(name: object, place: Place) -> None:
    try:
        a_name(name if isinstance(name, str) else "")
    except ValueError as cause:
        place.refuse(f"{shown_value(name)} cannot name a variant", f"Write another: {cause}", cause=cause)


def _target(given: Any, place: Place) -> AnyTarget:
    if isinstance(given, Mapping):
        refuse_foreign(given, place=place)
        table = check(TargetTable, given, place=place)
        return TargetSpec(table.kind, {key: value for key, value in given.items() if key != "kind"})
    if not isinstance(given, TargetSpec) and not callable(getattr(given, "identity", None)):
        what, remedy = foreign(given, "target")
        place.refuse(what, remedy)
    target: AnyTarget = given
    return target


def _target_table(target: AnyTarget) -> dict[str, JsonValue]:
    if isinstance(target, TargetSpec):
        return {"kind": target.kind, **target.options}
    return {"kind": GIVEN, "of": target.kind, "identity": dict(target.identity())}
