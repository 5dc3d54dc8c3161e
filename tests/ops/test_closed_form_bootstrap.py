"""Q units in G strata; every oracle draws units of each stratum with replacement."""

import numpy as np
import pytest
from scipy import stats

from raybio.ops.closed_form_bootstrap import ratio_quantiles
from raybio.ops.significance import MAX_RESAMPLED_UNITS, closed_form_interval, ratio_interval

Z = float(stats.norm.ppf(0.975))
ONE_STRATUM = np.zeros(1, np.int64)


def resampled_quantiles(numerator, denominator, start, num_resamples=20_000):
    """Draw the units of each stratum in turn."""
    rng = np.random.default_rng(0)
    end = [*start[1:], len(numerator)]
    counts = np.concatenate(
        [
            rng.multinomial(last - first, np.full(last - first, 1 / (last - first)), num_resamples)
            for first, last in zip(start, end, strict=True)
        ],
        axis=1,
    ).astype(float)
    return np.percentile(counts @ numerator / (counts @ denominator), [2.5, 97.5])


def units(kind, num=400):
    """Return numerators, denominators and the first unit of each stratum."""
    rng = np.random.default_rng(3)
    ones = np.ones(num)
    if kind == "skewed mean":
        return rng.lognormal(0, 1, num), ones, ONE_STRATUM
    if kind == "strata":
        start = np.flatnonzero(rng.random(num) < 0.05)
        start = np.unique([0, *start])
        stratum = np.searchsorted(start, np.arange(num), side="right")
        return rng.random(num) ** 3 + 5 * rng.random(len(start) + 1)[stratum], ones, start
    links = rng.zipf(2.1, num).clip(max=40)
    if kind == "recall":
        return rng.binomial(links, 0.3).astype(float), links.astype(float), ONE_STRATUM
    assert kind == "recall of hubs in strata"
    # Anchors with many links find a smaller share of them.
    hits = np.minimum(links, 5 * rng.random(num))
    return hits, links.astype(float), np.arange(0, num, 50)


@pytest.mark.parametrize("kind", ["skewed mean", "strata", "recall", "recall of hubs in strata"])
def test_quantiles_agree_with_20_000_resamples_within_two_percent_of_the_width(kind):
    numerator, denominator, start = units(kind)
    low, high = resampled_quantiles(numerator, denominator, start)
    quantiles = ratio_quantiles(numerator, denominator, start, Z)
    # The resamples themselves scatter by half a percent of the width.
    assert quantiles == pytest.approx((low, high), abs=0.02 * (high - low))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.97])
def test_quantiles_of_hits_are_those_of_the_binomial_distribution(share):
    num = 20_000
    is_hit = (np.arange(num) < share * num).astype(float)
    low, high = ratio_quantiles(is_hit, np.ones(num), ONE_STRATUM, Z)
    expected = stats.binom(num, share)
    assert low * num == pytest.approx(expected.ppf(0.025), abs=0.6)
    assert high * num == pytest.approx(expected.ppf(0.975), abs=0.6)


def test_quantiles_of_one_stratum_with_equal_values_in_each_have_no_width():
    numerator = np.repeat([0.1, 0.7, 0.3], 100)
    low, high = ratio_quantiles(numerator, np.ones(300), np.array([0, 100, 200]), Z)
    assert low == high == pytest.approx(numerator.mean())
    wider = ratio_quantiles(numerator, np.ones(300), ONE_STRATUM, Z)
    assert wider[0] < low < wider[1]


def test_quantiles_scale_with_the_values_and_mirror_their_signs():
    numerator, denominator, start = units("recall of hubs in strata")
    low, high = ratio_quantiles(numerator, denominator, start, Z)
    assert ratio_quantiles(1e-9 * numerator, denominator, start, Z) == pytest.approx(
        (1e-9 * low, 1e-9 * high), rel=1e-9
    )
    assert ratio_quantiles(-numerator, denominator, start, Z) == pytest.approx((-high, -low))


def test_sums_that_one_unit_dominates_need_resamples():
    numerator = np.zeros(20_000)
    numerator[7] = 1.0
    assert closed_form_interval(numerator, np.ones(20_000), ONE_STRATUM) is None
    denominator = np.ones(20_000)
    denominator[7] = 1e6
    rng = np.random.default_rng(0)
    assert closed_form_interval(rng.random(20_000), denominator, ONE_STRATUM) is None


def test_intervals_are_resampled_up_to_a_number_of_units():
    numerator = np.random.default_rng(0).random(MAX_RESAMPLED_UNITS + 1)
    intervals = [
        [
            ratio_interval(values, np.ones(len(values)), np.random.default_rng(seed))
            for seed in (1, 2)
        ]
        for values in (numerator[:-1], numerator)
    ]
    assert intervals[0][0] != intervals[0][1]
    assert intervals[1][0] == intervals[1][1]
    # Both describe nearly the same units; 1,000 resamples scatter by 2 % of the width.
    width = intervals[1][0].high - intervals[1][0].low
    assert intervals[0][0] == pytest.approx(intervals[1][0], abs=0.1 * width)


def test_many_units_of_which_one_dominates_are_resampled():
    numerator = np.zeros(MAX_RESAMPLED_UNITS + 1)
    numerator[3] = 1.0
    interval = ratio_interval(numerator, np.ones(len(numerator)), np.random.default_rng(0))
    # The unit is drawn never or three times and less, in 97.5 % of the resamples.
    assert interval.low == 0
    assert interval.high * len(numerator) == pytest.approx(3, abs=1)
