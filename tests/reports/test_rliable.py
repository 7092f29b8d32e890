"""Values of the rliable package itself, and its intervals when both use the same resamples."""

import numpy as np
import pytest

from trpl.reports import statistics as s

metrics = pytest.importorskip("rliable.metrics", reason="pip install rliable to compare with it")
library = pytest.importorskip("rliable.library", reason="pip install rliable to compare with it")


def generator():
    return np.random.default_rng(0)


@pytest.fixture
def scores():
    """Two methods on three tasks, unlike numbers of runs for the two."""
    rng = np.random.default_rng(7)
    return rng.gamma(2.0, 0.5, size=(10, 3)), rng.gamma(2.5, 0.5, size=(8, 3))


def by_task(matrix):
    return list(matrix.T)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (s.iqm, "aggregate_iqm"),
        (s.median, "aggregate_median"),
        (s.optimality_gap, "aggregate_optimality_gap"),
    ],
)
def test_aggregates_and_intervals(scores, ours, theirs, monkeypatch):
    reference = getattr(metrics, theirs)
    matrix, _ = scores
    num_resamples = 300
    drawn = np.random.default_rng(1).integers(10, size=(num_resamples, 10, 3))
    feed = iter(drawn)
    monkeypatch.setattr(np.random, "choice", lambda *_, **__: next(feed))  # where rliable takes its draws from
    point, ends = library.get_interval_estimates({"m": matrix}, lambda x: np.array([reference(x)]), reps=num_resamples)
    monkeypatch.undo()
    monkeypatch.setattr(s, "draw_indices", lambda *_: list(np.moveaxis(drawn, 2, 0)))
    found = s.estimate(ours, by_task(matrix), generator=generator(), num_resamples=num_resamples)
    assert found.value == pytest.approx(point["m"][0], abs=1e-6)
    assert (found.low, found.high) == pytest.approx(tuple(ends["m"][:, 0]), abs=1e-6)


def test_mean(scores):
    """The point alone: the interval is Student's, not a bootstrap."""
    matrix, _ = scores
    found = s.estimate(s.mean, by_task(matrix), generator=generator())
    assert found.value == pytest.approx(metrics.aggregate_mean(matrix), abs=1e-6)


def test_probability_of_improvement(scores):
    x, y = scores
    x[0, 0] = y[0, 0]  # a tie
    expected = metrics.probability_of_improvement(x, y)
    assert s.probability_of_improvement(by_task(x), by_task(y)) == pytest.approx(expected, abs=1e-6)


def test_probability_interval(scores, monkeypatch):
    x, y = scores
    num_resamples = 200
    rng = np.random.default_rng(1)
    drawn = [(rng.integers(10, size=(10, 3)), rng.integers(8, size=(8, 3))) for _ in range(num_resamples)]
    feed = (index for pair in drawn for index in pair)
    monkeypatch.setattr(np.random, "choice", lambda *_, **__: next(feed))
    _, ends = library.get_interval_estimates(
        {"m": [x, y]}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=num_resamples
    )
    monkeypatch.undo()
    monkeypatch.setattr(s, "MIN_RUNS", 8)
    ours = iter([list(np.moveaxis(np.stack(column), 2, 0)) for column in zip(*drawn, strict=True)])
    monkeypatch.setattr(s, "draw_indices", lambda *_: next(ours))
    found = s.compare(
        s.probability_of_improvement,
        by_task(x),
        by_task(y),
        paired=False,
        generator=generator(),
        num_resamples=num_resamples,
    )
    assert (found.low, found.high) == pytest.approx(tuple(ends["m"][:, 0]), abs=1e-6)


def test_profiles(scores):
    matrix, _ = scores
    thresholds = np.linspace(0, 3, 31)
    expected = library.score_distributions(matrix, thresholds)
    np.testing.assert_allclose(s.performance_profile(by_task(matrix), thresholds), expected, atol=1e-6)
