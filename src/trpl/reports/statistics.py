"""Statistics over seeds and tasks (Agarwal et al., 2021, whose package is rliable).

Scores are a list of arrays, one per task, with the task's runs on the *last* axis; leading axes are resamples, so that
every statistic works for the point estimate and for its bootstrap. Tasks may differ in their number of runs.

Means and their differences have Student's intervals. Other statistics have those of a stratified bootstrap from ten
runs per task on, and none below: the bootstrap of a few values does not have its nominal coverage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trpl.reports import student
from trpl.reports.student import CONFIDENCE

Scores = Sequence[np.ndarray]
MIN_RUNS = 10  # of each task, for a bootstrap or the interval around a curve
NUM_RESAMPLES = 5000


class Estimate(NamedTuple):
    """A value and the ends of its 95 % interval, one or many; NaN ends for a single run."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean(scores: Scores) -> np.ndarray:
    """Return the mean over tasks of the mean over runs."""
    return np.mean([task.mean(axis=-1) for task in scores], axis=0)


def median(scores: Scores) -> np.ndarray:
    """Return the median over tasks of the mean over runs."""
    return np.median([task.mean(axis=-1) for task in scores], axis=0)


def iqm(scores: Scores) -> np.ndarray:
    """Return the interquartile mean: the mean of all n scores without the ⌊n/4⌋ lowest and the ⌊n/4⌋ highest."""
    pooled = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    return pooled[..., cut : pooled.shape[-1] - cut].mean(axis=-1)


def optimality_gap(scores: Scores) -> np.ndarray:
    """Return the mean shortfall from 1: 1 − mean min(score, 1)."""
    return 1.0 - np.minimum(np.concatenate(scores, axis=-1), 1.0).mean(axis=-1)


def performance_profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of all scores above each threshold; the thresholds are the last axis of the result."""
    pooled = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    rows = pooled.reshape(-1, pooled.shape[-1])
    above = np.stack([pooled.shape[-1] - np.searchsorted(row, thresholds, side="right") for row in rows])
    return above.reshape(*pooled.shape[:-1], len(thresholds)) / pooled.shape[-1]


def probability_of_improvement(scores: Scores, others: Scores) -> np.ndarray:
    """Return the mean over tasks of P(X > Y) + ½ P(X = Y), X and Y runs of the two.

    It is the Mann–Whitney U over its largest value.
    """
    shares = []
    for x, y in zip(scores, others, strict=True):
        ordered = np.sign(x[..., :, None] - y[..., None, :])
        shares.append(0.5 + 0.5 * ordered.mean(axis=(-2, -1)))
    return np.mean(shares, axis=0)


def draw_indices(counts: Sequence[int], generator: np.random.Generator, num_resamples: int) -> list[np.ndarray]:
    """Draw the runs of each resample [num_resamples, count], with replacement within each task."""
    return [generator.integers(count, size=(num_resamples, count)) for count in counts]


def interval(samples: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile interval of bootstrap `samples` along their first axis."""
    low, high = np.quantile(samples, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def estimate(
    statistic: Callable[[Scores], np.ndarray],
    scores: Scores,
    *,
    generator: np.random.Generator,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """Compute `statistic` of `scores` with its interval: Student's for a mean, else a bootstrap within each task."""
    value = statistic(scores)
    if statistic is mean:
        return _student_estimate(value, scores)
    if min(map(len, scores)) < MIN_RUNS:
        return Estimate(value, value * np.nan, value * np.nan)
    drawn = draw_indices([len(task) for task in scores], generator, num_resamples)
    samples = statistic([task[index] for task, index in zip(scores, drawn, strict=True)])
    return Estimate(value, *interval(samples))


def compare(
    statistic: Callable[[Scores, Scores], np.ndarray],
    scores: Scores,
    others: Scores,
    *,
    paired: bool,
    generator: np.random.Generator,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """Compute `statistic` of two methods with its interval.

    If paired, run i of one method belongs to run i of the other in each task (the same seed) and both are drawn
    together; otherwise each method is resampled on its own, as in rliable. Differences of means have Student's interval
    (Welch's if not paired).
    """
    value = statistic(scores, others)
    if statistic is mean_difference:
        if paired:
            return _student_estimate(value, [x - y for x, y in zip(scores, others, strict=True)])
        return _student_estimate(value, scores, minus=others)
    if min(map(len, (*scores, *others))) < MIN_RUNS:
        return Estimate(value, value * np.nan, value * np.nan)
    first = draw_indices([len(task) for task in scores], generator, num_resamples)
    second = first if paired else draw_indices([len(task) for task in others], generator, num_resamples)
    samples = statistic(
        [task[index] for task, index in zip(scores, first, strict=True)],
        [task[index] for task, index in zip(others, second, strict=True)],
    )
    return Estimate(value, *interval(samples))


def mean_difference(scores: Scores, others: Scores) -> np.ndarray:
    """Return the difference of the means of `scores` and `others`."""
    return mean(scores) - mean(others)


def curve_estimate(rows: np.ndarray) -> Estimate:
    """Return the mean of `rows` [run, point] at each point, with a band to draw around it.

    The band is Student's interval from ten runs on. With fewer it is the range of the runs: intervals of a few runs are
    valid but wider than the curves' variation, and would hide it.
    """
    value = rows.mean(axis=0)
    num_runs = len(rows)
    if num_runs < MIN_RUNS:
        low, high = (rows.min(axis=0), rows.max(axis=0)) if num_runs > 1 else (value * np.nan, value * np.nan)
        return Estimate(value, low, high)
    factor = student.quantile(0.5 + CONFIDENCE / 2, num_runs - 1) / np.sqrt(num_runs)
    half_width = factor * rows.std(axis=0, ddof=1)
    return Estimate(value, value - half_width, value + half_width)


def _student_estimate(value: np.ndarray, scores: Scores, *, minus: Scores = ()) -> Estimate:
    """Put Student's interval around `value`, the mean over tasks of `scores`, less that of `minus` if given."""
    weight = 1.0 / len(scores)
    weights = [weight] * len(scores) + [-weight] * len(minus)
    half_width = student.half_width(student.combined([student.mean_of(task) for task in (*scores, *minus)], weights))
    return Estimate(value, value - half_width, value + half_width)


def pooled_half_width(samples: np.ndarray) -> float:
    """Return half the width of the normal 95 % interval of the mean that treats `samples` as independent: 1.96 s/√n.

    The paper's intervals appear to be of this kind (epochs × seeds pooled). Epochs of one run are far from independent,
    so it is too narrow; it is given only for comparison.
    """
    return float(1.959963984540054 * samples.std(ddof=1) / np.sqrt(samples.size)) if samples.size > 1 else float("nan")
