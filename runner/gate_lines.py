"""The lines of a decision, one a gate: what was measured, what is allowed, and what that says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from .amounts import nanousd, usd_text
from .compare_document import ComparisonLine
from .gate_document import GateLine, GateVerdict
from .report_document import RunReport, ScoreInterval
from .work_order_gates import EVERY_JUDGE, GatesSpec

__all__ = [
    "count_lines",
    "coverage_lines",
    "duration_lines",
    "gate_line",
    "money_lines",
    "regression_candidates",
    "regression_line",
    "score_lines",
    "slowdown_line",
]

_ROUNDING: Final = 1e-9
"""A figure that is off its limit by less is at its limit: 0.98 - 0.96 is above 0.02 in binary."""


def coverage_lines(
    summary: RunReport, scores: Sequence[ScoreInterval], spec: GatesSpec, gated: Sequence[str]
) -> Iterator[GateLine]:
    """What share of the plan was measured; too little is inconclusive, and never a failure."""
    for score in scores:
        share = score.judged / score.planned if score.planned else 0.0
        enough = score.planned > 0 and share >= spec.min_coverage
        why = f"{score.judged} of {score.planned} planned have a verdict"
        yield gate_line("min_coverage", spec.min_coverage, share, enough or None, why, score.variant, score.judge)
    if not scores:
        for one in summary.by_variant:
            if one.variant in gated:
                people = one.population
                share = people.selected / people.planned if people.planned else 0.0
                why = f"{people.selected} of {people.planned} planned have an observation"
                enough = people.planned > 0 and share >= spec.min_coverage
                yield gate_line("min_coverage", spec.min_coverage, share, enough or None, why, one.variant, None)


def score_lines(
    key: str, limits: Any, scores: Sequence[ScoreInterval], spec: GatesSpec, gated: Sequence[str]
) -> Iterator[GateLine]:
    """Scores and shares that must be reached, by judge."""
    for name, limit in limits.items():
        chosen = [score for score in scores if name in (EVERY_JUDGE, score.judge)]
        if not chosen:
            missing = f"there is no judge {name}" if name else "nothing was judged"
            yield from (gate_line(key, limit, None, None, missing, variant, name or None) for variant in gated)
        yield from (_score_gate(key, limit, score, spec) for score in chosen)


def _score_gate(key: str, limit: float, score: ScoreInterval, spec: GatesSpec) -> GateLine:
    is_mean = key == "min_score" and score.scored > 0
    value = score.mean if is_mean else score.rate
    low, high = (score.mean_low, score.mean_high) if is_mean else (score.rate_low, score.rate_high)
    what = "mean" if is_mean else "rate"
    fault = _fault(score, spec)
    if fault or value is None:
        why = fault or "nothing was judged"
        return gate_line(key, limit, value, None, why, score.variant, score.judge, low, high)
    verdict = _at_least(value, low, high, limit, spec)
    why = f"the {what} is {value:.4g} ({_span(low, high)}), at least {limit:g} is wanted"
    if score.qualified_elsewhere:
        why += "; the judge's qualification came with a snapshot"
    return gate_line(key, limit, value, verdict, why, score.variant, score.judge, low, high)


def _fault(score: ScoreInterval, spec: GatesSpec) -> str:
    if not score.counts:
        return "the judge is not qualified as it must be"
    share = score.judged / score.planned if score.planned else 0.0
    if share < spec.min_coverage:
        return f"only {score.judged} of {score.planned} planned have a verdict"
    return ""


def _at_least(value: float, low: float | None, high: float | None, limit: float, spec: GatesSpec) -> bool | None:
    """Whether the value is, None where its interval does not say, or where it has none and is asked for it."""
    least = limit - _ROUNDING * max(1.0, abs(limit))
    if spec.decide_by == "value":
        return value >= least
    if low is None or high is None:
        return None
    return True if low >= least else False if high < least else None


def regression_candidates(lines: Sequence[ComparisonLine], judge: str) -> list[ComparisonLine]:
    """A line a judge: of its scores where it gives some, else of what passed."""
    found: dict[str, ComparisonLine] = {}
    for line in lines:
        if line.judge is not None and judge in (EVERY_JUDGE, line.judge):
            found[line.judge] = line  # the scores come after what passed
    return list(found.values())


def regression_line(line: ComparisonLine, limit: float, spec: GatesSpec, variant: str | None) -> GateLine:
    """How much worse than the baseline it may be."""
    drop, low, high = _negated(line.difference), _negated(line.high), _negated(line.low)
    if not line.comparable or drop is None:
        return gate_line("max_regression", limit, drop, None, line.why, variant, line.judge, low, high)
    verdict = _at_most(drop, low, high, limit, spec)
    if drop > 0:
        way = f"down by {drop:.4g} ({_span(low, high)})"
    else:
        way = f"up by {abs(drop):.4g} ({_span(line.low, line.high)})"
    why = f"{way} over {line.pairs} pairs, down by at most {limit:g} is allowed"
    return gate_line("max_regression", limit, drop, verdict, why, variant, line.judge, low, high)


def _negated(value: float | None) -> float | None:
    return None if value is None else 0.0 - value


def slowdown_line(line: ComparisonLine, limit: float, spec: GatesSpec, variant: str | None) -> GateLine:
    """How much slower than the baseline it may be."""
    if not line.comparable or line.ratio is None:
        return gate_line("max_slowdown", limit, line.ratio, None, line.why, variant, None, line.low, line.high)
    verdict = _at_most(line.ratio, line.low, line.high, limit, spec)
    why = f"{line.ratio:.4g} times as long ({_span(line.low, line.high)}) over {line.pairs} pairs, at most {limit:g}"
    return gate_line("max_slowdown", limit, line.ratio, verdict, why, variant, None, line.low, line.high)


def _at_most(value: float, low: float | None, high: float | None, limit: float, spec: GatesSpec) -> bool | None:
    """The same of a value that may not be above its limit."""
    most = limit + _ROUNDING * max(1.0, abs(limit))
    if spec.decide_by == "value":
        return value <= most
    if low is None or high is None:
        return None
    return True if high <= most else False if low > most else None


def duration_lines(summary: RunReport, spec: GatesSpec, gated: Sequence[str]) -> Iterator[GateLine]:
    """How long an observation may take."""
    for key, limit, name in (
        ("max_median_seconds", spec.max_median_seconds, "p50"), ("max_p95_seconds", spec.max_p95_seconds, "p95"),
    ):  # fmt: skip
        if limit is None:
            continue
        people = {one.variant: one.population for one in summary.by_variant}
        for line in summary.durations:
            if line.variant not in gated:
                continue
            planned, value = people[line.variant].planned, getattr(line, name)
            why = f"{line.known} of {planned} planned have a time"
            enough = value is not None and line.known / max(1, planned) >= spec.min_coverage
            verdict = value <= limit if enough else None
            told = f"{value:.4g} s, at most {limit:g} s is allowed" if enough else f"only {why}"
            yield gate_line(key, limit, value, verdict, told, line.variant, None)


def count_lines(summary: RunReport, spec: GatesSpec, gated: Sequence[str]) -> Iterator[GateLine]:
    """How many planned observations may end without one."""
    for key, limit, state in (("max_failed", spec.max_failed, "failed"), ("max_unknown", spec.max_unknown, "unknown")):
        if limit is None:
            continue
        for one in summary.by_variant:
            if one.variant in gated:
                count = getattr(one.population, state)
                why = f"{count} of {one.population.planned} planned are {state}, at most {limit} may be"
                verdict = count <= limit if one.population.planned else None
                yield gate_line(key, limit, count, verdict, why, one.variant, None)


def money_lines(summary: RunReport, spec: GatesSpec) -> Iterator[GateLine]:
    """What the run may have cost, its judges too."""
    if spec.max_nanousd is None:
        return
    parts = [part for part in (summary.totals, summary.judge_totals) if part is not None]
    spent = sum(nanousd(part.cost_usd) for part in parts if part.cost_usd is not None)
    unpriced = sum(part.unpriced_dispatches for part in parts)
    verdict: bool | None = spent <= spec.max_nanousd
    why = f"${usd_text(spent)} of at most ${usd_text(spec.max_nanousd)}"
    if unpriced:
        why += f", and {unpriced} {'send' if unpriced == 1 else 'sends'} did not say what they cost"
        verdict = None if verdict else False
    yield gate_line("max_usd", spec.max_nanousd / 1e9, spent / 1e9, verdict, why, None, None)


def gate_line(
    gate_name: str,
    limit: float | None,
    value: float | None,
    passed: bool | None,
    why: str,
    variant: str | None,
    judge: str | None,
    low: float | None = None,
    high: float | None = None,
) -> GateLine:
    """A line; ``passed`` is None where it cannot be said."""
    verdict = GateVerdict.INCONCLUSIVE if passed is None else GateVerdict.PASSED if passed else GateVerdict.FAILED
    return GateLine(
        gate=gate_name, variant=variant, judge=judge, limit=float(limit or 0), value=value, low=low, high=high,
        verdict=verdict, why=why,
    )  # fmt: skip


def _span(low: float | None, high: float | None) -> str:
    return "no interval" if low is None or high is None else f"{low:.4g} to {high:.4g}"
