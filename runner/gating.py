"""Holding a run to the gates of its work order: a line for each that says why. Makes no call and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from ..ledger.canonical import parse_json
from ..ledger.errors import UsageError
from ..ledger.ledger import Ledger, Reader
from ..ledger.run_reads import RunRow, find_run
from ..ledger.views import Views
from .compare_sides import SideText, read_side, side_text
from .comparing import compare_sides
from .gate_document import GateLine, GateReport, GateVerdict
from .gate_lines import (
    count_lines,
    coverage_lines,
    duration_lines,
    gate_line,
    money_lines,
    regression_candidates,
    regression_line,
    score_lines,
    slowdown_line,
)
from .report_document import RunReport
from .report_options import ReportOptions, SliceTerm
from .report_reading import open_report
from .results import ExitStatus
from .work_order_files import Place
from .work_order_gates import EVERY_JUDGE, GatesSpec, read_gates

__all__ = ["gate", "gates_of"]

_STATUS: Final = {
    GateVerdict.PASSED: ExitStatus.DONE,
    GateVerdict.FAILED: ExitStatus.GATE_FAILED,
    GateVerdict.INCONCLUSIVE: ExitStatus.DECIDE,
}


def gate(
    ledger: Ledger,
    run: str,
    gates: GatesSpec | None = None,
    *,
    baseline: str | None = None,
    options: ReportOptions | None = None,
) -> GateReport:
    """The decision on a run; ``gates`` are those of its work order unless others are given.

    ``baseline`` is a side as in `compare`, instead of the one that the gates name. Raises RunNotFound, RunAmbiguous,
    EvaluationNotFound, and UsageError for a run without gates.
    """
    asked = options or ReportOptions()
    with ledger.reading() as reader:
        row = find_run(reader, run)
        spec = gates or gates_of(row)
    with open_report(ledger, row.run_id, asked) as report:
        views, summary = report.source.views, report.summary
        pinned = attrs.evolve(asked, at=summary.event)
        against = _baseline(views.reader, row, spec, summary, baseline, asked)
        _refuse_unfit(row, spec, summary, against, asked)
        gated = [name for name in _names(summary) if _is_gated(name, spec, against, row)]
        lines = list(_lines(views, row, summary, spec, pinned, gated, against, str(ledger.path)))
    if not lines:
        raise UsageError(f"the gates of run {row.run_id} hold it to nothing", "name a limit, such as min_score")
    verdict = _verdict(lines)
    return GateReport(
        ledger=str(ledger.path), run=row.run_id, name=row.name, event=summary.event,
        evaluation=None if summary.evaluation is None else summary.evaluation.number,
        baseline=None if against is None else against.text, slice=summary.slice, population=summary.population,
        verdict=verdict, exit_status=int(_STATUS[verdict]), lines=lines,
    )  # fmt: skip


def gates_of(run: RunRow) -> GatesSpec:
    """The gates that the run's work order was last seen with; raises UsageError where it has none."""
    settings: Any = parse_json(run.settings)
    document: Any = parse_json(run.work_order)
    found = read_gates(settings.get("gates", document.get("gates")), place=Place(f"run {run.run_id}", ("gates",)))
    if found is None:
        raise UsageError(
            f"the work order of run {run.run_id} has no gates",
            "write [gates] into it and name the file with --order, as in `tallystick gate RUN --order FILE`",
        )
    return found


def _verdict(lines: Sequence[GateLine]) -> GateVerdict:
    found = {line.verdict for line in lines}
    for verdict in (GateVerdict.FAILED, GateVerdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return GateVerdict.PASSED


def _names(summary: RunReport) -> list[str]:
    return [one.name for one in summary.variants]


def _baseline(
    reader: Reader, run: RunRow, spec: GatesSpec, summary: RunReport, named: str | None, options: ReportOptions
) -> SideText | None:
    """The side that is compared to: another run, or a variant of this one as the same evaluation judges it."""
    names = _names(summary)
    wanted = named or spec.baseline
    if wanted is None:
        if not spec.compares or len(names) < 2:
            return None
        wanted = names[0]
    if wanted in names:
        return SideText(f"{run.run_id}:{wanted}", run, wanted, options.evaluation, summary.event)
    return side_text(reader, wanted)


def _refuse_unfit(
    run: RunRow, spec: GatesSpec, summary: RunReport, against: SideText | None, options: ReportOptions
) -> None:
    """A variant that is not there would be held to nothing, and what is compared to itself cannot fail."""
    names = _names(summary)
    if spec.variant is not None and spec.variant not in names:
        raise UsageError(
            f"the gates are for the variant {spec.variant}, and run {run.run_id} has {', '.join(names)}",
            "correct gates.variant, or leave it out",
        )
    if against is None or (against.run.run_id, against.evaluation) != (run.run_id, options.evaluation):
        return
    held = [spec.variant] if spec.variant is not None else names
    if held == [against.variant or names[0]] and against.event in (None, summary.event):
        raise UsageError(
            f"the gates would compare {held[0]} of run {run.run_id} to itself",
            "name another baseline: another run, variant or evaluation",
        )


def _is_gated(name: str, spec: GatesSpec, against: SideText | None, run: RunRow) -> bool:
    if spec.variant is not None:
        return name == spec.variant
    return against is None or against.run.run_id != run.run_id or against.variant != name


def _lines(
    views: Views,
    run: RunRow,
    summary: RunReport,
    spec: GatesSpec,
    options: ReportOptions,
    gated: Sequence[str],
    against: SideText | None,
    ledger: str,
) -> Iterator[GateLine]:
    scores = [score for score in summary.scores if score.variant in gated]
    yield from coverage_lines(summary, scores, spec, gated)
    for key, limits in (("min_score", spec.min_score), ("min_pass_rate", spec.min_pass_rate)):
        yield from score_lines(key, limits, scores, spec, gated)
    if spec.compares:
        for name in gated:
            side = attrs.evolve(_own(run, name, options), evaluation=options.evaluation)
            yield from _against(views, side, against, spec, options.terms, ledger)
    yield from duration_lines(summary, spec, gated)
    yield from count_lines(summary, spec, gated)
    yield from money_lines(summary, spec)


def _own(run: RunRow, variant: str, options: ReportOptions) -> SideText:
    return SideText(f"{run.run_id}:{variant}", run, variant, options.evaluation, options.at)


def _against(
    views: Views,
    side: SideText,
    against: SideText | None,
    spec: GatesSpec,
    terms: tuple[SliceTerm, ...],
    ledger: str,
) -> Iterator[GateLine]:
    gates = [("max_regression", name, limit) for name, limit in spec.max_regression.items()]
    if against is None:
        gates += [("max_slowdown", EVERY_JUDGE, spec.max_slowdown)] if spec.max_slowdown is not None else []
        for key, name, limit in gates:
            why = "there is no baseline: name one with --baseline, or in the gates"
            yield gate_line(key, limit, None, None, why, side.variant, name or None)
        return
    sides = read_side(views, against, terms), read_side(views, side, terms)
    found = compare_sides(*sides, ledger=ledger, terms=terms, min_coverage=spec.min_coverage)
    for key, name, limit in gates:
        chosen = regression_candidates(found.lines, name)
        if not chosen:
            why = f"no verdict of {name or 'any judge'} is on both sides"
            yield gate_line(key, limit, None, None, why, side.variant, name or None)
        yield from (regression_line(line, limit, spec, side.variant) for line in chosen)
    if spec.max_slowdown is not None:
        (line,) = (one for one in found.lines if one.metric == "seconds")
        yield slowdown_line(line, spec.max_slowdown, spec, side.variant)
