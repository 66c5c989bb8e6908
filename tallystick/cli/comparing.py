"""``compare``: two sides beside each other, on the terminal, as JSON or as Markdown."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from ..ledger.errors import UsageError
from ..ledger.ledger import Ledger
from ..renderers.comparison import COLUMNS, comparison_markdown, comparison_row
from ..renderers.files import write_whole
from ..renderers.words import joined, people_line
from ..runner.compare_document import Comparison, ComparisonLine, ComparisonVerdict, SidePart
from ..runner.comparing import compare
from ..runner.report_models import as_json
from ..runner.report_options import slice_term
from .screen import Screen, Tone
from .settings import Settings

__all__ = ["CompareWish", "give_comparison", "show_comparison"]

_GROUPS_SHOWN: Final = 40
_TONES: Final = {
    ComparisonVerdict.BETTER: Tone.GOOD,
    ComparisonVerdict.WORSE: Tone.BAD,
    ComparisonVerdict.TIED: Tone.PLAIN,
    ComparisonVerdict.INCONCLUSIVE: Tone.WARNING,
}


@attrs.frozen
class CompareWish:
    """What was asked for on the command line."""

    baseline: str
    candidate: str | None
    slices: Sequence[str] = ()
    by: str | None = None
    per_case: bool = False
    min_coverage: float = 0.95
    form: str | None = None
    output: Path | None = None


def give_comparison(settings: Settings, wish: CompareWish) -> int:
    """Make the comparison and put it where it is wanted."""
    form = "json" if settings.json else wish.form or _form_of(wish.output)
    with Ledger.open(settings.ledger_path) as ledger:
        found = compare(
            ledger, wish.baseline, wish.candidate, terms=tuple(map(slice_term, wish.slices)), by=wish.by,
            per_case=wish.per_case, min_coverage=wish.min_coverage,
        )  # fmt: skip
    if form == "terminal":
        show_comparison(settings.screen(), found)
        return 0
    pieces = _json(found) if form == "json" else comparison_markdown(found)
    if wish.output is None or str(wish.output) == "-":
        sys.stdout.writelines(pieces)
        sys.stdout.flush()
    else:
        write_whole(wish.output, pieces)
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            settings.progress_screen().line(f"wrote {wish.output}")
    return 0


def _form_of(output: Path | None) -> str:
    if output is None:
        return "terminal"
    form = {".json": "json", ".md": "md"}.get(output.suffix.lower())
    if form is None:
        raise UsageError(f"{output} does not say in which form it is wanted", "add --format json or md")
    return form


def _json(found: Comparison) -> Iterator[str]:
    yield json.dumps(as_json(found), indent=2) + "\n"


def show_comparison(screen: Screen, found: Comparison) -> None:
    """Both populations, a line for each figure, and those of groups."""
    screen.line("comparison", tone=Tone.STRONG)
    screen.pairs([("ledger", found.ledger), ("baseline", _side(found.baseline)), ("candidate", _side(found.candidate))])
    if found.slice is not None:
        terms = joined(f"{term.key} = {term.value}" for term in found.slice.terms)
        screen.pairs([("slice", f"{terms}: {found.slice.planned} of {found.slice.of} pairs of the plan")])
    screen.table(COLUMNS, [comparison_row(line) for line in found.lines])
    if found.groups:
        rows = [(_group(line), *comparison_row(line)) for line in found.groups]
        screen.table(["value", *COLUMNS], rows[:_GROUPS_SHOWN], title=f"by {found.groups[0].group_key}")
        rest = len(rows) - _GROUPS_SHOWN + found.groups_omitted
        if rest > 0:
            screen.line(f"and {rest} more; --json lists them")
    for line in found.lines:
        name = joined([line.judge or "", line.metric])
        screen.line(f"{name}: {line.verdict}; {line.why}", tone=_TONES[line.verdict])


def _side(side: SidePart) -> str:
    evaluation = "" if side.evaluation is None else f", evaluation {side.evaluation}"
    where = f"run {side.run} ({side.name}), variant {side.variant}, event {side.event}{evaluation}"
    return f"{where}: {people_line(side.population)}"


def _group(line: ComparisonLine) -> str:
    return "(none)" if line.group is None else str(line.group)
