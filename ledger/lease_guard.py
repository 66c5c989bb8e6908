"""Whether this process still holds what it works on, asked inside the transaction that is about to rely on it."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import LeaseLost
from .lease_records import has_expired
from .records import DispatchKey, Held
from .states import LeaseState
from .transaction import Transaction

__all__ = ["dispatch_under", "lost", "require"]


def require(tx: Transaction, lease_ids: Sequence[str]) -> None:
    """Raise LeaseLost unless this process holds every one of these leases, now.

    A lease that has run out is refused even when nobody took it over: its holder was frozen, and must ask anew.
    """
    marks = ", ".join("?" * len(lease_ids))
    rows = tx.rows(
        "SELECT lease_id, resource, state, worker_id, boot_id, expires_boot_ns FROM leases"
        f" WHERE lease_id IN ({marks})",
        tuple(lease_ids),
    )
    now_ns = tx.clock.boot_ns()
    for lease_id, resource, state, worker_id, boot, expires in rows:
        if state != LeaseState.HELD or worker_id != tx.worker_id or has_expired(boot, expires, now_ns):
            raise lost(lease_id, resource)
    if len(rows) != len(set(lease_ids)):
        raise lost(next(iter(set(lease_ids) - {row[0] for row in rows})), "")


def dispatch_under(tx: Transaction, key: DispatchKey, held: Held) -> None:
    """Bind the next dispatch of a call to the leases that it is made under; raises LeaseLost."""
    require(tx, held.leases)
    tx.change("UPDATE calls SET lease_id = ?, fence = ? WHERE call_id = ?", (held.leases[0], held.fence, key.call_id))
    if not held.contaminated:
        return
    marked = tx.change(
        "UPDATE attempts SET contaminated = 1 WHERE run_key = ? AND slot_no = ? AND attempt_no = ?"
        " AND contaminated = 0",
        (key.run_key, key.slot_no, key.attempt_no),
    )
    if marked:
        tx.event(key.run_key, "attempt.contaminated", {
            "slot": key.slot_no, "attempt": key.attempt_no, "lease": held.leases[0],
            "reason": "an earlier holder's request may still act on the device",
        })  # fmt: skip


def lost(what: str, resource: str) -> LeaseLost:
    return LeaseLost(
        f"the lease {what}{f' of {resource}' if resource else ''} is not this process's any more",
        "nothing was sent under it; `tallystick device list` tells who has the device now", resource,
    )  # fmt: skip
