"""Sweep and preset files, and the runs they stand for."""

import tomllib
from pathlib import Path

import pytest

from sweeping import plan_file
from trpl.errors import ConfigError
from trpl.methods import names
from trpl.presets import named_sweeps, preset
from trpl.sweeps.plan import (
    overrides_of,
    parse_seeds,
    planned_runs,
    preset_overrides,
    preset_text,
    read_plan,
)


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return str(path)


def test_every_method_task_and_seed_once(tmp_path):
    path = plan_file(tmp_path / "plan.toml", methods=("kl", "ppo"), tasks=("Hopper-v4", "Ant-v4"), seeds=[3, 5])
    runs = planned_runs(str(path))
    found = [(r.config.seed, r.config.env_id, r.config.method) for r in runs]
    wanted = [(s, t, m) for s in (3, 5) for t in ("Hopper-v4", "Ant-v4") for m in ("kl", "ppo")]
    assert found == wanted  # all of the first seed first
    assert runs[0].folder == Path("Hopper-v4/kl/seed-3")


def test_the_nearer_setting_is_stronger(tmp_path):
    text = """
        methods = ["kl", "ppo"]
        tasks = ["Hopper-v4", "Ant-v4"]
        [settings]
        discount = 0.1
        eval_episodes = 1
        gae_lambda = 0.1
        value_epochs = 1
        [task."Hopper-v4"]
        discount = 0.2
        gae_lambda = 0.2
        value_epochs = 2
        [method.kl]
        gae_lambda = 0.3
        value_epochs = 3
        [variant.long]
        value_epochs = 4
    """
    runs = planned_runs(toml(tmp_path, text), overrides={"eval_episodes": 7})
    by_kind = {(r.config.env_id, r.config.method): r.config for r in runs}
    kl, ppo = by_kind["Hopper-v4", "kl"], by_kind["Ant-v4", "ppo"]
    assert (kl.discount, kl.gae_lambda, kl.value_epochs, kl.eval_episodes) == (0.2, 0.3, 4, 7)
    assert (ppo.discount, ppo.gae_lambda, ppo.value_epochs, ppo.eval_episodes) == (0.1, 0.1, 4, 7)
    assert runs[0].folder == Path("Hopper-v4/kl/long/seed-0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = ["kl"]', "method must be tables"),
        ("sedds = 1", "did you mean 'seeds'"),
        ("total_steps = 5", r"put it under \[settings\]"),
        ("seed = 3", "did you mean 'seeds'"),
        ("[settings]\nlearning_rat = 1", "did you mean 'learning_rate'"),
        ("[settings]\nseed = 1", "use methods, tasks and seeds"),
        ('methods = ["k1"]\ntasks = ["A"]', "no method 'k1'"),
        ("[method.ppoo]\nratio_clip = 1", "did you mean 'ppo'"),
        ("seeds = 0", "seeds must be a number of seeds"),
        ('methods = ["kl"]', "has no tasks"),
        (
            'methods = ["ppo"]\ntasks = ["Ant-v4"]\n[settings]\nmean_bound = 0.1',
            r"plan.toml, ppo Ant-v4: mean_bound does not apply to method 'ppo'",
        ),
        (
            'methods = ["kl"]\ntasks = ["Ant-v4"]\n[method.ppo]\nratio_clip = 0.3',
            r"\[method.ppo\] has no run: 'ppo' is not",
        ),
        ('methods = ["kl"]\ntasks = ["Ant-v4"]\n[task.Ant-v3]\ndiscount = 0.5', "not in tasks; did you mean"),
        ('methods = ["kl", "kl"]\ntasks = ["Ant-v4"]', "two runs are the same"),
        ('[variant."a/b"]\ndiscount = 0.5', "cannot name a folder"),
        ("methods = [", "is not TOML"),
    ],
)
def test_what_a_file_cannot_say(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        planned_runs(toml(tmp_path, text))


def test_files_of_windows(tmp_path):
    """With its line endings, and the mark that Notepad puts at the beginning."""
    path = tmp_path / "plan.toml"
    path.write_bytes(b'\xef\xbb\xbfmethods = ["kl"]\r\ntasks = ["Ant-v4"]\r\n[settings]\r\ndiscount = 0.5\r\n')
    assert [run.config.discount for run in planned_runs(path)] == [0.5]


def test_unknown_sweep_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mujoco'"):
        planned_runs("mujocco")


@pytest.mark.parametrize("name", named_sweeps())
def test_named_sweeps_have_a_folder_per_run(name):
    runs = planned_runs(name, seeds=(0, 1), overrides={"total_steps": 1000})
    assert len({run.folder for run in runs}) == len(runs) == 2 * len(named_sweeps()[name].configs)
    assert all(run.config.total_steps == 1000 for run in runs)


def test_variants_of_a_named_sweep_are_named_by_what_differs():
    folders = {str(run.folder) for run in planned_runs("alpha")}
    assert "Ant-v4/w2/regression=penalty,regression_weight=0.5/seed-0" in folders
    assert "Ant-v4/w2/regression=full,regression_weight=0,regression_epochs=10/seed-0" in folders


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"contextual": True, "cov_bound": 5e-5},  # contextual brings another cov_bound, which has to be set back
        {"entropy_schedule": "linear", "target_entropy": -1.0, "entropy_equality": True},
        {"regression": "full", "regression_weight": 0.0, "regression_epochs": 3, "seed": 4, "source": "here"},
    ],
)
def test_overrides_lead_back_to_the_configuration(changes):
    config = preset("kl", "trpl/Reacher5Sparse-v0").replace(**changes)
    assert preset("kl", "trpl/Reacher5Sparse-v0", **overrides_of(config)) == config


@pytest.mark.parametrize("method", names())
def test_a_written_preset_reads_back(tmp_path, method):
    base = preset(method, "Hopper-v4")
    config = base.replace(hidden_sizes=(32, 16), learning_rate_vf=1e-5, gradient_clip=0.5, source='tuned, "so to say"')
    if method == "ppo":
        config = config.replace(value_clip=None)  # on in the preset
    path = toml(tmp_path, preset_text(config, base=base, comment="a line\nanother"))
    assert preset(method, "Hopper-v4", **preset_overrides(path, method, "Hopper-v4")) == config
    assert planned_runs(path)[0].config == config
    assert tomllib.loads(Path(path).read_text())["methods"] == [method]


def test_a_preset_file_for_another_method_is_refused(tmp_path):
    path = toml(tmp_path, 'methods = ["kl"]\n[method.kl]\nmean_bound = 0.1')
    with pytest.raises(ConfigError, match="is for kl, not for ppo"):
        preset_overrides(path, "ppo", "Hopper-v4")
    assert read_plan(path).seeds == (0,)


def test_seeds():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("3,7") == (3, 7)
    assert parse_seeds("5:8") == (5, 6, 7)
    for wrong in ("0", "a", "3,3", "-1", "8:5", "1:2:3"):
        with pytest.raises(ConfigError, match="seeds"):
            parse_seeds(wrong)
