"""Leases of devices: sets that are asked for, granted all or none, renewed, required and given back.

A set stands in line from `ask` on and is granted by `try_grant` when every device of it is free and no older set wants
any of them: first come, first served among sets that conflict, so that {A, B} and {B, A} cannot wait for each other.
A dead holder is replaced at once, by compare-and-set on the very lease that was seen; a frozen one when its lease has
run out on boot time, and only at a device that compares fences. `require` stands in every transaction that commits an
intent. Who is dead is asked outside of the transaction (`lease_line`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from .canonical import JsonValue, canonical_text
from .errors import UsageError
from .fences import high_water, next_fence
from .lease_guard import lost, require
from .lease_records import (
    RESOURCE_LENGTH_MAX,
    RESOURCES_MAX,
    Blocked,
    DeviceAsk,
    Granted,
    Lease,
    Obstacle,
    has_expired,
    this_boot,
)
from .lease_takeover import replace
from .schema import devices, leases
from .statements import hot_insert
from .states import LeaseState
from .transaction import Transaction

__all__ = ["abandon", "ask", "raise_fence", "record_device", "release", "renew", "require", "try_grant"]

_TICKET: Final = (
    "INSERT INTO facts (name, value) VALUES ('lease_tickets', '1')"
    " ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) RETURNING value"
)
_ADD_LEASE = hot_insert(
    leases,
    "lease_id", "set_id", "resource", "state", "worker_id", "run_key", "fence", "asked_us", "boot_id",
    "expires_boot_ns", "lease_ms",
)  # fmt: skip
_OTHERS: Final = {
    state: "SELECT l.lease_id, l.set_id, l.worker_id, l.run_key, coalesce(l.since_us, l.asked_us), l.reason, l.boot_id,"
    " l.expires_boot_ns, w.host FROM leases l LEFT JOIN workers w ON w.worker_id = l.worker_id"
    # The word itself, not a parameter: only so the planner sees that the partial index of that state fits.
    f" WHERE l.resource = ? AND l.state = '{state}' ORDER BY l.lease_id"
    for state in (LeaseState.QUARANTINED, LeaseState.HELD, LeaseState.WAITING)
}
_ADD_DEVICE = hot_insert(devices, "resource", "kind", "compares_fences", "first_seen_us", "last_seen_us")


def ask(tx: Transaction, asks: Collection[DeviceAsk], *, run_key: int | None) -> str:
    """Stand in line for a set of devices and return the set's id; ids rise in the order of asking, whatever the clock.

    Raises UsageError for a set or a name that cannot be.
    """
    _refuse_invalid(asks)
    set_id = f"{int(tx.rows(_TICKET)[0][0]):012d}"
    now_ns = tx.clock.boot_ns()
    for one in sorted(asks, key=lambda each: each.resource):
        _know(tx, one)
        tx.execute(
            _ADD_LEASE,
            (tx.ids.next(), set_id, one.resource, "waiting", tx.worker_id, run_key, 0, tx.now_us, this_boot(),
             now_ns + one.lease_ms * 1_000_000, one.lease_ms),
        )  # fmt: skip
    return set_id


def try_grant(tx: Transaction, set_id: str, *, dead: Collection[str] = ()) -> Granted | Blocked:
    """Take the whole set, or nothing of it; asking again while it is held changes nothing.

    ``dead`` names leases whose processes are proven dead (`lease_line.dead_in_the_way`). While the set waits, this
    keeps its place in line from running out. Raises LeaseLost when it waits no more: it was lost or given back.
    """
    mine = tx.rows(
        "SELECT lease_id, resource, state, lease_ms FROM leases WHERE set_id = ? ORDER BY resource", (set_id,)
    )
    if mine and all(row[2] == LeaseState.HELD for row in mine):
        require(tx, [row[0] for row in mine])
        return _granted(tx, set_id)
    if not mine or any(row[2] != LeaseState.WAITING for row in mine):
        raise lost(set_id, mine[0][1] if mine else "")
    _extend(tx, set_id, "waiting")
    in_the_way = [one for _, resource, _, _ in mine for one in _in_the_way(tx, resource, set_id, dead)]
    obstacles = tuple(obstacle for obstacle, may_go in in_the_way if not may_go)
    if obstacles:
        return Blocked(set_id, obstacles)
    gone = [obstacle for obstacle, _ in in_the_way]
    replaced = replace(tx, [one.lease_id for one in gone], dead=dead) if gone else ()
    for lease_id, resource, _, _ in mine:
        tx.move(
            "lease", "held",
            "UPDATE leases SET state = 'held', fence = ?, since_us = ?, renewed_us = ? WHERE lease_id = ?"
            " AND state = 'waiting'",
            (next_fence(tx, resource), tx.now_us, tx.now_us, lease_id),
        )  # fmt: skip
    granted = _granted(tx, set_id, replaced)
    run_key = _run_of(tx, set_id)
    if run_key is not None:
        fences: dict[str, JsonValue] = {one.resource: one.fence for one in granted.leases}
        tx.event(run_key, "lease.granted", {"set": set_id, "fences": fences})
    return granted


def renew(tx: Transaction, set_id: str) -> int:
    """Hold the set for another lease time from now; returns the boot time at which it ends, in nanoseconds.

    Raises LeaseLost, changing nothing, when any of it has run out, was taken over or was revoked.
    """
    held = [row[0] for row in tx.rows("SELECT lease_id FROM leases WHERE set_id = ?", (set_id,))]
    if not held:
        raise lost(set_id, "")
    require(tx, held)
    _extend(tx, set_id, "held")
    return _granted(tx, set_id).expires_boot_ns


def release(tx: Transaction, set_id: str, *, reason: str = "done") -> bool:
    """Give the set back in good order, or leave the line; says whether there was anything to give back.

    What was in flight under it must have an outcome by now. After a loss use `abandon`.
    """
    held = tx.row("SELECT EXISTS (SELECT 1 FROM leases WHERE set_id = ? AND state = 'held')", (set_id,))[0]
    changed = tx.change(
        "UPDATE leases SET state = 'released', ended_us = ?, reason = ? WHERE set_id = ?"
        " AND state IN ('held', 'waiting') AND worker_id = ?",
        (tx.now_us, reason, set_id, tx.worker_id),
    )
    run_key = _run_of(tx, set_id) if held and changed else None
    if run_key is not None:
        tx.event(run_key, "lease.released", {"set": set_id, "reason": reason})
    return changed > 0


def abandon(tx: Transaction, set_id: str, *, reason: str = "it ran out") -> bool:
    """Own up to a loss: what is still held of the set is lost, and what was in flight under it is unknown.

    For a holder whose lease ran out (it was frozen) or was lost in part, before it asks anew. Says whether there was
    anything left.
    """
    held = tx.rows(
        "SELECT lease_id FROM leases WHERE set_id = ? AND state = 'held' AND worker_id = ?", (set_id, tx.worker_id)
    )
    if not held:
        return release(tx, set_id, reason=reason)
    replace(tx, [row[0] for row in held], dead=(), reason=reason)
    return True


def raise_fence(tx: Transaction, lease_id: str, *, seen: int) -> int:
    """The device, or another ledger of this host, has seen the fence ``seen``: have the lease's be higher.

    Returns the fence that goes with every request from now on. Raises LeaseLost.
    """
    require(tx, [lease_id])
    resource, fence = tx.row("SELECT resource, fence FROM leases WHERE lease_id = ?", (lease_id,))
    if fence > seen:
        return int(fence)
    raised = next_fence(tx, resource, seen=seen)
    tx.change("UPDATE leases SET fence = ? WHERE lease_id = ? AND state = 'held'", (raised, lease_id))
    return raised


def record_device(
    tx: Transaction,
    resource: str,
    facts: dict[str, JsonValue],
    *,
    boot_count: int | None = None,
    new_generation: bool = False,
    run_key: int | None = None,
) -> int:
    """Keep what the device said that it is, and return its generation; ``new_generation``: its reboot was accepted."""
    text = canonical_text(facts)
    tx.change(
        "UPDATE devices SET facts = ?, boot_count = ?, generation = generation + ?, last_seen_us = ?"
        " WHERE resource = ?",
        (text, boot_count, int(new_generation), tx.now_us, resource),
    )
    generation: int = tx.row("SELECT generation FROM devices WHERE resource = ?", (resource,))[0]
    if run_key is not None:
        tx.event(run_key, "device.seen", {
            "resource": resource, "facts": facts, "boot_count": boot_count, "generation": generation,
            "fence": high_water(tx, resource),
        })  # fmt: skip
    return generation


def _refuse_invalid(asks: Collection[DeviceAsk]) -> None:
    names = [one.resource for one in asks]
    if not 0 < len(names) <= RESOURCES_MAX:
        raise UsageError(f"a set of {len(names)} devices was asked for", f"name 1 to {RESOURCES_MAX} devices")
    for one in asks:
        name = one.resource
        if not name.isprintable() or not 0 < len(name) <= RESOURCE_LENGTH_MAX or name.startswith("run:"):
            raise UsageError(
                f"{name[:RESOURCE_LENGTH_MAX]!r} cannot be the name of a device",
                f"name it by its kind and serial, as in atlas:SN-0042, in at most {RESOURCE_LENGTH_MAX} characters",
            )
        if names.count(name) > 1:
            raise UsageError(f"the device {name} was asked for twice in one set", "name each device once")
        if one.lease_ms < 1:
            raise UsageError(f"a lease of {one.lease_ms} ms was asked for {name}", "use 1 ms or more")


def _know(tx: Transaction, one: DeviceAsk) -> None:
    """Whether fences are compared is the device's own fact: while anybody has it or waits, the stricter word counts."""
    known = tx.row("SELECT compares_fences FROM devices WHERE resource = ?", (one.resource,))
    if known is None:
        tx.execute(_ADD_DEVICE, (one.resource, one.kind, int(one.compares_fences), tx.now_us, tx.now_us))
        return
    open_leases = tx.row(
        "SELECT EXISTS (SELECT 1 FROM leases WHERE resource = ? AND state = 'held')"
        " OR EXISTS (SELECT 1 FROM leases WHERE resource = ? AND state = 'waiting')",
        (one.resource, one.resource),
    )[0]
    compares = int(one.compares_fences and (bool(known[0]) or not open_leases))
    tx.change("UPDATE devices SET kind = ?, compares_fences = ? WHERE resource = ?", (one.kind, compares, one.resource))


def _in_the_way(tx: Transaction, resource: str, set_id: str, dead: Collection[str]) -> Iterable[tuple[Obstacle, bool]]:
    """Who else has or wants the device before this set, and whether each may be replaced."""
    now_ns = tx.clock.boot_ns()
    compares = bool(tx.row("SELECT compares_fences FROM devices WHERE resource = ?", (resource,))[0])
    found: list[tuple[Obstacle, bool]] = []
    for state in _OTHERS:
        rows = tx.rows(_OTHERS[state], (resource,))
        for lease_id, its_set, worker, run_key, since, reason, boot, expires, host in rows:
            obstacle = Obstacle(resource, state, lease_id, its_set, worker, run_key, since, reason)
            is_dead = lease_id in dead
            expired = has_expired(boot, expires, now_ns, host=host)
            if state is LeaseState.QUARANTINED:
                found.append((obstacle, False))
            elif state is LeaseState.HELD:
                found.append((obstacle, is_dead or (expired and compares)))
            elif its_set < set_id and (is_dead or not (expired or _waits_for_an_operator(tx, its_set))):
                found.append((obstacle, is_dead))
    return found


def _waits_for_an_operator(tx: Transaction, set_id: str) -> bool:
    """Whether a set in line wants a device in quarantine: it cannot be granted, and keeps nobody from the others."""
    return bool(
        tx.row(
            "SELECT EXISTS (SELECT 1 FROM leases w JOIN leases q ON q.resource = w.resource"
            " AND q.state = 'quarantined' WHERE w.set_id = ?)",
            (set_id,),
        )[0]
    )


def _granted(tx: Transaction, set_id: str, replaced: Sequence[str] = ()) -> Granted:
    rows = tx.rows(
        "SELECT lease_id, resource, fence, expires_boot_ns FROM leases WHERE set_id = ? ORDER BY resource", (set_id,)
    )
    held = tuple(Lease(lease_id, resource, fence) for lease_id, resource, fence, _ in rows)
    return Granted(set_id, held, min(row[3] for row in rows), tuple(replaced))


def _extend(tx: Transaction, set_id: str, state: str) -> None:
    tx.change(
        "UPDATE leases SET expires_boot_ns = ? + lease_ms * 1000000, renewed_us = ? WHERE set_id = ? AND state = ?",
        (tx.clock.boot_ns(), tx.now_us, set_id, state),
    )


def _run_of(tx: Transaction, set_id: str) -> int | None:
    run_key: int | None = tx.row("SELECT run_key FROM leases WHERE set_id = ? LIMIT 1", (set_id,))[0]
    return run_key
