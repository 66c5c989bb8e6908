"""Rates and their differences: Wilson intervals, exact McNemar, paired differences, false-discovery control.

Small enough for the standard library, and tested against published values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Final

import attrs

__all__ = [
    "CONFIDENCE",
    "Interval",
    "benjamini_hochberg",
    "design_effect",
    "effective_size",
    "mcnemar_exact",
    "paired_difference",
    "quantile_of",
    "wilson",
]

CONFIDENCE: Final = 0.95
_NORMAL: Final = NormalDist()


@attrs.frozen
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float


def quantile_of(confidence: float) -> float:
    """The standard normal's quantile that leaves half of the rest above it."""
    return _NORMAL.inv_cdf(0.5 + confidence / 2)


def wilson(passed: float, judged: float, *, confidence: float = CONFIDENCE) -> Interval:
    """The score interval of a rate, of ``passed`` in ``judged`` (which is above 0).

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927); it keeps its
    coverage near 0 and 1, where the interval of the textbook does not.
    """
    z = quantile_of(confidence)
    rate, square = passed / judged, z * z / judged
    middle = (rate + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(rate * (1 - rate) / judged + square / (4 * judged))
    # At the ends the exact value is 0 or 1, and rounding must not leave it outside.
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    high = 1.0 if passed == judged else min(1.0, middle + half)
    return Interval(low, high)


def design_effect(clusters: Sequence[tuple[float, int]]) -> float:
    """How many times less a sample tells that comes in clusters: the repetitions of a case are alike.

    ``clusters`` are ``(passed, judged)`` by case. 1 where each has one observation, and never less; at most the mean
    size of a cluster, which is where its observations are all the same. A rate of 0 or 1 shows no variance, so the
    most is taken. After L. Kish, "Survey Sampling" (1965), by the variance of a ratio over clusters.
    """
    total, judged = sum(one[0] for one in clusters), sum(one[1] for one in clusters)
    count = len(clusters)
    if judged <= count:
        return 1.0
    most, rate = judged / count, total / judged
    if count < 2 or rate <= 0 or rate >= 1:
        return most
    between = count / (count - 1) * sum((y - rate * m) ** 2 for y, m in clusters) / judged**2
    return min(most, max(1.0, between / (rate * (1 - rate) / judged)))


def effective_size(clusters: Sequence[tuple[float, int]]) -> float:
    """How many independent observations the clusters are worth."""
    return sum(one[1] for one in clusters) / design_effect(clusters)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """The two-sided p-value of a paired difference of rates, from the pairs that differ alone.

    Q. McNemar, Psychometrika 12 (1947), with the binomial distribution instead of its approximation. 1 where no pair
    differs. It is valid for any number of repetitions, because of two alike sides either may be the one that passes.
    """
    count, least = only_first + only_second, min(only_first, only_second)
    if count == 0:
        return 1.0
    log_term = math.lgamma(count + 1) - math.lgamma(least + 1) - math.lgamma(count - least + 1) - count * math.log(2)
    term = tail = math.exp(log_term)
    for passed in range(least, 0, -1):
        term *= passed / (count - passed + 1)
        tail += term
        if term < tail * 1e-17:
            break
    return min(1.0, 2 * tail)


def paired_difference(
    only_first: float, only_second: float, pairs: float, *, confidence: float = CONFIDENCE
) -> Interval:
    """The interval of the second rate less the first, over pairs.

    D. G. Bonett and R. M. Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on
    paired data", Journal of Educational and Behavioral Statistics 37 (2012).
    """
    gained, lost = (only_second + 1) / (pairs + 2), (only_first + 1) / (pairs + 2)
    difference = gained - lost
    half = quantile_of(confidence) * math.sqrt((gained + lost - difference**2) / (pairs + 2))
    return Interval(max(-1.0, difference - half), min(1.0, difference + half))


def benjamini_hochberg(p_values: Iterable[float]) -> list[float]:
    """The p-values adjusted for their number, in the given order: those below a rate keep false discoveries below it.

    Y. Benjamini and Y. Hochberg, "Controlling the false discovery rate", JRSS B 57 (1995).
    """
    given = list(p_values)
    order = sorted(range(len(given)), key=lambda at: given[at], reverse=True)
    adjusted, least = [1.0] * len(given), 1.0
    for above, at in enumerate(order):
        rank = len(given) - above
        least = min(least, given[at] * len(given) / rank)
        adjusted[at] = least
    return adjusted
