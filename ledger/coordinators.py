"""One coordinator a run, and what it finds when it takes a run over from a dead one.

The coordinator's lease is taken by compare-and-set on the lease that was seen held, never by comparing times. On one
host a holder is replaced when, and only when, its worker lock proves it dead. Taking the run and classifying what the
dead left is one transaction: its cost grows with what was in flight, not with the run.
"""

from __future__ import annotations

from typing import Any

import attrs

from .attempts import lose, stay_unknown, unknown_sends
from .crashpoints import crashpoint
from .errors import CustodyElsewhere, RunBusy, RunNotFound, RunNotResumable
from .ledger import Ledger
from .processes import ProcessIdentity, boot_id
from .records import DispatchFacts, DispatchKey, Waiting
from .schema import leases
from .statements import hot_insert
from .states import DispatchState, IfUnknown, NextStep
from .transaction import Transaction

__all__ = ["Coordinator", "Recovered", "coordinator_of", "open_run", "release_run"]

SOLITARY_DEATHS_MAX = 3

_ADD_LEASE = hot_insert(
    leases, "lease_id", "resource", "state", "worker_id", "run_key", "fence", "asked_us", "since_us", "boot_id"
)


@attrs.frozen
class Holder:
    """Who coordinates a run now, and whether that process is proven dead."""

    lease_id: str
    worker_id: str
    identity: ProcessIdentity
    dead: bool
    since_us: int


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
    with ledger.reading() as reader:
        row = reader.row(
            "SELECT l.lease_id, l.worker_id, w.pid, w.start_ticks, w.boot_id, w.host, l.since_us, w.ended_us"
            " FROM leases l JOIN workers w ON w.worker_id = l.worker_id WHERE l.resource = ? AND l.state = 'held'",
            (_resource(run_id),),
        )
    if row is None:
        return None
    lease_id, worker_id, pid, ticks, boot, host, since, ended = row
    identity = ProcessIdentity(pid, ticks, boot, host)
    return Holder(lease_id, worker_id, identity, ended is not None or ledger.is_dead(worker_id, identity), since)


def open_run(ledger: Ledger, run_id: str, *, solitary_deaths_max: int = SOLITARY_DEATHS_MAX) -> Coordinator:
    """Become the run's coordinator and recover what a dead one left.

    Raises RunBusy while a live process (or one that cannot be proven dead from here) holds it, RunNotResumable and
    CustodyElsewhere when the run may not go on in this ledger.
    """
    holder = coordinator_of(ledger, run_id)
    if holder is not None and not holder.dead:
        raise _busy(run_id, holder)
    coordinator = ledger.write(lambda tx: _take(tx, run_id, holder, solitary_deaths_max))
    crashpoint("recovery.done")
    crashpoint("run.opened")
    return coordinator


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
    lease_id, fence = tx.ids.next(), _next_fence(tx, _resource(run_id))
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
    recovered = _recover(tx, run_key, holder, solitary_deaths_max)
    return Coordinator(run_key, run_id, lease_id, fence, recovered)


def _resumable(tx: Transaction, run_id: str) -> int:
    row = tx.row("SELECT run_key, state, custody FROM runs WHERE run_id = ?", (run_id,))
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    run_key, state, custody = row
    if custody != "held":
        raise CustodyElsewhere(
            f"run {run_id} is a {custody} here and not this ledger's to continue",
            "continue it where it is held", run_id,
        )  # fmt: skip
    if state not in ("open", "finished"):
        raise RunNotResumable(f"run {run_id} is {state}", "start a new one with `tallystick run ORDER --new`", run_id)
    return int(run_key)


def _recover(tx: Transaction, run_key: int, holder: Holder | None, solitary_deaths_max: int) -> Recovered:
    # Without the name of the index the whole run would be read: its primary key looks as good to the planner.
    left = tx.rows(
        "SELECT slot_no, attempts, solitary_deaths FROM slots INDEXED BY slots_in_flight"
        " WHERE run_key = ? AND state = 'in_flight'",
        (run_key,),
    )
    if not left:
        return Recovered((holder.worker_id,) if holder else ())
    counts = {"unknown": 0, "again": 0, "interrupted": 0, "parked": 0}
    # A death is charged to a case only where it was alone; several in flight are suspects, to be tried one at a time.
    for slot_no, attempt_no, deaths in left:
        counts[_recover_slot(tx, run_key, slot_no, attempt_no, deaths, len(left), solitary_deaths_max)] += 1
    tx.event(run_key, "run.recovered", {"worker": holder.worker_id if holder else "", **counts})
    return Recovered((holder.worker_id,) if holder else (), **counts)


def _recover_slot(
    tx: Transaction, run_key: int, slot_no: int, attempt_no: int, deaths: int, in_flight: int, deaths_max: int
) -> str:
    solitary = tx.row("SELECT solitary FROM attempts WHERE run_key = ? AND slot_no = ? AND attempt_no = ?",
                      (run_key, slot_no, attempt_no))[0]  # fmt: skip
    blamed = bool(solitary) and in_flight == 1
    if blamed:
        deaths += 1
        tx.change("UPDATE slots SET solitary_deaths = ? WHERE run_key = ? AND slot_no = ?", (deaths, run_key, slot_no))
    newest = tx.row(
        "SELECT c.call_id, d.dispatch_no, d.state, c.if_unknown, c.key_until_us, "
        " coalesce(c.payload, c.payload_artifact) IS NOT NULL FROM calls c"
        " JOIN dispatches d ON d.call_id = c.call_id"
        " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt'"
        " ORDER BY c.position DESC, d.dispatch_no DESC LIMIT 1",
        (run_key, slot_no, attempt_no),
    )
    if newest is None or newest[2] != DispatchState.INTENDED:
        key = DispatchKey(run_key, slot_no, attempt_no, "" if newest is None else newest[0], 0)
        if unknown_sends(tx, key)[1]:
            return _back_to_unknown(tx, key, newest)
        return _interrupt(tx, key, parked=blamed and deaths >= deaths_max)
    call_id, dispatch_no, _, if_unknown, key_until, stored = newest
    key = DispatchKey(run_key, slot_no, attempt_no, call_id, dispatch_no, ())
    waiting = follow_up(IfUnknown(if_unknown), now_us=tx.now_us, key_until_us=key_until, stored=bool(stored))
    facts = DispatchFacts(
        DispatchState.UNKNOWN, "coordinator.died", "the process died before an outcome was committed",
        settled_by="recovery",
    )  # fmt: skip
    lose(tx, key, facts, waiting=waiting, suspect=waiting is not None)
    if waiting is None:
        return "unknown"
    if blamed and deaths >= deaths_max:
        _park(tx, key, deaths)
        return "parked"
    return "again"


def _back_to_unknown(tx: Transaction, key: DispatchKey, newest: tuple[Any, ...]) -> str:
    """The last dispatch was a resend that was refused: what it was sent for is as unknown as before."""
    _, _, _, if_unknown, key_until, stored = newest
    waiting = follow_up(IfUnknown(if_unknown), now_us=tx.now_us, key_until_us=key_until, stored=bool(stored))
    facts = DispatchFacts(
        DispatchState.UNKNOWN, "coordinator.died", "the process died before the next resend", settled_by="recovery"
    )
    stay_unknown(tx, key, facts, waiting=waiting)
    return "again" if waiting else "unknown"


def follow_up(if_unknown: IfUnknown, *, now_us: int, key_until_us: int | None, stored: bool = True) -> Waiting | None:
    """What may follow an unknown outcome by itself; None: nothing, an operator decides."""
    match if_unknown:
        case IfUnknown.KEEP:
            return None
        case IfUnknown.RESEND:
            valid = stored and (key_until_us is None or now_us < key_until_us)
            return Waiting(NextStep.RESEND) if valid else None
        case IfUnknown.QUERY:
            return Waiting(NextStep.QUERY)
        case IfUnknown.REPEAT | IfUnknown.RESTART:
            return Waiting(NextStep.NEW)
    raise ValueError(if_unknown)


def _interrupt(tx: Transaction, key: DispatchKey, *, parked: bool) -> str:
    tx.move("attempt", "interrupted",
            "UPDATE attempts SET state = 'interrupted', ended_us = ?, reason = 'coordinator.died'"
            " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND state = 'running'",
            (tx.now_us, key.run_key, key.slot_no, key.attempt_no))  # fmt: skip
    tx.move("slot", "pending",
            "UPDATE slots SET state = 'pending', next_step = 'new' WHERE run_key = ? AND slot_no = ?"
            " AND state = 'in_flight'",
            (key.run_key, key.slot_no))  # fmt: skip
    tx.event(key.run_key, "attempt.interrupted", {"slot": key.slot_no, "attempt": key.attempt_no})
    if parked:
        _park(tx, key, 0)
        return "parked"
    return "interrupted"


def _park(tx: Transaction, key: DispatchKey, deaths: int) -> None:
    tx.move("slot", "parked",
            "UPDATE slots SET state = 'parked', suspect = 0, reason = 'kills_the_runner'"
            " WHERE run_key = ? AND slot_no = ? AND state = 'pending'",
            (key.run_key, key.slot_no))  # fmt: skip
    tx.event(key.run_key, "slot.parked", {"slot": key.slot_no, "solitary_deaths": deaths})


def _next_fence(tx: Transaction, resource: str) -> int:
    tx.execute(
        "INSERT INTO fences (resource, high_water) VALUES (?, 1)"
        " ON CONFLICT (resource) DO UPDATE SET high_water = high_water + 1",
        (resource,),
    )
    fence: int = tx.row("SELECT high_water FROM fences WHERE resource = ?", (resource,))[0]
    return fence


def _resource(run_id: str) -> str:
    return f"run:{run_id}"


def _busy(run_id: str, holder: Holder | None) -> RunBusy:
    who = f"process {holder.identity.pid} (worker {holder.worker_id})" if holder else "another process"
    return RunBusy(
        f"run {run_id} is being executed by {who}",
        "wait for it, or ask it to stop with `tallystick cancel`", run_id, who,
    )  # fmt: skip
