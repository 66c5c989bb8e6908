"""``device release``, ``quarantine`` and ``clear``: what an operator decides about a device."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..ledger import device_care
from ..ledger.device_reads import Holder, device_page
from ..ledger.errors import DeviceBusy, UsageError
from ..ledger.host_claims import HostClaims
from ..ledger.ledger import Ledger
from ..ledger.transaction import Transaction
from ..runner.device_pages import DeviceShown
from .changes import made_by
from .devices import show_page, shown
from .output import write_json
from .screen import Tone
from .settings import Settings

__all__ = ["DeviceDecided", "clear", "quarantine", "release"]


class DeviceDecided(BaseModel):
    """What ``device release``, ``quarantine`` and ``clear`` say; ``changed`` is false where it stood so already."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.device_decision/1"] = "tallystick.device_decision/1"
    decision: str
    changed: bool
    device: DeviceShown


def release(settings: Settings, resource: str, *, force: bool, reason: str | None) -> int:
    """Take the device from its holder."""
    if force and not reason:
        raise UsageError("--force needs a --reason, which is kept in the ledger", "add --reason TEXT")
    with Ledger.open(settings.ledger_path) as ledger:
        claims = HostClaims(ledger)
        page = device_page(ledger, resource, claims=claims)
        holder = page.holder
        other = next((one for one in page.elsewhere if not one.is_waiting), None)
        if holder is None and other is not None:
            where = other.ledger or "a ledger that cannot be read"
            raise DeviceBusy(
                f"the device {resource} is held by process {other.pid} of {where}, not by a run of this ledger",
                "give the same command with --ledger and that path", resource, where,
            )  # fmt: skip
        changed = holder is not None and _end(ledger, resource, holder, reason if force else None)
        if force:
            # Also where the ledger knew of nobody: an earlier release may have been broken off here.
            changed = claims.revoke(resource) > 0 or changed
        _tell(settings, ledger, resource, "released", changed=changed, otherwise="nobody of this ledger holds it")
    return 0


def quarantine(settings: Settings, resource: str, *, reason: str | None) -> int:
    """Let nobody of this host have the device."""
    why = _needed(reason, "quarantine")
    with Ledger.open(settings.ledger_path) as ledger:
        device_page(ledger, resource)
        # On the host first: broken off in between, nobody gets the device.
        claims = HostClaims(ledger)
        if claims.quarantined(resource) is None:
            claims.quarantine(resource, f"{why} (by {made_by()})")
        changed = ledger.write(lambda tx: device_care.quarantine(tx, resource, reason=why, made_by=made_by()))
        _tell(settings, ledger, resource, "quarantined", changed=changed, otherwise="it was in quarantine already")
    return 0


def clear(settings: Settings, resource: str, *, reason: str | None) -> int:
    """Let the device be used again, in this ledger and on this host."""
    why = _needed(reason, "clear")
    with Ledger.open(settings.ledger_path) as ledger:
        claims = HostClaims(ledger)
        page = device_page(ledger, resource, claims=claims)
        if page.quarantine is None:
            raise UsageError(
                f"the device {resource} is not in quarantine",
                f"see how it stands with `{settings.command('device', 'show', resource)}`",
            )
        ledger.write(lambda tx: _clear_here(tx, resource, why))
        claims.clear(resource)
        _tell(settings, ledger, resource, "cleared", changed=True, otherwise="")
    return 0


def _clear_here(tx: Transaction, resource: str, why: str) -> None:
    # Another ledger of this host may have put it in quarantine.
    if device_care.quarantine_reason(tx, resource) is not None:
        device_care.clear(tx, resource, reason=why, made_by=made_by())


def _end(ledger: Ledger, resource: str, holder: Holder, reason: str | None) -> bool:
    """End the holder's lease; without a reason only that of a dead one."""
    if reason is not None:
        found = ledger.write(lambda tx: device_care.revoke(tx, resource, reason=reason, made_by=made_by()))
        return found is not None
    if not holder.is_dead:
        who = f"process {holder.pid}" + (f", which executes run {holder.run_id}" if holder.run_id else "")
        left = f"its lease ends in {holder.expires_in_ms / 1000:.0f} s" if holder.expires_in_ms else "its lease ran out"
        raise DeviceBusy(
            f"the device {resource} is held by {who} ({left}), and that process is not proven dead",
            "wait or end that process, or take the device away with --force and --reason TEXT", resource, who,
        )  # fmt: skip
    return ledger.write(lambda tx: device_care.release_dead(tx, resource, holder.lease_id))


def _needed(reason: str | None, command: str) -> str:
    if not reason:
        raise UsageError(f"device {command} needs a --reason, which is kept in the ledger", "add --reason TEXT")
    return reason


def _tell(settings: Settings, ledger: Ledger, resource: str, decision: str, *, changed: bool, otherwise: str) -> None:
    found = shown(settings, ledger, resource)
    if settings.json:
        write_json(DeviceDecided(decision=decision, changed=changed, device=found))
        return
    screen = settings.screen()
    show_page(screen, found)
    screen.line(
        f"the device {resource} is {decision}" if changed else f"nothing was changed: {otherwise}",
        tone=Tone.GOOD if changed else Tone.WARNING,
    )
