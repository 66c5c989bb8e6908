"""Replacing a holder: its lease is lost, and what it had in flight under that lease is unknown, in one transaction.

So the old holder's later writes find another state and are refused, or become late evidence; a request that it had sent
is never guessed to have failed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from . import budgets
from .attempt_calls import leave_open
from .crashpoints import crashpoint
from .lease_calls import end_lease_call
from .lease_records import LEASE_LOST, has_expired
from .open_calls import calls_of
from .records import DispatchFacts, DispatchKey
from .solitary_deaths import charge, in_flight
from .states import CallOwner, DispatchState
from .transaction import Transaction

__all__ = ["end_in_flight", "replace"]


def replace(
    tx: Transaction, lease_ids: Sequence[str], *, dead: Collection[str], reason: str | None = None
) -> tuple[str, ...]:
    """End these leases as lost, with everything in flight under the sets that they belong to; returns those ended.

    Of a set, the other leases are lost with it where its holder is ``dead`` or where they have run out at a device that
    compares fences; one that does not stays with its frozen holder.
    """
    ended: list[str] = []
    for lease_id in lease_ids:
        row = tx.row("SELECT set_id, state FROM leases WHERE lease_id = ?", (lease_id,))
        if row is None or row[1] not in ("held", "waiting"):
            continue
        is_dead = lease_id in dead
        why = reason or ("its process died" if is_dead else "it ran out")
        end_in_flight(tx, row[0], is_dead=is_dead, message=why)
        for other in _of_set(tx, row[0], lease_ids, is_dead=is_dead):
            _lose(tx, other, why)
            ended.append(other[0])
    crashpoint("lease.takeover.inside")
    return tuple(ended)


def end_in_flight(tx: Transaction, set_id: str, *, is_dead: bool, message: str) -> int:
    """Have everything that is in flight under the set be unknown, and return how many dispatches that were."""
    rows = tx.rows(
        # By open dispatches, which are few; under a lease there may have been any number of calls.
        "SELECT c.run_key, c.slot_no, c.attempt_no, c.call_id, d.dispatch_no, c.owner FROM dispatches d"
        " INDEXED BY dispatches_open JOIN calls c ON c.call_id = d.call_id JOIN leases l ON l.lease_id = c.lease_id"
        " WHERE d.state IN ('intended', 'unknown') AND d.state = 'intended' AND l.set_id = ?"
        " AND d.run_key IN (SELECT run_key FROM leases WHERE set_id = ?) ORDER BY c.call_id, d.dispatch_no",
        (set_id, set_id),
    )
    facts = DispatchFacts(DispatchState.UNKNOWN, LEASE_LOST, f"the lease was lost: {message}", settled_by="recovery")
    for run_key, _, _, call_id, dispatch_no, owner in rows:
        if owner != CallOwner.ATTEMPT:
            holds = budgets.holds_of(tx, call_id, dispatch_no)
            end_lease_call(tx, DispatchKey(run_key, 0, 0, call_id, dispatch_no, holds), facts)
    attempts = dict.fromkeys(tuple(row[:3]) for row in rows if row[5] == CallOwner.ATTEMPT)
    together = {run_key: in_flight(tx, run_key) for run_key, _, _ in attempts}
    for run_key, slot_no, attempt_no in attempts:
        calls, key = calls_of(tx, run_key, slot_no, attempt_no), DispatchKey(run_key, slot_no, attempt_no, "", 0)
        # Only a death can be the case's own doing; that a process stood still is not.
        if is_dead:
            charge(tx, key, in_flight=together[run_key])
        leave_open(tx, key, calls, facts, may_be_its_doing=is_dead)
    return len(rows)


def _of_set(tx: Transaction, set_id: str, lease_ids: Sequence[str], *, is_dead: bool) -> list[tuple[Any, ...]]:
    rows = tx.rows(
        "SELECT l.lease_id, l.resource, l.fence, l.run_key, l.state, d.compares_fences, l.boot_id, l.expires_boot_ns,"
        " w.host FROM leases l LEFT JOIN devices d ON d.resource = l.resource"
        " LEFT JOIN workers w ON w.worker_id = l.worker_id"
        " WHERE l.set_id = ? AND l.state IN ('held', 'waiting') ORDER BY l.resource",
        (set_id,),
    )
    now_ns = tx.clock.boot_ns()
    return [
        row
        for row in rows
        if is_dead or row[0] in lease_ids or (row[5] and has_expired(row[6], row[7], now_ns, host=row[8]))
    ]


def _lose(tx: Transaction, row: tuple[Any, ...], why: str) -> None:
    lease_id, resource, fence, run_key, state = row[:5]
    tx.move("lease", "lost",
            "UPDATE leases SET state = 'lost', ended_us = ?, reason = ? WHERE lease_id = ?"
            " AND state IN ('held', 'waiting')",
            (tx.now_us, why, lease_id))  # fmt: skip
    if run_key is not None and state == "held":
        tx.event(run_key, "lease.lost", {
            "lease": lease_id, "resource": resource, "fence": fence, "reason": why, "by": tx.worker_id
        })  # fmt: skip
