"""What an operator decides about a device: take it away, keep everybody from it, let it be used again.

Each decision stands in the lease that it ended, and in the history of that lease's run.
"""

from __future__ import annotations

import shlex
from typing import Any

import attrs

from .canonical import JsonValue
from .errors import DeviceNotFound, UsageError
from .lease_takeover import end_in_flight, replace
from .schema import leases
from .statements import hot_insert
from .transaction import Transaction

__all__ = ["Revoked", "clear", "quarantine", "quarantine_reason", "release_dead", "require_known", "revoke"]

_ADD_QUARANTINE = hot_insert(
    leases, "lease_id", "resource", "state", "worker_id", "fence", "asked_us", "since_us", "ended_us", "reason"
)
_HOLDER = "SELECT lease_id, set_id, run_key, worker_id, fence FROM leases WHERE resource = ? AND state = 'held'"
_QUARANTINED = "SELECT lease_id, reason, run_key FROM leases WHERE resource = ? AND state = 'quarantined'"


@attrs.frozen
class Revoked:
    """The lease that was taken away; how many requests were in flight under its set, and are unknown now."""

    lease_id: str
    set_id: str
    run_key: int | None
    worker_id: str | None
    fence: int
    unknown: int


def revoke(tx: Transaction, resource: str, *, reason: str, made_by: str) -> Revoked | None:
    """Take the device from its holder, whoever that is; None when nobody holds it.

    The holder's next intent is refused. What it has sent already cannot be called back: at a device that compares no
    fences it may still act.
    """
    require_known(tx, resource)
    held = tx.row(_HOLDER, (resource,))
    return None if held is None else _end_held(tx, resource, held, "revoked", f"taken away by {made_by}: {reason}")


def release_dead(tx: Transaction, resource: str, lease_id: str) -> bool:
    """End the lease of a holder that is proven dead, as the next in line would; False when it ended meanwhile."""
    held = tx.row(_HOLDER, (resource,))
    return held is not None and held[0] == lease_id and bool(replace(tx, [lease_id], dead=(lease_id,)))


def quarantine(tx: Transaction, resource: str, *, reason: str, made_by: str) -> bool:
    """Let nobody have the device before an operator has looked at it; False when it was in quarantine already.

    Ends its holder's lease. A holder that asks for it itself writes down the outcome of its request first: what is
    still in flight under its set becomes unknown.
    """
    require_known(tx, resource)
    if tx.row(_QUARANTINED, (resource,)) is not None:
        return False
    why = f"{reason} (by {made_by})"
    held = tx.row(_HOLDER, (resource,))
    if held is not None:
        _end_held(tx, resource, held, "quarantined", why)
        return True
    tx.execute(
        _ADD_QUARANTINE,
        (tx.ids.next(), resource, "quarantined", tx.worker_id, 0, tx.now_us, tx.now_us, tx.now_us, why),
    )  # fmt: skip
    return True


def clear(tx: Transaction, resource: str, *, reason: str, made_by: str) -> None:
    """An operator has looked: the device may be used again. Raises UsageError when it is not in quarantine."""
    require_known(tx, resource)
    rows = tx.rows(_QUARANTINED, (resource,))
    if not rows:
        raise UsageError(
            f"the device {resource} is not in quarantine",
            f"see how it stands with `tallystick device show {shlex.quote(resource)}`",
        )
    for lease_id, why, run_key in rows:
        tx.move(
            "lease", "released",
            "UPDATE leases SET state = 'released', ended_us = ?, reason = ? WHERE lease_id = ?"
            " AND state = 'quarantined'",
            (tx.now_us, f"{why}; cleared by {made_by}: {reason}", lease_id),
        )  # fmt: skip
        if run_key is not None:
            tx.event(run_key, "device.cleared", {"resource": resource, "by": made_by, "reason": reason})


def quarantine_reason(tx: Transaction, resource: str) -> str | None:
    """Why the device is in quarantine; None when it is not."""
    row = tx.row(_QUARANTINED, (resource,))
    return None if row is None else str(row[1])


def require_known(tx: Transaction, resource: str) -> None:
    """Raise DeviceNotFound for a device that this ledger has never had."""
    if tx.row("SELECT 1 FROM devices WHERE resource = ?", (resource,)) is None:
        raise DeviceNotFound(
            f"this ledger has no device {resource}", "list them with `tallystick device list`", resource
        )


def _end_held(tx: Transaction, resource: str, held: tuple[Any, ...], state: str, why: str) -> Revoked:
    lease_id, set_id, run_key, worker_id, fence = held
    unknown = end_in_flight(tx, set_id, is_dead=False, message=why)
    tx.move(
        "lease", state,
        "UPDATE leases SET state = ?, ended_us = ?, reason = ? WHERE lease_id = ? AND state = 'held'",
        (state, tx.now_us, why, lease_id),
    )  # fmt: skip
    told: dict[str, JsonValue] = {
        "lease": lease_id, "resource": resource, "fence": fence, "reason": why, "unknown": unknown
    }  # fmt: skip
    if run_key is not None and state == "quarantined":
        tx.event(run_key, "device.quarantined", told)
    elif run_key is not None:
        tx.event(run_key, "lease.revoked", told)
    return Revoked(lease_id, set_id, run_key, worker_id, fence, unknown)
