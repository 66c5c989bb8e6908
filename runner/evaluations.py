"""Judging what a run has observed, again or for the first time: a new evaluation, or an unfinished one gone on with."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ..ledger import budgets
from ..ledger.canonical import JsonValue, canonical_text, parse_json
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import IdentityChanged, UsageError
from ..ledger.evaluation_holds import EvaluationHold, leave_evaluation, open_evaluation
from ..ledger.evaluations import (
    EVALUATION_SCOPE,
    EvaluationPlan,
    EvaluationRow,
    create_evaluation,
    evaluation_budgets_of,
    evaluations_of,
    has_selected_since,
    let_budgeted_wait,
    newest_of_digest,
    take_settings,
    write_set,
)
from ..ledger.judging_reads import judge_rows
from ..ledger.ledger import Ledger
from ..ledger.records import BudgetPlan, Hold
from ..ledger.run_reads import BudgetState, RunRow, budgets_of, variants_of
from ..ledger.stored_digests import digest_of_evaluation
from .descriptions import Adapters, judge_plans
from .holds import holds_of_judge
from .identity import compare_asked, evaluation_document
from .judge_orders import JudgeOrder
from .judge_protocols import is_calling
from .judge_session import JudgeSession, JudgeSide, Judging
from .price_use import give_prices
from .protocols import Judge
from .qualification import note_qualifications
from .request_bounds import bounded_units_of, refuse_unbounded, request_bounds
from .retry_policy import retry_policy
from .stopping import StopSwitch
from .tally import JudgingTally
from .work_order_budgets import read_budgets
from .work_order_build import build_judges_of
from .work_order_files import Place

__all__ = [
    "EvaluationDescription",
    "EvaluationSession",
    "SessionEnd",
    "describe_judge_order",
    "find_or_create_evaluation",
    "reparsing",
    "run_evaluation",
]


@attrs.frozen
class EvaluationDescription:
    """A judge work order with its judges found and checked; ``digest`` is of what their verdicts depend on."""

    order: JudgeOrder
    judges: Sequence[Judge]
    digest: str
    reparse_of: EvaluationRow | None = None


@attrs.frozen
class EvaluationSession:
    """An evaluation and how it is described, ready to be gone on with."""

    row: EvaluationRow
    description: EvaluationDescription
    is_new: bool = False


@attrs.frozen
class SessionEnd:
    """What one session of an evaluation did."""

    dispatches: int = 0
    stopped: str | None = None
    hold: EvaluationHold | None = None


def describe_judge_order(order: JudgeOrder, adapters: Adapters) -> EvaluationDescription:
    """Find and check every judge; raises a UsageError at the first fault."""
    judges = build_judges_of(order.judges, adapters.judge, source=order.source, folder=order.folder)
    if order.prices is not None:
        prices = adapters.prices(order.prices, folder=order.folder, place=f"{order.source}: prices")
        give_prices(prices, judges)
        order = order.replaced(prices=prices.document())
    refuse_unbounded(order, {}, judges)
    for judge in judges:
        if is_calling(judge):
            judge.check()  # type: ignore[attr-defined]  # a judge that calls has it
    return EvaluationDescription(order, judges, digest_of_evaluation(_depended_on(order, judges)))


def reparsing(ledger: Ledger, source: EvaluationRow, description: EvaluationDescription) -> EvaluationDescription:
    """The same judges, who read again what an evaluation has kept of their replies, and ask nobody.

    Raises IdentityChanged where a judge was asked something else then: its replies would stand under another's name;
    and UsageError where no judge has replies.
    """
    now = evaluation_document(description.judges)["judges"]
    assert isinstance(now, Mapping)
    calling = {judge.name for judge in description.judges if is_calling(judge)}
    if not calling:
        raise UsageError(
            f"none of the judges of {description.order.name} has replies that could be read again",
            "leave out --reparse; a judge that needs no call judges anew at no cost",
        )
    with ledger.reading() as reader:
        then = {row.name: parse_json(row.identity) for row in judge_rows(reader, source.run_key, source.evaluation_no)}
    lines = [
        str(difference)
        for name in sorted(calling & then.keys())
        for difference in compare_asked(name, then[name], now[name])
    ]
    lines += [f"{name}: (absent) -> a judge" for name in sorted(calling - then.keys())]
    if lines:
        raise IdentityChanged(
            f"evaluation {source.evaluation_no} asked its judges something else: {'; '.join(lines[:3])}",
            "Change it back; only how a reply is read may differ (pass_at, labels, scale)", source.run_id, tuple(lines),
        )  # fmt: skip
    depended = _depended_on(description.order, description.judges)
    digest = digest_of_evaluation(depended, reparsed=source.evaluation_id)
    return attrs.evolve(description, digest=digest, reparse_of=source)


def _depended_on(order: JudgeOrder, judges: Sequence[Judge]) -> dict[str, tuple[JsonValue, int]]:
    settings, identities = order.settings(), evaluation_document(judges)["judges"]
    assert isinstance(identities, Mapping)
    return {name: (identity, settings[name].samples) for name, identity in identities.items()}


def find_or_create_evaluation(
    ledger: Ledger,
    run: RunRow,
    description: EvaluationDescription,
    *,
    new: bool = False,
    at_event: int | None = None,
    must_exist: bool = False,
) -> EvaluationSession:
    """The evaluation of these judges: an unfinished one goes on, a finished one is told where nothing new was observed.

    ``new`` always makes one; ``at_event`` fixes its set at that event of the run. Raises UsageError for an event that
    the run does not have, and where there ``must_exist`` one and would be a new one.
    """
    if description.reparse_of is not None and at_event is None:
        at_event = description.reparse_of.set_at_event
    if not new and (found := _found(ledger, run, description, at_event)) is not None:
        return EvaluationSession(_with_settings(ledger, found, description), description)
    if must_exist:
        raise UsageError("there is nothing to retry: this would be a new evaluation", "leave out --retry")
    plan = _plan(description, at_event)
    row = ledger.write(lambda tx: create_evaluation(tx, run.run_id, plan, only_one=not new and at_event is None))
    crashpoint("evaluation.created")
    return EvaluationSession(row, description, is_new=True)


async def run_evaluation(
    ledger: Ledger,
    session: EvaluationSession,
    *,
    stop: StopSwitch | None = None,
    concurrency: int | None = None,
    on_start: Callable[[JudgingTally], None] = lambda tally: None,
) -> SessionEnd:
    """Give what waits in the evaluation; one that has ended makes no call.

    Raises EvaluationBusy, and the LedgerError that ended it.
    """
    row, switch = session.row, stop or StopSwitch()
    is_whole = False
    while not is_whole:
        is_whole = ledger.write(lambda tx: write_set(tx, row))
        crashpoint("evaluation.set.batch")
    judging = _judging(ledger, session, concurrency)
    _let_wait_again(ledger, row, judging)
    note_qualifications(ledger, row)
    if _is_ended(ledger, row):
        return SessionEnd()
    execution = session.description.order.execution
    hold = open_evaluation(ledger, row, solitary_deaths_max=execution.solitary_deaths_max)
    tally = JudgingTally(_waiting(ledger, row))
    on_start(tally)
    made = JudgeSession(ledger, row, judging, stop=switch, tally=tally)
    switch.attach()
    try:
        await made.judge()
    finally:
        if ledger.failure is None:
            crashpoint("evaluation.finish.before")
            await ledger.write_async(lambda tx: leave_evaluation(tx, hold, reason=switch.reason or "ended"))
            crashpoint("evaluation.finished")
    return SessionEnd(made.dispatches, switch.reason, hold)


def _plan(description: EvaluationDescription, at_event: int | None) -> EvaluationPlan:
    order = description.order
    document = order.to_document()
    if description.reparse_of is not None:
        document["reparsed"] = description.reparse_of.evaluation_id
    return EvaluationPlan(
        order.name, canonical_text(document), description.digest, canonical_text(order.how()),
        judge_plans(description.judges, order.settings()),
        tuple(
            BudgetPlan(number, EVALUATION_SCOPE, "", spec.unit, spec.kind, spec.limit, spec.bound_per_dispatch)
            for number, spec in enumerate(order.budgets, start=1)
        ),
        at_event,
    )  # fmt: skip


def _found(
    ledger: Ledger, run: RunRow, description: EvaluationDescription, at_event: int | None
) -> EvaluationRow | None:
    with ledger.reading() as reader:
        if at_event is not None:
            rows = evaluations_of(reader, run.run_key)
            fitting = (row.document_digest == description.digest and row.set_at_event == at_event for row in rows)
            return next((row for row, fits in zip(rows, fitting, strict=True) if fits), None)
        row = newest_of_digest(reader, run.run_key, description.digest)
        if row is None or row.ended_us is None:
            return row
        assert row.set_at_event is not None
        return None if has_selected_since(reader, run.run_key, row.set_at_event) else row


def _with_settings(ledger: Ledger, row: EvaluationRow, description: EvaluationDescription) -> EvaluationRow:
    """Take over what the author of the judge work order changed of limits and throughput."""
    settings = canonical_text(description.order.how())
    if settings == row.settings:
        return row
    _amend_budgets(ledger, row, description)
    ledger.write(lambda tx: take_settings(tx, row, settings))
    return attrs.evolve(row, settings=settings)


def _amend_budgets(ledger: Ledger, row: EvaluationRow, description: EvaluationDescription) -> None:
    with ledger.reading() as reader:
        plans = {plan.unit: plan for plan in evaluation_budgets_of(reader, row)}
    specs = {spec.unit.value: spec for spec in description.order.budgets}
    if plans.keys() != specs.keys():
        raise UsageError(
            f"the judge work order has other budgets than evaluation {row.evaluation_no} of run {row.run_id}",
            "Change only their limits and bounds, or begin a new evaluation with --new",
        )
    seen = _seen_budgets(row)
    why, by = "the judge work order was changed", "judge work order"
    for unit, plan in plans.items():
        spec, number = specs[unit], plan.budget_no
        if spec.limit not in (seen[unit].limit, plan.limit_amount):
            limit = spec.limit
            ledger.write(
                lambda tx, number=number, limit=limit: budgets.amend(  # type: ignore[misc]
                    tx, row.run_key, number, limit=limit, reason=why, made_by=by
                )
            )
        if (spec.kind, spec.bound_per_dispatch) != (plan.kind, plan.bound_amount):
            kind, bound = spec.kind, spec.bound_per_dispatch
            ledger.write(
                lambda tx, number=number, kind=kind, bound=bound: budgets.amend_bound(  # type: ignore[misc]
                    tx, row.run_key, number, kind=kind, bound=bound, reason=why, made_by=by
                )
            )


def _seen_budgets(row: EvaluationRow) -> dict[str, Any]:
    settings = parse_json(row.settings)
    assert isinstance(settings, dict)
    place = Place(f"evaluation {row.evaluation_no}", ("budgets",))
    return {
        spec.unit.value: spec for spec in read_budgets(settings["budgets"], variants=(), place=place, may_be_told=True)
    }


def _judging(ledger: Ledger, session: EvaluationSession, concurrency: int | None) -> Judging:
    row, order = session.row, session.description.order
    with ledger.reading() as reader:
        variants = {one.variant_no: one.name for one in variants_of(reader, row.run_key)}
        plans = [state.plan for state in budgets_of(reader, row.run_key)]
        digests = {
            one.name: (one.judge_no, one.identity_digest) for one in judge_rows(reader, row.run_key, row.evaluation_no)
        }
    sides = []
    for judge in session.description.judges:
        number, digest = digests[judge.name]
        sends = int(getattr(judge, "wire_sends_max", 1))
        if not is_calling(judge):
            sides.append(JudgeSide(number, judge, digest))
            continue
        told = bounded_units_of(judge)
        holds = holds_of_judge(plans, row.evaluation_id, wire_sends_max=sends, told=told)
        bounds = request_bounds(judge, plans)
        sides.append(JudgeSide(number, judge, digest, holds, bounds))
    execution, source = order.execution, session.description.reparse_of
    return Judging(
        sorted(sides, key=lambda side: side.judge_no), variants, retry_policy(execution, chance=random.random),
        concurrency or execution.concurrency, execution.deadline_seconds, execution.grace_seconds,
        execution.rate_per_second, order.cache,
        None if source is None else source.evaluation_no,
    )  # fmt: skip


def _let_wait_again(ledger: Ledger, row: EvaluationRow, judging: Judging) -> None:
    """What a full budget had kept a judge from waits again, where each of its budgets has room now."""
    with ledger.reading() as reader:
        states = {state.plan.budget_no: state for state in budgets_of(reader, row.run_key)}
    for side in judging.sides:
        if is_calling(side.judge) and all(_has_room(states[hold.budget_no], hold) for hold in side.holds):
            number = side.judge_no
            ledger.write(lambda tx, number=number: let_budgeted_wait(tx, row, number))  # type: ignore[misc]


def _has_room(state: BudgetState, hold: Hold) -> bool:
    return state.left >= hold.amount if hold.hard else state.left > 0


def _is_ended(ledger: Ledger, row: EvaluationRow) -> bool:
    with ledger.reading() as reader:
        found = [one for one in evaluations_of(reader, row.run_key) if one.evaluation_no == row.evaluation_no]
    return found[0].ended_us is not None


def _waiting(ledger: Ledger, row: EvaluationRow) -> int:
    from ..ledger.judging_reads import waiting_count

    with ledger.reading() as reader:
        return waiting_count(reader, row.run_key, row.evaluation_no)
