"""Marking the attempts whose device was, or may have been, touched by an earlier holder meanwhile.

Such an attempt keeps its observation; it is shown as contaminated everywhere, and people decide what it is worth.

That a request under an older fence was done says little by itself: at a device that compares fences it was accepted
before the first request of the next holder, who drained the device. So there only what was going on when the answer
came is marked. A device that compares no fences may have been touched at any time until then: the whole tenure that
followed is marked, too.

A run that is not this ledger's to continue is never marked: its history would part from the one that is gone on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .transaction import Transaction

__all__ = ["contaminate", "mark_contaminated", "touched_late"]


_SET_OF_CALL: Final = (
    # What a fork took over was sent under the lease of the call that it is a copy of.
    "SELECT l.set_id FROM calls c LEFT JOIN calls o ON o.call_id = c.reused_from"
    " JOIN leases l ON l.lease_id = coalesce(c.lease_id, o.lease_id) WHERE c.call_id = ?"
)


def touched_late(tx: Transaction, call_id: str, *, answered_now: bool) -> int:
    """The request ``call_id`` turns out to have been done: mark what it may have touched, and say how many attempts.

    ``answered_now``: its answer has just come from the device; else an operator or a query says so afterwards. Costs
    one look-up for a call that needed no device.
    """
    row = tx.row(_SET_OF_CALL, (call_id,))
    if row is None:
        return 0
    held = tx.rows(
        "SELECT l.resource, l.fence, d.compares_fences FROM leases l LEFT JOIN devices d ON d.resource = l.resource"
        " WHERE l.set_id = ?",
        (row[0],),
    )
    reason = f"request {call_id} of an earlier holder " + (
        "was answered meanwhile" if answered_now else "was done, too"
    )
    return sum(
        contaminate(
            tx, resource, fence=fence, call_id=call_id, reason=reason, now=answered_now, next_tenure=not compares
        )
        for resource, fence, compares in held
    )


def contaminate(
    tx: Transaction,
    resource: str,
    *,
    fence: int,
    call_id: str,
    reason: str,
    now: bool = True,
    next_tenure: bool = False,
) -> int:
    """Mark attempts at the device under higher fences than ``fence``; returns how many were not marked before.

    ``now``: those that are going on. ``next_tenure``: all of the first later tenure in which there were any.
    """
    found = _running(tx, resource, fence) if now else []
    if next_tenure:
        found = [*found, *_of_next_tenure(tx, resource, fence)]
    return sum(
        mark_contaminated(tx, *key, body={"resource": resource, "fence": fence, "call": call_id, "reason": reason})
        for key in found
    )


def mark_contaminated(
    tx: Transaction, run_key: int, slot_no: int, attempt_no: int, *, body: dict[str, str | int]
) -> bool:
    """Mark one attempt, once; says whether it was not marked before. ``body`` goes into its event, with its reason."""
    marked = tx.change(
        "UPDATE attempts SET contaminated = 1 WHERE run_key = ?1 AND slot_no = ?2 AND attempt_no = ?3"
        " AND contaminated = 0 AND EXISTS (SELECT 1 FROM runs WHERE run_key = ?1 AND custody = 'held')",
        (run_key, slot_no, attempt_no),
    )
    if marked:
        tx.event(run_key, "attempt.contaminated", {"slot": slot_no, "attempt": attempt_no, **body})
    return marked > 0


def _running(tx: Transaction, resource: str, fence: int) -> Sequence[Any]:
    return tx.rows(
        # Whatever goes on at a device is in flight in its run, under the one lease that is held.
        "SELECT DISTINCT c.run_key, c.slot_no, c.attempt_no FROM leases h JOIN leases m ON m.set_id = h.set_id"
        " JOIN calls c ON c.lease_id = m.lease_id AND c.owner = 'attempt'"
        " JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no AND s.attempts = c.attempt_no"
        " AND s.state = 'in_flight' WHERE h.resource = ? AND h.state = 'held' AND h.fence > ?",
        (resource, fence),
    )


def _of_next_tenure(tx: Transaction, resource: str, fence: int) -> Sequence[Any]:
    row = tx.row(
        "SELECT l.set_id FROM leases l WHERE l.resource = ? AND l.fence > ? AND EXISTS (SELECT 1 FROM leases m"
        " JOIN calls c ON c.lease_id = m.lease_id AND c.owner = 'attempt' WHERE m.set_id = l.set_id)"
        " ORDER BY l.fence LIMIT 1",
        (resource, fence),
    )
    if row is None:
        return []
    return tx.rows(
        "SELECT DISTINCT c.run_key, c.slot_no, c.attempt_no FROM leases m JOIN calls c ON c.lease_id = m.lease_id"
        " AND c.owner = 'attempt' WHERE m.set_id = ?",
        row,
    )
