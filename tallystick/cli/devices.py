"""``device list`` and ``device show``."""

from __future__ import annotations

import json

from ..ledger.device_reads import device_list, device_page
from ..ledger.ledger import Ledger
from ..runner.device_pages import (
    DeviceHolder,
    DeviceLine,
    DeviceShown,
    DevicesListed,
    OtherLedger,
    device_line,
    device_shown,
)
from .output import write_json
from .screen import Screen, Tone
from .settings import Settings
from .words import duration, joined, plural

__all__ = ["show_device", "show_list", "show_page", "shown"]

_TONES = {"quarantined": Tone.BAD, "held": Tone.STRONG, "elsewhere": Tone.WARNING}


def show_list(settings: Settings) -> int:
    """The board of devices."""
    with Ledger.open(settings.ledger_path) as ledger:
        pages = device_list(ledger)
        lines = [device_line(page, ledger_option=settings.ledger_option) for page in pages]
        found = DevicesListed(ledger=str(ledger.path), devices=lines)
    if settings.json:
        write_json(found)
        return 0
    screen = settings.screen()
    screen.pairs([("ledger", found.ledger)])
    if not lines:
        screen.line("this ledger has had no devices")
        return 0
    rows = [
        (one.resource, one.state, _who(one), one.fence or "", one.waiting or "", one.unknown or "", one.advice)
        for one in lines
    ]
    screen.table(["device", "state", "holder", ">fence", ">waiting", ">unknown", "next"], rows)
    return 0


def show_device(settings: Settings, resource: str) -> int:
    """The page of one device."""
    with Ledger.open(settings.ledger_path) as ledger:
        found = shown(settings, ledger, resource)
    if settings.json:
        write_json(found)
    else:
        show_page(settings.screen(), found)
    return 0


def shown(settings: Settings, ledger: Ledger, resource: str) -> DeviceShown:
    """The model of one device; raises DeviceNotFound."""
    return device_shown(device_page(ledger, resource), str(ledger.path), ledger_option=settings.ledger_option)


def show_page(screen: Screen, found: DeviceShown) -> None:
    """All that is known of a device."""
    screen.pairs([
        ("ledger", found.ledger),
        ("device", joined([found.resource, found.kind, _fences(found)])),
        ("facts", json.dumps(found.facts, ensure_ascii=False) if found.facts else ""),
        ("seen", joined([f"first {found.first_seen_at}", f"last {found.last_seen_at}", _boots(found)])),
    ])  # fmt: skip
    screen.line(f"{found.state}{f': {found.quarantine}' if found.quarantine else ''}",
                tone=_TONES.get(found.state, Tone.GOOD))  # fmt: skip
    held = [("holder", _holder(found.holder))] if found.holder else []
    screen.pairs([*held, *(("elsewhere", _other(one)) for one in found.other_ledgers)])
    screen.pairs([("last request", found.last_request)] if found.last_request else [])
    _tables(screen, found)
    screen.line(f"next: {found.advice}{f': `{found.command}`' if found.command else ''}", tone=Tone.STRONG)


def _tables(screen: Screen, found: DeviceShown) -> None:
    if found.waiters:
        rows = [
            (one.run or "", one.pid, one.since, "" if one.alive else "died", "" if one.asking else "stands still")
            for one in found.waiters
        ]
        screen.table(["run", ">process", "since", "alive", "asking"], rows, title="in line, the first first")
    if found.requests:
        asked = [
            (one.call, one.run, one.case or one.role, one.fence, "in flight" if one.in_flight else one.reason or "")
            for one in found.requests
        ]
        screen.table(["request", "run", "case", ">fence", "why"], asked, title="without a known outcome")
    if found.contaminated_attempts:
        touched = [(one.run, one.case, one.slot, one.attempt) for one in found.contaminated_attempts]
        screen.table(["run", "case", ">slot", ">attempt"], touched, title="contaminated by an earlier holder")


def _who(one: DeviceLine) -> str:
    if one.holder is not None and one.state != "elsewhere":
        return joined([one.holder.run or "", f"process {one.holder.pid}{'' if one.holder.alive else ' (died)'}"])
    other = next((other for other in one.other_ledgers if not other.waits), None)
    return "" if other is None else _other(other)


def _holder(one: DeviceHolder) -> str:
    state = "" if one.alive else "it has died"
    where = "" if one.on_this_host else "on another host"
    left = f"lease ends in {duration(one.expires_in_seconds)}" if one.expires_in_seconds else "lease has run out"
    return joined([
        f"run {one.run}" if one.run else "", f"process {one.pid}", where, state, f"fence {one.fence}",
        f"since {one.since}", left,
    ])  # fmt: skip


def _other(one: OtherLedger) -> str:
    who = f"process {one.pid} of {one.ledger}" if one.ledger else "somebody whose claim cannot be read"
    return joined([who, f"fence {one.fence}" if one.fence else "", "waits for it" if one.waits else ""])


def _fences(found: DeviceShown) -> str:
    compares = "compares fences" if found.compares_fences else "compares no fences"
    return joined([compares, f"highest fence {found.fence}" if found.fence else ""])


def _boots(found: DeviceShown) -> str:
    boots = "" if found.boot_count is None else plural(found.boot_count, "boot")
    return joined([boots, f"generation {found.generation}" if found.generation > 1 else ""])
