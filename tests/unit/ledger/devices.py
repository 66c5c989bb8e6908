"""Devices, leases, sets and other workers for the tests of the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from tallystick.ledger.lease_line import poll
from tallystick.ledger.lease_records import Blocked, DeviceAsk, Granted, this_boot, this_host
from tallystick.ledger.leases import ask, try_grant
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Held
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.factories import every

T = TypeVar("T")
LEASE_MS = 1_000
LEASE_US = LEASE_MS * 1_000


def device(name: str = "atlas:A", *, compares: bool = True, lease_ms: int = LEASE_MS) -> DeviceAsk:
    return DeviceAsk(name, "atlas", compares, lease_ms)


def other_worker(ledger: Ledger, worker_id: str, *, host: str | None = None, boot: str | None = None) -> str:
    """A worker that is no process: whether it is dead, a test says."""
    row = (worker_id, 1, 1, boot or this_boot(), host or this_host(), "test", 0)
    ledger.write(
        lambda tx: tx.change(
            "INSERT INTO workers (worker_id, pid, start_ticks, boot_id, host, version, began_us)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    )
    return worker_id


def write_as(ledger: Ledger, worker_id: str | None, work: Callable[[Transaction], T]) -> T:
    """A piece of work as another worker would do it; None: as this process."""

    def acting(tx: Transaction) -> T:
        own, tx.worker_id = tx.worker_id, worker_id or tx.worker_id
        try:
            return work(tx)
        finally:
            tx.worker_id = own

    return ledger.write(acting)


def line_up(ledger: Ledger, *asks: DeviceAsk, run_key: int | None = None, worker: str | None = None) -> str:
    """A set that stands in line; its id."""
    return write_as(ledger, worker, lambda tx: ask(tx, asks, run_key=run_key))


def attempt(ledger: Ledger, set_id: str, *dead: str, worker: str | None = None) -> Granted | Blocked:
    return write_as(ledger, worker, lambda tx: try_grant(tx, set_id, dead=dead))


def granted_to(ledger: Ledger, *asks: DeviceAsk, run_key: int | None = None, worker: str | None = None) -> Granted:
    """A set that is held."""
    found = attempt(ledger, line_up(ledger, *asks, run_key=run_key, worker=worker), worker=worker)
    assert isinstance(found, Granted)
    return found


def held_under(granted: Granted) -> Held:
    """What an intent under the set carries."""
    return Held(tuple(one.lease_id for one in granted.leases), granted.leases[0].fence)


def blocked_by(found: Granted | Blocked) -> list[tuple[str, str, str | None]]:
    """Resource, state and set of everybody in the way."""
    assert isinstance(found, Blocked)
    return [(one.resource, str(one.state), one.set_id) for one in found.obstacles]


def lease_states(ledger: Ledger, set_id: str) -> list[tuple[str, str]]:
    return every(ledger, "SELECT resource, state FROM leases WHERE set_id = ? ORDER BY resource", set_id)


def events(ledger: Ledger, run_key: int, kind: str) -> list[Any]:
    """The bodies of a run's events of that kind, in order."""
    rows = every(ledger, "SELECT body FROM events WHERE run_key = ? AND kind = ? ORDER BY event_no", run_key, kind)
    return [json.loads(body) for (body,) in rows]


def polled(ledger: Ledger, set_id: str) -> Granted | Blocked:
    """One look and one try, as a runner makes them."""
    return asyncio.run(poll(ledger, set_id))
