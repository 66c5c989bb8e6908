"""``adapters``: which targets and judges a work order can name here, and whose they are."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..adapters.registry import TARGETS, listed
from .output import write_json
from .screen import Tone
from .settings import Settings

__all__ = ["AdapterLine", "AdaptersListed", "show_adapters"]


class AdapterLine(BaseModel):
    """One adapter; ``fault`` is null where a work order can use it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    adapter: Literal["target", "judge"]
    kind: str
    package: str
    version: str
    entry_point: str
    fault: str | None


class AdaptersListed(BaseModel):
    """What ``adapters`` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.adapters/1"] = "tallystick.adapters/1"
    adapters: list[AdapterLine]


def show_adapters(settings: Settings) -> int:
    """List them all, with the reason of each that cannot be used."""
    with settings.aside():
        lines = [
            AdapterLine(
                adapter="target" if one.group == TARGETS else "judge", kind=one.kind, package=one.package.name,
                version=one.package.version, entry_point=one.entry_point, fault=one.fault or None,
            )
            for one in listed()
        ]  # fmt: skip
    if settings.json:
        write_json(AdaptersListed(adapters=lines))
        return 0
    screen = settings.screen()
    rows = [(one.adapter, one.kind, one.package, one.version, one.entry_point) for one in lines]
    screen.table(["adapter", "kind", "package", "version", "entry point"], rows)
    for one in lines:
        if one.fault is not None:
            screen.line(f"{one.adapter} {one.kind} of {one.package} {one.version}: {one.fault}", tone=Tone.WARNING)
    return 0
