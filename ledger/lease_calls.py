"""Calls that a holder makes of a device for the device's own sake: reset, cancel, drain, checkpoint, restore.

Each has its intent and its outcome like a call of an attempt, and belongs to the lease under which it was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from . import budgets
from .attempt_rows import end_dispatch
from .canonical import digest_of_bytes
from .lease_guard import require
from .ledger import Reader
from .records import DispatchFacts, DispatchKey, Held, Hold
from .schema import calls, dispatches
from .statements import hot_insert
from .states import DispatchState, IfUnknown
from .transaction import Transaction

__all__ = ["LeaseCall", "OpenCall", "begin_lease_call", "end_lease_call", "open_calls", "settle_lease_call"]

OPEN_CALLS_MAX = 1000

_ADD_CALL = hot_insert(
    calls, "call_id", "run_key", "owner", "lease_id", "role", "head", "payload", "payload_digest", "payload_size",
    "if_unknown", "fence", "intended_us",
)  # fmt: skip
_ADD_DISPATCH = hot_insert(dispatches, "call_id", "dispatch_no", "run_key", "state", "worker_id", "intended_us")


@attrs.frozen
class LeaseCall:
    """A call of a lease about to be made; ``head`` is canonical JSON text, ``held`` has the device's lease first."""

    call_id: str
    run_key: int
    role: str
    head: str
    payload: bytes
    held: Held
    keep: bool = True
    holds: tuple[Hold, ...] = ()


@attrs.frozen
class OpenCall:
    """A call to a device whose outcome is not known; ``slot_no`` is None for a call of a lease."""

    call_id: str
    dispatch_no: int
    run_key: int
    slot_no: int | None
    attempt_no: int | None
    fence: int
    intended_us: int
    session: str | None = None


def begin_lease_call(tx: Transaction, call: LeaseCall) -> DispatchKey:
    """Record the intent.

    Raises LeaseLost when a device is not held any more, and BudgetExhausted when a hold does not fit.
    """
    require(tx, call.held.leases)
    lease_id, fence = call.held.leases[0], call.held.fence
    budgets.reserve(tx, call.run_key, call.holds)
    tx.execute(
        _ADD_CALL,
        (call.call_id, call.run_key, "lease", lease_id, call.role, call.head, call.payload if call.keep else None,
         digest_of_bytes(call.payload), len(call.payload), IfUnknown.KEEP, fence, tx.now_us),
    )  # fmt: skip
    tx.execute(_ADD_DISPATCH, (call.call_id, 1, call.run_key, "intended", tx.worker_id, tx.now_us))
    key = DispatchKey(call.run_key, 0, 0, call.call_id, 1, call.holds)
    budgets.record_reservations(tx, key)
    tx.event(call.run_key, "lease.call_intended", {
        "call": call.call_id, "role": call.role, "lease": lease_id, "fence": fence,
        "payload": digest_of_bytes(call.payload),
    })  # fmt: skip
    return key


def end_lease_call(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> bool:
    """Record what became of it; an unknown one keeps its holds.

    Says whether that was still open: whoever took the device over has already called it unknown.
    """
    row = tx.row("SELECT state FROM dispatches WHERE call_id = ? AND dispatch_no = ?", (key.call_id, key.dispatch_no))
    if row is None or row[0] != DispatchState.INTENDED:
        return False
    _end(tx, key, facts, DispatchState.INTENDED)
    return True


def settle_lease_call(tx: Transaction, call: OpenCall, facts: DispatchFacts) -> bool:
    """What became of a call of an earlier lease is known now, or does not matter any more (ABANDONED).

    Returns False, changing nothing, when it is not unknown.
    """
    row = tx.row("SELECT c.owner, d.state FROM calls c JOIN dispatches d ON d.call_id = c.call_id WHERE c.call_id = ?"
                 " AND d.dispatch_no = ?", (call.call_id, call.dispatch_no))  # fmt: skip
    if row != ("lease", "unknown"):
        return False
    holds = budgets.holds_of(tx, call.call_id, call.dispatch_no)
    _end(tx, DispatchKey(call.run_key, 0, 0, call.call_id, call.dispatch_no, holds), facts, DispatchState.UNKNOWN)
    return True


def _end(tx: Transaction, key: DispatchKey, facts: DispatchFacts, old: DispatchState) -> None:
    end_dispatch(tx, key, facts, old)
    budgets.settle_ended(tx, key, facts)
    tx.event(key.run_key, "lease.call_ended", {
        "call": key.call_id, "state": facts.state, "reason": facts.reason, "by": facts.settled_by
    })  # fmt: skip


def open_calls(reader: Reader | Transaction, resource: str, *, without: Sequence[str] = ()) -> list[OpenCall]:
    """What was sent or intended to the device and has no outcome, oldest first, at most a thousand.

    ``without`` names leases that do not count, such as the caller's own.
    """
    marks = ", ".join("?" * len(without))
    rows = reader.rows(
        "SELECT c.call_id, max(d.dispatch_no), c.run_key, c.slot_no, c.attempt_no, coalesce(c.fence, 0),"
        " min(d.intended_us), s.session_id"
        # By open dispatches, which are few; a ledger may have seen any number of leases.
        " FROM dispatches d INDEXED BY dispatches_open JOIN calls c ON c.call_id = d.call_id"
        " JOIN leases l ON l.lease_id = c.lease_id"
        # What another ledger goes on with is for that one to reconcile.
        " JOIN runs r ON r.run_key = c.run_key AND r.custody = 'held'"
        " LEFT JOIN sessions s ON s.run_key = c.run_key AND s.slot_no = c.slot_no AND s.attempt_no = c.attempt_no"
        " AND s.session_no = c.session_no"
        f" WHERE d.state IN ('intended', 'unknown') AND l.resource = ? AND l.lease_id NOT IN ({marks})"
        " GROUP BY c.call_id ORDER BY min(d.intended_us), c.call_id LIMIT ?",
        (resource, *without, OPEN_CALLS_MAX),
    )
    return [OpenCall(*row) for row in rows]
