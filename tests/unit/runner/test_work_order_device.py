"""The device table, its defaults, which of them were said, and what a change of them means for a run."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.device_protocols import LEASE_SECONDS, DeviceNeed
from tallystick.runner.identity import Section, compare, identity_document
from tallystick.runner.work_order import WorkOrder
from tallystick.runner.work_order_device import DeviceSpec, OnReboot, device_table, read_device
from tallystick.runner.work_order_files import Place
from tests.unit.runner.given import CASES, HEAD, TARGET, StillTarget, a_work_order, written


def read(raw: Any) -> DeviceSpec:
    return read_device(raw, place=Place("o", ("device",)))


def test_an_empty_table_has_the_defaults_and_says_so() -> None:
    spec = read({})
    assert spec == DeviceSpec()
    assert spec.lease_seconds == LEASE_SECONDS
    assert spec.on_reboot is OnReboot.REFUSE
    assert spec.defaulted == {"lease_seconds", "tenure_seconds", "on_reboot"}


def test_a_table_comes_back_as_it_was() -> None:
    spec = read({"lease_seconds": 2, "tenure_seconds": 0, "on_reboot": "new_generation"})
    assert spec.defaulted == frozenset()
    assert read(device_table(spec)) == spec


def test_the_work_order_says_how_long_a_lease_lasts_and_else_the_target_that_asks_for_least() -> None:
    needs = (DeviceNeed("a", "atlas", True, 20), DeviceNeed("b", "atlas", True, 10))
    assert read({}).lease_seconds_of(needs) == 10
    assert read({}).lease_seconds_of(()) == LEASE_SECONDS
    assert read({"lease_seconds": LEASE_SECONDS}).lease_seconds_of(needs) == LEASE_SECONDS


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"lease_seconds": 0}, "o: device.lease_seconds: 0 is too small. Write 0.5 or more"),
        ({"lease_seconds": 1e9}, "o: device.lease_seconds: 1000000000.0 is too large"),
        ({"tenure_seconds": -1}, "o: device.tenure_seconds: -1 is too small"),
        (
            {"on_reboot": "ignore"},
            'o: device.on_reboot: "ignore" is not known here. Write "refuse" or "new_generation"',
        ),
        ({"leas_seconds": 1}, "o: device.leas_seconds: there is no such key"),
        (3, "o: device: a table of keys is wanted here"),
    ],
)
def test_a_wrong_table_is_told(raw: Any, told: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        read(raw)
    assert str(caught.value).startswith(told)


def test_it_is_read_from_a_file_and_from_python(tmp_path: Any) -> None:
    order = written(tmp_path, HEAD + CASES + TARGET + "[device]\nlease_seconds = 5\n")
    assert order.device.lease_seconds == 5
    assert a_work_order(device={"tenure_seconds": 7}).device.tenure_seconds == 7
    again = WorkOrder.from_document(order.to_document())
    assert again.device == order.device


def document(**options: Any) -> Any:
    return identity_document(a_work_order(**options), {"default": StillTarget()}, "sha256:0")


def test_how_long_is_throughput_and_what_a_reboot_means_is_a_limit() -> None:
    changes = compare(document(), document(device={"lease_seconds": 5, "on_reboot": "new_generation"}))
    assert [(one.section, one.key) for one in changes] == [
        (Section.LIMITS, "device_on_reboot"),
        (Section.THROUGHPUT, "device_lease_seconds"),
    ]


def test_a_run_from_before_there_were_devices_is_what_it_was() -> None:
    then = document()
    for section in (Section.LIMITS, Section.THROUGHPUT):
        for key in [key for key in then[section.value] if key.startswith("device_")]:
            del then[section.value][key]
    then["defaulted"] = [key for key in then["defaulted"] if not key.startswith("device_")]
    assert compare(then, document()) == ()
