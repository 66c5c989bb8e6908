"""Whether a run's history tells the same as its rows: what reports read, and what is executed by."""

from __future__ import annotations

from collections.abc import Iterator

from .history import RunHistory, history_at
from .history_budgets import budgets_by_replay
from .ledger import Reader
from .run_reads import budgets_of

__all__ = ["differences"]


def differences(reader: Reader, known: RunHistory | None = None) -> Iterator[str]:
    """One text for each slot, attempt, dispatch or budget of a run that is not as the run's events say.

    ``known`` is a history that was gone through already.
    """
    for run_key, run_id in reader.rows(
        "SELECT run_key, run_id FROM runs WHERE state NOT IN ('planning', 'importing') ORDER BY run_key"
    ):
        try:
            history = known if known is not None and known.run_key == run_key else history_at(reader, run_key)
            yield from (f"run {run_id} {what}" for what in _of_run(reader, history))
        except (IndexError, KeyError, TypeError, ValueError) as problem:
            yield f"run {run_id}: its events cannot be read ({type(problem).__name__}: {problem})"


def _of_run(reader: Reader, history: RunHistory) -> Iterator[str]:
    state, active_us = reader.row("SELECT state, active_us FROM runs WHERE run_key = ?", (history.run_key,))
    if (state, active_us) != (history.run_state, history.active_us) and state in ("open", "finished", "cancelled"):
        yield f"is {state}, told {history.run_state}"
    yield from _slots(reader, history)
    yield from _open_ones(reader, history)
    for found, told in zip(budgets_of(reader, history.run_key), budgets_by_replay(reader, history), strict=True):
        if found != told:
            yield f"budget {found.plan.budget_no}: {found}, told {told}"


def _slots(reader: Reader, history: RunHistory) -> Iterator[str]:
    for slot_no, *found in reader.each(
        "SELECT slot_no, state, reason, attempts, next_step FROM slots WHERE run_key = ? ORDER BY slot_no",
        (history.run_key,),
    ):
        told = [
            history.state_of(slot_no).value, history.reasons.get(slot_no), history.attempts[slot_no],
            history.step_of(slot_no),
        ]  # fmt: skip
        if found != told:
            yield f"slot {slot_no}: {found}, told {told}"


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
