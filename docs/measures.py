"""What is measured of a run on the page of results, and the interval of a difference of two groups of runs."""

from collections.abc import Callable, Sequence

import numpy as np

from trpl.reports import statistics
from trpl.reports.reading import Run
from trpl.reports.scores import early_window, final_window

FIRST_EPOCHS = 20  # left out where the constancy of the KL is measured
FINAL, EARLY, STEADY = "final return", "return at 20 %", "steadiness of the KL"
LENGTH, NEAR = "distance of the network ÷ bound", "nearness of that distance to the bound"

Measure = Callable[[Run], float | None]


def mean_of(window: np.ndarray | None) -> float | None:
    return None if window is None else float(window.mean())


def variation(run: Run) -> float | None:
    """Deviation of the KL per epoch in units of its mean; negative, so that larger is steadier."""
    if not run.finished:
        return None
    kl = run.metrics.values["kl"][FIRST_EPOCHS:]
    return -float(kl.std() / kl.mean())


def distance(run: Run) -> np.ndarray:
    """How far the network's mean is from the old policy's, over states, as a multiple of its bound, in each epoch."""
    return run.metrics.values["before_mean"] / run.metrics.values["mean_bound"]


def length(run: Run) -> float | None:
    """That distance, its mean over epochs."""
    return float(distance(run).mean()) if run.finished else None


def nearness(run: Run) -> float | None:
    """How far from 1 that distance is, below or above, mean over epochs; negative, so that larger is nearer."""
    return -float(np.abs(distance(run) - 1.0).mean()) if run.finished else None


MEASURES: dict[str, Measure] = {
    FINAL: lambda run: mean_of(final_window(run)),
    EARLY: lambda run: mean_of(early_window(run)),
    STEADY: variation,
    LENGTH: length,
    NEAR: nearness,
}


def values_of(runs: Sequence[Run], measure: str) -> np.ndarray:
    """What each run gives, without those that are too short for it."""
    found = [MEASURES[measure](run) for run in runs]
    return np.array([value for value in found if value is not None])


def difference(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """The difference of two means over seeds, and Welch's interval."""
    generator = np.random.default_rng(0)
    found = statistics.compare(statistics.mean_difference, [first], [second], paired=False, generator=generator)
    value, low, high = (float(part) for part in found)
    return value, low, high
