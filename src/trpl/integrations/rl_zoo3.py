"""rl_zoo3: `TRPL` among its algorithms, with hyperparameters of its own.

    python -m rl_zoo3.train --algo trpl --env Pendulum-v1
    python -m rl_zoo3.enjoy --algo trpl --env Pendulum-v1 --folder logs

rl_zoo3 has no registry of plugins. Before it checks the name of an algorithm it imports a module `custom_envs`, if
there is one. The one that comes with trpl (`rl_zoo3_plugin`) calls `register`; a `custom_envs` of your own comes first,
and must call it itself. `python -m trpl.integrations.rl_zoo3 train` does not depend on either.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

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
    """Add TRPL to rl_zoo3's algorithms, with trpl's hyperparameters where no file of others is named."""
    rl_zoo3.ALGOS[NAME] = TRPL  # pyright: ignore[reportAttributeAccessIssue] - without rl_zoo3 it finds this file
    module = importlib.import_module("rl_zoo3.exp_manager")
    manager = getattr(module, "ExperimentManager", None)  # None: called while that module is being imported
    if manager is not None and not hasattr(manager.read_hyperparameters, "__wrapped__"):
        manager.read_hyperparameters = _with_own_file(manager.read_hyperparameters)


def _with_own_file(read: Any) -> Any:
    """Let rl_zoo3 read trpl's file in the place of `hyperparams/trpl.yml` in its own folder, which is not there."""

    @functools.wraps(read)
    def read_hyperparameters(self: Any) -> Any:
        missing = Path(self.config).parts[-2:] == ("hyperparams", f"{NAME}.yml") and not Path(self.config).exists()
        if self.algo == NAME and missing:
            self.config = str(HYPERPARAMETERS)
        return read(self)

    return read_hyperparameters


def main(argv: list[str]) -> None:
    """Run one of rl_zoo3's commands with TRPL among its algorithms.

    Args:
        argv: The command and its options; `train --algo trpl` uses trpl's hyperparameters unless `-conf` names
            others.

    Raises:
        SystemExit: If the command does not exist, or needs a package that is not installed.
    """
    if not argv or argv[0] not in COMMANDS:
        raise SystemExit(f"name one of rl_zoo3's commands first: {', '.join(COMMANDS)}")
    register()
    command, *options = argv
    sys.argv = [f"trpl.integrations.rl_zoo3 {command}", *options]
    try:
        module = importlib.import_module(COMMANDS[command])
    except ModuleNotFoundError as error:
        raise SystemExit(f'{command} needs the package {error.name!r}: pip install "rl-zoo3[plots]"') from error
    getattr(module, command)()


if __name__ == "__main__":
    main(sys.argv[1:])
