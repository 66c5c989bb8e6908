"""Which devices a run needs or has, and who has them now, for preflight, card and ``status``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..ledger.device_looks import devices_asked_for, devices_in_use
from ..ledger.device_reads import DevicePage, DeviceState, device_page
from ..ledger.errors import DeviceNotFound
from ..ledger.ledger import Ledger
from .device_pages import DeviceHolder, DeviceLine, device_line
from .device_protocols import DeviceNeed, DeviceTarget
from .protocols import Target

__all__ = ["DeviceOutlook", "DeviceUse", "device_outlooks", "devices_of_run"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceOutlook(_Part):
    """A device that a work order needs. ``state`` is ``new`` where this ledger has never had it; ``who`` has it now."""

    device: str
    kind: str
    variants: list[str]
    compares_fences: bool
    state: Literal["new", "free", "held", "elsewhere", "quarantined"]
    who: str


class DeviceUse(_Part):
    """A device that a run has or wants at this moment; ``who`` says in words who is in its way."""

    device: str
    state: Literal["held", "waiting", "quarantined"]
    held_by: DeviceHolder | None
    who: str


def device_outlooks(targets: Mapping[str, Target], ledger: Ledger | None) -> list[DeviceOutlook]:
    """The devices that these targets need, by name; looks only."""
    needs: dict[str, tuple[DeviceNeed, list[str]]] = {}
    for variant, target in targets.items():
        for need in target.devices() if isinstance(target, DeviceTarget) else ():
            needs.setdefault(need.resource, (need, []))[1].append(variant)
    return [_outlook(need, variants, ledger) for _, (need, variants) in sorted(needs.items())]


def _outlook(need: DeviceNeed, variants: list[str], ledger: Ledger | None) -> DeviceOutlook:
    page = None if ledger is None else _page(ledger, need.resource)
    return DeviceOutlook(
        device=need.resource, kind=need.kind, variants=variants, compares_fences=need.compares_fences,
        state="new" if page is None else page.state.value, who="" if page is None else _who(page),
    )  # fmt: skip


def devices_of_run(ledger: Ledger, run_key: int) -> list[DeviceUse]:
    """The devices that the run holds, waits for, or is kept from by a quarantine, by name; looks only.

    Also by a quarantine of another ledger of this host, of which this one's rows know nothing.
    """
    with ledger.reading() as reader:
        states = dict(devices_in_use(reader, run_key))
        asked_for = devices_asked_for(reader, run_key)
    found = []
    for resource in sorted({*states, *asked_for}):
        page = device_page(ledger, resource)
        if resource not in states and page.state is not DeviceState.QUARANTINED:
            continue
        state = "quarantined" if page.state is DeviceState.QUARANTINED else states.get(resource, "waiting")
        if state == "held" and page.state is DeviceState.ELSEWHERE:
            state = "waiting"  # its lease is granted, and another ledger of this host has the device
        holder = device_line(page).holder
        found.append(DeviceUse(device=resource, state=state, held_by=holder, who="" if state == "held" else _who(page)))
    return found


def _page(ledger: Ledger, resource: str) -> DevicePage | None:
    try:
        return device_page(ledger, resource)
    except DeviceNotFound:
        return None


def _who(page: DevicePage) -> str:
    match page.state:
        case DeviceState.FREE:
            return ""
        case DeviceState.QUARANTINED:
            return f"in quarantine: {page.quarantine}"
        case DeviceState.ELSEWHERE:
            return f"held by {_other(device_line(page))}"
        case DeviceState.HELD:
            assert page.holder is not None
            run = f" (run {page.holder.run_id})" if page.holder.run_id else ""
            return f"held by process {page.holder.pid}{run}" + (", which has died" if page.holder.is_dead else "")


def _other(line: DeviceLine) -> str:
    other = next(one for one in line.other_ledgers if not one.waits)
    return "a process of another user" if other.ledger is None else f"process {other.pid} for the ledger {other.ledger}"
