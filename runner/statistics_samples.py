"""Means, medians and their ratios: seeded bootstrap over cases, a sign-flip test, and what large samples make of them.

The repetitions of a case are alike, so cases are drawn, each with all that it has. The seed is fixed: the same figures
give the same interval, whoever asks and however often.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist, median
from typing import Final, TypeAlias

from .statistics_rates import CONFIDENCE, Interval, quantile_of

__all__ = [
    "DRAWN_MAX",
    "SEED",
    "mean_interval",
    "median_interval",
    "quantile",
    "ratio_of_medians",
    "sign_flip",
]

SEED: Final = 1979
"""Of every bootstrap: B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979)."""

DRAWN_MAX: Final = 2_000
"""Up to so many cases are drawn from; of more, the limit is used that the bootstrap then has come to."""

_RESAMPLES: Final = 1_000
_RESAMPLES_LEAST: Final = 400
_DRAWS_MAX: Final = 1_000_000  # so that a figure of many cases takes a fraction of a second, too
_FLIPS_MAX: Final = 15  # all signs of so many differences are gone through
_NORMAL: Final = NormalDist()

Cases: TypeAlias = Sequence[Sequence[float]]


def mean_interval(cases: Cases, *, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the mean of all values, which are given by case; there is at least one value."""
    sums, counts = [math.fsum(case) for case in cases], [len(case) for case in cases]
    if len(cases) > DRAWN_MAX:
        return _large_mean(sums, counts, confidence)

    def mean_of(drawn: list[int]) -> float:
        return sum(map(sums.__getitem__, drawn)) / sum(map(counts.__getitem__, drawn))

    return _percentiles(_resampled(len(cases), mean_of), confidence)


def _large_mean(sums: list[float], counts: list[int], confidence: float) -> Interval:
    """The normal limit, with the variance of a ratio over clusters."""
    count, total = len(sums), sum(counts)
    mean = math.fsum(sums) / total
    spread = math.fsum((y - mean * m) ** 2 for y, m in zip(sums, counts, strict=True))
    half = quantile_of(confidence) * math.sqrt(count / (count - 1) * spread) / total
    return Interval(mean - half, mean + half)


def ratio_of_medians(pairs: Sequence[Sequence[tuple[float, float]]], *, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the second median over the first, of positive values in pairs by case."""
    if len(pairs) > DRAWN_MAX:
        flat = [pair for case in pairs for pair in case]
        return _large_ratio([one for one, _ in flat], [two for _, two in flat], confidence)

    def ratio_of(drawn: list[int]) -> float:
        chosen = [pair for at in drawn for pair in pairs[at]]
        return median([two for _, two in chosen]) / median([one for one, _ in chosen])

    return _percentiles(_resampled(len(pairs), ratio_of), confidence)


def _large_ratio(first: list[float], second: list[float], confidence: float) -> Interval:
    """From the intervals of both medians, as if they were independent, which is wider where pairs go together.

    G. Y. Zou and A. Donner, "Construction of confidence limits about effect measures: a general approach", Statistics
    in Medicine 27 (2008).
    """
    (at_1, low_1, high_1), (at_2, low_2, high_2) = (
        (math.log(median(values)), math.log(found.low), math.log(found.high))
        for values in (first, second)
        for found in [median_interval(values, confidence=confidence)]
    )
    ratio = at_2 - at_1
    low = ratio - math.hypot(at_2 - low_2, high_1 - at_1)
    high = ratio + math.hypot(high_2 - at_2, at_1 - low_1)
    return Interval(math.exp(low), math.exp(high))


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the median, between two of the values: how many lie below it is binomial."""
    ordered, count = sorted(values), len(values)
    half = quantile_of(confidence) * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - half), math.ceil(count / 2 + half)
    return Interval(ordered[max(0, low - 1)], ordered[min(count - 1, high)])


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the sorted values lies, between neighbours in proportion."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p-value of a mean difference of pairs: had both sides been alike, each sign might be the other.

    R. A. Fisher, "The Design of Experiments" (1935), section 21. Of up to 15 differences that are not 0 all signs are
    gone through; of more the normal limit of their sum is taken.
    """
    given = [one for one in differences if one != 0]
    if not given:
        return 1.0
    total = abs(math.fsum(given))
    if len(given) <= _FLIPS_MAX:
        sums = [0.0]
        for one in given:
            sums = [*(found + one for found in sums), *(found - one for found in sums)]
        return sum(abs(found) >= total * (1 - 1e-12) for found in sums) / len(sums)
    return math.erfc(total / math.sqrt(2 * math.fsum(one * one for one in given)))


def _resampled(count: int, figure_of: Callable[[list[int]], float]) -> list[float]:
    # `random()` of one seed is the same in every version of Python, which its other methods do not promise.
    draw, span = random.Random(SEED).random, range(count)
    times = max(_RESAMPLES_LEAST, min(_RESAMPLES, _DRAWS_MAX // count))
    return sorted(figure_of([int(draw() * count) for _ in span]) for _ in range(times))


def _percentiles(ordered: list[float], confidence: float) -> Interval:
    rest = (1 - confidence) / 2
    return Interval(quantile(ordered, rest), quantile(ordered, 1 - rest))
