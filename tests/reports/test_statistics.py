"""Against numbers one can check on paper, and against scipy; test_rliable.py compares with rliable."""

import numpy as np
import pytest
import scipy.stats

from trpl.reports import statistics as s
from trpl.reports import student


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


def test_students_interval_of_three_runs_by_hand():
    """Mean 2, deviation 1: 2 ± 4.3027/√3."""
    found = s.estimate(s.mean, [np.array([1.0, 2.0, 3.0])], generator=generator())
    assert found == pytest.approx((2.0, 2.0 - 2.48414, 2.0 + 2.48414), abs=1e-5)


def test_students_intervals_agree_with_scipy():
    rng = np.random.default_rng(1)
    x, y = rng.normal(3, 2, 5), rng.normal(1, 4, 4)
    paired = s.compare(s.mean_difference, [x[:4]], [y], paired=True, generator=generator())
    expected = scipy.stats.ttest_rel(x[:4], y).confidence_interval()
    assert paired[1:] == pytest.approx(tuple(expected), rel=1e-8)
    apart = s.compare(s.mean_difference, [x], [y], paired=False, generator=generator())
    expected = scipy.stats.ttest_ind(x, y, equal_var=False).confidence_interval()
    assert apart[1:] == pytest.approx(tuple(expected), rel=1e-8)
    for freedom in (1.0, 2.0, 7.3, 40.0, 1e7):
        assert student.quantile(0.975, freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-8)


def coverage(draw, truth, *, num_runs, repeats=2000):
    """Share of the printed intervals of the mean that hold the true mean."""
    rng, held = np.random.default_rng(num_runs), 0
    for _ in range(repeats):
        found = s.estimate(s.mean, [draw(rng, num_runs)], generator=rng)
        held += bool(found.low <= truth <= found.high)
    return held / repeats


@pytest.mark.parametrize("num_runs", [2, 3, 5, 10, 20])
def test_intervals_of_means_cover_what_they_say(num_runs):
    """95 % of them hold the mean, ± 3 standard errors of 2000 repeats."""
    found = coverage(lambda rng, n: rng.normal(4000, 700, n), 4000, num_runs=num_runs)
    assert found == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / 2000))


def test_intervals_of_paired_and_unpaired_differences_cover():
    rng, held = np.random.default_rng(7), np.zeros(2)
    for _ in range(1000):
        seeds = rng.normal(0, 3, 4)
        x, y = seeds + rng.normal(1, 1, 4), seeds + rng.normal(0, 1, 4)
        other = rng.normal(0, 5, 6)
        for i, (a, b, paired) in enumerate([(x, y, True), (x, other, False)]):
            found = s.compare(s.mean_difference, [a], [b], paired=paired, generator=rng)
            held[i] += found.low <= 1 <= found.high
    assert np.abs(held / 1000 - 0.95).max() < 0.025


def covered_differences(draw, other, truth, *, counts, repeats=2000):
    """Share of Welch's intervals of the difference of two methods that hold the true one."""
    rng, held = np.random.default_rng(counts[0]), 0
    for _ in range(repeats):
        x, y = draw(rng, counts[0]), other(rng, counts[1])
        found = s.compare(s.mean_difference, [x], [y], paired=False, generator=rng)
        held += bool(found.low <= truth <= found.high)
    return held / repeats


@pytest.mark.parametrize("counts", [(3, 3), (3, 5), (5, 5)])
@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_intervals_of_differences_cover_also_where_spreads_differ(counts, ratio):
    def draw(rng, n):
        return rng.normal(4000, 700, n)

    def other(rng, n):
        return rng.normal(3000, 700 * ratio, n)

    assert covered_differences(draw, other, 1000, counts=counts) == pytest.approx(0.95, abs=0.025)


def gaits(rng, n):
    """Final returns where half of the seeds find a slow gait and half a fast one, about as on HalfCheetah."""
    return np.where(rng.random(n) < 0.5, rng.normal(6500, 800, n), rng.normal(2100, 100, n))


def test_two_gaits_are_too_much_for_intervals_of_means_but_not_of_differences():
    """docs/results.md has these shares: three seeds of one gait lie close together, far from the mean of all."""
    assert coverage(gaits, 4300, num_runs=3) == pytest.approx(0.79, abs=0.025)
    assert coverage(gaits, 4300, num_runs=5) == pytest.approx(0.93, abs=0.02)
    for counts in ((3, 3), (5, 5)):
        assert covered_differences(gaits, gaits, 0, counts=counts) > 0.94


def test_the_bootstrap_of_few_runs_is_not_printed():
    """Of three values it is their range, which covers the middle in 75 % of cases."""
    for statistic in (s.iqm, s.median, s.optimality_gap):
        found = s.estimate(statistic, [np.arange(9.0), np.arange(12.0)], generator=generator())
        assert np.isnan([found.low, found.high]).all()
        found = s.estimate(statistic, [np.arange(10.0), np.arange(12.0)], generator=generator())
        assert found.low <= found.value <= found.high


def test_runs_needed_have_the_power_they_promise():
    """As many pairs as it says: the paired interval leaves 0 out in four of five cases."""
    count, rng = student.runs_needed(1.0, 1.5), np.random.default_rng(3)
    hits = [
        s.compare(s.mean_difference, [rng.normal(1, 1.5, count)], [np.zeros(count)], paired=True, generator=rng).low > 0
        for _ in range(2000)
    ]
    assert np.mean(hits) == pytest.approx(0.8, abs=0.03)


def test_runs_needed_are_enough_for_two_methods_apart():
    """The same number of each of two methods, whose seeds have nothing in common, by Welch's interval."""
    count, rng = student.runs_needed(1.0, np.hypot(1.2, 0.9)), np.random.default_rng(4)
    hits = 0
    for _ in range(2000):
        x, y = rng.normal(1, 1.2, count), rng.normal(0, 0.9, count)
        hits += s.compare(s.mean_difference, [x], [y], paired=False, generator=rng).low > 0
    assert hits / 2000 == pytest.approx(0.82, abs=0.05)


def test_interval_agrees_with_scipy_bootstrap():
    values = np.random.default_rng(3).normal(100, 20, size=12)
    ours = s.estimate(s.iqm, [values], generator=generator(), num_resamples=40_000)
    theirs = scipy.stats.bootstrap(
        (values,), lambda x, axis: s.iqm([x]), method="percentile", n_resamples=40_000, rng=generator(), vectorized=True
    )
    assert ours[1:] == pytest.approx(tuple(theirs.confidence_interval), abs=0.3)  # the intervals are 20 wide


def test_resampling_stays_within_tasks():
    found = s.estimate(s.mean, [np.full(3, 1.0), np.full(5, 100.0)], generator=generator())
    assert found == (50.5, 50.5, 50.5)
    found = s.estimate(s.iqm, [np.full(10, 1.0), np.full(10, 100.0)], generator=generator())
    assert found == (50.5, 50.5, 50.5)


def test_one_run_has_no_interval():
    found = s.estimate(s.mean, [np.array([4.0])], generator=generator())
    assert found.value == 4
    assert np.isnan(found.low)
    curve = s.curve_estimate(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(curve.value, [1, 2])
    assert np.isnan(curve.high).all()


def test_pairing_takes_the_spread_between_seeds_out():
    seeds = np.array([0.0, 1000.0, 2000.0, 3000.0])
    options = {"generator": generator(), "num_resamples": 500}
    paired = s.compare(s.mean_difference, [seeds + 10], [seeds], paired=True, **options)
    apart = s.compare(s.mean_difference, [seeds + 10], [seeds], paired=False, **options)
    assert paired == pytest.approx((10, 10, 10))
    assert apart.high - apart.low > 1000


def test_a_curve_of_few_runs_has_their_range():
    found = s.curve_estimate(np.array([[1.0, 5.0], [3.0, 2.0], [8.0, 2.0]]))
    np.testing.assert_array_equal(found, [[4, 3], [1, 2], [8, 5]])


def test_curve_interval_is_that_of_each_point():
    rows = np.random.default_rng(5).normal(size=(s.MIN_RUNS, 4))
    found = s.curve_estimate(rows)
    for point in range(4):
        expected = s.estimate(s.mean, [rows[:, point]], generator=generator())
        assert (found.low[point], found.high[point]) == pytest.approx(expected[1:])
