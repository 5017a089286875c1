"""
Medians, spreads and bootstrap intervals of speeds and speed-ups. Pure, and the same numbers for the same seed.

Speeds of one prompt are compared by the ratio of their medians. An interval is the percentile bootstrap's: both sides
are drawn anew with replacement, each from its own values, and the middle share of the ratios is kept. Over several
prompts the speed-up is the geometric mean of the prompts' own, so that twice and half cancel out; there, too, each
prompt is drawn anew within itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float]
LEVEL = 0.95
RESAMPLES = 10_000
# Below that an interval would say more about chance than about speed.
LEAST = 3


class Spread(NamedTuple):
    """``n`` values: the median, the quartiles, the ends; ``relative`` is (upper - lower quartile) / median."""

    n: int
    median: float
    lower: float
    upper: float
    least: float
    most: float

    @property
    def relative(self) -> float:
        """The middle half's width as a share of the median."""
        return (self.upper - self.lower) / self.median if self.median else 0.0


class Speedup(NamedTuple):
    """How many times as fast; the interval's ends are None where there are too few values for one."""

    ratio: float
    low: float | None
    high: float | None
    # The fewest values that any side of any prompt had.
    n: int

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval, or the ratio alone where there is none, is below 1."""
        return (self.ratio if self.high is None else self.high) < 1

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval, or the ratio alone where there is none, is above 1."""
        return (self.ratio if self.low is None else self.low) > 1


class Typical(NamedTuple):
    """The median of ``n`` values; its interval's ends are None where there are too few values for one."""

    median: float
    low: float | None
    high: float | None
    n: int


def typical(values: Values, *, seed: int, level: float = LEVEL, resamples: int = RESAMPLES) -> Typical:
    """
    The median with the percentile bootstrap's interval.

    :raises ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values to take a median of")
    side = np.asarray(values, dtype=np.float64)
    median = float(np.median(side))
    if side.size < LEAST:
        return Typical(median, None, None, int(side.size))
    drawn = _medians(side, resamples, np.random.default_rng(seed))
    low, high = (float(found) for found in np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2)))
    return Typical(median, low, high, int(side.size))


def spread(values: Values) -> Spread:
    """
    Median and quartiles (linear between neighbours, as numpy's default).

    :raises ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values to take a median of")
    least, lower, median, upper, most = (float(found) for found in np.quantile(values, (0, 0.25, 0.5, 0.75, 1)))
    return Spread(n=len(values), median=median, lower=lower, upper=upper, least=least, most=most)


def percentiles(values: Values, shares: Values) -> list[float]:
    """The values below which these shares (0 to 1) lie, linear between neighbours."""
    return [float(found) for found in np.quantile(values, shares)]


def speedup(before: Values, after: Values, *, seed: int, level: float = LEVEL, resamples: int = RESAMPLES) -> Speedup:
    """
    How many times as fast ``after`` is as ``before``, both in tokens a second.

    :raises ValueError: a side has no values, or one that is not above 0.
    """
    return overall([(before, after)], seed=seed, level=level, resamples=resamples)


def overall(
    prompts: Sequence[tuple[Values, Values]], *, seed: int, level: float = LEVEL, resamples: int = RESAMPLES
) -> Speedup:
    """
    The geometric mean of the prompts' speed-ups; each prompt is its speeds before and after.

    :raises ValueError: there are no prompts, or a side of one has no values or one that is not above 0.
    """
    if not prompts:
        raise ValueError("there are no prompts to compare")
    sides = [np.asarray(side, dtype=np.float64) for pair in prompts for side in pair]
    if any(side.size == 0 or not np.all(side > 0) for side in sides):
        raise ValueError("a speed-up wants speeds above 0 on both sides of every prompt")
    signs = [-1.0, 1.0] * len(prompts)
    ratio = _geometric([np.median(side) for side in sides], signs, len(prompts))
    fewest = min(side.size for side in sides)
    if fewest < LEAST:
        return Speedup(float(ratio), None, None, fewest)
    generator = np.random.default_rng(seed)
    drawn = _geometric([_medians(side, resamples, generator) for side in sides], signs, len(prompts))
    low, high = (float(found) for found in np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2)))
    return Speedup(float(ratio), low, high, fewest)


def _medians(values: NDArray[np.float64], resamples: int, generator: np.random.Generator) -> NDArray[np.float64]:
    places = generator.integers(0, values.size, (resamples, values.size))
    found: NDArray[np.float64] = np.median(values[places], axis=1)
    return found


def _geometric(
    medians: Sequence[NDArray[np.float64] | np.floating], signs: Sequence[float], prompts: int
) -> NDArray[np.float64]:
    total = sum((sign * np.log(median) for sign, median in zip(signs, medians, strict=True)), np.float64(0))
    return np.asarray(np.exp(total / prompts))
