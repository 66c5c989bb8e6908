"""How a run stood at an event, in the keys that reports share with ``status``."""

from __future__ import annotations

from typing import Any

from ..ledger import run_reads
from ..ledger.evaluations import INLINE
from ..ledger.history import RunHistory
from ..ledger.history_budgets import budgets_at
from ..ledger.ledger import Reader
from ..ledger.report_sums import counted_at, held_by_unknown_at, judge_dispatches
from ..ledger.run_reads import RunRow
from ..ledger.states import CustodyState, DispatchState, RunState, SlotState
from .amounts import usd_text
from .instants import instant
from .price_lines import by_class, price_lines
from .report_figures import UNDECIDED, Spent
from .report_models import TotalsPart, UnknownPart, VariantLine
from .reports import budget_line, fork_origin, is_from_python, next_command, population_of
from .results import NextMove, exit_status_of

__all__ = ["judge_totals", "standing_at", "totals_part"]

_NEEDS_DECISION = (SlotState.UNKNOWN, SlotState.FAILED, SlotState.PARKED, SlotState.UNAVAILABLE)


def standing_at(reader: Reader, run: RunRow, history: RunHistory, *, ledger: str, ledger_option: str) -> dict[str, Any]:
    """The keys of `RunStanding` that tell of the whole run; population, reasons, totals and scores are a slice's."""
    counts = history.counts()
    custody = _custody(run, history)
    move = _next_move(custody, history, counts, is_part=run_reads.is_part(reader, run.run_key))
    unknown: dict[str, int] = {}
    for one in history.open_dispatches.values():
        if one.state == DispatchState.UNKNOWN:
            unknown[one.reason or ""] = unknown.get(one.reason or "", 0) + 1
    held, counted = held_by_unknown_at(history), counted_at(reader, history)
    return {
        "ledger": ledger,
        "run": run.run_id,
        "name": run.name,
        "state": history.run_state,
        "custody": custody,
        "next": move.value,
        "command": next_command(
            move, run.run_id, population_of(counts), ledger_option=ledger_option, is_from_python=is_from_python(run)
        ),
        "exit_status": int(exit_status_of(move)),
        "created_at": instant(run.created_us),
        "started_at": None if history.started_us is None else instant(history.started_us),
        "ended_at": None if history.ended_us is None else instant(history.ended_us),
        "active_seconds": history.active_us / 1e6,
        "not_before": None,
        "unknown": UnknownPart(count=sum(unknown.values()), reasons=dict(sorted(unknown.items()))),
        "prices": price_lines(reader, run, event=history.event_no),
        "budgets": [budget_line(state, held, counted) for state in budgets_at(reader, history)],
        "variants": [
            VariantLine(name=one.name, if_unknown=one.if_unknown) for one in run_reads.variants_of(reader, run.run_key)
        ],
        "forked_from": fork_origin(reader, run),
    }


def _custody(run: RunRow, history: RunHistory) -> str:
    """This ledger's custody then. A run that is being moved is told as moved: no event parts the one from the other."""
    custody = history.later_custody or run.custody
    return CustodyState.MOVED.value if custody == CustodyState.MOVING else custody


def _next_move(custody: str, history: RunHistory, counts: dict[SlotState, int], *, is_part: bool) -> NextMove:
    """What helped next then; as `results.next_move` tells it from the rows of now."""
    if custody == CustodyState.MOVED:
        return NextMove.ADOPT
    move = _next_where_held(history, counts)
    if custody != CustodyState.COPY or move is NextMove.NOTHING:
        return move
    return NextMove.NOTHING if is_part else NextMove.ADOPT


def _next_where_held(history: RunHistory, counts: dict[SlotState, int]) -> NextMove:
    if history.run_state == RunState.CANCELLED:
        return NextMove.NOTHING
    waiting = (SlotState.PENDING, SlotState.IN_FLIGHT)
    if any(why == "budget" and history.state_of(slot) not in waiting for slot, why in history.reasons.items()):
        return NextMove.FUND
    if history.run_state == RunState.OPEN or any(counts[state] for state in waiting):
        return NextMove.RESUME
    if history.out_of_budget[INLINE]:
        return NextMove.FUND
    if any(counts[state] for state in _NEEDS_DECISION) or history.no_verdicts[INLINE]:
        return NextMove.DECIDE
    return NextMove.NOTHING


def totals_part(spent: Spent) -> TotalsPart:
    """What was sent, in the report's words."""
    return TotalsPart(
        attempts=spent.attempts, calls=spent.calls, dispatches=sum(spent.by_state.values()),
        dispatches_by_state=dict(sorted(spent.by_state.items())), wasted_dispatches=spent.wasted, replays=spent.replays,
        tokens_in=spent.tokens_in, tokens_out=spent.tokens_out,
        cost_usd=None if spent.cost_nanousd is None else usd_text(spent.cost_nanousd),
        unpriced_dispatches=spent.unpriced, unmetered_dispatches=spent.unmetered,
        tokens_by_class=by_class(spent.classes),
    )  # fmt: skip


def judge_totals(reader: Reader, history: RunHistory) -> TotalsPart | None:
    """What judges sent, None where they sent nothing."""
    spent = Spent()
    for one in judge_dispatches(reader, history):
        spent.add_dispatch(one.state, one.dispatch_no, one.tokens_in, one.tokens_out, one.cost_nanousd, one.classes)
        spent.wasted += not (one.state in UNDECIDED or one.has_verdict or one.never_made)
    return totals_part(spent) if spent.by_state else None
