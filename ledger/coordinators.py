"""One coordinator a run, and what it finds when it takes a run over from a dead one.

The coordinator's lease is taken by compare-and-set on the lease that was seen held, never by comparing times. On one
host a holder is replaced when, and only when, its worker lock proves it dead. Taking the run and classifying what the
dead left is one transaction: its cost grows with what was in flight, not with the run.
"""

from __future__ import annotations

import os

import attrs

from .attempt_calls import break_off, leave_open
from .crashpoints import crashpoint
from .custody import elsewhere
from .errors import RunBusy, RunNotFound, RunNotResumable
from .fences import next_fence
from .holders import Holder, holder_of
from .ledger import Ledger
from .open_calls import AttemptCalls, calls_of, follow_up
from .processes import boot_id, host_id
from .records import DispatchFacts, DispatchKey
from .schema import leases
from .solitary_deaths import charge, park, park_charged
from .statements import hot_insert
from .states import DispatchState
from .transaction import Transaction

__all__ = ["Coordinator", "Recovered", "coordinator_of", "follow_up", "open_run", "refuse_busy", "release_run"]

SOLITARY_DEATHS_MAX = 3

_ADD_LEASE = hot_insert(
    leases, "lease_id", "resource", "state", "worker_id", "run_key", "fence", "asked_us", "since_us", "boot_id"
)


@attrs.frozen
class Recovered:
    """What a dead coordinator left: counts of slots."""

    dead_workers: tuple[str, ...] = ()
    unknown: int = 0
    again: int = 0
    interrupted: int = 0
    parked: int = 0


@attrs.frozen
class Coordinator:
    """This process's hold of a run."""

    run_key: int
    run_id: str
    lease_id: str
    fence: int
    recovered: Recovered


def coordinator_of(ledger: Ledger, run_id: str) -> Holder | None:
    """Who holds the run, None when nobody does."""
    return holder_of(ledger, _resource(run_id))


def open_run(ledger: Ledger, run_id: str, *, solitary_deaths_max: int = SOLITARY_DEATHS_MAX) -> Coordinator:
    """Become the run's coordinator and recover what a dead one left.

    Raises RunBusy while a live process (or one that cannot be proven dead from here) holds it, RunNotResumable and
    CustodyElsewhere when the run may not go on in this ledger.
    """
    holder = refuse_busy(ledger, run_id)
    coordinator = ledger.write(lambda tx: _take(tx, run_id, holder, solitary_deaths_max))
    crashpoint("recovery.done")
    crashpoint("run.opened")
    return coordinator


def refuse_busy(ledger: Ledger, run_id: str) -> Holder | None:
    """Raise RunBusy while a process that is not proven dead holds the run; return the dead holder, if there is one.

    Asked before a run's settings change, too, so that whoever is told that it is busy has changed nothing.
    """
    holder = coordinator_of(ledger, run_id)
    if holder is not None and not holder.dead:
        raise _busy(run_id, holder)
    return holder


def release_run(tx: Transaction, coordinator: Coordinator, *, reason: str, active_us: int) -> None:
    """Give the run back in good order."""
    tx.change(
        "UPDATE leases SET state = 'released', ended_us = ?, reason = ? WHERE lease_id = ? AND state = 'held'",
        (tx.now_us, reason, coordinator.lease_id),
    )
    tx.change("UPDATE runs SET active_us = active_us + ? WHERE run_key = ?", (active_us, coordinator.run_key))
    tx.event(coordinator.run_key, "run.left", {"worker": tx.worker_id, "reason": reason, "active_us": active_us})


def _take(tx: Transaction, run_id: str, holder: Holder | None, solitary_deaths_max: int) -> Coordinator:
    run_key = _resumable(tx, run_id)
    if holder is not None:
        taken = tx.change(
            "UPDATE leases SET state = 'lost', ended_us = ?, reason = 'its process died'"
            " WHERE lease_id = ? AND state = 'held'",
            (tx.now_us, holder.lease_id),
        )
        if not taken:
            raise _busy(run_id, None)
        tx.change("UPDATE workers SET ended_us = ?, end_reason = 'died' WHERE worker_id = ? AND ended_us IS NULL",
                  (tx.now_us, holder.worker_id))  # fmt: skip
    elif tx.row("SELECT 1 FROM leases WHERE resource = ? AND state = 'held'", (_resource(run_id),)):
        raise _busy(run_id, None)
    lease_id, fence = tx.ids.next(), next_fence(tx, _resource(run_id))
    tx.execute(
        _ADD_LEASE,
        (lease_id, _resource(run_id), "held", tx.worker_id, run_key, fence, tx.now_us, tx.now_us, boot_id()),
    )
    tx.change(
        "UPDATE runs SET started_us = coalesce(started_us, ?), stop_asked_us = NULL, stop_reason = NULL"
        " WHERE run_key = ?",
        (tx.now_us, run_key),
    )
    tx.event(run_key, "run.opened", {"worker": tx.worker_id, "fence": fence, "lease": lease_id})
    recovered = recover_in_flight(tx, run_key, holder, solitary_deaths_max=solitary_deaths_max)
    return Coordinator(run_key, run_id, lease_id, fence, recovered)


def _resumable(tx: Transaction, run_id: str) -> int:
    row = tx.row("SELECT run_key, state, custody FROM runs WHERE run_id = ?", (run_id,))
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    run_key, state, custody = row
    if custody != "held":
        raise elsewhere(tx, run_id, custody)
    if state not in ("open", "finished"):
        raise RunNotResumable(f"run {run_id} is {state}", "start a new one with `tallystick run ORDER --new`", run_id)
    return int(run_key)


def recover_in_flight(tx: Transaction, run_key: int, holder: Holder | None, *, solitary_deaths_max: int) -> Recovered:
    """Classify what is in flight and nobody executes any more; ``solitary_deaths_max`` 0 charges no case with it."""
    # Without the name of the index the whole run would be read: its primary key looks as good to the planner.
    left = tx.rows(
        "SELECT slot_no, attempts FROM slots INDEXED BY slots_in_flight WHERE run_key = ? AND state = 'in_flight'",
        (run_key,),
    )
    counts = {"unknown": 0, "again": 0, "interrupted": 0, "parked": 0}
    # A death is charged to a case only where it was alone; several in flight are suspects, to be tried one at a time.
    for slot_no, attempt_no in left:
        counts[_recover_slot(tx, run_key, slot_no, attempt_no, len(left), solitary_deaths_max)] += 1
    # Those that a death was charged to when a device was taken over from the dead (`lease_takeover`).
    counts["parked"] += park_charged(tx, run_key, deaths_max=solitary_deaths_max)
    if any(counts.values()):
        tx.event(run_key, "run.recovered", {"worker": holder.worker_id if holder else "", **counts})
    return Recovered((holder.worker_id,) if holder else (), **counts)


def _recover_slot(tx: Transaction, run_key: int, slot_no: int, attempt_no: int, in_flight: int, deaths_max: int) -> str:
    calls = calls_of(tx, run_key, slot_no, attempt_no)
    key = DispatchKey(run_key, slot_no, attempt_no, calls.newest_call, 0)
    deaths = charge(tx, key, in_flight=in_flight) if deaths_max > 0 else 0
    becomes = _leave_open(tx, key, calls) if calls.open else _interrupt(tx, key, calls)
    if becomes != "unknown" and deaths and deaths >= deaths_max:
        park(tx, run_key, slot_no, deaths=deaths)
        return "parked"
    return becomes


def _leave_open(tx: Transaction, key: DispatchKey, calls: AttemptCalls) -> str:
    """Some call of the attempt has no outcome: each of them is unknown, and together they say what may follow.

    Where nothing was under way, the last send was a resend that was refused: its call is as unknown as before.
    """
    before = "an outcome was committed" if calls.is_under_way else "the next resend"
    facts = DispatchFacts(
        DispatchState.UNKNOWN, "coordinator.died", f"the process died before {before}", settled_by="recovery"
    )
    waiting = leave_open(tx, key, calls, facts, may_be_its_doing=calls.is_under_way)
    return "unknown" if waiting is None else "again"


def _interrupt(tx: Transaction, key: DispatchKey, calls: AttemptCalls) -> str:
    """Nothing of the attempt is in question. Between two calls of it the runner's own code may have been at work (a
    user's function, a session's beginning), so that the case is suspect; while it waited for its next send, not.
    """
    is_suspect = calls.newest_state != DispatchState.REFUSED
    break_off(tx, key, reason="coordinator.died", suspect=is_suspect)
    return "interrupted"


def _resource(run_id: str) -> str:
    return f"run:{run_id}"


def _busy(run_id: str, holder: Holder | None) -> RunBusy:
    who = f"process {holder.identity.pid} (worker {holder.worker_id})" if holder else "another process"
    if holder is not None and holder.identity.host != host_id():
        remedy = f"stop it on its host; where that is gone, take over: `tallystick adopt {run_id} --reason TEXT`"
        return RunBusy(
            f"run {run_id} is held by a process of another host (worker {holder.worker_id})", remedy, run_id, who
        )
    if holder is not None and holder.identity.pid == os.getpid():
        return RunBusy(
            f"run {run_id} is executed by this {who} already",
            "use the guard or the harness that has it, or close that first; a run that goes on is waited for",
            run_id, who,
        )  # fmt: skip
    return RunBusy(
        f"run {run_id} is being executed by {who}",
        f"wait for it, or ask it to stop with `tallystick cancel {run_id}`", run_id, who,
    )  # fmt: skip
