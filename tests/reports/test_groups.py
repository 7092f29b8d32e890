import pytest
from synthetic_runs import run_config, write_run, write_runs

from trpl.errors import RecordError
from trpl.reports.groups import group_runs
from trpl.reports.reading import read_run, read_runs


def runs_of(tmp_path, *configs, **options):
    return [read_run(write_run(tmp_path / str(i), config, **options)) for i, config in enumerate(configs)]


def test_groups_stand_in_the_order_of_the_paper(tmp_path):
    methods, tasks = ("kl-e", "ppo", "trpo", "kl", "frobenius"), ("Walker2d-v4", "Hopper-v4")
    runs, _ = read_runs([write_runs(tmp_path, methods=methods, tasks=tasks, num_epochs=2)])
    groups = group_runs(runs)
    assert [group.name for group in groups[:5]] == ["FROB", "KL", "PPO", "KL-E", "TRPO"]
    assert [group.env_id for group in groups[::5]] == ["Hopper-v4", "Walker2d-v4"]
    assert [run.seed for run in groups[0].runs] == [0, 1, 2]


def test_unlike_configurations_are_refused_by_name(tmp_path):
    first = run_config("kl", "Hopper-v4", 0, 4)
    runs = runs_of(tmp_path, first, run_config("kl", "Hopper-v4", 1, 4, learning_rate=1e-4, hidden_sizes=[32]))
    with pytest.raises(RecordError) as caught:
        group_runs(runs)
    message = str(caught.value)
    assert "kl on Hopper-v4" in message
    assert "learning_rate is 5e-05 and 0.0001" in message
    assert "hidden_sizes is [64, 64] and [32]" in message
    assert str(tmp_path / "0") in message
    assert str(tmp_path / "1") in message


def test_a_setting_only_one_run_has_is_a_difference(tmp_path):
    runs = runs_of(tmp_path, run_config("kl", "Hopper-v4", 0, 4), run_config("kl", "Hopper-v4", 1, 4, whitened=True))
    with pytest.raises(RecordError, match="whitened is None and True"):
        group_runs(runs)


def test_records_from_before_a_setting_existed_have_its_default(tmp_path):
    newer = run_config("kl", "Hopper-v4", 1, 4, env_kwargs={}, action_units="raw")
    (group,) = group_runs(runs_of(tmp_path, run_config("kl", "Hopper-v4", 0, 4), newer))
    assert len(group.runs) == 2


def test_seed_and_machine_do_not_count(tmp_path):
    other = run_config("kl", "Hopper-v4", 1, 4, source="elsewhere", checkpoint_every=5)
    (group,) = group_runs(runs_of(tmp_path, run_config("kl", "Hopper-v4", 0, 4), other))
    assert len(group.runs) == 2


def test_variants_are_told_apart_by_a_setting(tmp_path):
    configs = [run_config("w2", "Ant-v4", 0, 4, regression_weight=w) for w in (8.0, 0.5, 32.0)]
    groups = group_runs(runs_of(tmp_path, *configs), by=("regression_weight",))
    assert [g.name for g in groups] == [f"W2 (regression_weight={w})" for w in (0.5, 8.0, 32.0)]
    with pytest.raises(RecordError, match="no setting 'alpha'"):
        group_runs(runs_of(tmp_path / "more", configs[0]), by=("alpha",))


def test_a_variant_without_a_value_has_a_word_for_it(tmp_path):
    configs = [run_config("kl", "Ant-v4", 0, 4, warm_start=start) for start in ("", "runs/other")]
    groups = group_runs(runs_of(tmp_path, *configs), by=("warm_start",))
    assert [group.name for group in groups] == ["KL (warm_start=none)", "KL (warm_start=runs/other)"]


def test_the_releases_switches_tell_apart_by_one_word(tmp_path):
    switches = dict.fromkeys(("released_variance", "released_evaluation"), True) | {"released_penalty": None}
    configs = [run_config("kl", "Ant-v4", 0, 4, **given) for given in ({}, switches)]
    groups = group_runs(runs_of(tmp_path, *configs), by=("as_released",))
    assert [group.name for group in groups] == ["KL", "KL (as released)"]


def test_the_same_seed_twice_is_refused(tmp_path):
    with pytest.raises(RecordError, match="seed 3 occurs twice"):
        group_runs(runs_of(tmp_path, *[run_config("kl", "Hopper-v4", 3, 4)] * 2))


def test_unfinished_runs_are_left_out_once_one_has_ended(tmp_path):
    half = read_run(write_run(tmp_path / "half", run_config("kl", "Hopper-v4", 0, 40), done=0.5))
    whole = read_run(write_run(tmp_path / "whole", run_config("kl", "Hopper-v4", 1, 40)))
    (group,) = group_runs([half, whole])
    assert (group.runs, group.unfinished, group.finished) == ((whole,), (half,), True)
    (alone,) = group_runs([half])
    assert (alone.runs, alone.unfinished, alone.finished) == ((half,), (), False)
