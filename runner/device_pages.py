"""The models of devices that ``--json`` answers with and that screens show."""

from __future__ import annotations

import shlex
from typing import Any, Literal, assert_never

from pydantic import BaseModel, ConfigDict

from ..ledger.canonical import parse_json
from ..ledger.device_reads import (
    DevicePage,
    DeviceState,
    Elsewhere,
    Holder,
    NextSafeStep,
    OpenRequest,
    Touched,
    Waiter,
)
from .instants import instant

__all__ = [
    "DeviceHolder",
    "DeviceLine",
    "DeviceRequest",
    "DeviceShown",
    "DeviceWaiter",
    "DevicesListed",
    "OtherLedger",
    "TouchedAttempt",
    "device_line",
    "device_shown",
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceHolder(_Model):
    """Who holds a device; ``expires_in_seconds`` is counted on the boot clock and lies between 0 and the lease time."""

    worker: str
    pid: int
    on_this_host: bool
    alive: bool
    run: str | None
    lease: str
    fence: int
    since: str
    expires_in_seconds: float


class DeviceWaiter(_Model):
    """Who stands in line; one that no longer asks is passed over."""

    worker: str
    pid: int
    alive: bool
    asking: bool
    run: str | None
    since: str


class OtherLedger(_Model):
    """Another ledger of this host that has the device or waits for it."""

    ledger: str | None
    pid: int | None
    fence: int | None
    waits: bool


class DeviceRequest(_Model):
    """A request to a device without a known outcome; ``case`` is null for a reset or another call of a lease."""

    call: str
    run: str
    case: str | None
    role: str
    fence: int
    in_flight: bool
    reason: str | None
    intended_at: str


class TouchedAttempt(_Model):
    """An attempt while which an earlier holder touched the device, or may have."""

    run: str
    case: str
    slot: int
    attempt: int


class DeviceLine(_Model):
    """A device in the list. ``next`` and ``advice`` say what the next safe step is, ``command`` how to take it."""

    resource: str
    kind: str
    state: str
    compares_fences: bool
    fence: int
    holder: DeviceHolder | None
    other_ledgers: list[OtherLedger]
    waiting: int
    unknown: int
    contaminated: int
    quarantine: str | None
    last_request: str | None
    last_seen_at: str
    next: str
    advice: str
    command: str


class DevicesListed(_Model):
    """What ``device list`` says."""

    format: Literal["tallystick.device_list/1"] = "tallystick.device_list/1"
    ledger: str
    devices: list[DeviceLine]


class DeviceShown(DeviceLine):
    """What ``device show`` says; ``facts`` is what the device said of itself when it was last looked at."""

    format: Literal["tallystick.device/1"] = "tallystick.device/1"
    ledger: str
    waiters: list[DeviceWaiter]
    requests: list[DeviceRequest]
    contaminated_attempts: list[TouchedAttempt]
    facts: dict[str, Any]
    boot_count: int | None
    generation: int
    first_seen_at: str


def device_line(page: DevicePage, *, ledger_option: str = "") -> DeviceLine:
    """A device as a line of the list."""
    return DeviceLine(**_line(page, ledger_option))


def device_shown(page: DevicePage, ledger: str, *, ledger_option: str = "") -> DeviceShown:
    """A device with all that is known of it."""
    facts = parse_json(page.facts)
    assert isinstance(facts, dict)
    return DeviceShown(
        **_line(page, ledger_option), ledger=ledger, waiters=[_waiter(one) for one in page.waiters],
        requests=[_request(one) for one in page.open_requests],
        contaminated_attempts=[_touched(one) for one in page.contaminated], facts=facts, boot_count=page.boot_count,
        generation=page.generation, first_seen_at=_at(page.first_seen_us),
    )  # fmt: skip


def _line(page: DevicePage, ledger_option: str) -> dict[str, Any]:
    advice, command = _advice(page, ledger_option)
    return {
        "resource": page.resource, "kind": page.kind, "state": page.state.value,
        "compares_fences": page.compares_fences, "fence": page.fence, "holder": page.holder and _holder(page.holder),
        "other_ledgers": [_other(one) for one in page.elsewhere], "waiting": len(page.waiters),
        "unknown": len(page.unknown), "contaminated": len(page.contaminated), "quarantine": page.quarantine,
        "last_request": page.last_request, "last_seen_at": _at(page.last_seen_us), "next": page.next.value,
        "advice": advice, "command": command,
    }  # fmt: skip


def _advice(page: DevicePage, ledger_option: str) -> tuple[str, str]:
    """The next safe step in words, and its command, empty where there is none."""
    name, holder = shlex.quote(page.resource), page.holder
    match page.next:
        case NextSafeStep.NOTHING:
            stands = "its process stands still; " if holder is not None and not holder.is_dead else ""
            return f"nothing: {stands}whoever wants it next gets it", ""
        case NextSafeStep.WAIT:
            return _while_in_use(page, ledger_option)
        case NextSafeStep.RESUME:
            return _to_resume(page, ledger_option)
        case NextSafeStep.LOOK:
            command = f"tallystick device clear {name} --reason TEXT{ledger_option}"
            return "look at the device; when it may be used again, clear it", command
        case NextSafeStep.FORCE:
            assert holder is not None
            where = "" if holder.on_this_host else " of another host"
            command = f"tallystick device release {name} --force --reason TEXT{ledger_option}"
            return f"process {holder.pid}{where} is not proven dead: end it, or else take the device away", command
    assert_never(page.next)


def _while_in_use(page: DevicePage, ledger_option: str) -> tuple[str, str]:
    if page.state is DeviceState.ELSEWHERE:
        other = next(one for one in page.elsewhere if not one.is_waiting)
        if other.ledger is None:
            return "wait: somebody else on this host has it", ""
        command = f"tallystick device show {shlex.quote(page.resource)} --ledger {shlex.quote(other.ledger)}"
        return "wait: another ledger of this host has it", command
    run = page.holder.run_id if page.holder else None
    return "wait, or ask its run to stop" if run else "wait", f"tallystick cancel {run}{ledger_option}" if run else ""


def _to_resume(page: DevicePage, ledger_option: str) -> tuple[str, str]:
    if page.holder is not None:
        text = "its process has died: whoever wants it next gets it at once, and its run may go on"
        return text, f"tallystick resume {page.holder.run_id}{ledger_option}"
    runs = sorted({one.run_id for one in page.open_requests})
    more = f", and of {len(runs) - 1} more" if runs[1:] else ""
    return (
        f"requests of run {runs[0]}{more} are unknown on it: let the run go on, or settle them",
        f"tallystick resume {runs[0]}{ledger_option}",
    )


def _holder(one: Holder) -> DeviceHolder:
    return DeviceHolder(
        worker=one.worker_id, pid=one.pid, on_this_host=one.on_this_host, alive=not one.is_dead, run=one.run_id,
        lease=one.lease_id, fence=one.fence, since=_at(one.since_us), expires_in_seconds=one.expires_in_ms / 1000,
    )  # fmt: skip


def _waiter(one: Waiter) -> DeviceWaiter:
    return DeviceWaiter(
        worker=one.worker_id, pid=one.pid, alive=not one.is_dead, asking=not one.has_expired, run=one.run_id,
        since=_at(one.asked_us),
    )  # fmt: skip


def _other(one: Elsewhere) -> OtherLedger:
    return OtherLedger(ledger=one.ledger, pid=one.pid, fence=one.fence, waits=one.is_waiting)


def _request(one: OpenRequest) -> DeviceRequest:
    return DeviceRequest(
        call=one.call_id, run=one.run_id, case=one.case_id, role=one.role, fence=one.fence, in_flight=one.in_flight,
        reason=one.reason, intended_at=_at(one.intended_us),
    )  # fmt: skip


def _touched(one: Touched) -> TouchedAttempt:
    return TouchedAttempt(run=one.run_id, case=one.case_id, slot=one.slot_no, attempt=one.attempt_no)


def _at(us: int) -> str:
    return instant(us)
