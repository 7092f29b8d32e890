"""Against numbers one can check on paper, and against scipy; test_rliable.py compares with rliable."""

import numpy as np
import pytest
import scipy.stats

from trpl.reports import statistics as s


def generator():
    return np.random.default_rng(0)


def test_iqm_by_hand():
    assert s.iqm([np.array([1.0, 2, 3, 100])]) == 2.5
    assert s.iqm([np.array([1.0, 2, 6])]) == 3.0  # ⌊3/4⌋ = 0: nothing is cut
    assert s.iqm([np.array([1.0, 2, 3, 4, 10, 20])]) == 4.75  # ⌊6/4⌋ = 1
    assert s.iqm([np.array([0.0, 9]), np.array([1.0, 2])]) == 1.5


def test_mean_and_median_by_hand():
    tasks = [np.array([1.0, 3]), np.array([10.0]), np.array([3.0, 3, 6])]
    assert s.mean(tasks) == pytest.approx((2 + 10 + 4) / 3)
    assert s.median(tasks) == 4


def test_optimality_gap_by_hand():
    assert s.optimality_gap([np.array([0.5, 2.0]), np.array([0.9, 1.0])]) == pytest.approx(1 - (0.5 + 1 + 0.9 + 1) / 4)


def test_probability_of_improvement_by_hand():
    """Of six pairs three are won, one is a tie: 3.5 / 6; on the second task all are lost."""
    x, y = [np.array([1.0, 3.0]), np.array([0.0])], [np.array([0.0, 1.0, 3.5]), np.array([1.0])]
    assert s.probability_of_improvement(x[:1], y[:1]) == pytest.approx(3.5 / 6)
    assert s.probability_of_improvement(x, y) == pytest.approx(3.5 / 12)


def test_performance_profile_by_hand():
    found = s.performance_profile([np.array([1.0, 2.0]), np.array([3.0, 3.0])], np.array([0.0, 1.0, 2.5, 3.0]))
    np.testing.assert_allclose(found, [1.0, 0.75, 0.5, 0.0])


def test_interval_by_hand():
    low, high = s.interval(np.arange(1001.0), 0.9)
    assert (low, high) == (pytest.approx(50), pytest.approx(950))


def test_pooled_half_width_by_hand():
    assert s.pooled_half_width(np.array([1.0, 3.0])) == pytest.approx(1.959964 * np.sqrt(2) / np.sqrt(2), abs=1e-6)
    assert np.isnan(s.pooled_half_width(np.array([1.0])))


def test_bootstrap_of_two_runs_is_binomial():
    """With runs 0 and 1 a resample's mean is 0, ½, 1 with probabilities ¼, ½, ¼: the interval is all of [0, 1]."""
    found = s.estimate(s.mean, [np.array([0.0, 1.0])], generator=generator())
    assert found == (0.5, 0.0, 1.0)


def test_interval_agrees_with_scipy_bootstrap():
    values = np.random.default_rng(3).normal(100, 20, size=12)
    ours = s.estimate(s.mean, [values], generator=generator(), num_resamples=40_000)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", n_resamples=40_000, rng=generator())
    assert ours[1:] == pytest.approx(tuple(theirs.confidence_interval), abs=0.25)  # the intervals are 20 wide


def test_resampling_stays_within_tasks():
    found = s.estimate(s.mean, [np.full(3, 1.0), np.full(5, 100.0)], generator=generator())
    assert found == (50.5, 50.5, 50.5)


def test_one_run_has_no_interval():
    found = s.estimate(s.mean, [np.array([4.0])], generator=generator())
    assert found.value == 4
    assert np.isnan(found.low)
    curve = s.curve_estimate(np.array([[1.0, 2.0]]), generator=generator())
    np.testing.assert_array_equal(curve.value, [1, 2])
    assert np.isnan(curve.high).all()


def test_pairing_takes_the_spread_between_seeds_out():
    seeds = np.array([0.0, 1000.0, 2000.0, 3000.0])
    options = {"generator": generator(), "num_resamples": 500}
    paired = s.compare(s.mean_difference, [seeds + 10], [seeds], paired=True, **options)
    apart = s.compare(s.mean_difference, [seeds + 10], [seeds], paired=False, **options)
    assert paired == pytest.approx((10, 10, 10))
    assert apart.high - apart.low > 1000


def test_curve_interval_is_that_of_each_point():
    rows = np.random.default_rng(5).normal(size=(6, 4))
    found = s.curve_estimate(rows, generator=generator(), num_resamples=2000)
    drawn = generator().integers(6, size=(2000, 6))
    low, high = np.quantile(rows[drawn].mean(axis=1), [0.025, 0.975], axis=0)
    np.testing.assert_allclose([found.low, found.high], [low, high], atol=1e-12)
