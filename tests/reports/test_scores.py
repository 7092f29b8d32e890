import json

import numpy as np
import pytest
from synthetic_runs import run_config, write_run, write_runs

from trpl.reports import scores as s
from trpl.reports.groups import group_runs
from trpl.reports.reading import read_run, read_runs
from trpl.reports.statistics import pooled_half_width


def run_with_returns(folder, seed, num_epochs, returns, **options):
    """A synthetic run whose evaluation at epoch e returned `returns(e)` in all its episodes."""
    folder = write_run(folder, run_config("kl", "HalfCheetah-v4", seed, num_epochs), **options)
    rows = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    for row in rows:
        row["returns"] = [returns(row["epoch"])] * 5
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(folder)


def test_windows_are_the_20_epochs_after_a_fifth_and_the_last_20(tmp_path):
    run = run_with_returns(tmp_path / "run", 0, 200, float)
    np.testing.assert_array_equal(s.early_window(run), np.arange(41, 61))
    np.testing.assert_array_equal(s.final_window(run), np.arange(181, 201))
    np.testing.assert_array_equal(s.window_after(run, 100 * 2048), np.arange(101, 121))


def test_window_of_the_papers_budget():
    """1465 epochs: 293 are a fifth, so the window is epochs 294 to 313, as the trainer evaluates them."""
    from trpl.presets import preset
    from trpl.settings.config import Config

    config: Config = preset("kl", "HalfCheetah-v4").replace(eval_every=1000)
    assert config.num_epochs == 1465
    evaluated = [epoch for epoch in range(1, 1466) if config.evaluates(epoch)]
    assert evaluated == [*range(294, 314), 1000, *range(1446, 1466)]


def test_sparse_evaluations_still_fall_into_the_window(tmp_path):
    run = run_with_returns(tmp_path / "run", 0, 200, float, eval_every=8)
    np.testing.assert_array_equal(s.early_window(run), [48, 56])
    np.testing.assert_array_equal(s.final_window(run), [184, 192, 200])


def test_no_number_before_its_time(tmp_path):
    run = run_with_returns(tmp_path / "run", 0, 200, float, done=0.9)
    assert s.final_window(run) is None
    np.testing.assert_array_equal(s.early_window(run), np.arange(41, 61))
    young = run_with_returns(tmp_path / "young", 0, 200, float, done=0.29)
    assert s.early_window(young) is None
    short = run_with_returns(tmp_path / "short", 0, 10, float)
    assert s.final_window(short) is None


def test_score_is_over_seeds_with_the_pooled_interval_beside(tmp_path):
    """Seeds whose epochs are ±1 around 100 and 200: Student gives 150 ± 12.7 · 50, the pooled one is narrow."""
    runs = [run_with_returns(tmp_path / str(i), i, 200, lambda e, i=i: 100.0 * (i + 1) + (-1) ** e) for i in range(2)]
    found = s.group_scores(group_runs(runs)[0]).final
    assert found.estimate == pytest.approx((150, 150 - 12.7062 * 50, 150 + 12.7062 * 50), rel=1e-5)
    assert found.pooled == pytest.approx(1.959964 * np.sqrt(40 * (50**2 + 1) / 39) / np.sqrt(40), rel=1e-6)
    assert found.seeds == (0, 1)
    np.testing.assert_allclose(found.values, [100, 200])


def test_pooled_width_is_of_epoch_means(tmp_path):
    (group,) = group_runs([run_with_returns(tmp_path / "run", 0, 200, float)])
    found = s.group_scores(group).final
    assert found.pooled == pytest.approx(pooled_half_width(np.arange(181.0, 201.0)))
    assert np.isnan(found.estimate.low)


def test_same_steps_is_where_the_papers_fifth_was(tmp_path):
    (group,) = group_runs([run_with_returns(tmp_path / "run", 0, 489, float)])  # 1 M steps
    np.testing.assert_allclose(s.group_scores(group).same_steps.values, np.mean(np.arange(294, 314)))


def test_paper_table_is_that_of_the_paper():
    table = s.paper_table()
    assert len(table["results"]) == 9
    assert all(len(row) == 5 for row in table["results"].values())
    assert s.paper_result("kl", "HalfCheetah-v4") == {"early": [2369, 9], "final": [4255, 17]}
    assert s.paper_result("frobenius", "Hopper-v4") == {"early": [1646, 19], "final": [2578, 17]}
    assert s.paper_result("kl-e", "trpl/HumanoidPaper-v4") == {"early": [3801, 42], "final": [5430, 16]}
    assert s.paper_result("ppo", "Ant-v4") == {"early": [1657, 10], "final": [2852, 25]}
    assert s.paper_result("ppo", "HalfCheetah-v5") is None
    total = sum(cell[column][0] for row in table["results"].values() for cell in row.values() for column in cell)
    assert total == 249_409  # of all ninety means


def test_comparison_is_paired_where_seeds_match(tmp_path):
    write_runs(tmp_path, methods=("kl",), seeds=(0, 1, 2), num_epochs=40)
    write_runs(tmp_path, methods=("ppo",), seeds=(1, 2, 3), num_epochs=40)
    write_runs(tmp_path, methods=("w2",), seeds=(7, 8), num_epochs=40)
    scores = [s.group_scores(group) for group in group_runs(read_runs([tmp_path])[0])]
    by_name = {(pair.first.name, pair.second.name): pair for pair in s.comparisons(scores)}
    assert len(by_name) == 3
    paired, apart = by_name["KL", "PPO"], by_name["W2", "KL"]
    assert (paired.paired, paired.num_pairs) == (True, 2)
    assert (apart.paired, apart.num_pairs) == (False, 0)
    final = {entry.group.name: entry.final for entry in scores}
    expected = final["KL"].values[1:].mean() - final["PPO"].values[:2].mean()
    assert paired.difference.value == pytest.approx(expected)


def test_aggregate_takes_the_largest_block_without_gaps(tmp_path):
    tasks = ("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4")
    write_runs(tmp_path, methods=("kl", "ppo"), tasks=tasks, num_epochs=40)
    write_runs(tmp_path, methods=("w2",), tasks=tasks[:1], num_epochs=40)
    write_runs(tmp_path, methods=("papi",), tasks=("Hopper-v5",), num_epochs=40)
    scores = [s.group_scores(group) for group in group_runs(read_runs([tmp_path])[0])]
    found = s.aggregate(scores)
    assert found.tasks == tasks
    assert [entry.name for entry in found.methods] == ["KL", "PPO"]
    ppo = [entry.final.values for entry in scores if entry.group.method == "ppo"]
    unit = [2515, 3447, 2880]
    expected = np.mean([(values / one).mean() for values, one in zip(ppo, unit, strict=True)])
    assert found.methods[1].mean.value == pytest.approx(expected)
    assert found.methods[1].num_runs == 9
    assert s.aggregate([entry for entry in scores if entry.group.env_id == "Hopper-v5"]) is None
