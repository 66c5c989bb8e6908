"""The document of a decision: ``docs/gate.schema.json`` is made from it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from .report_document import SlicePart
from .report_models import Part, Population

__all__ = ["GateLine", "GateReport", "GateVerdict"]


class GateVerdict(StrEnum):
    """What a gate says."""

    PASSED = "passed"  # what was measured is within the limit
    FAILED = "failed"  # what was measured is beyond it
    INCONCLUSIVE = "inconclusive"  # too little was measured to say either


class GateLine(Part):
    """One gate for one variant and judge. ``value`` is held against ``limit``, with ``low`` and ``high`` at 95 %."""

    gate: str
    variant: str | None
    judge: str | None
    limit: float
    value: float | None
    low: float | None
    high: float | None
    verdict: GateVerdict
    why: str


class GateReport(Part):
    """What ``gate`` says: failed where one gate failed, else inconclusive where one is, else passed."""

    format: Literal["tallystick.gate/1"] = "tallystick.gate/1"
    ledger: str
    run: str
    name: str
    event: int
    evaluation: int | None
    baseline: str | None
    slice: SlicePart | None
    population: Population
    verdict: GateVerdict
    exit_status: int
    lines: list[GateLine]
