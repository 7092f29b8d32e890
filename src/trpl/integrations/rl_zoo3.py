"""rl_zoo3: `TRPL` among its algorithms, with hyperparameters of its own.

    python -m trpl.integrations.rl_zoo3 train --algo trpl --env Pendulum-v1
    python -m trpl.integrations.rl_zoo3 enjoy --algo trpl --env Pendulum-v1 --folder logs

rl_zoo3 checks the name of an algorithm before it imports what an option names, so its own `python -m rl_zoo3.train`
knows TRPL only in a process that has called `register`. A module `custom_envs`, if there is one, is imported before
that check and may call it. `--conf-file trpl.integrations.rl_zoo3` then names the hyperparameters.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import numpy as np

from trpl.messages import needs

with needs("rl-zoo3"):
    import gymnasium
    import rl_zoo3
    import yaml

    from trpl.integrations.sb3 import TRPL

NAME = "trpl"
HYPERPARAMETERS = Path(__file__).with_name("rl_zoo3.yml")
WIDEST = 1e6
COMMANDS = {
    "train": "rl_zoo3.train",
    "enjoy": "rl_zoo3.enjoy",
    "plot_train": "rl_zoo3.plots.plot_train",
    "plot_from_file": "rl_zoo3.plots.plot_from_file",
    "all_plots": "rl_zoo3.plots.all_plots",
}
"""The modules of rl_zoo3's commands. Its `rl_zoo3.cli` imports all of them, and those that plot need packages that
rl_zoo3 does not install."""
hyperparams = yaml.safe_load(HYPERPARAMETERS.read_text())
"""Hyperparameters by task, under the name that rl_zoo3 reads from a module given by `--conf-file`."""


class Unclipped(gymnasium.ActionWrapper):
    """Pass actions unclipped to the environment, by widening the action space to which Stable-Baselines3 clips them.

    If an environment penalises large actions, clipping hides the noise beyond the space from the penalty, and the
    policy keeps it.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Box(-WIDEST, WIDEST, env.action_space.shape, np.float32)

    def action(self, action: np.ndarray) -> np.ndarray:
        """Return the action unchanged."""
        return action


def register() -> None:
    """Add TRPL to rl_zoo3's algorithms."""
    rl_zoo3.ALGOS[NAME] = TRPL


def main(argv: list[str]) -> None:
    """Run one of rl_zoo3's commands with TRPL among its algorithms.

    Args:
        argv: The command and its options; `train --algo trpl` uses trpl's hyperparameters unless `-conf` names
            others.
    """
    if not argv or argv[0] not in COMMANDS:
        raise SystemExit(f"name one of rl_zoo3's commands first: {', '.join(COMMANDS)}")
    register()
    command, *options = with_hyperparameters(argv)
    sys.argv = [f"trpl.integrations.rl_zoo3 {command}", *options]
    try:
        module = importlib.import_module(COMMANDS[command])
    except ModuleNotFoundError as error:
        raise SystemExit(f'{command} needs the package {error.name!r}: pip install "rl-zoo3[plots]"') from error
    getattr(module, command)()


def with_hyperparameters(argv: list[str]) -> list[str]:
    """Add the file of hyperparameters if TRPL is to be trained and no other file is named."""
    words = [part for word in argv for part in word.split("=", 1)]
    named = {"-conf", "--conf-file"} & set(words)
    trains = argv[:1] == ["train"] and ("--algo", NAME) in itertools.pairwise(words)
    return [*argv, "--conf-file", str(HYPERPARAMETERS)] if trains and not named else argv


if __name__ == "__main__":
    main(sys.argv[1:])
