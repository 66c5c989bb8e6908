"""The lines of a comparison: pairs, their figures, the test, and what it says.

Pairs are the unit: the same case and repetition on both sides. A rate is tested by McNemar's exact test on the pairs
that differ, durations likewise by which side is faster, a mean by flipping the signs of differences. Where cases have
repetitions these are taken together, in tests and in intervals: they are not as many independent observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, Final, Literal, TypeAlias

import attrs

from .compare_document import ComparisonLine, ComparisonVerdict
from .compare_sides import Cell, Side
from .statistics_rates import Interval, benjamini_hochberg, design_effect, mcnemar_exact, paired_difference
from .statistics_samples import mean_interval, ratio_of_medians, sign_flip

__all__ = ["ALPHA", "Figure", "Key", "figures_of", "lines_of"]

ALPHA: Final = 0.05
_SECONDS_LEAST: Final = 1e-6

Key: TypeAlias = tuple[str, int]
Metric: TypeAlias = Literal["passed", "score", "seconds"]


@attrs.frozen
class Figure:
    """What is compared: a judge's verdicts or scores, or the durations. ``fault`` is why nothing can be said of it.

    A judge that only one side has is not ``shared``: it gets a line that says so, and none for each group.
    """

    metric: Metric
    judge: str | None = None
    fault: str = ""
    shared: bool = True

    def of(self, cell: Cell | None) -> float | None:
        """The cell's figure, None where it has none."""
        if cell is None:
            return None
        match self.metric:
            case "passed":
                passed = cell.passed.get(str(self.judge))
                return None if passed is None else float(passed)
            case "score":
                return cell.scores.get(str(self.judge))
            case "seconds":
                return None if cell.seconds is None else max(cell.seconds, _SECONDS_LEAST)


def figures_of(baseline: Side, candidate: Side) -> list[Figure]:
    """The figures that at least one of both sides has: of judges, and durations."""
    figures = []
    metrics: tuple[Metric, ...] = ("passed", "score")
    for name in [*baseline.judges, *(name for name in candidate.judges if name not in baseline.judges)]:
        fault, shared = _fault(name, baseline, candidate), name in baseline.judges and name in candidate.judges
        figures += [
            Figure(metric, name, fault, shared) for metric in metrics if _has(metric, name, baseline, candidate)
        ]
    return [*figures, Figure("seconds")]


def _fault(name: str, baseline: Side, candidate: Side) -> str:
    judge, other = baseline.judges.get(name), candidate.judges.get(name)
    if judge is None or other is None:
        return f"only the {'baseline' if other is None else 'candidate'} has a judge {name}"
    # Two evaluations of the same observations are compared to see what another judge says of them.
    same_work = (baseline.part.run, baseline.part.variant) == (candidate.part.run, candidate.part.variant)
    if judge.identity_digest != other.identity_digest and not same_work:
        return f"the judge {name} is not the same on both sides"
    if False in (judge.qualified, other.qualified):
        return f"the judge {name} is not qualified as it must be"
    return ""


def _has(metric: Metric, judge: str, *sides: Side) -> bool:
    figure = Figure(metric, judge)
    return any(figure.of(cell) is not None for side in sides for cell in side.cells.values())


@attrs.frozen
class _Group:
    key: str | None
    value: Any
    keys: Sequence[Key]


def lines_of(
    baseline: Side, candidate: Side, groups: Sequence[tuple[str | None, Any, Sequence[Key]]], *, min_coverage: float
) -> list[ComparisonLine]:
    """A line for each figure of each group; all of them are one family, whose false discoveries are held down."""
    figures = figures_of(baseline, candidate)
    drafts = [
        _draft(figure, _Group(*group), baseline.cells, candidate.cells)
        for group in groups
        for figure in figures
        if figure.shared or group[0] is None
    ]
    tested = [draft for draft in drafts if draft.p is not None]
    adjusted = dict(zip(map(id, tested), benjamini_hochberg([float(str(one.p)) for one in tested]), strict=True))
    return [_decided(draft, adjusted.get(id(draft)), min_coverage) for draft in drafts]


@attrs.frozen
class _Draft:
    figure: Figure
    group: _Group
    counts: dict[str, int]
    values: list[tuple[str, float, float]]
    p: float | None

    @property
    def coverage(self) -> float:
        total = sum(self.counts.values())
        return len(self.values) / total if total else 0.0

    def is_comparable(self, min_coverage: float) -> bool:
        return bool(self.values) and not self.figure.fault and self.coverage >= min_coverage


def _draft(figure: Figure, group: _Group, baseline: dict[Key, Cell], candidate: dict[Key, Cell]) -> _Draft:
    counts = dict.fromkeys(("pairs", "baseline_only", "candidate_only", "neither", "changed"), 0)
    values: list[tuple[str, float, float]] = []
    for key in group.keys:
        one, two = baseline.get(key), candidate.get(key)
        if one is not None and two is not None and one.case_digest != two.case_digest:
            counts["changed"] += 1
            continue
        first, second = figure.of(one), figure.of(two)
        if first is not None and second is not None:
            counts["pairs"] += 1
            values.append((key[0], first, second))
        elif first is not None:
            counts["baseline_only"] += 1
        elif second is not None:
            counts["candidate_only"] += 1
        else:
            counts["neither"] += 1
    return _Draft(figure, group, counts, values, _p_value(figure, values) if values else None)


def _steps(figure: Figure, values: Sequence[tuple[str, float, float]]) -> list[float]:
    """What is tested, by case: how much its figure rose, or which way it went; repetitions say the same thing again."""
    if figure.metric == "score":
        steps = [(case, two - one) for case, one, two in values]
    else:
        steps = [(case, float((two > one) - (one > two))) for case, one, two in values]
    return [fmean(case) for case in _by_case(steps)]


def _p_value(figure: Figure, values: Sequence[tuple[str, float, float]]) -> float:
    """Had both sides been alike, which of them did better in a case might as well be the other way about."""
    steps = _steps(figure, values)
    if figure.metric == "score" or len(steps) < len(values):
        return sign_flip(steps)
    return mcnemar_exact(sum(one > two for _, one, two in values), sum(two > one for _, one, two in values))


def _by_case(values: Sequence[tuple[str, Any]]) -> list[list[Any]]:
    cases: dict[str, list[Any]] = {}
    for case, value in values:
        cases.setdefault(case, []).append(value)
    return list(cases.values())


def _decided(draft: _Draft, adjusted: float | None, min_coverage: float) -> ComparisonLine:
    figure, values = draft.figure, draft.values
    higher = sum(two > one for _, one, two in values)
    lower = sum(one > two for _, one, two in values)
    gained, lost = (lower, higher) if figure.metric == "seconds" else (higher, lower)
    measured = _measured(figure, values) if values else _Measured()
    rise = math.fsum(_steps(figure, values))  # what was tested says which way: the mean of all may go another
    is_better = rise < 0 if figure.metric == "seconds" else rise > 0
    verdict, why = _verdict(draft, adjusted, min_coverage, is_better=is_better)
    return ComparisonLine(
        metric=figure.metric, judge=figure.judge, group_key=draft.group.key, group=draft.group.value, **draft.counts,
        coverage=draft.coverage, comparable=draft.is_comparable(min_coverage),
        **attrs.asdict(measured), gained=gained, lost=lost, equal=len(values) - gained - lost,
        p=draft.p, p_adjusted=adjusted, verdict=verdict, why=why,
    )  # fmt: skip


@attrs.frozen
class _Measured:
    baseline: float | None = None
    candidate: float | None = None
    difference: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def _measured(figure: Figure, values: Sequence[tuple[str, float, float]]) -> _Measured:
    first, second = [one for _, one, _ in values], [two for _, _, two in values]
    if figure.metric == "seconds":
        pairs = _by_case([(case, (one, two)) for case, one, two in values])
        spread = ratio_of_medians(pairs) if len(pairs) > 1 else None
        one, two = median(first), median(second)
        return _Measured(one, two, None, two / one, *_ends(spread))
    one, two = math.fsum(first) / len(first), math.fsum(second) / len(second)
    differences = _by_case([(case, after - before) for case, before, after in values])
    around: Interval | None
    if figure.metric == "passed":
        around = _rate_interval(values, differences)
    else:  # one case shows no spread, and a bootstrap of it would be a point
        around = mean_interval(differences) if len(differences) > 1 else None
    return _Measured(one, two, two - one, None, *_ends(around))


def _ends(around: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if around is None else (around.low, around.high)


def _rate_interval(values: Sequence[tuple[str, float, float]], differences: list[list[float]]) -> Interval:
    """As if there were as many pairs as the cases' repetitions are worth."""
    # Pairs that differ, by case: their share is what the interval depends on.
    effect = design_effect([(sum(abs(one) for one in case), len(case)) for case in differences])
    lost, gained = sum(one > two for _, one, two in values), sum(two > one for _, one, two in values)
    return paired_difference(lost / effect, gained / effect, len(values) / effect)


def _verdict(
    draft: _Draft, adjusted: float | None, min_coverage: float, *, is_better: bool
) -> tuple[ComparisonVerdict, str]:
    pairs = len(draft.values)
    if draft.figure.fault:
        return ComparisonVerdict.INCONCLUSIVE, draft.figure.fault
    if not pairs or adjusted is None:
        return ComparisonVerdict.INCONCLUSIVE, "no case has it on both sides"
    if draft.coverage < min_coverage:
        return ComparisonVerdict.INCONCLUSIVE, (
            f"only {pairs} of {sum(draft.counts.values())} have it on both sides ({draft.coverage:.1%}, at least"
            f" {min_coverage:.1%} must)"
        )
    if adjusted <= ALPHA:
        word = ComparisonVerdict.BETTER if is_better else ComparisonVerdict.WORSE
        return word, f"p = {adjusted:.2g}"
    cases = len({case for case, _, _ in draft.values})  # the repetitions of a case say the same thing again
    if 2 * 0.5**cases > ALPHA:
        what = f"{pairs} pairs" if cases == pairs else f"{pairs} pairs of {cases} cases"
        return ComparisonVerdict.INCONCLUSIVE, f"{what} are too few to tell any difference from chance"
    return ComparisonVerdict.TIED, f"no difference was found (p = {adjusted:.2g})"
