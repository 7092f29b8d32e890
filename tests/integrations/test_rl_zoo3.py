"""rl_zoo3 with TRPL: its own commands, and hyperparameters that TRPL takes."""

import inspect
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytest.importorskip("rl_zoo3", reason="rl_zoo3 is not installed: pip install trpl[rl-zoo3]")

from trpl.integrations import rl_zoo3 as zoo
from trpl.integrations.sb3 import TRPL
from trpl.presets import preset

ROOT = Path(__file__).parents[2]
OF_THE_ZOO = {"n_timesteps", "normalize", "n_envs", "env_wrapper", "policy"}
SAME_NAMES = {"n_steps": "rollout_size", "batch_size": "minibatch_size", "n_epochs": "policy_epochs"}


def test_the_seam():
    """What the adapter relies on in rl_zoo3; where this fails, rl_zoo3 has moved."""
    version = metadata.version("rl_zoo3")
    assert version.startswith("2."), f"rl_zoo3 {version} was never tried with trpl"
    import rl_zoo3.train

    assert isinstance(rl_zoo3.ALGOS, dict)
    assert "--conf-file" in inspect.getsource(rl_zoo3.train)
    of_the_host = (Path(rl_zoo3.__file__).parent / "cli.py").read_text()
    for command, module in zoo.COMMANDS.items():
        assert f'"{command}": {command}' in of_the_host, f"rl_zoo3 {version} has another list of commands"
        path = Path(rl_zoo3.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
        assert f"def {command}(" in path.read_text()


def test_a_command_that_is_none_is_refused_with_their_names():
    with pytest.raises(SystemExit, match="train, enjoy, plot_train"):
        zoo.main(["evaluate"])


def test_a_package_that_a_command_misses_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "seaborn", None)
    for name in [name for name in sys.modules if name.startswith("rl_zoo3.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytablewriter", sys)
    with pytest.raises(SystemExit, match=r"needs the package 'seaborn': pip install \"rl-zoo3\[plots\]\""):
        zoo.main(["plot_train"])


def test_every_hyperparameter_is_one_of_trpls():
    known = set(inspect.signature(TRPL.__init__).parameters)
    for task, settings in zoo.hyperparams.items():
        assert set(settings) - OF_THE_ZOO <= known, task


def test_the_tasks_of_our_results_are_there():
    sweeps = (tomllib.loads(path.read_text()) for path in (ROOT / "results").glob("*.toml"))
    assert {task for sweep in sweeps for task in sweep["tasks"]} <= set(zoo.hyperparams)


@pytest.mark.parametrize(
    "task", ["HalfCheetah-v4", "Humanoid-v4", "trpl/Reacher5Sparse-v0", "trpl/EpisodicReacher5-v0"]
)
def test_they_are_the_presets(task):
    """As `trpl train kl TASK` has them."""
    settings, wanted = zoo.hyperparams[task], preset("kl", task)
    defaults = {name: p.default for name, p in inspect.signature(TRPL.__init__).parameters.items()}
    for name in (*SAME_NAMES, "learning_rate", "learning_rate_vf", "mean_bound", "cov_bound"):
        found = settings.get(name, defaults[name])
        assert found == pytest.approx(getattr(wanted, SAME_NAMES.get(name, name))), name


@pytest.mark.parametrize(
    ("argv", "added"),
    [
        (["train", "--algo", "trpl", "--env", "A-v0"], True),
        (["train", "--algo=trpl"], True),
        (["train", "--algo", "ppo", "-f", "trpl"], False),
        (["train", "--algo", "trpl", "-conf", "mine.yml"], False),
        (["train", "--algo", "trpl", "--conf-file=mine.yml"], False),
        (["enjoy", "--algo", "trpl"], False),
    ],
)
def test_when_the_hyperparameters_are_named(argv, added):
    assert (zoo.with_hyperparameters(argv) != argv) is added


def test_actions_reach_the_environment_as_they_are():
    env = zoo.Unclipped(gymnasium.make("Pendulum-v1"))
    env.reset(seed=0)
    assert env.action_space.contains(np.array([30.0], np.float32))
    _, _, _, _, _ = env.step(np.array([30.0], np.float32))
    assert env.unwrapped.last_u == 2.0  # the pendulum clips by itself


@pytest.mark.slow
def test_its_command_trains(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "trpl.integrations.rl_zoo3", "train", "--algo", "trpl"]
    command += ["--env", "Pendulum-v1", "-n", "8192", "--eval-freq", "-1", "-f", str(tmp_path), "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "kl_max" in done.stdout  # of the first update, with the second rollout
    saved = tmp_path / "trpl" / "Pendulum-v1_1"
    assert TRPL.load(saved / "Pendulum-v1.zip").cov_bound == 3e-3


@pytest.mark.slow
def test_rl_zoo3s_own_command_with_a_module_of_the_users(tmp_path):
    """rl_zoo3 imports `custom_envs` before it reads its options, and takes hyperparameters from a module."""
    (tmp_path / "custom_envs.py").write_text("from trpl.integrations.rl_zoo3 import register\n\nregister()\n")
    command = [sys.executable, "-W", "ignore", "-m", "rl_zoo3.train", "--algo", "trpl", "--env", "Pendulum-v1"]
    command += ["--conf-file", "trpl.integrations.rl_zoo3", "-n", "1024", "--eval-freq", "-1", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert TRPL.load(tmp_path / "logs" / "trpl" / "Pendulum-v1_1" / "Pendulum-v1.zip").cov_bound == 3e-3
