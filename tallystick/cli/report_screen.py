"""The report on a terminal: the population, scores with their intervals, what needs a look, what was spent."""

from __future__ import annotations

from typing import Final

from ..renderers.words import (
    agreement_cells,
    interval_words,
    joined,
    people_line,
    plural,
    rate_words,
    seconds_words,
    state_word,
)
from ..runner.report_document import RunReport, ScoreInterval
from .screen import Screen, Tone
from .screens import show_budgets, show_exit, totals_rows

__all__ = ["score_row", "show_report"]

_TROUBLE_SHOWN: Final = 20
_GROUPS_SHOWN: Final = 40
_SCORE_COLUMNS: Final = (
    *("judge", "variant", ">passed", ">rate", ">95 %", ">mean", ">95 % of mean", ">judged", "no verdict"),
)


def show_report(screen: Screen, report: RunReport) -> None:
    """Everything but the planned observations that went well."""
    _head(screen, report)
    if report.scores:
        screen.table(_SCORE_COLUMNS, [score_row(one) for one in report.scores], title="scores")
    if report.agreements:
        columns = ["judges", ">agreed", ">rate", ">kappa", ">95 %"]
        screen.table(columns, [agreement_cells(one) for one in report.agreements], title="agreement")
    _groups(screen, report)
    _points(screen, report)
    if report.budgets:
        show_budgets(screen, report.budgets)
    _durations(screen, report)
    screen.pairs(totals_rows(screen, report))
    _sessions(screen, report)
    _trouble(screen, report)
    show_exit(screen, report)


def _head(screen: Screen, report: RunReport) -> None:
    screen.line(f"run {report.run} ({report.name}): {report.state}", tone=Tone.STRONG)
    rows = [("ledger", report.ledger), ("population", people_line(report.population))]
    if len(report.by_variant) > 1:
        rows += [(f"  {one.variant}", people_line(one.population)) for one in report.by_variant]
    if report.slice is not None:
        terms = joined(f"{term.key} = {term.value}" for term in report.slice.terms)
        lacking = f"; {report.slice.without_key} lack the key" if report.slice.without_key else ""
        rows.append(("slice", f"{terms}: {report.slice.planned} of {report.slice.of} planned{lacking}"))
    rows.append(("event", f"{report.event} of {report.event_at}; --at {report.event} shows this again"))
    if report.evaluation is not None and len(report.evaluations) > 1:
        others = ", ".join(
            f"{one.number} ({one.name})" for one in report.evaluations if one.number != report.evaluation.number
        )
        shown = f"{report.evaluation.number} ({report.evaluation.name}); --evaluation shows others: {others}"
        rows.append(("evaluation", shown))
    screen.pairs(rows)


def score_row(one: ScoreInterval) -> tuple[str, ...]:
    """A judge's figures in the order of the columns."""
    missing = [f"{count} {state_word(reason)}" for reason, count in one.no_verdict.items()]
    missing += [f"{one.waiting} waiting"] if one.waiting else []
    missing += [f"{one.outside} outside the set"] if one.outside else []
    rate = rate_words(one.rate) or ("" if one.scored else "-")
    return (
        one.judge if one.counts else f"{one.judge} (unqualified)", one.variant,
        f"{one.passed} of {one.rated}" if one.rated or not one.scored else "", rate,
        interval_words(one.rate_low, one.rate_high, rate=True), "" if one.mean is None else f"{one.mean:.4g}",
        interval_words(one.mean_low, one.mean_high), f"{one.judged} of {one.planned}", joined(missing),
    )  # fmt: skip


def _groups(screen: Screen, report: RunReport) -> None:
    rows = [
        (str(group.value) if group.has_key else "(none)", *score_row(score))
        for group in report.groups
        for score in group.scores
    ]
    if rows:
        title = f"by {report.groups[0].key}"
        screen.table(["value", *_SCORE_COLUMNS], rows[:_GROUPS_SHOWN], title=title)
        if rows[_GROUPS_SHOWN:]:
            screen.line(f"and {len(rows) - _GROUPS_SHOWN} more; --json lists them")


def _points(screen: Screen, report: RunReport) -> None:
    rows = [
        (one.count, state_word(one.what), joined(f"{count} {why}" for why, count in one.reasons.items()), one.meaning)
        for one in report.open_points
    ]
    if rows:
        screen.table([">count", "what", "why", "what that means"], rows, title="needs a look")
    for command in dict.fromkeys(one.command for one in report.open_points if one.command):
        screen.line(f"  {command}", tone=Tone.DIM)


def _durations(screen: Screen, report: RunReport) -> None:
    rows = [
        (one.variant, one.known, *(seconds_words(value) for value in (one.p50, one.p90, one.p95, one.p99, one.most)))
        for one in report.durations
        if one.known
    ]
    if rows:
        columns = ["durations", ">known", ">median", ">p90", ">p95", ">p99", ">longest"]
        screen.table(columns, rows)


def _sessions(screen: Screen, report: RunReport) -> None:
    died = sum(one.died for one in report.sessions)
    if len(report.sessions) > 1:
        killed = f", of which {died} ended by a death" if died else ""
        screen.pairs([("sessions", f"{len(report.sessions)}{killed}")])


def _trouble(screen: Screen, report: RunReport) -> None:
    if not report.trouble:
        return
    shown = report.trouble[:_TROUBLE_SHOWN]
    rows = [(one.case, one.variant, one.repetition, one.state, one.reason, one.message) for one in shown]
    screen.table(["case", "variant", ">repetition", "state", "reason", "message"], rows, title="no observation")
    rest = len(report.trouble) - len(shown) + report.trouble_omitted
    if rest:
        screen.line(f"and {plural(rest, 'other', 'others')}; --json lists them")
