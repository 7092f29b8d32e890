"""Student's intervals for means of few runs, with correct coverage.

The percentile bootstrap of three values is their minimum and maximum, with a coverage of 75 % instead of 95 %;
Student's interval has 95 % at any number of runs, for a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CONFIDENCE, POWER = 0.95, 0.8
MANY = 1000.0  # degrees of freedom
NUM_TERMS = 60  # of the continued fraction, which needs about the square root of its arguments


class Mean(NamedTuple):
    """A mean of runs, its squared standard error, and the degrees of freedom."""

    value: float
    squared_error: float
    freedom: float


def mean_of(values: np.ndarray) -> Mean:
    """Compute the mean of the runs `values`; the error of a single run is NaN."""
    count = len(values)
    spread = float(values.var(ddof=1)) / count if count > 1 else math.nan
    return Mean(float(values.mean()), spread, float(count - 1))


def combined(means: Sequence[Mean], weights: Sequence[float]) -> Mean:
    """Compute the weighted sum of independent means; degrees of freedom by Welch and Satterthwaite."""
    parts = [weight**2 * mean.squared_error for mean, weight in zip(means, weights, strict=True)]
    squared_error = sum(parts)
    below = sum(part**2 / mean.freedom for part, mean in zip(parts, means, strict=True) if part > 0)
    freedom = squared_error**2 / below if below else math.inf
    return Mean(sum(w * m.value for m, w in zip(means, weights, strict=True)), squared_error, freedom)


def half_width(mean: Mean) -> float:
    """Return half the width of Student's interval; NaN if the error is unknown."""
    if math.isnan(mean.squared_error):
        return math.nan
    return quantile(0.5 + CONFIDENCE / 2, mean.freedom) * math.sqrt(mean.squared_error)


@cache
def quantile(probability: float, freedom: float) -> float:
    """Compute the quantile of Student's distribution, for probabilities of at least a half.

    By bisection of its distribution function; for many degrees of freedom by Cornish and Fisher's series about the
    normal quantile.
    """
    z = NormalDist().inv_cdf(probability)
    if freedom > MANY:
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, 1.0
    while distribution(high, freedom) < probability:
        low, high = high, 2.0 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if distribution(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def distribution(t: float, freedom: float) -> float:
    """Compute P(T ≤ t): with x = ν/(ν + t²), each tail beyond |t| has ½ I_x(ν/2, ½)."""
    beyond = 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return 1.0 - beyond if t > 0 else beyond


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Compute I_x(a, b), regularised, by its continued fraction (DLMF 8.17.22), for quick convergence."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    scale = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    fraction = 1.0
    for m in range(NUM_TERMS, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1.0 + odd / (1.0 + even / fraction)
    return scale / fraction


def runs_needed(difference: float, spread: float) -> int:
    """Count the pairs of runs that distinguish `difference` from 0 with 95 % confidence and a power of 80 %.

    `spread` is the standard deviation of the difference of two runs; by the normal approximation with Guenther's term.
    """
    if difference == 0.0 or not math.isfinite(spread):
        return 10**6
    two_sided, wanted = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2), NormalDist().inv_cdf(POWER)
    count = ((two_sided + wanted) * spread / difference) ** 2 + two_sided**2 / 2
    return min(10**6, max(2, math.ceil(count)))
