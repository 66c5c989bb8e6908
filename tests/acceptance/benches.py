"""Devices of the acceptance tests: Atlas simulators with their witness logs, and runners that share them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tallystick.ledger.file_locks import holder_pid
from tests.fixtures.atlas_handle import AtlasDevice

from .device_log import check_device_log
from .harness import Coordinator, Site, until
from .invariants import rows
from .orders import execution

__all__ = ["RESOURCE", "Bench", "asks", "boot_ns", "check_device", "freeze", "thaw"]

RESOURCE = "atlas:SN-1"
FREEZES_MAX = 100


def asks(name: str, **behave: Any) -> dict[str, Any]:
    """A case that the device answers with its name; ``behave`` is how the device treats the request."""
    asked: dict[str, Any] = {"answer": name, **({"behave": behave} if behave else {})}
    return {"id": name, "input": asked, "expected": name}


class Bench:
    """One device, and the sites whose runners want it; all on one host."""

    def __init__(self, site: Site, *options: str) -> None:
        self.site = site
        self.device = AtlasDevice.start(site.folder, *options)
        self.locks = {"TALLYSTICK_DEVICE_LOCKS": str(site.folder / "locks")}
        self.sites = [site]

    def another_ledger(self) -> Site:
        """A second folder with a ledger of its own, on the same host."""
        made = Site(self.site.folder.parent / f"site-{len(self.sites) + 1}")
        self.sites.append(made)
        return made

    def order(
        self,
        name: str,
        cases: Sequence[Mapping[str, Any]],
        *,
        lease_seconds: float = 600.0,
        target: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """A work order for the device."""
        table = {"kind": "atlas", "url": self.device.url, "serial": "SN-1", "drain_seconds": 2.0, **(target or {})}
        budgets = options.pop("budgets", {})
        return {
            "version": 1, "name": name, "cases": {"items": list(cases)}, "target": table, "judges": [{"kind": "exact"}],
            "device": {"lease_seconds": lease_seconds, "tenure_seconds": 0}, "execution": execution(**options),
            "budgets": budgets,
        }  # fmt: skip

    def run(
        self, name: str, cases: Sequence[Mapping[str, Any]], *, site: Site | None = None, pause_at: str = "",
        crashpoint: str = "", **options: Any,
    ) -> Coordinator:  # fmt: skip
        """Start a runner of such a work order."""
        where = site or self.site
        order = where.folder / f"{name}.json"
        order.write_text(json.dumps(self.order(name, cases, **options)), encoding="utf-8")
        return where.start("run", order, environment=self.locks, pause_at=pause_at, crashpoint=crashpoint)

    def resume(self, name: str, *, site: Site | None = None, crashpoint: str = "") -> Coordinator:
        """Start a runner that goes on with that run."""
        return (site or self.site).start("resume", name, environment=self.locks, crashpoint=crashpoint)

    def told(self, *arguments: object, site: Site | None = None, statuses: Sequence[int] | None = None) -> Any:
        """The JSON that a command prints which may come to the device."""
        return (site or self.site).told(*arguments, environment=self.locks, statuses=statuses)

    def holder(self, site: Site | None = None) -> str:
        """The name of the run that holds the device in that ledger, empty where none does."""
        found = rows(
            (site or self.site).ledger,
            "SELECT r.name FROM leases l JOIN runs r ON r.run_key = l.run_key"
            " WHERE l.resource = ? AND l.state = 'held'",
            RESOURCE,
        )
        return str(found[0][0]) if found else ""

    def until_waiting(self, name: str, *, site: Site | None = None) -> None:
        """Until that run stands in line for the device, in its ledger or on the host."""
        until(lambda: name in self.waiting(site or self.site), f"{name} waits for the device")

    def waiting(self, site: Site) -> set[str]:
        """The runs that have asked for the device and have not got it."""
        if not site.ledger.exists() or not rows(site.ledger, "SELECT 1 FROM sqlite_master WHERE name = 'leases'"):
            return set()  # it has only just begun
        here = "SELECT r.name FROM leases l JOIN runs r ON r.run_key = l.run_key WHERE l.resource = ? AND l.state"
        found = {row[0] for row in rows(site.ledger, f"{here} = 'waiting'", RESOURCE)}
        tickets = list((self.site.folder / "locks").glob("*/line/*")) if (self.site.folder / "locks").exists() else []
        return found | ({row[0] for row in rows(site.ledger, f"{here} = 'held'", RESOURCE)} if tickets else set())

    def close(self) -> None:
        for site in self.sites[1:]:
            site.close()
        self.device.stop()


def freeze(coordinator: Coordinator, *, outside: Path | None = None) -> bool:
    """SIGSTOP, and wait until the kernel says so; False when it had ended before.

    ``outside`` names a ledger: outside of its transactions, and of the gate of the host, which the next in line would
    not bear for long.
    """
    for _ in range(FREEZES_MAX):
        if not _stop(coordinator):
            return False
        if outside is None or not _stands_inside(outside, coordinator.process.pid):
            return True
        thaw(coordinator)
    raise AssertionError("it was always inside")


def _stop(coordinator: Coordinator) -> bool:
    coordinator.signal(signal.SIGSTOP)
    stat = Path(f"/proc/{coordinator.process.pid}/stat")

    def stands_still() -> bool:
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):
            return coordinator.process.wait() is not None

    until(stands_still, "it stands still")
    return coordinator.process.poll() is None


def _stands_inside(ledger: Path, pid: int) -> bool:
    passages = [*ledger.with_name(f"{ledger.name}.d").glob("turnstile.*"), *ledger.parent.parent.glob("*/locks/gate")]
    return pid in [holder_pid(passage) for passage in passages]


def thaw(coordinator: Coordinator) -> None:
    """SIGCONT."""
    coordinator.signal(signal.SIGCONT)


def boot_ns() -> int:
    """The clock that leases go by."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def check_device(bench: Bench, *, stale_max: int = 0) -> None:
    """What must hold of the device's own log, and of it and the ledgers together; see `device_log`."""
    ledgers = [site.ledger for site in bench.sites]
    check_device_log(ledgers, bench.device.log, resource=RESOURCE, stale_max=stale_max)
