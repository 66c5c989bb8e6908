"""How a run stands, read from the ledger into the one model that screens and ``--json`` use. Makes no call."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ..ledger import report_reads, run_reads
from ..ledger.canonical import parse_json
from ..ledger.coordinators import coordinator_of
from ..ledger.custody import as_found
from ..ledger.device_looks import quarantined_for
from ..ledger.ledger import Ledger, Reader
from ..ledger.run_reads import BudgetState, RunRow
from ..ledger.run_totals import Totals, judge_totals_of, totals_of
from ..ledger.slot_reads import goes_on_at_us, scores_of
from ..ledger.states import DispatchState, SlotState
from .amounts import usd_text
from .budget_spec import shown_amount, unit_key
from .device_outlooks import DeviceUse, devices_of_run
from .instants import instant
from .price_lines import by_class, price_lines
from .protocols import GIVEN
from .reason_lines import reason_line
from .report_models import (
    BudgetLine,
    Executing,
    FlagLine,
    ForkOrigin,
    PassedOverLine,
    Population,
    ReasonLine,
    Recovery,
    RunEnd,
    RunLine,
    RunList,
    RunStatus,
    ScoreLine,
    SessionPart,
    TotalsPart,
    UnknownPart,
    VariantLine,
)
from .report_slots import flags_of
from .results import NextMove, RunOutcome, exit_status_of, next_move

__all__ = [
    "STATUS_COUNTED_MAX",
    "budget_line",
    "executing_now",
    "instant",
    "is_from_python",
    "list_of_runs",
    "next_command",
    "population_of",
    "run_end",
    "status_of",
]

STATUS_COUNTED_MAX: Final = 100_000
"""Up to how many planned observations ``status`` counts calls and verdicts; ``report`` always does."""

_EXAMPLES_MAX: Final = 8


def status_of(ledger: Ledger, run_id: str, *, ledger_option: str = "", counted_max: int | None = None) -> RunStatus:
    """How the run stands now, and who executes it.

    Calls and verdicts are counted of runs of up to so many planned observations, STATUS_COUNTED_MAX if None.
    """
    most = STATUS_COUNTED_MAX if counted_max is None else counted_max
    with ledger.reading() as reader:
        run = as_found(ledger, reader, run_reads.find_run(reader, run_id))
        parts = _standing(reader, run, ledger, ledger_option, is_counted=run.planned <= most)
    devices = devices_of_run(ledger, run.run_key)
    kept_off = _kept_off(devices)
    if parts["next"] == NextMove.RESUME and parts["population"].pending and kept_off:
        # By another ledger of this host: resuming would meet the same device again.
        parts |= {
            "next": NextMove.DECIDE.value, "exit_status": int(exit_status_of(NextMove.DECIDE)),
            "command": f"tallystick device show {shlex.quote(kept_off[0])}{ledger_option}",
        }  # fmt: skip
    return RunStatus(**parts, executing=executing_now(ledger, run_id), devices=devices)


def run_end(ledger: Ledger, outcome: RunOutcome, *, ledger_option: str = "") -> RunEnd:
    """How the run stands after a session of it."""
    with ledger.reading() as reader:
        parts = _standing(reader, run_reads.find_run(reader, outcome.run_id), ledger, ledger_option)
    found = outcome.recovered
    recovery = Recovery() if found is None else Recovery(
        dead_workers=list(found.dead_workers), unknown=found.unknown, again=found.again,
        interrupted=found.interrupted, parked=found.parked,
    )  # fmt: skip
    session = SessionPart(
        reused=outcome.reused, dispatches=outcome.dispatches, stopped=outcome.stopped, recovery=recovery,
        passed_over=[PassedOverLine(device=one.resource, why=one.why) for one in outcome.passed_over],
    )  # fmt: skip
    own = {"next": outcome.next.value, "exit_status": int(outcome.exit_status)}
    if looked_at := [one.resource for one in outcome.passed_over if one.is_for_operator]:
        own["command"] = f"tallystick device show {shlex.quote(looked_at[0])}{ledger_option}"
    return RunEnd(**{**parts, **own}, session=session)


def list_of_runs(ledger: Ledger, *, limit: int) -> RunList:
    """The newest runs first."""
    with ledger.reading() as reader:
        runs = [as_found(ledger, reader, run) for run in run_reads.list_runs(reader, limit=limit)]
        found = [(run, run_reads.slot_counts(reader, run.run_key)) for run in runs]
        moves = [next_move(reader, run, counts) for run, counts in found]
    lines = [
        _line(run, counts, _mended(ledger, run, counts, move)) for (run, counts), move in zip(found, moves, strict=True)
    ]
    return RunList(ledger=str(ledger.path), runs=lines)


def _mended(ledger: Ledger, run: RunRow, counts: dict[SlotState, int], move: NextMove) -> NextMove:
    """What helps next where another ledger of this host may have put a device of the run into quarantine."""
    waits = move is NextMove.RESUME and counts[SlotState.PENDING] > 0
    return NextMove.DECIDE if waits and _kept_off(devices_of_run(ledger, run.run_key)) else move


def _kept_off(devices: Sequence[DeviceUse]) -> list[str]:
    return [one.device for one in devices if one.state == "quarantined"]


def executing_now(ledger: Ledger, run_id: str) -> Executing | None:
    """Who holds the run at this moment, None when nobody does."""
    holder = coordinator_of(ledger, run_id)
    if holder is None:
        return None
    return Executing(
        worker=holder.worker_id, pid=holder.identity.pid, alive=not holder.dead, since=instant(holder.since_us)
    )


def next_command(
    move: NextMove,
    run_id: str,
    people: Population,
    *,
    ledger_option: str = "",
    is_from_python: bool = False,
    quarantined: Sequence[str] = (),
) -> str:
    """The command that does what helps next, empty where there is none.

    A run with targets or judges that were given from Python is gone on with by its own program, and by no command.
    ``quarantined`` names devices that an operator has to look at first.
    """
    command = _command(move, run_id, people, quarantined)
    if is_from_python and command.startswith("resume"):
        command = f"report {run_id}" if move is NextMove.DECIDE else ""
    return f"tallystick {command}{ledger_option}" if command else ""


def is_from_python(run: RunRow) -> bool:
    document: Any = parse_json(run.work_order)
    try:
        sides = [side["target"] for side in document["variants"].values()]
        sides += [found for found in [document.get("conversation", {}).get("given")] if found is not None]
        return any(one["kind"] == GIVEN for one in (*sides, *document["judges"]))
    except (AttributeError, KeyError, TypeError):
        return False  # nobody's: whoever goes on with the run is told so


def _command(move: NextMove, run_id: str, people: Population, quarantined: Sequence[str]) -> str:
    match move:
        case NextMove.NOTHING:
            return ""
        case NextMove.ADOPT:
            return f"adopt {run_id} --reason TEXT"
        case NextMove.RESUME:
            return f"resume {run_id}"
        case NextMove.FUND:
            return f"resume {run_id} --amend UNIT=LIMIT --reason TEXT"
        case NextMove.DECIDE:
            return f"device show {shlex.quote(quarantined[0])}" if quarantined else _decision(run_id, people)


def _decision(run_id: str, people: Population) -> str:
    if people.unknown:
        return f"reconcile {run_id}"
    for state in ("parked", "unavailable", "failed"):
        if getattr(people, state):
            return f"resume {run_id} --retry {state}"
    return f"report {run_id}"


def population_of(counts: dict[SlotState, int]) -> Population:
    """The counts with their sum."""
    return Population(planned=sum(counts.values()), **{state.value: counts[state] for state in SlotState})


def _standing(
    reader: Reader,
    run: RunRow,
    ledger: Ledger,
    ledger_option: str,
    *,
    is_counted: bool = True,
) -> dict[str, Any]:
    counts = run_reads.slot_counts(reader, run.run_key)
    move, people = next_move(reader, run, counts), population_of(counts)
    not_before = goes_on_at_us(reader, run.run_key, now_us=ledger.clock.now_us())
    unknown = report_reads.unknown_reasons(reader, run.run_key)
    return {
        "ledger": str(ledger.path),
        "run": run.run_id,
        "name": run.name,
        "state": run.state,
        "custody": run.custody,
        "next": move.value,
        "command": next_command(
            move,
            run.run_id,
            people,
            ledger_option=ledger_option,
            is_from_python=is_from_python(run),
            quarantined=quarantined_for(reader, run.run_key) if people.pending else (),
        ),
        "exit_status": int(exit_status_of(move)),
        "created_at": instant(run.created_us),
        "started_at": None if run.started_us is None else instant(run.started_us),
        "ended_at": None if run.ended_us is None else instant(run.ended_us),
        "active_seconds": run.active_us / 1e6,
        "not_before": instant(not_before) if not_before else None,
        "population": people,
        "reasons": _reasons(reader, run.run_key, ledger_option),
        "unknown": UnknownPart(count=sum(unknown.values()), reasons=unknown),
        "budgets": _budgets(reader, run),
        "totals": _totals(totals_of(reader, run.run_key)) if is_counted else None,
        "judge_totals": _totals(judge_totals_of(reader, run.run_key)) if is_counted else None,
        "variants": [
            VariantLine(name=one.name, if_unknown=one.if_unknown) for one in run_reads.variants_of(reader, run.run_key)
        ],
        "scores": _scores(reader, run) if is_counted else None,
        "forked_from": fork_origin(reader, run),
        "prices": price_lines(reader, run),
        "flags": _flags(reader, run) if is_counted else None,
    }


def _reasons(reader: Reader, run_key: int, ledger_option: str) -> list[ReasonLine]:
    found = run_reads.slot_reasons(reader, run_key)
    told = sorted(found, key=lambda one: -one[2])[:_EXAMPLES_MAX]
    examples = {(state, reason): run_reads.reason_example(reader, run_key, state, reason) for state, reason, _ in told}
    return [
        reason_line(state, reason, count, examples.get((state, reason), ""), ledger_option=ledger_option)
        for state, reason, count in found
    ]


def _flags(reader: Reader, run: RunRow) -> list[FlagLine]:
    found: dict[str, Counter[str]] = {}
    for variant, text, count in report_reads.flag_counts(reader, run.run_key):
        of_variant = found.setdefault(variant, Counter())
        for flag in flags_of(text):
            of_variant[flag] += count
    return [
        FlagLine(variant=variant, flag=flag, count=count)
        for variant, counts in found.items()
        for flag, count in sorted(counts.items())
    ]


def fork_origin(reader: Reader, run: RunRow) -> ForkOrigin | None:
    """Where a fork comes from, None for every other run."""
    if run.forked_from is None:
        return None
    return ForkOrigin(
        run=run.forked_from, event=run.forked_at_event or 0, reused=run_reads.reused_count(reader, run.run_key)
    )


def _budgets(reader: Reader, run: RunRow) -> list[BudgetLine]:
    held = report_reads.held_by_unknown(reader, run.run_key)
    return [budget_line(one, held, None) for one in run_reads.budgets_of(reader, run.run_key)]


def budget_line(state: BudgetState, held: dict[int, int], counted: dict[int, int] | None) -> BudgetLine:
    """A budget as it is shown; ``held`` by unknown outcomes and ``counted`` for observations are by budget number."""
    plan = state.plan
    useful = None if counted is None else counted.get(plan.budget_no, 0)
    return BudgetLine(
        scope=plan.scope, name=plan.scope_value, unit=unit_key(plan.unit), kind=plan.kind,
        unknown_uses=state.unknown_uses,
        limit=shown_amount(plan.unit, plan.limit_amount),
        settled=shown_amount(plan.unit, state.settled),
        held=shown_amount(plan.unit, state.held),
        left=shown_amount(plan.unit, state.left),
        overrun=shown_amount(plan.unit, state.overrun),
        held_by_unknown=shown_amount(plan.unit, held.get(plan.budget_no, 0)),
        counted=None if useful is None else shown_amount(plan.unit, useful),
        wasted=None if useful is None else shown_amount(plan.unit, state.settled - useful),
        carried=shown_amount(plan.unit, plan.carried),
    )  # fmt: skip


def _totals(found: Totals | None) -> TotalsPart | None:
    if found is None:
        return None
    undecided = sum(found.by_state.get(state, 0) for state in (DispatchState.INTENDED, DispatchState.UNKNOWN))
    return TotalsPart(
        attempts=found.attempts, calls=found.calls, dispatches=found.dispatches,
        dispatches_by_state=dict(sorted(found.by_state.items())), wasted_dispatches=max(0, found.wasted - undecided),
        replays=found.replays,
        tokens_in=found.tokens_in, tokens_out=found.tokens_out,
        cost_usd=None if found.cost_nanousd is None else usd_text(found.cost_nanousd),
        unpriced_dispatches=found.unpriced, unmetered_dispatches=found.unmetered,
        tokens_by_class=by_class(found.classes),
    )  # fmt: skip


def _scores(reader: Reader, run: RunRow) -> list[ScoreLine]:
    return [
        ScoreLine(
            judge=one.judge, variant=one.variant, planned=one.planned, judged=one.judged, passed=one.passed,
            rated=one.rated, mean=None if one.score_sum is None or not one.scored else one.score_sum / one.scored,
            no_verdict=dict(sorted(one.no_verdict.items())),
        )
        for one in scores_of(reader, run.run_key)
    ]  # fmt: skip


def _line(run: RunRow, counts: dict[SlotState, int], move: NextMove) -> RunLine:
    return RunLine(
        run=run.run_id, name=run.name, state=run.state, created_at=instant(run.created_us), planned=run.planned,
        selected=counts[SlotState.SELECTED], next=move.value,
    )  # fmt: skip
