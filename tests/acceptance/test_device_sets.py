"""Runners that want two devices, each in another order than the other: both come to their end, again and again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fixtures.atlas_handle import AtlasDevice

from .device_log import check_device_log
from .harness import FIXTURES, Coordinator, Site
from .invariants import check_invariants, rows
from .orders import execution

SERIALS: Final = ("SN-A", "SN-B")
CASES: Final = 6


@pytest.fixture
def devices(site: Site) -> Iterator[dict[str, AtlasDevice]]:
    made = {serial: AtlasDevice.start(site.folder, serial=serial) for serial in SERIALS}
    try:
        yield made
    finally:
        for device in made.values():
            device.stop()


def cases(run: str) -> list[dict[str, Any]]:
    return [{"id": f"{run}{number}", "input": {"answer": f"{run}{number}"}} for number in range(CASES)]


def table(device: AtlasDevice, serial: str) -> dict[str, Any]:
    return {"url": device.url, "serial": serial}


def written(site: Site, name: str, order: dict[str, Any]) -> Path:
    path = site.folder / f"{name}.json"
    path.write_text(json.dumps({"name": name, **order}), encoding="utf-8")
    return path


DEVICE: Final = {"lease_seconds": 600.0, "tenure_seconds": 0.0}


def as_variants(site: Site, devices: dict[str, AtlasDevice], name: str, serials: tuple[str, ...]) -> Coordinator:
    """Two targets of one work order, each on a device of its own, taken one by one."""
    variants = {
        serial.lower(): {"target": {"kind": "atlas", **table(devices[serial], serial)}} for serial in serials
    }  # fmt: skip
    order = {
        "version": 1, "cases": {"items": cases(name)}, "variants": variants, "judges": [], "device": DEVICE,
        "execution": execution(concurrency=2),
    }  # fmt: skip
    return site.start("run", written(site, name, order), environment=locks(site))


def as_one_set(site: Site, devices: dict[str, AtlasDevice], name: str, serials: tuple[str, ...]) -> Coordinator:
    """One target that needs both at once."""
    order = {"cases": cases(name), "devices": [table(devices[serial], serial) for serial in serials], "device": DEVICE}
    program = (sys.executable, FIXTURES / "paired_devices.py", written(site, name, order), "--ledger", site.ledger)
    return site.start_program(*program, environment=locks(site))


def locks(site: Site) -> dict[str, str]:
    return {"TALLYSTICK_DEVICE_LOCKS": str(site.folder / "locks")}


@pytest.mark.parametrize("way", [as_variants, as_one_set], ids=lambda way: way.__name__)
def test_e05_work_orders_that_want_the_same_two_devices_in_another_order_both_end(
    site: Site, devices: dict[str, AtlasDevice], way: Any
) -> None:
    runs = [way(site, devices, "one", SERIALS), way(site, devices, "two", SERIALS[::-1])]
    assert [run.ended() for run in runs] == [0, 0], "\n".join(run.err for run in runs)
    assert rows(site.ledger, "SELECT DISTINCT state FROM slots") == [("selected",)]
    for serial, device in devices.items():
        if device.lines(role="submit"):
            check_device_log([site.ledger], device.log, resource=f"atlas:{serial}")
    check_invariants(site.ledger, None)


def test_e05_of_a_set_that_a_killed_runner_held_both_devices_go_to_the_next(
    site: Site, devices: dict[str, AtlasDevice]
) -> None:
    first, second = SERIALS
    devices[first].tell("plan", behave={"wait": "gate"})
    dying = as_one_set(site, devices, "one", SERIALS)
    devices[first].wait_until_waiting("gate")
    dying.dies()
    devices[first].go("gate")
    assert as_one_set(site, devices, "two", SERIALS[::-1]).ended() == 0
    assert as_one_set(site, devices, "one", SERIALS).ended() == 0
    assert rows(site.ledger, "SELECT DISTINCT state FROM slots") == [("selected",)]
    held = "SELECT state, fence FROM leases WHERE resource = ? AND fence > 0 ORDER BY fence"
    for serial in SERIALS:
        assert rows(site.ledger, held, f"atlas:{serial}") == [("lost", 1), ("released", 2), ("released", 3)]
    assert len(devices[first].lines(role="submit")) == CASES, "what was done for the dead is not done again"
    assert len(devices[second].lines(role="submit")) == CASES
    check_invariants(site.ledger, None)
