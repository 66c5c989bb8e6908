"""Read models of devices: who has each, who waits, what is unknown on it, and what to do next.

Looks only: no lock is taken, nothing is created. Whether a process is alive is told as of now.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, assert_never

import attrs

from .errors import DeviceNotFound
from .host_claims import HostClaims, ledger_digest
from .lease_records import has_expired, this_host
from .ledger import Ledger, Reader
from .processes import ProcessIdentity

__all__ = [
    "DevicePage",
    "DeviceState",
    "Elsewhere",
    "Holder",
    "NextSafeStep",
    "OpenRequest",
    "Touched",
    "Waiter",
    "device_list",
    "device_page",
]

LISTED_MAX: Final = 1_000


class DeviceState(StrEnum):
    """How a device stands."""

    FREE = "free"  # nobody of this ledger has it
    HELD = "held"  # a run of this ledger has it
    ELSEWHERE = "elsewhere"  # another ledger of this host has it
    QUARANTINED = "quarantined"  # an operator must look at it


class NextSafeStep(StrEnum):
    """What somebody who looks at a device should do."""

    NOTHING = "nothing"  # whoever wants it next gets it
    WAIT = "wait"  # it is in use
    RESUME = "resume"  # the run whose process died with it, or that left requests on it, may go on
    LOOK = "look"  # look at the device, then clear it
    FORCE = "force"  # its holder is neither alive nor proven dead: end that process, or take the device away


@attrs.frozen
class Holder:
    """Who holds a device. ``expires_in_ms`` is never negative and never above the lease time."""

    lease_id: str
    set_id: str
    worker_id: str
    pid: int
    on_this_host: bool
    run_id: str | None
    fence: int
    since_us: int
    expires_in_ms: int
    is_dead: bool
    has_expired: bool


@attrs.frozen
class Waiter:
    """Who stands in line; ``has_expired``: it has stopped asking and is passed over."""

    set_id: str
    worker_id: str
    pid: int
    run_id: str | None
    asked_us: int
    is_dead: bool
    has_expired: bool


@attrs.frozen
class OpenRequest:
    """A request without a known outcome; ``in_flight``: its holder is at it. ``case_id`` is None for a lease's call."""

    call_id: str
    run_id: str
    case_id: str | None
    role: str
    fence: int
    in_flight: bool
    reason: str | None
    intended_us: int


@attrs.frozen
class Touched:
    """An attempt that is contaminated: an earlier holder touched the device, or may have, while it went on."""

    run_id: str
    case_id: str
    slot_no: int
    attempt_no: int


@attrs.frozen
class Elsewhere:
    """Another ledger of this host that has the device, or waits for it; None throughout where that cannot be read."""

    ledger: str | None
    pid: int | None
    fence: int | None
    is_waiting: bool


@attrs.frozen
class DevicePage:
    """One device. ``facts`` is the canonical JSON text of what it said last; ``fence`` the highest that was given."""

    resource: str
    kind: str
    compares_fences: bool
    state: DeviceState
    fence: int
    holder: Holder | None
    waiters: tuple[Waiter, ...]
    elsewhere: tuple[Elsewhere, ...]
    quarantine: str | None
    last_request: str | None
    open_requests: tuple[OpenRequest, ...]
    contaminated: tuple[Touched, ...]
    facts: str
    boot_count: int | None
    generation: int
    first_seen_us: int
    last_seen_us: int
    next: NextSafeStep

    @property
    def unknown(self) -> tuple[OpenRequest, ...]:
        """The requests that nobody is at any more."""
        return tuple(one for one in self.open_requests if not one.in_flight)


def device_list(ledger: Ledger, *, claims: HostClaims | None = None) -> list[DevicePage]:
    """Every device that this ledger has ever had, by name, at most a thousand."""
    with ledger.reading() as reader:
        names = [row[0] for row in reader.rows("SELECT resource FROM devices ORDER BY resource LIMIT ?", (LISTED_MAX,))]
        return [_page(ledger, reader, name, claims or HostClaims(ledger)) for name in names]


def device_page(ledger: Ledger, resource: str, *, claims: HostClaims | None = None) -> DevicePage:
    """One device; raises DeviceNotFound."""
    with ledger.reading() as reader:
        return _page(ledger, reader, resource, claims or HostClaims(ledger))


def _page(ledger: Ledger, reader: Reader, resource: str, claims: HostClaims) -> DevicePage:
    row = reader.row(
        "SELECT d.kind, d.compares_fences, coalesce(f.high_water, 0), d.facts, d.boot_count, d.generation,"
        " d.first_seen_us, d.last_seen_us FROM devices d LEFT JOIN fences f ON f.resource = d.resource"
        " WHERE d.resource = ?",
        (resource,),
    )
    if row is None:
        raise DeviceNotFound(
            f"this ledger has no device {resource}", "list them with `tallystick device list`", resource
        )
    kind, compares, fence, facts, boot_count, generation, first_seen, last_seen = row
    is_dead = _deaths(ledger)
    holder, waiters = _holder(ledger, reader, resource, is_dead), _waiters(ledger, reader, resource, is_dead)
    elsewhere, quarantine = _elsewhere(ledger, claims, resource), _quarantine(reader, claims, resource)
    requests = _open_requests(reader, resource)
    state = _state(holder, elsewhere, quarantine)
    step = _next(state, holder, requests, compares=bool(compares))
    return DevicePage(
        resource, kind, bool(compares), state, fence, holder, waiters, elsewhere, quarantine,
        _last_request(reader, resource), requests, _contaminated(reader, resource), facts, boot_count, generation,
        first_seen, last_seen, step,
    )  # fmt: skip


_Dead = Callable[[str, ProcessIdentity, int | None], bool]


def _deaths(ledger: Ledger) -> _Dead:
    known: dict[str, bool] = {}

    def is_dead(worker_id: str, identity: ProcessIdentity, ended_us: int | None) -> bool:
        if worker_id not in known:
            known[worker_id] = ended_us is not None or ledger.is_dead(worker_id, identity)
        return known[worker_id]

    return is_dead


_LEASE: Final = (
    "SELECT l.lease_id, l.set_id, w.worker_id, w.pid, w.start_ticks, w.boot_id, w.host, w.ended_us, r.run_id, l.fence,"
    " coalesce(l.since_us, l.asked_us), l.boot_id, l.expires_boot_ns, l.lease_ms FROM leases l"
    " JOIN workers w ON w.worker_id = l.worker_id LEFT JOIN runs r ON r.run_key = l.run_key WHERE l.resource = ?"
)


def _holder(ledger: Ledger, reader: Reader, resource: str, is_dead: _Dead) -> Holder | None:
    row = reader.row(f"{_LEASE} AND l.state = 'held'", (resource,))
    if row is None:
        return None
    lease_id, set_id, worker, pid, ticks, w_boot, host, ended, run_id, fence, since, boot, expires, lease_ms = row
    now_ns = ledger.clock.boot_ns()
    expired = has_expired(boot, expires, now_ns, host=host)
    left = 0 if expired or host != this_host() else (expires - now_ns) // 1_000_000
    return Holder(
        lease_id, set_id, worker, pid, host == this_host(), run_id, fence, since, max(0, min(left, lease_ms)),
        is_dead(worker, ProcessIdentity(pid, ticks, w_boot, host), ended), expired,
    )  # fmt: skip


def _waiters(ledger: Ledger, reader: Reader, resource: str, is_dead: _Dead) -> tuple[Waiter, ...]:
    rows = reader.rows(f"{_LEASE} AND l.state = 'waiting' ORDER BY l.set_id LIMIT ?", (resource, LISTED_MAX))
    return tuple(_waiter(ledger, row, is_dead) for row in rows)


def _waiter(ledger: Ledger, row: tuple[Any, ...], is_dead: _Dead) -> Waiter:
    _, set_id, worker, pid, ticks, w_boot, host, ended, run_id, _, asked, boot, expires, _ = row
    dead = is_dead(worker, ProcessIdentity(pid, ticks, w_boot, host), ended)
    return Waiter(
        set_id, worker, pid, run_id, asked, dead, has_expired(boot, expires, ledger.clock.boot_ns(), host=host)
    )


def _quarantine(reader: Reader, claims: HostClaims, resource: str) -> str | None:
    row = reader.row("SELECT reason FROM leases WHERE resource = ? AND state = 'quarantined'", (resource,))
    return claims.quarantined(resource) if row is None else str(row[0])


def _elsewhere(ledger: Ledger, claims: HostClaims, resource: str) -> tuple[Elsewhere, ...]:
    own = ledger_digest(ledger.path)
    found = [one for one in claims.holders(resource) if one.entry is None or one.entry.ledger != own]
    return tuple(
        Elsewhere(one.entry.ledger_path, one.entry.process.pid, one.entry.fence, one.is_waiting)
        if one.entry
        else Elsewhere(None, None, None, one.is_waiting)
        for one in found
    )


def _last_request(reader: Reader, resource: str) -> str | None:
    row = reader.row(
        "SELECT c.call_id FROM leases l JOIN leases m ON m.set_id = l.set_id JOIN calls c ON c.lease_id = m.lease_id"
        " WHERE l.resource = ? ORDER BY l.fence DESC, c.call_id DESC LIMIT 1",
        (resource,),
    )
    return None if row is None else str(row[0])


def _open_requests(reader: Reader, resource: str) -> tuple[OpenRequest, ...]:
    rows = reader.rows(
        "SELECT c.call_id, r.run_id, k.case_id, c.role, coalesce(c.fence, 0), d.state = 'intended', d.reason,"
        # By open dispatches, which are few; a device may have had any number of requests.
        " d.intended_us FROM dispatches d INDEXED BY dispatches_open JOIN calls c ON c.call_id = d.call_id"
        " JOIN leases m ON m.lease_id = c.lease_id JOIN leases l ON l.set_id = m.set_id AND l.resource = ?"
        " JOIN runs r ON r.run_key = c.run_key"
        " LEFT JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no"
        " LEFT JOIN cases k ON k.run_key = s.run_key AND k.case_no = s.case_no"
        " WHERE d.state IN ('intended', 'unknown') ORDER BY d.intended_us, c.call_id LIMIT ?",
        (resource, LISTED_MAX),
    )
    return tuple(
        OpenRequest(call_id, run_id, case_id, role, fence, bool(in_flight), reason, intended)
        for call_id, run_id, case_id, role, fence, in_flight, reason, intended in rows
    )


def _contaminated(reader: Reader, resource: str) -> tuple[Touched, ...]:
    rows = reader.rows(
        "SELECT DISTINCT r.run_id, k.case_id, a.slot_no, a.attempt_no FROM attempts a INDEXED BY attempts_contaminated"
        " JOIN calls c ON c.run_key = a.run_key AND c.slot_no = a.slot_no AND c.attempt_no = a.attempt_no"
        " AND c.owner = 'attempt' JOIN leases m ON m.lease_id = c.lease_id"
        " JOIN leases l ON l.set_id = m.set_id AND l.resource = ? JOIN runs r ON r.run_key = a.run_key"
        " JOIN slots s ON s.run_key = a.run_key AND s.slot_no = a.slot_no"
        " JOIN cases k ON k.run_key = s.run_key AND k.case_no = s.case_no"
        " WHERE a.contaminated = 1 ORDER BY r.run_key DESC, a.slot_no, a.attempt_no LIMIT ?",
        (resource, LISTED_MAX),
    )
    return tuple(Touched(*row) for row in rows)


def _state(holder: Holder | None, elsewhere: tuple[Elsewhere, ...], quarantine: str | None) -> DeviceState:
    if quarantine is not None:
        return DeviceState.QUARANTINED
    # A lease of ours that still waits for another ledger's claim has not got the device.
    if any(not one.is_waiting for one in elsewhere):
        return DeviceState.ELSEWHERE
    return DeviceState.FREE if holder is None else DeviceState.HELD


def _next(
    state: DeviceState, holder: Holder | None, requests: tuple[OpenRequest, ...], *, compares: bool
) -> NextSafeStep:
    match state:
        case DeviceState.QUARANTINED:
            return NextSafeStep.LOOK
        case DeviceState.ELSEWHERE:
            return NextSafeStep.WAIT
        case DeviceState.HELD:
            assert holder is not None
            return _next_while_held(holder, compares=compares)
        case DeviceState.FREE:
            return NextSafeStep.RESUME if requests else NextSafeStep.NOTHING
    assert_never(state)


def _next_while_held(holder: Holder, *, compares: bool) -> NextSafeStep:
    if holder.is_dead:
        return NextSafeStep.RESUME if holder.run_id else NextSafeStep.NOTHING
    if not holder.on_this_host:
        return NextSafeStep.FORCE
    if not holder.has_expired:
        return NextSafeStep.WAIT
    return NextSafeStep.NOTHING if compares else NextSafeStep.FORCE
