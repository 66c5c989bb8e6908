"""Intervals and tests against published values, and against what they promise."""

from __future__ import annotations

import math
import random
from statistics import fmean, median

import pytest

from tallystick.runner import statistics_samples
from tallystick.runner.statistics_rates import (
    Interval,
    benjamini_hochberg,
    design_effect,
    effective_size,
    mcnemar_exact,
    paired_difference,
    wilson,
)
from tallystick.runner.statistics_samples import (
    mean_interval,
    median_interval,
    quantile,
    ratio_of_medians,
    sign_flip,
)

# R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998), table I.
NEWCOMBE = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]

# Y. Benjamini and Y. Hochberg (1995), section 3.2: thrombolysis, 15 hypotheses, of which 4 are rejected at 0.05.
THROMBOLYSIS = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
                0.7590, 1.0]  # fmt: skip

# B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), table 2.1: survival of treated mice.
MICE = [94.0, 197.0, 16.0, 38.0, 99.0, 141.0, 23.0]


@pytest.mark.parametrize(("passed", "judged", "low", "high"), NEWCOMBE)
def test_wilson_gives_the_published_intervals(passed: int, judged: int, low: float, high: float) -> None:
    found = wilson(passed, judged)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_wilson_stays_within_a_rate_at_both_ends() -> None:
    for judged in (1, 2, 7, 10_000):
        assert wilson(0, judged).low == 0.0
        assert wilson(judged, judged).high == 1.0
        assert wilson(0, judged).high < 1.0


# M. P. Fay, "Exact McNemar's test and matching confidence intervals" (R package exact2x2): 21 and 9; A. Agresti,
# "Categorical Data Analysis" (2002), section 10.1: approval of a prime minister, 86 and 150.
@pytest.mark.parametrize(("first", "second", "p"), [(21, 9, 0.04277), (9, 21, 0.04277), (86, 150, 3.716e-05)])
def test_mcnemar_gives_the_published_values(first: int, second: int, p: float) -> None:
    assert mcnemar_exact(first, second) == pytest.approx(p, rel=5e-4)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (3, 3), (1, 9), (0, 60), (400, 460)])
def test_mcnemar_is_the_binomial_tail(first: int, second: int) -> None:
    count, least = first + second, min(first, second)
    exact = min(1.0, 2 * sum(math.comb(count, k) for k in range(least + 1)) / 2**count) if count else 1.0
    assert mcnemar_exact(first, second) == pytest.approx(exact, rel=1e-10)


def test_mcnemar_of_many_pairs_is_sane() -> None:
    assert 0 < mcnemar_exact(49_000, 51_000) < 1e-9
    assert mcnemar_exact(50_000, 50_000) == 1.0


def test_the_paired_difference_gives_the_published_interval() -> None:
    # D. G. Bonett, R package statpsych, ci.prop.ps(.05, 12, 4, 26, 6): 0.2548067 to 0.6251933.
    found = paired_difference(4, 26, 48)
    assert (round(found.low, 7), round(found.high, 7)) == (0.2548067, 0.6251933)


def test_benjamini_hochberg_rejects_what_its_authors_rejected() -> None:
    adjusted = benjamini_hochberg(THROMBOLYSIS)
    assert [p <= 0.05 for p in adjusted] == [True] * 4 + [False] * 11
    assert adjusted == sorted(adjusted)
    shuffled = [3, 0, 14, 7, 1, 2, 4, 5, 6, 8, 9, 10, 11, 12, 13]
    assert benjamini_hochberg([THROMBOLYSIS[at] for at in shuffled]) == [adjusted[at] for at in shuffled]
    assert benjamini_hochberg([]) == []


def test_alike_sides_are_flagged_no_more_than_the_nominal_rate() -> None:
    draw = random.Random(1).random
    families = [[_alike(draw) for _ in range(200)] for _ in range(20)]
    flagged = sum(p <= 0.05 for family in families for p in family)
    assert flagged <= 0.05 * 20 * 200
    assert flagged > 0  # it could
    discovered = sum(any(p <= 0.05 for p in benjamini_hochberg(family)) for family in families)
    assert discovered <= 0.05 * 20 + 1


def _alike(draw: object) -> float:
    """The p-value of 80 pairs of two sides that pass alike often."""
    assert callable(draw)
    first = second = 0
    for _ in range(80):
        one, two = draw() < 0.7, draw() < 0.7
        first, second = first + (one and not two), second + (two and not one)
    return mcnemar_exact(first, second)


def test_a_difference_that_is_there_is_found() -> None:
    assert mcnemar_exact(2, 40) < 1e-8
    assert paired_difference(2, 40, 100).low > 0.25


def test_repetitions_that_always_agree_are_worth_one_observation() -> None:
    alike = [(3.0, 3)] * 10 + [(0.0, 3)] * 10
    assert design_effect(alike) == pytest.approx(3.0)
    assert effective_size(alike) == pytest.approx(20.0)
    assert design_effect([(1.0, 1)] * 5 + [(0.0, 1)] * 5) == 1.0
    assert effective_size([(3.0, 3)] * 10) == 10.0  # no variance is seen: the most is taken
    assert design_effect([(1.0, 3), (2.0, 3), (1.0, 3), (2.0, 3)]) == 1.0  # more even than chance


def test_independent_repetitions_are_worth_what_they_are() -> None:
    draw = random.Random(2).random
    clusters = [(float(sum(draw() < 0.5 for _ in range(4))), 4) for _ in range(2_000)]
    assert design_effect(clusters) == pytest.approx(1.0, abs=0.1)


def test_the_bootstrap_of_a_mean_spreads_as_its_authors_found() -> None:
    found = mean_interval([[one] for one in MICE])
    # Their standard error is 23.36, with the normal quantile 91.6 wide.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 23.36, rel=0.05)
    assert found.low < fmean(MICE) < found.high


def test_the_same_figures_give_the_same_interval() -> None:
    assert mean_interval([[one] for one in MICE]) == mean_interval([[one] for one in MICE])
    pairs = [[(one, one * 2)] for one in MICE]
    assert ratio_of_medians(pairs) == ratio_of_medians(pairs)


def test_an_interval_of_a_mean_covers_it_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_samples, "_RESAMPLES", 400)
    source = random.Random(3)
    covered = 0
    for _ in range(200):
        found = mean_interval([[source.expovariate(1)] for _ in range(40)])
        covered += found.low <= 1 <= found.high
    assert 0.86 <= covered / 200 <= 0.99


def test_large_samples_have_nearly_the_interval_of_the_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(4)
    cases = [[source.gauss(5, 2) for _ in range(2)] for _ in range(1_000)]
    drawn = mean_interval(cases)
    pairs = [[(source.lognormvariate(0, 0.5), source.lognormvariate(0.2, 0.5))] for _ in range(1_000)]
    ratio = ratio_of_medians(pairs)
    monkeypatch.setattr(statistics_samples, "DRAWN_MAX", 10)
    assert mean_interval(cases).low == pytest.approx(drawn.low, abs=0.02)
    assert mean_interval(cases).high == pytest.approx(drawn.high, abs=0.02)
    assert ratio_of_medians(pairs).low == pytest.approx(ratio.low, abs=0.05)
    assert ratio_of_medians(pairs).high == pytest.approx(ratio.high, abs=0.05)


def test_a_ratio_of_medians_is_that_of_what_is_twice_as_slow() -> None:
    source = random.Random(5)
    pairs = [[(value, 2 * value)] for value in (source.lognormvariate(0, 1) for _ in range(200))]
    found = ratio_of_medians(pairs)
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)
    apart = [[(source.lognormvariate(0, 0.3), 2 * source.lognormvariate(0, 0.3))] for _ in range(200)]
    found = ratio_of_medians(apart)
    assert found.low < 2 < found.high
    assert found.low > 1.6


def test_the_interval_of_a_median_covers_it_about_as_often_as_it_says() -> None:
    source = random.Random(6)
    covered = 0
    for _ in range(400):
        found = median_interval([source.expovariate(1) for _ in range(51)])
        covered += found.low <= math.log(2) <= found.high
    assert covered / 400 >= 0.93


@pytest.mark.parametrize("count", [1, 2, 3])
def test_intervals_of_very_few_values_are_there(count: int) -> None:
    values = MICE[:count]
    assert median_interval(values).low <= median(values) <= median_interval(values).high
    assert mean_interval([values]) == Interval(fmean(values), fmean(values))


def test_the_sign_flip_test_gives_the_published_value() -> None:
    # R. A. Fisher (1935), section 21: Darwin's maize, 15 pairs, in eighths of an inch. Of 2^15 arrangements 863 are as
    # large on one side.
    darwin = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert sign_flip(darwin) == pytest.approx(2 * 863 / 2**15)
    assert sign_flip([1.0] * 6) == 2 / 64
    assert sign_flip([0.0, 0.0]) == 1.0
    assert sign_flip([]) == 1.0


def test_all_signs_of_few_differences_and_the_limit_of_many_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(7)
    differences = [source.gauss(0.4, 1) for _ in range(12)]
    exact = sign_flip(differences)
    monkeypatch.setattr(statistics_samples, "_FLIPS_MAX", 0)
    assert sign_flip(differences) == pytest.approx(exact, abs=0.03)


def test_quantiles_lie_between_neighbours() -> None:
    assert [quantile([1.0, 2.0, 4.0], share) for share in (0, 0.25, 0.5, 1)] == [1.0, 1.5, 2.0, 4.0]
    assert quantile([7.0], 0.9) == 7.0
