"""Sessions of a run: create it or find it, take it over, execute what is left, say how it stands."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..ledger import budgets, run_ends
from ..ledger.canonical import parse_json
from ..ledger.coordinators import Coordinator, open_run, refuse_busy, release_run
from ..ledger.crashpoints import crashpoint
from ..ledger.custody import refuse_moved_away, require_held
from ..ledger.errors import RunNotResumable, UsageError, WorkOrderInvalid
from ..ledger.host_folder import host_folder
from ..ledger.ledger import Ledger
from ..ledger.local_facts import folder_of, remember_folder
from ..ledger.planning import create_run
from ..ledger.records import BudgetPlan
from ..ledger.run_reads import (
    RunRow,
    find_run,
    own_budgets_of,
    run_by_digest,
    slot_counts,
    unfinished_of_name,
    variants_of,
)
from ..ledger.run_settings import change_prices, change_settings
from ..ledger.states import BudgetKind, SlotState
from ..ledger.transaction import Transaction
from .budget_spec import BudgetSpec
from .descriptions import Adapters, Description, case_plans, describe_again, fingerprint_of, run_plan, settings_of
from .device_protocols import DeviceTarget
from .evaluating import with_judges_of
from .executor import Execution, Executor, VariantSide
from .holds import holds_by_variant, holds_of_leases
from .identity import Section, compare
from .identity_changes import refuse_changes
from .price_lines import prices_now
from .protocols import User
from .request_bounds import bounded_units_of, request_bounds
from .results import RunOutcome, outcome_of
from .retry_policy import retry_policy
from .stopping import StopSwitch
from .tally import Tally
from .work_order import WorkOrder
from .work_order_budgets import read_budgets
from .work_order_conversation import ConversationSpec, with_limits
from .work_order_device import DEVICE_LIMITS, DEVICE_THROUGHPUT, DeviceSpec, read_device
from .work_order_execution import ExecutionSpec, read_execution
from .work_order_files import Place

__all__ = ["Session", "find_or_create", "reopened", "run_session", "stored_identity", "stored_order"]


@attrs.frozen
class Session:
    """A run and how it is described, ready to be executed. ``is_new`` says whether it was just created."""

    run: RunRow
    description: Description
    is_new: bool = False


def find_or_create(ledger: Ledger, description: Description, *, new: bool = False) -> Session:
    """The run of this work order: an unfinished or finished one goes on, else one is created.

    ``new`` always creates one. Raises IdentityChanged when an unfinished run of that name was of another identity, or
    the run that would go on has other judges, CustodyElsewhere when it is another ledger's, and DeviceLocksUnusable
    when a new one could not share the devices that it needs.
    """
    with ledger.reading() as reader:
        found = None if new else run_by_digest(reader, description.digest)
        other = None if new or found else unfinished_of_name(reader, description.order.name)
        if found is None and not new:
            refuse_moved_away(reader, description.digest)
        elif found is not None and found.state != "finished":
            require_held(reader, found.run_key)
    if other is not None:
        refuse_changes(other.run_id, compare(stored_identity(other), description.identity))
    if found is not None:
        description = with_judges_of(ledger, found, description)
        _take_over_limits(ledger, found, description)
        ledger.write(lambda tx: remember_folder(tx, found.run_id, description.order.folder))
        return Session(_read(ledger, found.run_id), description)
    if any(isinstance(target, DeviceTarget) and target.devices() for target in description.targets.values()):
        host_folder().try_out()  # or a run would be recorded that cannot begin
    planned = create_run(ledger, run_plan(description), case_plans(description), only_one=not new)
    run = _read(ledger, planned.run_id)
    return Session(run, with_judges_of(ledger, run, description), is_new=True)


def reopened(
    ledger: Ledger,
    run_id: str,
    adapters: Adapters,
    *,
    targets: Mapping[str, Any] | None = None,
    judges: Mapping[str, Any] | None = None,
    user: User | None = None,
    folder: Path | None = None,
) -> Session:
    """A run from what the ledger keeps of it; ``targets``, ``judges`` and ``user`` given from Python are given again.

    Raises IdentityChanged, with every difference, when what an answer depends on is not what it was, and
    CustodyElsewhere.
    """
    with ledger.reading() as reader:
        run = find_run(reader, run_id)
        if run.state != "finished":
            require_held(reader, run.run_key)  # before code and secrets are looked for, which a copy may not have
        known = folder or folder_of(reader, run.run_id)
    order = stored_order(run, folder=known, targets=targets, judges=judges, user=user)
    description = describe_again(order, run, adapters)
    refuse_changes(run.run_id, compare(stored_identity(run), description.identity))
    return Session(run, with_judges_of(ledger, run, description))


def stored_order(
    run: RunRow,
    *,
    folder: Path | None,
    targets: Mapping[str, Any] | None = None,
    judges: Mapping[str, Any] | None = None,
    user: User | None = None,
) -> WorkOrder:
    """The run's work order from what the ledger keeps, with the settings that are in force now."""
    try:
        order = WorkOrder.from_document(
            parse_json(run.work_order),  # type: ignore[arg-type]
            source=f"run {run.run_id}", folder=folder or "", targets=targets, judges=judges, user=user,
        )  # fmt: skip
        return order.replaced(
            execution=_execution_of(run),
            device=_device_of(run),
            conversation=_conversation_of(run, order.conversation),
            prices=_settings_of(run).get("prices"),
        )
    except (AttributeError, KeyError, TypeError) as problem:
        raise WorkOrderInvalid(
            f"what the ledger keeps of the work order of run {run.run_id} is none ({problem!r})",
            "a snapshot that was made by hand may have brought it: trust it no further", place=f"run {run.run_id}",
        ) from problem  # fmt: skip


async def run_session(
    ledger: Ledger,
    session: Session,
    *,
    stop: StopSwitch | None = None,
    concurrency: int | None = None,
    slots_max: int | None = None,
    on_start: Callable[[Coordinator, Tally], None] = lambda coordinator, tally: None,
) -> RunOutcome:
    """Execute what is left of the run and say how it stands; a finished run makes no call.

    Raises RunBusy, RunNotResumable, CustodyElsewhere, and the LedgerError that ended the session.
    """
    description = session.description
    run = _opened_by_prices(ledger, session.run, description)
    if run.state == "finished":
        return outcome_of(ledger, run.run_id, reused=_selected(ledger, run))
    execution = description.order.execution
    coordinator = open_run(ledger, run.run_id, solitary_deaths_max=execution.solitary_deaths_max)
    switch, began = stop or StopSwitch(), time.monotonic()
    is_whole = False
    try:
        _record_prices(ledger, run, description)  # which may let slots wait, so the tally comes after it
        with ledger.reading() as reader:
            tally = Tally(slot_counts(reader, run.run_key))
        tally.reused = tally.by_state[SlotState.SELECTED]
        on_start(coordinator, tally)
        how = _execution(ledger, session, concurrency, slots_max)
        is_whole = await Executor(ledger, coordinator, how, tally=tally, stop=switch).execute()
    finally:
        if ledger.failure is None:
            await _leave(ledger, coordinator, began, switch.reason or "ended", is_whole=is_whole)
    return outcome_of(
        ledger, run.run_id, reused=tally.reused, dispatches=tally.dispatches, stopped=switch.reason,
        recovered=coordinator.recovered, passed_over=tally.passed_over,
    )  # fmt: skip


def _opened_by_prices(ledger: Ledger, run: RunRow, description: Description) -> RunRow:
    """A finished run goes on where other prices may let go on what a budget held back; raises RunBusy."""
    if run.state != "finished":
        return run
    with ledger.reading() as reader:
        if not budgets.waits_for_budget(reader, run.run_key):
            return run
    refuse_busy(ledger, run.run_id)
    _record_prices(ledger, run, description)
    with ledger.reading() as reader:
        return find_run(reader, run.run_id)


def _record_prices(ledger: Ledger, run: RunRow, description: Description) -> None:
    """A price file may have changed since the run went by it last."""
    now = [one.to_json() for one in description.prices]
    with ledger.reading() as reader:
        then = [line.model_dump() for line in prices_now(reader, run)]
    if now != then:
        told = f"prices: {_days(then)} -> {_days(now)}"
        ledger.write(lambda tx: change_prices(tx, run.run_key, now, told))


def _days(prices: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['as_of'] or 'of no day'} ({str(one['digest'])[:19]})" for one in prices) or "(absent)"


async def _leave(ledger: Ledger, coordinator: Coordinator, began: float, reason: str, *, is_whole: bool) -> None:
    active_us = round((time.monotonic() - began) * 1e6)

    def work(tx: Transaction) -> None:
        # In one transaction: a finished run that its dead coordinator still holds would stay held for ever.
        # What was observed and not judged when the session was broken off keeps the run open: a finished one is not
        # executed again, and nobody would judge it.
        if is_whole:
            run_ends.finish_run(tx, coordinator.run_key)
        release_run(tx, coordinator, reason=reason, active_us=active_us)

    crashpoint("run.finish.before")
    await ledger.write_async(work)
    crashpoint("run.finished")


def _execution(ledger: Ledger, session: Session, concurrency: int | None, slots_max: int | None) -> Execution:
    run, description = session.run, session.description
    spec = description.order.execution
    with ledger.reading() as reader:
        names = {row.variant_no: row.name for row in variants_of(reader, run.run_key)}
        plans = [state.plan for state in own_budgets_of(reader, run.run_key)]
    targets = {number: description.targets[name] for number, name in names.items()}
    sends = {number: int(getattr(target, "wire_sends_max", 1)) for number, target in targets.items()}
    told = {number: bounded_units_of(target) for number, target in targets.items()}
    holds = holds_by_variant(plans, names, wire_sends_max=sends, told=told)
    sides = {
        number: VariantSide(
            number, name, targets[number], holds[number], fingerprint_of(description, name),
            bounds=request_bounds(targets[number], plans),
        )
        for number, name in names.items()
    }  # fmt: skip
    return Execution(
        sides, description.judges, retry_policy(spec, chance=random.random), concurrency or spec.concurrency,
        spec.deadline_seconds, spec.grace_seconds, spec.rate_per_second, slots_max,
        device=description.order.device, lease_holds=holds_of_leases(plans), conversation=description.conversation,
    )  # fmt: skip


def _take_over_limits(ledger: Ledger, run: RunRow, description: Description) -> None:
    """Record what the work order's author changed of limits and throughput, and go by it from now on.

    Only what differs from the work order as it was last seen counts, so that it does not undo an operator's amendment.
    """
    settings = settings_of(description.order)
    if settings == run.settings:
        return
    refuse_busy(ledger, run.run_id)
    then, now = parse_json(run.settings), parse_json(settings)
    assert isinstance(then, dict)
    assert isinstance(now, dict)
    if then["budgets"] != now["budgets"]:
        _take_over_budgets(ledger, run, description, seen=then["budgets"])
    changes = compare(stored_identity(run), description.identity)
    lines = [str(change) for change in changes if change.section is Section.LIMITS]
    has_other_prices = then.get("prices") != now.get("prices")
    ledger.write(lambda tx: change_settings(tx, run.run_key, settings, lines, has_other_prices=has_other_prices))


def _take_over_budgets(ledger: Ledger, run: RunRow, description: Description, *, seen: object) -> None:
    with ledger.reading() as reader:
        plans = [state.plan for state in own_budgets_of(reader, run.run_key)]
    plan_of = {(plan.scope, plan.scope_value, plan.unit): plan for plan in plans}
    specs = {spec.key: spec for spec in description.order.budgets}
    if set(specs) != set(plan_of):
        raise UsageError(
            f"the work order has other budgets than run {run.run_id}",
            "A run keeps its budgets; change only their limits, bounds and kinds, or start a new run with --new",
        )
    place = Place(f"run {run.run_id}", ("budgets",))
    variants = tuple(description.targets)
    seen_specs = {spec.key: spec for spec in read_budgets(seen, variants=variants, place=place, may_be_told=True)}
    for key, plan in plan_of.items():
        _change_budget(ledger, run.run_key, plan, seen_specs[key], specs[key])


def _change_budget(ledger: Ledger, run_key: int, plan: BudgetPlan, seen: BudgetSpec, spec: BudgetSpec) -> None:
    why, by, number = "the work order was changed", "work order", plan.budget_no

    # A fork whose budgets go on has less: what the runs before it had used or held is not in its limit.
    wanted = max(0, spec.limit - plan.carried)

    def limit(tx: Transaction) -> None:
        budgets.amend(tx, run_key, number, limit=wanted, reason=why, made_by=by)

    def bound(tx: Transaction) -> None:
        amended = spec.bound_per_dispatch
        budgets.amend_bound(tx, run_key, number, kind=spec.kind, bound=amended, reason=why, made_by=by)

    steps = [
        (limit, spec.limit != seen.limit and wanted != plan.limit_amount),
        (bound, (spec.kind, spec.bound_per_dispatch) != (plan.kind, plan.bound_amount)),
    ]
    # A budget that becomes soft may get a limit below what is spent, one that becomes hard may need a higher one.
    for step, is_wanted in reversed(steps) if spec.kind is BudgetKind.SOFT else steps:
        if is_wanted:
            ledger.write(step)


def _settings_of(run: RunRow) -> dict[str, Any]:
    settings = parse_json(run.settings)
    assert isinstance(settings, dict)
    return dict(settings)


def _execution_of(run: RunRow) -> ExecutionSpec:
    settings = _settings_of(run)
    spec = read_execution(settings["execution"], place=Place(f"run {run.run_id}", ("execution",)))
    stored = stored_identity(run)
    return attrs.evolve(spec, defaulted=frozenset(stored.get("defaulted", ())))


def _device_of(run: RunRow) -> DeviceSpec:
    settings = _settings_of(run)
    spec = read_device(settings.get("device", {}), place=Place(f"run {run.run_id}", ("device",)))
    known = stored_identity(run).get("defaulted", ())
    keys = (*DEVICE_LIMITS, *DEVICE_THROUGHPUT)
    return attrs.evolve(spec, defaulted=frozenset(key for key in keys if f"device_{key}" in known))


def _conversation_of(run: RunRow, written: ConversationSpec | None) -> ConversationSpec | None:
    """The conversation with the limits that are in force now."""
    limits = _settings_of(run).get("conversation")
    if written is None or limits is None:
        return written
    return with_limits(written, limits, place=Place(f"run {run.run_id}", ("conversation",)))


def stored_identity(run: RunRow) -> dict[str, Any]:
    """The identity document that a run was created with."""
    found = parse_json(run.identity)
    if not isinstance(found, dict):
        raise RunNotResumable(f"run {run.run_id} has no identity document", "check the ledger", run.run_id)
    return dict(found)


def _read(ledger: Ledger, run_id: str) -> RunRow:
    with ledger.reading() as reader:
        return find_run(reader, run_id)


def _selected(ledger: Ledger, run: RunRow) -> int:
    with ledger.reading() as reader:
        return slot_counts(reader, run.run_key)[SlotState.SELECTED]
