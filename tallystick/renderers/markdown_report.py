"""The report as Markdown: for pull requests, wikis and the summaries of CI servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..runner.report_document import DurationLine, RunReport, ScoreInterval
from ..runner.report_reading import Report
from .safe_text import markdown_text
from .words import (
    agreement_cells,
    budget_name,
    flag_words,
    interval_words,
    money_or_count,
    people_line,
    rate_words,
    seconds_words,
    state_word,
)

__all__ = ["markdown_report", "markdown_table"]

_TROUBLE_SHOWN: Final = 100


def markdown_report(report: Report) -> Iterator[str]:
    """Its pieces: what the terminal shows, without the planned observations that went well."""
    summary = report.summary
    yield f"# {markdown_text(summary.name)}\n\n"
    yield f"Run `{summary.run}` at event {summary.event} ({summary.event_at}): {summary.state}.\n\n"
    yield f"**{people_line(summary.population)}**\n"
    yield from _slice(summary)
    yield from _scores(summary.scores)
    if summary.flags:
        yield f"\nFlags of selected answers: {markdown_text(flag_words(summary.flags))}.\n"
    yield from markdown_table(
        "Agreement",
        ["judges", ">agreed", ">rate", ">kappa", ">95 %"],
        [agreement_cells(one) for one in summary.agreements],
    )
    yield from _groups(summary)
    yield from _points(summary)
    yield from _durations(summary.durations)
    yield from _spend(summary)
    yield from _sessions(summary)
    yield from _trouble(summary)


def markdown_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A section with a table, nothing where it has no rows; columns that begin with ``>`` are numbers."""
    if not rows:
        return
    heads = [column.lstrip(">") for column in columns]
    rules = ["--:" if column.startswith(">") else "---" for column in columns]
    yield f"\n## {title}\n\n"
    for row in (heads, rules):
        yield f"| {' | '.join(row)} |\n"
    for cells in rows:
        yield f"| {' | '.join(markdown_text('' if cell is None else cell) for cell in cells)} |\n"


def _slice(summary: RunReport) -> Iterator[str]:
    if summary.slice is None:
        return
    terms = ", ".join(f"{markdown_text(term.key)} = {markdown_text(term.value)}" for term in summary.slice.terms)
    yield f"\nOnly the slice {terms}: {summary.slice.planned} of {summary.slice.of} planned observations"
    yield f"; {summary.slice.without_key} lack the key.\n" if summary.slice.without_key else ".\n"


def _scores(scores: Sequence[ScoreInterval]) -> Iterator[str]:
    columns = ["judge", "variant", ">passed", ">rate", "95 %", ">mean", "95 %", ">judged", "no verdict"]
    yield from markdown_table("Scores", columns, [_score(one) for one in scores])


def _score(one: ScoreInterval) -> list[Any]:
    missing = [f"{count} {reason}" for reason, count in {**one.no_verdict, **one.without_observation}.items()]
    missing += [f"{one.waiting} waiting"] if one.waiting else []
    return [
        one.judge if one.counts else f"{one.judge} (unqualified)", one.variant,
        f"{one.passed} of {one.rated}" if one.rated else "", rate_words(one.rate),
        interval_words(one.rate_low, one.rate_high, rate=True), "" if one.mean is None else f"{one.mean:.4g}",
        interval_words(one.mean_low, one.mean_high), f"{one.judged} of {one.planned}", ", ".join(missing),
    ]  # fmt: skip


def _groups(summary: RunReport) -> Iterator[str]:
    rows = [
        [group.value if group.has_key else "(none)", *_score(score)[1:]]
        if len({one.judge for one in group.scores}) == 1
        else [group.value if group.has_key else "(none)", *_score(score)]
        for group in summary.groups
        for score in group.scores
    ]
    if not rows:
        return
    names = {score.judge for group in summary.groups for score in group.scores}
    judge = [] if len(names) == 1 else ["judge"]
    columns = [*judge, "variant", ">passed", ">rate", "95 %", ">mean", "95 %", ">judged", "no verdict"]
    yield from markdown_table(f"By {markdown_text(summary.groups[0].key)}", ["value", *columns], rows)


def _points(summary: RunReport) -> Iterator[str]:
    rows = [
        [one.count, state_word(one.what), ", ".join(f"{count} {why}" for why, count in one.reasons.items()),
         one.meaning, one.command]
        for one in summary.open_points
    ]  # fmt: skip
    yield from markdown_table("What needs a look", [">count", "what", "why", "what that means", "what helps"], rows)


def _durations(lines: Sequence[DurationLine]) -> Iterator[str]:
    rows = [
        [one.variant, one.known, *(seconds_words(value) for value in (one.p50, one.p90, one.p95, one.p99, one.most))]
        for one in lines
        if one.known
    ]
    yield from markdown_table("Durations", ["variant", ">known", ">median", ">p90", ">p95", ">p99", ">longest"], rows)


def _spend(summary: RunReport) -> Iterator[str]:
    rows = [
        [budget_name(one) + ("" if one.kind == "hard" else " (soft)"),
         *(money_or_count(one.unit, value) for value in (one.limit, one.settled, one.counted, one.wasted, one.held,
                                                         one.held_by_unknown, one.left))]
        for one in summary.budgets
    ]  # fmt: skip
    columns = ["budget", ">limit", ">spent", ">counted", ">wasted", ">held", ">held by unknown", ">left"]
    yield from markdown_table("Budgets", columns, rows)


def _sessions(summary: RunReport) -> Iterator[str]:
    rows = [
        [one.number, one.began_at, one.ended_at or "", "its process died" if one.died else one.reason or "",
         _recovered(one.unknown, one.again, one.interrupted, one.parked)]
        for one in summary.sessions
    ]  # fmt: skip
    if len(rows) > 1:
        yield from markdown_table("Sessions", [">session", "began", "ended", "how", "found at its beginning"], rows)


def _recovered(unknown: int, again: int, interrupted: int, parked: int) -> str:
    found = ((unknown, "unknown"), (again, "asked again"), (interrupted, "cut off"), (parked, "parked"))
    return ", ".join(f"{count} {word}" for count, word in found if count)


def _trouble(summary: RunReport) -> Iterator[str]:
    shown = summary.trouble[:_TROUBLE_SHOWN]
    rows = [[one.case, one.variant, one.repetition, one.state, one.reason, one.message] for one in shown]
    yield from markdown_table("No observation", ["case", "variant", ">repetition", "state", "reason", "message"], rows)
    rest = len(summary.trouble) - len(shown) + summary.trouble_omitted
    if rest:
        yield f"\nand {rest} more.\n"
