"""How a run holds the devices that its targets work on: the ``[device]`` table, and what it says once it was read."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, TypedDict

import attrs

from ..ledger.canonical import JsonValue
from .device_protocols import LEASE_SECONDS, DeviceNeed
from .work_order_files import Place
from .work_order_models import DeviceTable, check

__all__ = [
    "DEVICE_LIMITS",
    "DEVICE_THROUGHPUT",
    "DeviceOptions",
    "DeviceSpec",
    "OnReboot",
    "device_table",
    "read_device",
]

DEVICE_LIMITS: Final = ("on_reboot",)
DEVICE_THROUGHPUT: Final = ("lease_seconds", "tenure_seconds")


class OnReboot(StrEnum):
    REFUSE = "refuse"  # a device that rebooted since this run saw it is refused until somebody says otherwise
    NEW_GENERATION = "new_generation"  # the reboot is recorded, and the run goes on


class DeviceOptions(TypedDict, total=False):
    """The same keys for `WorkOrder` in Python."""

    lease_seconds: float
    tenure_seconds: float
    on_reboot: Literal["refuse", "new_generation"]


@attrs.frozen
class DeviceSpec:
    """The values in force, defaults included; ``docs/reference/work-order.md`` says what each means.

    ``defaulted`` names the keys that the work order did not say.
    """

    lease_seconds: float = LEASE_SECONDS
    tenure_seconds: float = 60.0
    on_reboot: OnReboot = OnReboot.REFUSE
    defaulted: frozenset[str] = attrs.field(default=frozenset(), eq=False)

    def lease_seconds_of(self, needs: tuple[DeviceNeed, ...]) -> float:
        """How long a lease of these devices lasts: what the work order says, else the shortest that a target asks."""
        if "lease_seconds" not in self.defaulted:
            return self.lease_seconds
        return min((need.lease_seconds for need in needs), default=self.lease_seconds)


def read_device(raw: object, *, place: Place) -> DeviceSpec:
    """The table as what it says; raises WorkOrderInvalid."""
    table = check(DeviceTable, raw, place=place)
    keys = (*DEVICE_LIMITS, *DEVICE_THROUGHPUT)
    return DeviceSpec(
        table.lease_seconds, table.tenure_seconds, OnReboot(table.on_reboot),
        defaulted=frozenset(keys) - table.model_fields_set,
    )  # fmt: skip


def device_table(spec: DeviceSpec) -> dict[str, JsonValue]:
    """The table that `read_device` reads back, every value written out."""
    return {
        "lease_seconds": spec.lease_seconds,
        "tenure_seconds": spec.tenure_seconds,
        "on_reboot": spec.on_reboot.value,
    }
