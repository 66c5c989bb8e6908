"""A comparison as rows of a table, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..runner.compare_document import Comparison, ComparisonLine, SidePart
from .markdown_report import markdown_table
from .safe_text import markdown_text
from .words import interval_words, people_line, seconds_words

__all__ = ["COLUMNS", "comparison_markdown", "comparison_row"]

COLUMNS: Final = (
    "what", ">pairs", ">baseline", ">candidate", ">difference", ">95 %", ">better in", ">worse in", ">p", "verdict",
    ">only baseline", ">only candidate", ">neither", ">changed",
)  # fmt: skip


def comparison_row(line: ComparisonLine) -> tuple[Any, ...]:
    """The line's cells in the order of `COLUMNS`; nothing where there is nothing."""
    if line.metric == "seconds":
        figures = [seconds_words(line.baseline), seconds_words(line.candidate)]
        change, around = "" if line.ratio is None else f"× {line.ratio:.3g}", interval_words(line.low, line.high)
    else:
        is_rate = line.metric == "passed"
        figures = [_figure(value, is_rate) for value in (line.baseline, line.candidate)]
        change = "" if line.difference is None else f"{line.difference:+.1%}" if is_rate else f"{line.difference:+.4g}"
        around = interval_words(line.low, line.high, rate=is_rate)
    what = line.metric if line.judge is None else f"{line.judge} {line.metric}"
    rest = [count or "" for count in (line.baseline_only, line.candidate_only, line.neither, line.changed)]
    p = "" if line.p_adjusted is None else f"{line.p_adjusted:.2g}"
    return (what, line.pairs, *figures, change, around, line.gained, line.lost, p, line.verdict.value, *rest)


def _figure(value: float | None, is_rate: bool) -> str:
    return "" if value is None else f"{value:.1%}" if is_rate else f"{value:.4g}"


def comparison_markdown(found: Comparison) -> Iterator[str]:
    """Its pieces."""
    yield f"# {markdown_text(found.baseline.text)} and {markdown_text(found.candidate.text)}\n\n"
    yield f"- baseline: {_side(found.baseline)}\n- candidate: {_side(found.candidate)}\n"
    if found.slice is not None:
        terms = ", ".join(f"{markdown_text(term.key)} = {markdown_text(term.value)}" for term in found.slice.terms)
        yield f"- only the slice {terms}\n"
    yield from markdown_table("Figures", COLUMNS, [comparison_row(line) for line in found.lines])
    if found.groups:
        rows = [["(none)" if line.group is None else line.group, *comparison_row(line)] for line in found.groups]
        yield from markdown_table(f"By {markdown_text(found.groups[0].group_key)}", ["value", *COLUMNS], rows)
    yield "\n"
    for line in found.lines:
        what = line.metric if line.judge is None else f"{line.judge} {line.metric}"
        yield f"- {markdown_text(what)}: **{line.verdict}**; {markdown_text(line.why)}\n"


def _side(side: SidePart) -> str:
    where = f"run `{side.run}`, variant {markdown_text(side.variant)}, event {side.event}"
    return f"{where}: {people_line(side.population)}"
