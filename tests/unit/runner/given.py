"""Targets, judges and work orders for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from tallystick.ledger.states import IfUnknown
from tallystick.runner.protocols import Observed, Outcome, Prepared, QueryAnswer, SlotView, Verdict
from tallystick.runner.work_order import WorkOrder, load_work_order

HEAD = 'version = 1\nname = "bot"\n'
CASES = '[cases]\nfile = "q.jsonl"\n'
TARGET = '[target]\nkind = "http"\n'


@attrs.define
class StillTarget:
    """A target that says who it is and is never asked."""

    said: Mapping[str, Any] = attrs.field(factory=lambda: {"code": "sha256:1"})
    kind: str = "python"
    if_unknown: IfUnknown = IfUnknown.KEEP
    key_valid_seconds: float | None = None
    is_wire_visible: bool = True

    def identity(self) -> Mapping[str, Any]:
        return self.said

    def prepare(self, slot: SlotView) -> Prepared:
        raise AssertionError("nothing here asks for it")

    def check(self) -> None:
        raise AssertionError("nothing here asks for it")

    async def open(self) -> None:
        raise AssertionError("nothing here asks for it")

    async def dispatch(self, prepared: Prepared, dispatching: Any) -> Outcome:
        raise AssertionError("nothing here asks for it")

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:
        raise AssertionError("nothing here asks for it")

    async def close(self) -> None:
        raise AssertionError("nothing here asks for it")


@attrs.define
class StillJudge:
    """A judge that says who it is and passes everything."""

    name: str = "grounded"
    kind: str = "python"
    scale: tuple[float, float] | None = None
    said: Mapping[str, Any] = attrs.field(factory=lambda: {"code": "sha256:2"})

    def identity(self) -> Mapping[str, Any]:
        return self.said

    def judge(self, observed: Observed) -> Verdict:
        return Verdict(passed=True)


def a_work_order(**options: Any) -> WorkOrder:
    if "variants" not in options:
        options.setdefault("target", StillTarget())
    return WorkOrder(**{"name": "bot", "cases": [{"id": "a", "input": 1}], **options})


def written(folder: Path, text: str, *, name: str = "order.toml") -> WorkOrder:
    """The work order in a file of that text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_work_order(path)
