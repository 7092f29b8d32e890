"""rl_zoo3 with TRPL: its own commands, and hyperparameters that TRPL takes."""

import argparse
import contextlib
import inspect
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytest.importorskip("rl_zoo3", reason="rl_zoo3 is not installed: pip install trpl[rl-zoo3]")

from installing import build
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
    assert "import custom_envs" in inspect.getsource(rl_zoo3.import_envs)
    assert "hyperparams/{self.algo}.yml" in inspect.getsource(rl_zoo3.exp_manager.ExperimentManager)
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
    ("algo", "config", "own"),
    [
        ("trpl", None, True),
        ("trpl", "mine.yml", False),
        ("trpl", "/none/hyperparams/ppo.yml", False),
        ("ppo", None, False),
    ],
)
def test_which_hyperparameters_are_read(algo, config, own, tmp_path, monkeypatch):
    """trpl's, unless a file is named or rl_zoo3 brings one of its own; called twice, `register` wraps once."""
    from rl_zoo3.exp_manager import ExperimentManager

    monkeypatch.chdir(tmp_path)
    zoo.register()
    zoo.register()
    assert not hasattr(ExperimentManager.read_hyperparameters.__wrapped__, "__wrapped__")
    manager = ExperimentManager(argparse.Namespace(), algo, "Pendulum-v1", "logs", config=config)
    with contextlib.suppress(FileNotFoundError):
        manager.read_hyperparameters()
    assert (manager.config == str(zoo.HYPERPARAMETERS)) is own


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


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment in which trpl's wheel is installed, beside what this one finds."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = build(folder / "wheel", "--wheel", source=ROOT)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    others = [str(Path(zoo.rl_zoo3.__file__).parents[1]), sysconfig.get_path("purelib")]
    (site / "others.pth").write_text("\n".join(others))
    return str(folder / "venv" / "bin" / "python")


def run(python, folder, *words):
    variables = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-W", "ignore", *words], capture_output=True, text=True, timeout=300, cwd=folder, env=variables
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TRAIN = ["-m", "rl_zoo3.train", "--algo", "trpl", "--env", "Pendulum-v1", "-n", "1024", "--eval-freq", "-1"]


@pytest.mark.slow
def test_rl_zoo3s_own_commands(python, tmp_path):
    """From any folder, with nothing but the wheel: TRPL is known, with its hyperparameters, and `enjoy` plays it."""
    said = run(python, tmp_path, *TRAIN, "--seed", "0")
    assert "Loading hyperparameters from" in said
    assert str(Path("trpl", "integrations", "rl_zoo3.yml")) in said
    assert TRPL.load(tmp_path / "logs" / "trpl" / "Pendulum-v1_1" / "Pendulum-v1.zip").cov_bound == 3e-3
    play = ["-m", "rl_zoo3.enjoy", "--algo", "trpl", "--env", "Pendulum-v1", "-f", "logs", "--no-render", "-n", "200"]
    assert "Mean reward" in run(python, tmp_path, *play)


@pytest.mark.slow
def test_a_module_of_the_users_comes_first(python, tmp_path):
    (tmp_path / "custom_envs.py").write_text(
        "from trpl.integrations.rl_zoo3 import register\n\nregister()\nprint('mine')\n"
    )
    said = run(python, tmp_path, *TRAIN)
    assert "mine" in said
    assert str(Path("trpl", "integrations", "rl_zoo3.yml")) in said


@pytest.mark.slow
def test_a_folder_of_the_users_stays_importable(python, tmp_path):
    """A namespace package is found after every module of its name, so ours must hand on to it."""
    (tmp_path / "custom_envs").mkdir()
    (tmp_path / "custom_envs" / "maze.py").write_text("print('maze')")
    assert run(python, tmp_path, "-c", "import custom_envs.maze") == "maze\n"


@pytest.mark.slow
def test_what_others_pay(python, tmp_path):
    """Without rl_zoo3 the module does nothing, and nothing of trpl is imported at the start."""
    code = "import sys; print(sorted(name for name in sys.modules if 'trpl' in name)); import custom_envs; "
    code += "print('torch' in sys.modules, 'trpl' in sys.modules)"
    assert run(python, tmp_path, "-c", code) == "[]\nFalse False\n"
