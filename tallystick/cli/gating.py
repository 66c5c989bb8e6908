"""``gate``: a line for each gate that says why, and an exit status for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from ..ledger.errors import UsageError
from ..ledger.ledger import Ledger
from ..renderers.words import joined, people_line
from ..runner.gate_document import GateReport, GateVerdict
from ..runner.gating import gate
from ..runner.report_options import ReportOptions, slice_term
from ..runner.work_order import load_work_order
from ..runner.work_order_gates import GatesSpec
from .choosing import named_or_newest
from .output import write_json
from .screen import Screen, Tone
from .settings import Settings

__all__ = ["GateWish", "give_gate", "show_gate"]

_TONES: Final = {
    GateVerdict.PASSED: Tone.GOOD,
    GateVerdict.FAILED: Tone.BAD,
    GateVerdict.INCONCLUSIVE: Tone.WARNING,
}


@attrs.frozen
class GateWish:
    """What was asked for on the command line."""

    order: Path | None = None
    baseline: str | None = None
    slices: Sequence[str] = ()
    at: int | None = None
    evaluation: str | None = None


def give_gate(settings: Settings, run: str | None, wish: GateWish) -> int:
    """Decide and say why; the status is 0 passed, 1 failed, 3 inconclusive."""
    gates = None if wish.order is None else _gates(wish.order)
    options = ReportOptions(wish.at, tuple(map(slice_term, wish.slices)), None, wish.evaluation)
    with Ledger.open(settings.ledger_path) as ledger:
        row = named_or_newest(ledger, run)
        found = gate(ledger, row.run_id, gates, baseline=wish.baseline, options=options)
    if settings.json:
        write_json(found)
    else:
        show_gate(settings.screen(), found)
    return found.exit_status


def _gates(order: Path) -> GatesSpec:
    gates = load_work_order(order).gates
    if gates is None:
        raise UsageError(f"{order} has no gates", "write [gates] into it, with limits such as min_score")
    return gates


def show_gate(screen: Screen, found: GateReport) -> None:
    """A line for each gate, then the decision."""
    screen.line(f"run {found.run} ({found.name}) at event {found.event}", tone=Tone.STRONG)
    rows = [("ledger", found.ledger), ("population", people_line(found.population))]
    if found.baseline is not None:
        rows.append(("baseline", found.baseline))
    screen.pairs(rows)
    for line in found.lines:
        what = joined([line.gate, line.variant or "", line.judge or ""])
        screen.line(f"{line.verdict.upper():<12}  {what}: {line.why}", tone=_TONES[line.verdict])
    screen.line(f"the gates are {found.verdict}" if found.verdict != "inconclusive" else "the gates say neither: "
                "too little was measured", tone=_TONES[found.verdict])  # fmt: skip
