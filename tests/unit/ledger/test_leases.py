"""Sets of devices: all or none, first come, first served, one holder, and who is refused."""

from __future__ import annotations

from tallystick.ledger.lease_records import Blocked, DeviceAsk, Granted
from tallystick.ledger.leases import ask, try_grant
from tallystick.ledger.ledger import Ledger


def devices(*names: str, compares: bool = True, lease_ms: int = 1_000) -> list[DeviceAsk]:
    return [DeviceAsk(name, "atlas", compares, lease_ms) for name in names]


def asked(ledger: Ledger, *names: str, **options: object) -> str:
    return ledger.write(lambda tx: ask(tx, devices(*names, **options), run_key=None))  # type: ignore[arg-type]


def test_a_free_set_is_granted_with_a_fence_for_each_device(ledger: Ledger) -> None:
    set_id = asked(ledger, "b", "a")
    found = ledger.write(lambda tx: try_grant(tx, set_id))
    assert isinstance(found, Granted)
    assert [(one.resource, one.fence) for one in found.leases] == [("a", 1), ("b", 1)]
    other = asked(ledger, "b", "c")
    assert isinstance(ledger.write(lambda tx: try_grant(tx, other)), Blocked)
