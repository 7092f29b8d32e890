"""Student's intervals for means of few runs, with correct coverage.

The percentile bootstrap of three values is their minimum and maximum, with a coverage of 75 % instead of 95 %;
Student's interval has 95 % at any number of runs, for a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

CONFIDENCE, POWER = 0.95, 0.8


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


def quantile(probability: float, freedom: float) -> float:
    """Compute the quantile of Student's distribution; infinite degrees of freedom give the normal one."""
    return float(stdtrit(min(freedom, 1e10), probability))  # older SciPy has none for infinity


def runs_needed(difference: float, spread: float) -> int:
    """Count the pairs of runs that distinguish `difference` from 0 with 95 % confidence and a power of 80 %.

    `spread` is the standard deviation of the difference of two runs; by the normal approximation with Guenther's term.
    """
    if difference == 0.0 or not math.isfinite(spread):
        return 10**6
    two_sided, wanted = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2), NormalDist().inv_cdf(POWER)
    count = ((two_sided + wanted) * spread / difference) ** 2 + two_sided**2 / 2
    return min(10**6, max(2, math.ceil(count)))
