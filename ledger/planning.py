"""Writing down a run before anything of it is executed: hidden while its rows arrive, shown by one flip.

Cases stream in; slots are made by the database from cases × variants × repetitions, so a plan of a million slots needs
little memory. Repetitions are the outermost: a run that is cut short has seen every case before any case twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from .canonical import canonical_text, digest_of_value, parse_json
from .crashpoints import crashpoint
from .discarding import Hidden, delete_batch, half_planned
from .forks import TakenOver, discard_taken, take_over, tell_of_fork
from .ledger import Ledger
from .local_facts import remember_folder
from .processes import ProcessIdentity
from .records import BudgetPlan
from .schema import budgets, cases, evaluation_judges, evaluations, runs, variants
from .statements import hot_insert
from .transaction import Transaction

__all__ = ["CasePlan", "JudgePlan", "PlannedRun", "RunPlan", "VariantPlan", "create_run", "discard_half_planned"]

_CASES_PER_BATCH: Final = 2_000
_SLOTS_PER_BATCH: Final = 20_000

_ADD_RUN = hot_insert(
    runs, "run_id", "name", "state", "work_order", "work_order_digest", "identity", "identity_digest", "settings",
    "made_by", "created_us", "forked_from", "forked_at_event",
)  # fmt: skip
_ADD_VARIANT = hot_insert(variants, "run_key", "variant_no", "name", "target", "if_unknown")
_ADD_CASE = hot_insert(cases, "run_key", "case_no", "case_id", "digest", "input", "expected", "metadata")
_ADD_BUDGET = hot_insert(
    budgets, "run_key", "budget_no", "scope", "scope_value", "unit", "kind", "limit_amount", "bound_amount", "carried"
)
_ADD_EVALUATION = hot_insert(
    evaluations, "run_key", "evaluation_no", "evaluation_id", "name", "document", "document_digest", "created_us"
)
_ADD_JUDGE = hot_insert(
    evaluation_judges,
    "run_key",
    "evaluation_no",
    "judge_no",
    "name",
    "kind",
    "identity",
    "identity_digest",
    "samples",
    "requirement",
)
_ADD_SLOTS = (
    "INSERT INTO slots (run_key, slot_no, state, case_no, variant_no, repetition)"
    " SELECT c.run_key, ?2 + (c.case_no - 1) * ?3 + v.variant_no, 'pending', c.case_no, v.variant_no, ?4"
    " FROM cases c CROSS JOIN variants v ON v.run_key = c.run_key"
    " WHERE c.run_key = ?1 AND c.case_no BETWEEN ?5 AND ?6 ORDER BY c.case_no, v.variant_no"
)


_OTHER = (
    "SELECT run_key, run_id, planned FROM runs WHERE work_order_digest = ? AND state IN ('open', 'finished')"
    " ORDER BY run_key DESC LIMIT 1"
)


@attrs.frozen
class CasePlan:
    """One case as canonical JSON texts; ``expected`` is None where there is none, ``null`` where it is null."""

    case_id: str
    digest: str
    input: str
    expected: str | None
    metadata: str


@attrs.frozen
class VariantPlan:
    """One variant: its name, the target's table and what may follow an unknown outcome."""

    name: str
    target: str
    if_unknown: str


@attrs.frozen
class JudgePlan:
    """One judge of an evaluation. ``requirement`` is canonical JSON text: what it must reach before it counts."""

    name: str
    kind: str
    identity: str
    samples: int = 1
    requirement: str | None = None


@attrs.frozen
class RunPlan:
    """What a run is, as canonical JSON texts; cases come separately.

    ``folder`` is where its relative paths begin on this machine, remembered in the transaction that shows the run;
    ``taken`` is what a fork takes over.
    """

    name: str
    work_order: str
    work_order_digest: str
    identity: str
    settings: str
    variants: tuple[VariantPlan, ...]
    repetitions: int
    budgets: tuple[BudgetPlan, ...] = ()
    judges: tuple[JudgePlan, ...] = ()
    folder: Path | None = None
    taken: TakenOver | None = None


@attrs.frozen
class PlannedRun:
    """A run whose whole plan is durable."""

    run_key: int
    run_id: str
    planned: int


def create_run(ledger: Ledger, plan: RunPlan, rows: Iterable[CasePlan], *, only_one: bool = False) -> PlannedRun:
    """Write the plan in bounded batches and show it; a kill before the flip leaves nothing that anybody sees.

    What ``rows`` raises ends the planning, and what was written of it is removed. With ``only_one``, another run
    of the same work order that was shown meanwhile, and may have finished since, is returned instead: of two that plan
    it at once, one wins. So a caller asks for it who has found none before.
    """
    discard_half_planned(ledger)
    run_key, run_id = ledger.write(lambda tx: _add_head(tx, plan))
    try:
        case_count = _add_cases(ledger, run_key, rows)
        _add_slots(ledger, run_key, plan, case_count)
        if plan.taken is not None:
            take_over(ledger, run_key, plan.taken)
    except Exception:
        if ledger.failure is None:
            _discard(ledger, run_key, run_id)
        raise
    planned = case_count * len(plan.variants) * plan.repetitions
    winner = ledger.write(lambda tx: _show(tx, run_key, run_id, plan, case_count, planned, only_one=only_one))
    crashpoint("run.planned")
    if winner.run_key != run_key:
        _discard(ledger, run_key, run_id)
    return winner


def discard_half_planned(ledger: Ledger) -> int:
    """Remove plans that a killed process left half-written; returns how many."""
    with ledger.reading() as reader:
        found = reader.rows(
            "SELECT r.run_key, r.run_id, w.worker_id, w.pid, w.start_ticks, w.boot_id, w.host, w.ended_us FROM runs r"
            " JOIN workers w ON w.worker_id = r.made_by WHERE r.state = 'planning'"
        )
    dead = [
        (run_key, run_id)
        for run_key, run_id, worker_id, pid, ticks, boot, host, ended in found
        if ended is not None or ledger.is_dead(worker_id, ProcessIdentity(pid, ticks, boot, host))
    ]
    for run_key, run_id in dead:
        _discard(ledger, run_key, run_id)
    return len(dead)


def _add_head(tx: Transaction, plan: RunPlan) -> tuple[int, str]:
    run_id = tx.ids.next()
    tx.execute(
        _ADD_RUN,
        (run_id, plan.name, "planning", plan.work_order, plan.work_order_digest, plan.identity,
         digest_of_value(parse_json(plan.identity)), plan.settings, tx.worker_id, tx.now_us,
         plan.taken and plan.taken.run_id, plan.taken and plan.taken.event_no),
    )  # fmt: skip
    run_key: int = tx.row("SELECT run_key FROM runs WHERE run_id = ?", (run_id,))[0]
    for number, variant in enumerate(plan.variants, start=1):
        tx.execute(_ADD_VARIANT, (run_key, number, variant.name, variant.target, variant.if_unknown))
    for budget in plan.budgets:
        tx.execute(
            _ADD_BUDGET,
            (run_key, budget.budget_no, budget.scope, budget.scope_value, budget.unit, budget.kind,
             budget.limit_amount, budget.bound_amount, budget.carried),
        )  # fmt: skip
    if plan.judges:
        _add_evaluation(tx, run_key, plan)
    return run_key, run_id


def _add_evaluation(tx: Transaction, run_key: int, plan: RunPlan) -> None:
    document = [
        {"name": judge.name, "kind": judge.kind, "identity": parse_json(judge.identity)} for judge in plan.judges
    ]
    tx.execute(
        _ADD_EVALUATION,
        (run_key, 1, tx.ids.next(), "inline", canonical_text(document), digest_of_value(document), tx.now_us),
    )
    for number, judge in enumerate(plan.judges, start=1):
        digest = digest_of_value(parse_json(judge.identity))
        tx.execute(
            _ADD_JUDGE,
            (run_key, 1, number, judge.name, judge.kind, judge.identity, digest, judge.samples, judge.requirement),
        )


def _add_cases(ledger: Ledger, run_key: int, rows: Iterable[CasePlan]) -> int:
    count = 0
    for batch in _batches(rows, _CASES_PER_BATCH):
        values = [
            (run_key, number, row.case_id, row.digest, row.input, row.expected, row.metadata)
            for number, row in enumerate(batch, start=count + 1)
        ]
        ledger.write(lambda tx, values=values: tx.cursor.executemany(_ADD_CASE, values))  # type: ignore[misc]
        count += len(batch)
        crashpoint("run.planning.batch")
    return count


def _add_slots(ledger: Ledger, run_key: int, plan: RunPlan, case_count: int) -> None:
    width = len(plan.variants)
    step = max(1, _SLOTS_PER_BATCH // width)
    for repetition in range(1, plan.repetitions + 1):
        base = (repetition - 1) * case_count * width
        for first in range(1, case_count + 1, step):
            values = (run_key, base, width, repetition, first, min(first + step - 1, case_count))
            ledger.write(lambda tx, values=values: tx.change(_ADD_SLOTS, values))  # type: ignore[misc]
            crashpoint("run.planning.batch")


def _show(
    tx: Transaction, run_key: int, run_id: str, plan: RunPlan, case_count: int, planned: int, *, only_one: bool
) -> PlannedRun:
    if only_one and (other := tx.row(_OTHER, (plan.work_order_digest,))) is not None:
        return PlannedRun(*other)
    found = tx.row("SELECT count(*) FROM slots WHERE run_key = ?", (run_key,))[0]
    if found != planned:
        raise RuntimeError(f"run {run_id} has {found} slots and was planned with {planned}")
    tx.move("run", "open", "UPDATE runs SET state = 'open', planned = ? WHERE run_key = ? AND state = 'planning'",
            (planned, run_key))  # fmt: skip
    tx.event(run_key, "run.planned", {
        "run": run_id, "name": plan.name, "cases": case_count, "variants": [variant.name for variant in plan.variants],
        "repetitions": plan.repetitions, "planned": planned, "identity": digest_of_value(parse_json(plan.identity)),
        "work_order": plan.work_order_digest, **_origin(plan),
    })  # fmt: skip
    if plan.taken is not None:
        tell_of_fork(tx, run_key, plan.taken)
    if plan.folder is not None:
        remember_folder(tx, run_id, plan.folder)
    return PlannedRun(run_key, run_id, planned)


def _origin(plan: RunPlan) -> dict[str, str | int]:
    """Where a fork comes from; nothing for any other run."""
    return {} if plan.taken is None else {"forked_from": plan.taken.run_id, "forked_at": plan.taken.event_no}


def _discard(ledger: Ledger, run_key: int, run_id: str) -> None:
    of = half_planned(run_id)
    discard_taken(ledger, run_key, of=of)
    for table, key in (("slots", "slot_no"), ("cases", "case_no")):
        sql = (
            f"DELETE FROM {table} WHERE run_key = ?1 AND {key} IN"
            f" (SELECT {key} FROM {table} WHERE run_key = ?1 LIMIT {_SLOTS_PER_BATCH})"
        )
        while ledger.write(lambda tx, table=table, sql=sql: delete_batch(tx, table, sql, (run_key,), of=of)):  # type: ignore[misc]
            pass
    ledger.write(lambda tx: _discard_head(tx, run_key, of))


def _discard_head(tx: Transaction, run_key: int, of: Hidden) -> None:
    if not of.is_there(tx):
        return
    for table in ("evaluation_judges", "evaluations", "budgets", "variants"):
        tx.change(f"DELETE FROM {table} WHERE run_key = ?", (run_key,))
    tx.change("DELETE FROM runs WHERE run_key = ?", (run_key,))


def _batches(rows: Iterable[CasePlan], size: int) -> Iterator[list[CasePlan]]:
    source = iter(rows)
    while batch := list(itertools.islice(source, size)):
        yield batch
