"""The statistics against scipy, an implementation that is not ours, and against what must hold of them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beeyard.bench.statistics import LEAST, overall, percentiles, speedup, spread, typical

SPEEDS = st.lists(st.floats(1, 500), min_size=LEAST, max_size=12)
# Rates of a guide's prompt on a card, baseline and drafted, made up.
BEFORE = [40.1, 40.9, 39.8, 41.2, 40.5, 40.7, 39.5, 40.2, 41.0, 40.4]
AFTER = [131.0, 152.8, 140.2, 138.9, 149.4, 135.5, 144.1, 147.7, 129.6, 141.3]
OTHER_BEFORE = [41.5, 40.2, 40.8, 39.9, 41.1]
OTHER_AFTER = [95.2, 92.1, 99.0, 96.4, 90.8]


def ratio_of_medians(before: np.ndarray, after: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(np.median(after, axis=axis) / np.median(before, axis=axis))


@pytest.mark.parametrize(("before", "after"), [(BEFORE, AFTER), (OTHER_BEFORE, OTHER_AFTER), (AFTER, BEFORE)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_interval_is_scipys(before: list[float], after: list[float], level: float) -> None:
    ours = speedup(before, after, seed=1, level=level, resamples=20_000)
    theirs = stats.bootstrap(
        (before, after), ratio_of_medians, paired=False, vectorized=True, method="percentile",
        confidence_level=level, n_resamples=20_000, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert ours.low == pytest.approx(theirs.low, rel=0.01)
    assert ours.high == pytest.approx(theirs.high, rel=0.01)
    assert ours.ratio == pytest.approx(float(np.median(after) / np.median(before)))


@pytest.mark.parametrize("values", [BEFORE, AFTER, OTHER_AFTER])
def test_the_interval_of_a_median_is_scipys(values: list[float]) -> None:
    ours = typical(values, seed=1, resamples=20_000)
    theirs = stats.bootstrap(
        (values,), np.median, vectorized=True, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, rel=0.01)
    assert ours.high == pytest.approx(theirs.high, rel=0.01)
    assert (ours.median, ours.n) == (float(np.median(values)), len(values))


def test_two_values_have_a_median_and_no_interval() -> None:
    assert typical([40.0, 41.0], seed=1) == (40.5, None, None, 2)
    with pytest.raises(ValueError, match="no values"):
        typical([], seed=1)


def test_over_several_prompts_it_is_scipys_geometric_mean_and_interval() -> None:
    pairs = [(BEFORE, AFTER), (OTHER_BEFORE, OTHER_AFTER)]
    ours = overall(pairs, seed=1, resamples=20_000)
    ratios = [float(np.median(after) / np.median(before)) for before, after in pairs]
    assert ours.ratio == pytest.approx(float(stats.gmean(ratios)))

    def statistic(*sides: np.ndarray, axis: int = -1) -> np.ndarray:
        both = [ratio_of_medians(sides[place], sides[place + 1], axis=axis) for place in (0, 2)]
        return np.asarray(stats.gmean(np.stack(both), axis=0))

    theirs = stats.bootstrap(
        (BEFORE, AFTER, OTHER_BEFORE, OTHER_AFTER), statistic, paired=False, vectorized=True, method="percentile",
        n_resamples=20_000, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert ours.low == pytest.approx(theirs.low, rel=0.01)
    assert ours.high == pytest.approx(theirs.high, rel=0.01)
    assert ours.n == 5


@given(SPEEDS)
@settings(max_examples=60, deadline=None)
def test_quartiles_and_percentiles_are_scipys(values: list[float]) -> None:
    found = spread(values)
    theirs = stats.mstats.mquantiles(values, prob=[0, 0.25, 0.5, 0.75, 1], alphap=1, betap=1)
    assert [found.least, found.lower, found.median, found.upper, found.most] == pytest.approx(list(theirs))
    assert found.n == len(values)
    assert found.upper - found.lower == pytest.approx(float(stats.iqr(values)))
    assert percentiles(values, (0.95,)) == pytest.approx([float(stats.scoreatpercentile(values, 95))])


@given(SPEEDS, SPEEDS)
@settings(max_examples=60, deadline=None)
def test_the_interval_holds_what_it_must(before: list[float], after: list[float]) -> None:
    found = speedup(before, after, seed=3, resamples=500)
    back = speedup(after, before, seed=3, resamples=500)
    assert found.low is not None
    assert found.high is not None
    assert min(after) / max(before) <= found.low * (1 + 1e-9)
    assert found.high <= max(after) / min(before) * (1 + 1e-9)
    assert found.low <= found.high
    assert found.ratio * back.ratio == pytest.approx(1)
    assert not (found.is_slower and found.is_faster)
    assert speedup(before, after, seed=3, resamples=500) == found
    twice = speedup(before, [2 * value for value in after], seed=3, resamples=500)
    assert twice.ratio == pytest.approx(2 * found.ratio)
    assert twice.low == pytest.approx(2 * found.low)


def test_another_seed_draws_anew() -> None:
    assert speedup(BEFORE, AFTER, seed=1) != speedup(BEFORE, AFTER, seed=2)


def test_twice_and_half_cancel_out() -> None:
    found = overall([([10.0, 10.0, 10.0], [20.0, 20.0, 20.0]), ([10.0, 10.0, 10.0], [5.0, 5.0, 5.0])], seed=1)
    assert (found.ratio, found.low, found.high) == pytest.approx((1, 1, 1))


def test_too_few_values_have_a_ratio_and_no_interval() -> None:
    found = speedup([10.0, 11.0], [30.0, 31.0, 33.0], seed=1)
    assert found.n == 2
    assert (found.low, found.high) == (None, None)
    assert math.isclose(found.ratio, 31 / 10.5)
    assert found.is_faster


@pytest.mark.parametrize("pair", [([], [1.0]), ([1.0], []), ([0.0, 1.0], [1.0]), ([1.0], [-2.0])])
def test_speeds_that_are_none_are_refused(pair: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        speedup(*pair, seed=1)
    with pytest.raises(ValueError, match="no values"):
        spread([])
    with pytest.raises(ValueError, match="no prompts"):
        overall([], seed=1)


def test_slower_is_said_only_where_the_whole_interval_says_it() -> None:
    slower = speedup(AFTER, BEFORE, seed=1)
    assert (slower.is_slower, slower.is_faster) == (True, False)
    unsure = speedup([10.0, 20.0, 30.0], [12.0, 19.0, 28.0], seed=1)
    assert (unsure.is_slower, unsure.is_faster) == (False, False)
