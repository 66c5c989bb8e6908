"""What a new holder found when it looked at its device, committed before it sends anything else to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import attrs

from .canonical import JsonValue
from .errors import IdentityChanged
from .lease_calls import open_calls, settle_lease_call
from .lease_guard import require
from .lease_records import LEASE_LOST
from .leases import record_device
from .ledger import Reader
from .records import DispatchFacts
from .settlements import Settlement, settle_unknown
from .states import DispatchState, SlotState
from .transaction import Transaction

__all__ = ["DeviceLook", "SlotMoved", "devices_asked_for", "devices_in_use", "quarantined_for", "record_look"]


_IN_USE: Final = {
    "waiting": "SELECT resource FROM leases INDEXED BY leases_waiting WHERE state = 'waiting' AND run_key = ?"
    " AND set_id IS NOT NULL",
    "held": "SELECT resource FROM leases INDEXED BY leases_one_holder WHERE state = 'held' AND run_key = ?"
    " AND set_id IS NOT NULL",
}


@attrs.frozen
class DeviceLook:
    """What the device said, under which leases it was asked, and what is proven of earlier requests by that.

    ``attempts`` are settlements of requests of attempts, of whichever run; ``calls`` say by request id what became of
    calls of earlier leases. ``contaminating`` names requests that may still act on the device.
    """

    resource: str
    lease_ids: Sequence[str]
    run_key: int
    facts: dict[str, JsonValue]
    boot_count: int | None
    accept_reboot: bool
    attempts: Sequence[Settlement] = ()
    calls: dict[str, DispatchFacts] = attrs.field(factory=dict)
    contaminating: Collection[str] = ()


@attrs.frozen
class SlotMoved:
    """A slot of the run that looked whose newest attempt has been settled by it."""

    slot_no: int
    old: SlotState
    new: SlotState


def record_look(tx: Transaction, look: DeviceLook) -> list[SlotMoved]:
    """Keep what was found, and settle what it proves.

    Raises LeaseLost, and IdentityChanged when the device has rebooted since this run saw it and that is not accepted.
    """
    require(tx, look.lease_ids)
    before = _boot_count_seen(tx, look.run_key, look.resource)
    known = tx.row("SELECT boot_count FROM devices WHERE resource = ?", (look.resource,))
    if None not in (before, look.boot_count) and before != look.boot_count and not look.accept_reboot:
        raise IdentityChanged(
            f"the device {look.resource} has rebooted since this run saw it: boot {before}, now {look.boot_count}",
            'see that it is as it was, then say on_reboot = "new_generation" under [device] and run again',
            differences=(f"{look.resource} boot_count: {before} -> {look.boot_count}",),
        )
    has_rebooted = known is not None and None not in (known[0], look.boot_count) and known[0] != look.boot_count
    record_device(
        tx, look.resource, look.facts, boot_count=look.boot_count, new_generation=has_rebooted, run_key=look.run_key
    )
    moved = [_settled(tx, look.run_key, one) for one in look.attempts]
    for call in open_calls(tx, look.resource, without=look.lease_ids):
        if call.slot_no is None and call.call_id not in look.contaminating:
            settle_lease_call(tx, call, look.calls.get(call.call_id, _MOOT))
    return [one for one in moved if one is not None]


def devices_in_use(reader: Reader, run_key: int) -> list[tuple[str, str]]:
    """The devices that the run holds or stands in line for, each with ``held`` or ``waiting``."""
    return [
        (resource, state) for state, statement in _IN_USE.items() for (resource,) in reader.rows(statement, (run_key,))
    ]


def devices_asked_for(reader: Reader, run_key: int) -> list[str]:
    """The devices that the run has ever stood in line for, by name."""
    rows = reader.rows(
        "SELECT d.resource FROM devices d WHERE EXISTS"
        " (SELECT 1 FROM leases l WHERE l.resource = d.resource AND l.run_key = ?) ORDER BY d.resource",
        (run_key,),
    )
    return [row[0] for row in rows]


def quarantined_for(reader: Reader, run_key: int) -> list[str]:
    """The devices in quarantine that the run has asked for, by name."""
    rows = reader.rows(
        "SELECT q.resource FROM leases q INDEXED BY leases_quarantined WHERE q.state = 'quarantined'"
        " AND EXISTS (SELECT 1 FROM leases l WHERE l.resource = q.resource AND l.run_key = ?) ORDER BY q.resource",
        (run_key,),
    )
    return [row[0] for row in rows]


_MOOT = DispatchFacts(
    DispatchState.ABANDONED, LEASE_LOST, "whatever it did, the device was taken over after it", settled_by="takeover"
)


def _settled(tx: Transaction, run_key: int, settlement: Settlement) -> SlotMoved | None:
    row = tx.row(
        "SELECT d.state, c.run_key, c.slot_no, s.state FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
        " JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no"
        " WHERE d.call_id = ? AND d.dispatch_no = ?",
        (settlement.call_id, settlement.dispatch_no),
    )
    if row is None or row[0] != DispatchState.UNKNOWN:
        return None  # its own runner, or an operator, was faster
    new = settle_unknown(tx, settlement)
    return SlotMoved(row[2], SlotState(row[3]), new) if row[1] == run_key else None


def _boot_count_seen(tx: Transaction, run_key: int, resource: str) -> int | None:
    """The boot count of the device when this run saw it last."""
    row = tx.row(
        "SELECT json_extract(body, '$.boot_count') FROM events WHERE run_key = ? AND kind = 'device.seen'"
        " AND json_extract(body, '$.resource') = ? ORDER BY event_no DESC LIMIT 1",
        (run_key, resource),
    )
    return None if row is None else row[0]
