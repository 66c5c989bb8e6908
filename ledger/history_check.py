"""Whether a run's history tells the same as its rows: what reports read, and what is executed by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from .canonical import stored_json
from .history import STATE_TEXTS, EventRow, RunHistory, history_at
from .history_budgets import BudgetSteps, budgets_by_replay
from .ledger import Reader
from .run_reads import budgets_of
from .states import NextStep

__all__ = ["MAKES_NO_SENSE", "Known", "differences", "known_of"]

_VARIANTS: Final = "SELECT name FROM variants WHERE run_key = ? ORDER BY variant_no"
MAKES_NO_SENSE: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What going through events raises that no ledger has written."""


@attrs.frozen
class Known:
    """What the events of a run tell, gone through already."""

    history: RunHistory
    steps: BudgetSteps


def differences(reader: Reader, known: Known | None = None) -> Iterator[str]:
    """One text for each slot, attempt, dispatch or budget of a run that is not as the run's events say.

    ``known`` is of one run; events of others are gone through here.
    """
    for run_key, run_id, planned, found in reader.rows(
        "SELECT r.run_key, r.run_id, r.planned, (SELECT count(*) FROM slots s WHERE s.run_key = r.run_key) FROM runs r"
        " WHERE r.state NOT IN ('planning', 'importing') ORDER BY r.run_key"
    ):
        if planned != found:  # a history takes as much memory as there are slots said to be
            yield f"run {run_id} has {found} slots, and its plan says {planned}"
            continue
        try:
            told = known if known is not None and known.history.run_key == run_key else known_of(reader, run_key)
            yield from (f"run {run_id} {what}" for what in _of_run(reader, told))
        except MAKES_NO_SENSE as problem:
            yield f"run {run_id}: its events cannot be read ({type(problem).__name__}: {problem})"


def known_of(reader: Reader, run_key: int, events: Iterable[EventRow] | None = None) -> Known:
    """Go through a run's events; they are read here unless they are given."""
    steps = BudgetSteps()
    return Known(history_at(reader, run_key, events=events, note=steps.note), steps)


def _of_run(reader: Reader, known: Known) -> Iterator[str]:
    history = known.history
    state, active_us, epoch = reader.row(
        "SELECT state, active_us, custody_epoch FROM runs WHERE run_key = ?", (history.run_key,)
    )
    if (state, active_us) != (history.run_state, history.active_us) and state in ("open", "finished", "cancelled"):
        yield f"is {state}, told {history.run_state}"
    if epoch != history.epoch:
        yield f"has the epoch {epoch}, told {history.epoch}"
    yield from _plan(reader, history.run_key)
    yield from _slots(reader, history)
    yield from _open_ones(reader, history)
    yield from _contaminated(reader, history)
    replayed = budgets_by_replay(reader, history, known.steps)
    for found, told in zip(budgets_of(reader, history.run_key), replayed, strict=True):
        if found != told:
            yield f"budget {found.plan.budget_no}: {found}, told {told}"


def _plan(reader: Reader, run_key: int) -> Iterator[str]:
    """What the first event says of the run; where something was left out, texts of both may be others."""
    run_id, name, identity, work_order, is_part = reader.row(
        "SELECT run_id, name, identity_digest, work_order_digest, left_out IS NOT NULL FROM runs WHERE run_key = ?",
        (run_key,),
    )
    kind, text = reader.row("SELECT kind, body FROM events WHERE run_key = ? AND event_no = 1", (run_key,))
    told = stored_json(text)
    variants = [row[0] for row in reader.rows(_VARIANTS, (run_key,))]
    there = {"run": run_id, "identity": identity, "work_order": work_order}
    if not is_part:
        there |= {"name": name, "variants": variants}
    if kind != "run.planned":
        yield f"begins with {kind}"
    yield from (f"has the {what} {value}, told {told[what]}" for what, value in there.items() if told[what] != value)


def _slots(reader: Reader, history: RunHistory) -> Iterator[str]:
    rows = reader.each(
        "SELECT slot_no, state, reason, attempts, next_step FROM slots WHERE run_key = ? ORDER BY slot_no",
        (history.run_key,),
    )
    new = NextStep.NEW.value
    codes, reasons, attempts, steps = history.codes, history.reasons.get, history.attempts, history.steps.get
    for found in rows:
        slot_no = found[0]
        told = (slot_no, STATE_TEXTS[codes[slot_no]], reasons(slot_no), attempts[slot_no], steps(slot_no, new))
        if found != told:
            yield f"slot {slot_no}: {list(found[1:])}, told {list(told[1:])}"


def _open_ones(reader: Reader, history: RunHistory) -> Iterator[str]:
    attempts = {
        (slot_no, attempt_no): state
        for slot_no, attempt_no, state in reader.each(
            "SELECT slot_no, attempt_no, state FROM attempts WHERE run_key = ? AND state IN ('running', 'unknown')",
            (history.run_key,),
        )
    }
    if attempts != {key: one.state for key, one in history.open_attempts.items()}:
        yield f"attempts without an end: {attempts}, told {history.open_attempts}"
    dispatches = {
        (call_id, dispatch_no): state
        for call_id, dispatch_no, state in reader.each(
            "SELECT d.call_id, d.dispatch_no, d.state FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
            " WHERE d.run_key = ? AND d.state IN ('intended', 'unknown') AND c.owner IN ('attempt', 'judgment')",
            (history.run_key,),
        )
    }
    told = {key: one.state for key, one in history.open_dispatches.items()}
    if dispatches != told:
        yield f"dispatches without an outcome: {dispatches}, told {told}"


def _contaminated(reader: Reader, history: RunHistory) -> Iterator[str]:
    rows = reader.each(
        "SELECT slot_no, attempt_no FROM attempts WHERE run_key = ? AND contaminated = 1", (history.run_key,)
    )
    marked = {(slot_no, attempt_no) for slot_no, attempt_no in rows}
    for slot_no, attempt_no in sorted(marked ^ history.contaminated):
        is_marked = (slot_no, attempt_no) in marked
        yield f"slot {slot_no!r} attempt {attempt_no!r}: contaminated {is_marked}, told {not is_marked}"
