"""Devices, leases and sets for the tests of the ledger."""

from __future__ import annotations

from tallystick.ledger.lease_records import Blocked, DeviceAsk, Granted
from tallystick.ledger.leases import ask, try_grant
from tallystick.ledger.ledger import Ledger

LEASE_MS = 1_000
LEASE_US = LEASE_MS * 1_000


def device(name: str = "atlas:A", *, compares: bool = True, lease_ms: int = LEASE_MS) -> DeviceAsk:
    return DeviceAsk(name, "atlas", compares, lease_ms)


def line_up(ledger: Ledger, *asks: DeviceAsk, run_key: int | None = None) -> str:
    """A set that stands in line; its id."""
    return ledger.write(lambda tx: ask(tx, asks, run_key=run_key))


def attempt(ledger: Ledger, set_id: str, *dead: str) -> Granted | Blocked:
    return ledger.write(lambda tx: try_grant(tx, set_id, dead=dead))


def granted_to(ledger: Ledger, *asks: DeviceAsk, run_key: int | None = None) -> Granted:
    """A set that is held."""
    found = attempt(ledger, line_up(ledger, *asks, run_key=run_key))
    assert isinstance(found, Granted)
    return found
