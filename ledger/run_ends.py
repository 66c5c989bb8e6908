"""Asking a run to stop, ending it, giving it up, and opening ended slots again."""

from __future__ import annotations

from typing import Final

from .custody import require_held
from .errors import RunNotResumable, UsageError
from .reopening import reopen_run
from .schema import IN_TROUBLE
from .standing import steps_of
from .transaction import Transaction

__all__ = ["RETRIABLE", "abandon_run", "ask_to_stop", "finish_run", "leave_undecided", "mark_unavailable", "retry"]

RETRIABLE: Final = ("failed", "unavailable", "parked", "cancelled")
_CHUNK: Final = 20_000


def ask_to_stop(tx: Transaction, run_key: int, *, reason: str) -> None:
    """Ask the run's coordinator, wherever it is, to stop as after a first Ctrl-C."""
    require_held(tx, run_key)
    tx.change("UPDATE runs SET stop_asked_us = ?, stop_reason = ? WHERE run_key = ? AND state = 'open'",
              (tx.now_us, reason, run_key))  # fmt: skip
    tx.event(run_key, "run.stop_asked", {"reason": reason})


def finish_run(tx: Transaction, run_key: int) -> bool:
    """End the run if no slot waits or is in flight; says whether it is ended."""
    left = tx.row(
        "SELECT EXISTS (SELECT 1 FROM slots INDEXED BY slots_pending WHERE run_key = ? AND state = 'pending')"
        " OR EXISTS (SELECT 1 FROM slots INDEXED BY slots_in_flight WHERE run_key = ? AND state = 'in_flight')",
        (run_key, run_key),
    )[0]
    if left:
        return False
    if tx.change("UPDATE runs SET state = 'finished', ended_us = ? WHERE run_key = ? AND state = 'open'",
                 (tx.now_us, run_key)):  # fmt: skip
        tx.change("UPDATE evaluations SET ended_us = ? WHERE run_key = ? AND evaluation_no = 1", (tx.now_us, run_key))
        tx.event(run_key, "run.finished", {})
    return True


def mark_unavailable(tx: Transaction, run_key: int, *, reason: str, variant_no: int | None = None) -> int:
    """Say of up to some thousand waiting slots that they could not be attempted; returns how many, 0 at the end.

    Those that wait for a resend or a query are not among them: `leave_undecided`.
    """
    which = "" if variant_no is None else f" AND variant_no = {int(variant_no)}"
    chosen = tx.rows(
        "UPDATE slots SET state = 'unavailable', reason = ? WHERE run_key = ? AND slot_no IN"
        " (SELECT slot_no FROM slots INDEXED BY slots_pending WHERE run_key = ? AND state = 'pending'"
        f" AND next_step = 'new'{which} LIMIT {_CHUNK}) RETURNING slot_no",
        (reason, run_key, run_key),
    )
    if chosen:
        # Some of many: without their numbers the history could not tell which.
        tx.event(run_key, "slots.unavailable", {
            "count": len(chosen), "reason": reason, "variant": variant_no,
            "slots": steps_of(sorted(row[0] for row in chosen)),
        })  # fmt: skip
    return len(chosen)


def leave_undecided(tx: Transaction, run_key: int, *, reason: str, variant_no: int | None = None) -> int:
    """Slots that wait for a resend or a query which will not be made now are unknown; returns how many.

    Their next step stays, for the case that the reason goes away: then it is made, and never a new request instead.
    """
    which = "" if variant_no is None else f" AND variant_no = {int(variant_no)}"
    count = tx.change(
        "UPDATE slots INDEXED BY slots_pending SET state = 'unknown', reason = ?"
        f" WHERE run_key = ? AND state = 'pending' AND next_step <> 'new'{which}",
        (reason, run_key),
    )
    if count:
        tx.event(run_key, "slots.unknown", {"count": count, "reason": reason, "variant": variant_no})
    return count


def abandon_run(tx: Transaction, run_key: int, *, reason: str, made_by: str) -> int:
    """Give up what has not begun; the run is cancelled, and what is unknown stays so.

    Raises RunNotResumable while something is in flight.
    """
    require_held(tx, run_key)
    state, in_flight = tx.row(
        "SELECT state, EXISTS (SELECT 1 FROM slots INDEXED BY slots_in_flight"
        " WHERE run_key = runs.run_key AND slots.state = 'in_flight') FROM runs WHERE run_key = ?",
        (run_key,),
    )
    if in_flight or state not in ("open", "finished"):
        raise RunNotResumable(
            f"the run is {state} and {'has slots in flight' if in_flight else 'cannot be given up'}",
            "stop its coordinator (`tallystick cancel RUN`), or resume it once so that what is in flight is settled",
        )
    leave_undecided(tx, run_key, reason="given_up")
    count = tx.change(
        "UPDATE slots INDEXED BY slots_pending SET state = 'cancelled', reason = 'given_up'"
        " WHERE run_key = ? AND state = 'pending'",
        (run_key,),
    )
    # A run whose every slot had ended has nothing to give up.
    tx.change("UPDATE runs SET state = 'cancelled', ended_us = ? WHERE run_key = ? AND state = 'open'",
              (tx.now_us, run_key))  # fmt: skip
    tx.event(run_key, "run.cancelled", {"count": count, "reason": reason, "by": made_by})
    return count


def retry(tx: Transaction, run_key: int, *, state: str, reason: str | None) -> int:
    """Let ended slots wait again (``state`` one of RETRIABLE, all or those with that reason); returns how many.

    ``reason`` also names those that go on after it with a dot: ``http.status`` names ``http.status.500``.
    A parked slot that had to be resent or asked for still has to.

    Raises UsageError for another state: an unknown outcome is settled, never just tried again.
    """
    if state not in RETRIABLE:
        raise UsageError(
            f"slots that are {state} cannot be retried",
            f"name one of {', '.join(RETRIABLE)}; unknown outcomes are settled with `tallystick reconcile`",
        )
    require_held(tx, run_key)
    named = " AND (reason = ? OR substr(reason, 1, length(?)) = ?)"
    which, values = ("", ()) if reason is None else (named, (reason, f"{reason}.", f"{reason}."))
    count = tx.change(
        "UPDATE slots INDEXED BY slots_in_trouble SET state = 'pending', reason = NULL,"
        " not_before_us = 0, suspect = 0, solitary_deaths = 0 WHERE run_key = ? AND state = ?"
        f" AND {IN_TROUBLE}{which}",
        (run_key, state, *values),
    )
    if count:
        reopen_run(tx, run_key, is_taken_back=True)
        tx.event(run_key, "slots.retried", {"count": count, "state": state, "reason": reason})
    return count
