"""Curves over training: a measure's mean over seeds and its interval, at the common epochs of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from trpl.reports.groups import Group
from trpl.reports.reading import Columns, Run
from trpl.reports.statistics import Estimate, curve_estimate

MAX_POINTS = 240  # as many as a chart of this width can show


class Measure(NamedTuple):
    """The quantity of a curve: column `key` of the records, divided by column `over` if given, and the axis label."""

    key: str
    label: str
    over: str | None = None

    @property
    def name(self) -> str:
        return f"{self.key}/{self.over}" if self.over else self.key

    @property
    def is_maximum(self) -> bool:
        return self.key.endswith("_max")


RETURN = Measure("return", "evaluation return")
KL = Measure("kl", "mean KL(new ‖ old)")
ENTROPY = Measure("entropy", "policy entropy")
MEAN_DISTANCE = Measure("before_mean", "distance of the means, network from old policy")


def _audit_measures(part: str) -> tuple[Measure, ...]:
    labels = {
        f"before_{part}": "network, mean over states",
        f"before_{part}_max": "network, worst state",
        f"after_{part}": "projected, mean over states",
        f"after_{part}_max": "projected, worst state",
    }
    return tuple(Measure(key, label, f"{part}_bound") for key, label in labels.items())


AUDIT = {
    "mean": _audit_measures("mean"),
    "cov": _audit_measures("cov"),
    "whole": (
        Measure("kl", "network, mean over states", "bound"),
        Measure("kl_max", "network, worst state", "bound"),
    ),
}
MEASURES = (RETURN, KL, ENTROPY, *(measure for part in AUDIT.values() for measure in part))


class Curve(NamedTuple):
    """A measure over training. `seconds` is the mean wall-clock time over runs, NaN where it was not recorded."""

    epoch: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    estimate: Estimate
    num_epochs: int  # before thinning


def curve(group: Group, measure: Measure, max_points: int = MAX_POINTS) -> Curve | None:
    """Return the curve of `measure` for `group`, thinned to `max_points`; None if no run recorded it.

    Thinning selects epochs without smoothing; for a maximum it keeps the largest value since the last selected epoch,
    so that no excess is lost.
    """
    columns = [_columns(run, measure) for run in group.runs]
    epoch = _common_epochs(columns)
    if not epoch.size:
        return None
    rows = np.stack([_at(column, _values(column, measure), epoch) for column in columns])
    if np.isnan(rows).all():
        return None
    kept = thin(epoch.size, max_points)
    since = np.concatenate([[0], kept[:-1] + 1])
    rows = np.fmax.reduceat(rows, since, axis=1) if measure.is_maximum else rows[:, kept]
    return Curve(
        epoch=epoch[kept],
        steps=_at(columns[0], columns[0].steps, epoch[kept]),
        seconds=_seconds(group.runs, epoch[kept]),
        estimate=curve_estimate(rows),
        num_epochs=epoch.size,
    )


def thin(num_epochs: int, max_points: int) -> np.ndarray:
    """Return the indices of at most `max_points` epochs, evenly spread, including the first and the last."""
    return np.unique(np.linspace(0, num_epochs - 1, min(num_epochs, max_points)).round().astype(np.int64))


def _columns(run: Run, measure: Measure) -> Columns:
    return run.evaluations if measure is RETURN else run.metrics


def _values(columns: Columns, measure: Measure) -> np.ndarray:
    values = columns.values[measure.key]
    return values / columns.values[measure.over] if measure.over else values


def _common_epochs(columns: Sequence[Columns]) -> np.ndarray:
    """List the epochs that all of `columns` have, so that means are over the same seeds at every point."""
    first, *others = (column.epoch for column in columns)
    return first if all(np.array_equal(first, other) for other in others) else reduce(np.intersect1d, others, first)


def _at(columns: Columns, values: np.ndarray, epoch: np.ndarray) -> np.ndarray:
    return values[np.searchsorted(columns.epoch, epoch)]


def _seconds(runs: Sequence[Run], epoch: np.ndarray) -> np.ndarray:
    if not all(run.timings.epoch.size and np.isin(epoch, run.timings.epoch).all() for run in runs):
        return np.full(epoch.size, np.nan)
    return np.mean([_at(run.timings, run.timings.values["seconds"], epoch) for run in runs], axis=0)


class Audit(NamedTuple):
    """Distances of one part of the trust region over all epochs, states and seeds, as multiples of the bound.

    Only the network acts in the environment (the projection is part of the loss): `network_*` is what happened,
    `projected_*` what the layer guarantees.
    """

    bound: float
    network_mean: float
    network_worst: float
    share_outside: float  # of epochs in which the network's mean over states was outside
    share_binding: float  # of states in which the bound was active: they were projected
    projected_mean: float
    projected_worst: float


PARTS = {"mean": "mean", "cov": "covariance", "whole": "whole KL"}


def audit(group: Group, part: str) -> Audit | None:
    """Compute the audit of `part`: "mean", "cov", or "whole" for one bound on the KL; None without bound or record."""

    def column(key: str) -> np.ndarray:
        return np.concatenate([run.metrics.values[key] for run in group.runs])

    if part == "whole":
        bound, before, before_max = column("bound"), column("kl"), column("kl_max")
        after = column("after_mean") + column("after_cov")
        after_max = np.where(column("after_cov_max") == 0.0, column("after_mean_max"), np.nan)  # else of another state
        projected = column("projected_mean_share")  # the whole policy is projected at once
    else:
        bound, before, before_max = column(f"{part}_bound"), column(f"before_{part}"), column(f"before_{part}_max")
        after, after_max = column(f"after_{part}"), column(f"after_{part}_max")
        projected = column(f"projected_{part}_share")
    if np.isnan(before / bound).all():
        return None
    return Audit(
        bound=float(np.nanmean(bound)),
        network_mean=_unless_all_nan(np.nanmean, before / bound),
        network_worst=_unless_all_nan(np.nanmax, before_max / bound),
        share_outside=float((before > bound)[~np.isnan(bound)].mean()),
        share_binding=_unless_all_nan(np.nanmean, projected),
        projected_mean=_unless_all_nan(np.nanmean, after / bound),
        projected_worst=_unless_all_nan(np.nanmax, after_max / bound),
    )


def _unless_all_nan(statistic: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> float:
    return float(statistic(values)) if not np.isnan(values).all() else float("nan")
