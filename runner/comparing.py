"""Comparing two sides (runs, variants of a run, or evaluations) pair by pair. Makes no call and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..ledger.canonical import canonical_text
from ..ledger.errors import UsageError
from ..ledger.ledger import Ledger
from ..ledger.views import Views
from .compare_document import Comparison
from .compare_lines import ALPHA, Key, lines_of
from .compare_sides import Side, read_side, side_text, sides_of_one_run
from .report_document import SlicePart, TermPart
from .report_options import SliceTerm

__all__ = ["MIN_COVERAGE", "compare", "compare_sides"]

MIN_COVERAGE: Final = 0.95
GROUPS_MAX: Final = 10_000


def compare(
    ledger: Ledger,
    baseline: str,
    candidate: str | None = None,
    *,
    terms: tuple[SliceTerm, ...] = (),
    by: str | None = None,
    per_case: bool = False,
    min_coverage: float = MIN_COVERAGE,
) -> Comparison:
    """The comparison of two sides, each ``RUN[:VARIANT][#EVALUATION][@EVENT]``.

    Without ``candidate`` the second variant of the run is compared to its first. ``by`` adds a line for each value of
    that metadata key, ``per_case`` for each case. Below ``min_coverage`` a line is inconclusive.
    Raises UsageError, RunNotFound, RunAmbiguous and EvaluationNotFound.
    """
    if not 0 <= min_coverage <= 1:
        raise UsageError(f"a coverage of {min_coverage} is no share", "name one from 0 to 1")
    with Views.of(ledger) as views:
        first, second = _read(views, baseline, candidate, terms)
        return compare_sides(
            first, second, ledger=str(ledger.path), terms=terms, by=by, per_case=per_case, min_coverage=min_coverage
        )


def _read(views: Views, baseline: str, candidate: str | None, terms: tuple[SliceTerm, ...]) -> tuple[Side, Side]:
    if candidate is None:
        texts = sides_of_one_run(views.reader, baseline)
    else:
        texts = side_text(views.reader, baseline), side_text(views.reader, candidate)
    return read_side(views, texts[0], terms), read_side(views, texts[1], terms)


def compare_sides(
    baseline: Side,
    candidate: Side,
    *,
    ledger: str,
    terms: Sequence[SliceTerm] = (),
    by: str | None = None,
    per_case: bool = False,
    min_coverage: float = MIN_COVERAGE,
) -> Comparison:
    """The same of two sides that are read already."""
    keys = sorted(baseline.cells.keys() | candidate.cells.keys())
    groups = _groups(baseline, candidate, keys, by=by, per_case=per_case)
    lines = lines_of(baseline, candidate, [(None, None, keys)], min_coverage=min_coverage)
    return Comparison(
        ledger=ledger, baseline=baseline.part, candidate=candidate.part,
        slice=_slice(baseline, candidate, terms, len(keys)), min_coverage=min_coverage, alpha=ALPHA, lines=lines,
        groups=lines_of(baseline, candidate, groups[:GROUPS_MAX], min_coverage=min_coverage) if groups else [],
        groups_omitted=max(0, len(groups) - GROUPS_MAX),
    )  # fmt: skip


def _slice(baseline: Side, candidate: Side, terms: Sequence[SliceTerm], planned: int) -> SlicePart | None:
    if not terms:
        return None
    plans = [side.source.history.planned // side.source.history.variants for side in (baseline, candidate)]
    return SlicePart(
        terms=[TermPart(key=term.key, value=term.text) for term in terms], planned=planned, of=max(plans),
        without_key=0,
    )  # fmt: skip


def _groups(
    baseline: Side, candidate: Side, keys: Sequence[Key], *, by: str | None, per_case: bool
) -> list[tuple[str | None, Any, list[Key]]]:
    if per_case and by is not None:
        raise UsageError("a comparison is by one key, or for each case", "leave out --by or --per-case")
    found: dict[str, tuple[Any, list[Key]]] = {}
    for key in keys if per_case or by is not None else ():
        metadata = (
            {"": key[0]} if per_case else {**candidate.metadata.get(key[0], {}), **baseline.metadata.get(key[0], {})}
        )
        wanted = "" if per_case else str(by)
        value: Any = metadata.get(wanted)
        name = f"={canonical_text(value)}" if wanted in metadata else ""
        found.setdefault(name, (value, []))[1].append(key)
    label = "case" if per_case else by
    return [(label, value, members) for _, (value, members) in sorted(found.items())]
