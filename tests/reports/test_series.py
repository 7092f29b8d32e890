import json

import numpy as np
import pytest
from synthetic_runs import run_config, write_lines, write_run, write_runs

from trpl.reports.groups import group_runs
from trpl.reports.reading import read_run, read_runs
from trpl.reports.series import AUDIT, KL, RETURN, Measure, audit, curve, thin


@pytest.fixture
def group(tmp_path):
    (group,) = group_runs(read_runs([write_runs(tmp_path, methods=("kl",), num_epochs=100)])[0])
    return group


def test_curve_is_the_mean_over_seeds(group):
    found = curve(group, KL)
    np.testing.assert_allclose(found.estimate.value, np.mean([run.metrics.values["kl"] for run in group.runs], axis=0))
    np.testing.assert_array_equal(found.epoch, np.arange(1, 101))
    np.testing.assert_array_equal(found.steps, 2048 * np.arange(1, 101))
    np.testing.assert_allclose(found.seconds[-1], np.mean([100 * 2048 / (2000 + 50 * seed) for seed in range(3)]))
    assert (found.estimate.low <= found.estimate.value).all()
    assert (found.estimate.value <= found.estimate.high).all()


def test_thinned_curve_keeps_epochs_as_they_are(group):
    whole, few = curve(group, RETURN), curve(group, RETURN, max_points=9)
    assert few.num_epochs == 100
    assert len(few.epoch) == 9
    np.testing.assert_array_equal(few.estimate.value, whole.estimate.value[few.epoch - 1])
    assert (few.epoch[0], few.epoch[-1]) == (1, 100)
    np.testing.assert_array_equal(thin(5, 10), np.arange(5))


def test_thinning_loses_no_excess(group):
    worst = Measure("before_mean_max", "worst")
    whole = np.stack([run.metrics.values["before_mean_max"] for run in group.runs])
    few = curve(group, worst, max_points=4)
    bins = np.split(whole, few.epoch[:-1], axis=1)
    np.testing.assert_allclose(few.estimate.value, [part.max(axis=1).mean() for part in bins])


def test_an_excess_shows_once(group):
    """A spike at an epoch that is kept belongs to that point, not to the next one too."""
    worst = Measure("before_mean_max", "worst")
    spike = curve(group, worst, max_points=4).epoch[1]
    for run in group.runs:
        run.metrics.values["before_mean_max"][:] = np.where(run.metrics.epoch == spike, 9.0, 1.0)
    np.testing.assert_array_equal(curve(group, worst, max_points=4).estimate.value, [1, 9, 1, 1])


def test_audit_curves_are_multiples_of_the_bound(group):
    found = curve(group, AUDIT["mean"][0])
    expected = np.mean([run.metrics.values["before_mean"] / 0.03 for run in group.runs], axis=0)
    np.testing.assert_allclose(found.estimate.value, expected)


def test_runs_of_unlike_length_meet_at_the_epochs_all_have(tmp_path):
    runs = [
        read_run(write_run(tmp_path / str(seed), run_config("kl", "Hopper-v4", seed, 100), done=done, eval_every=every))
        for seed, (done, every) in enumerate([(0.5, 2), (0.8, 3)])
    ]
    (group,) = group_runs(runs)
    np.testing.assert_array_equal(curve(group, KL).epoch, np.arange(1, 51))
    np.testing.assert_array_equal(curve(group, RETURN).epoch, np.arange(6, 51, 6))


def test_what_was_not_recorded_has_no_curve(tmp_path):
    (group,) = group_runs(read_runs([write_runs(tmp_path, methods=("ppo",), num_epochs=30, timed=False)])[0])
    assert curve(group, AUDIT["mean"][0]) is None
    assert audit(group, "mean") is None
    assert np.isnan(curve(group, KL).seconds).all()


def test_one_bound_on_the_whole_kl(tmp_path):
    folder = write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, 30))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"bound": 0.02, "mean_bound": None, "cov_bound": None}
    write_lines(folder / "metrics.jsonl", rows)
    (group,) = group_runs([read_run(folder)])
    found = audit(group, "whole")
    assert found.network_mean == pytest.approx(np.mean([row["kl"] for row in rows]) / 0.02)
    assert found.network_worst == pytest.approx(max(row["kl_max"] for row in rows) / 0.02)
    assert found.projected_mean == pytest.approx(np.mean([row["after_mean"] + row["after_cov"] for row in rows]) / 0.02)
    assert audit(group, "mean") is None
    shown = [curve(group, measure).estimate.value for measure in AUDIT["whole"]]
    np.testing.assert_allclose(shown, [[row[key] / 0.02 for row in rows] for key in ("kl", "kl_max")])
    assert np.isnan(found.projected_worst)  # the worst mean and the worst covariance may be of two states
    write_lines(folder / "metrics.jsonl", [row | {"after_cov_max": 0.0} for row in rows])  # as of a Categorical
    (group,) = group_runs([read_run(folder)])
    assert audit(group, "whole").projected_worst == pytest.approx(max(row["after_mean_max"] for row in rows) / 0.02)


def test_audit_by_hand(group):
    before = np.concatenate([run.metrics.values["before_mean"] for run in group.runs])
    found = audit(group, "mean")
    assert found.bound == pytest.approx(0.03)
    assert found.network_mean == pytest.approx(before.mean() / 0.03)
    assert found.network_worst == pytest.approx(3 * before.max() / 0.03)
    assert found.share_outside == pytest.approx((before > 0.03).mean())
    assert found.share_binding == pytest.approx(10 * before.mean())  # the share of projected states of these runs
    assert found.projected_worst == pytest.approx(1.0)
