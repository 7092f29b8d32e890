"""Training from Python: `trpl.train` and `trpl.load`, for scripts and notebooks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trpl.errors import ConfigError
from trpl.messages import needs

with needs("train"):
    from trpl.policies import Policy, load_policy
    from trpl.policies.storage import BEST
    from trpl.presets import preset
    from trpl.reports.curve import curve_figure
    from trpl.rollouts import Evaluation, is_local, register_local
    from trpl.runs import records
    from trpl.runs.evaluate import evaluate_run
    from trpl.runs.folder import METRICS, is_run, locate, read_config
    from trpl.runs.run import RunResult
    from trpl.runs.run import resume as resume_run
    from trpl.runs.run import train as train_run
    from trpl.runs.trainer import final_return
    from trpl.settings import Config

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Run:
    """A run: its folder, policy and records. A notebook shows it as its learning curve.

    Args:
        folder: The run folder.
        checkpoint: The checkpoint for `policy` and `evaluate`; None is the newest.
    """

    folder: Path
    checkpoint: Path | None = None

    @property
    def config(self) -> Config:
        """The run's settings."""
        return read_config(self.folder)

    @property
    def policy(self) -> Policy:
        """The trained policy: `action = run.policy(observation)`."""
        return load_policy(self.checkpoint or self.folder)

    @property
    def best(self) -> Run:
        """The same run with the policy that had the best evaluation."""
        return load(self.folder / BEST)

    @property
    def final_return(self) -> float | None:
        """Mean return over the last 20 evaluations, None without any."""
        return final_return(self.folder)

    def table(self) -> dict[str, np.ndarray]:
        """Return a column of numbers per metric, a row per epoch.

        Returns:
            Columns by name; `pandas.DataFrame(run.table())` is a data frame. Missing values are NaN.
        """
        import numpy as np

        rows = records.read(self.folder, METRICS)
        returns = records.mean_returns(self.folder)
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: np.array([row.get(name) for row in rows], dtype=float) for name in names}
        columns["evaluation_return"] = np.array([returns.get(row["epoch"], np.nan) for row in rows])
        return {name: column for name, column in columns.items() if not np.isnan(column).all()}

    def plot(self) -> Figure:
        """Draw return and KL over environment steps.

        Returns:
            The figure.
        """
        return curve_figure(self.folder)

    def evaluate(self, *, episodes: int | None = None, seed: int | None = None) -> Evaluation:
        """Run noise-free episodes of its policy.

        Args:
            episodes: How many; as many as in training by default.
            seed: A seed for other initial states than those of training.

        Returns:
            The return and the length of each episode.
        """
        return evaluate_run(self.checkpoint or self.folder, num_episodes=episodes, seed=seed)

    def resume(self, *, steps: int | None = None, **options: Any) -> Run:
        """Resume the run.

        Args:
            steps: A new total number of environment steps, to train for longer.
            **options: Those of `trpl.runs.run.resume`, `callbacks` for example.

        Returns:
            The resumed run.
        """
        if steps is not None:
            options["total_steps"] = steps
        return _ended(resume_run(self.folder, **options))

    def _repr_png_(self) -> bytes:
        import io

        file = io.BytesIO()
        self.plot().savefig(file, format="png", dpi=100)
        return file.getvalue()


def train(
    method: str,
    env: Any,
    *,
    steps: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    callbacks: Sequence[Callable[[int, Any], object]] = (),
    **settings: Any,
) -> Run:
    """Train a policy.

    Args:
        method: The name of a method, for example "kl" or "ppo".
        env: An environment's Gymnasium name, a callable that makes one, or an environment, which is copied.
        steps: Environment steps; the preset's number by default.
        out: The run folder, which must not hold a run yet; runs/<env>/<method>/seed-<n> by default.
        progress: Whether to show progress on standard error.
        callbacks: Functions of the steps so far and the epoch's scalars; one that returns False ends the run there.
        **settings: Any setting by name: `seed`, `mean_bound`, `env_kwargs`, ...

    Returns:
        The run.

    Raises:
        ConfigError: There is no such method or setting, or a value is out of range.
        RunError: The folder already holds a run, or training diverged.
        UnknownEnvironmentError, UnsupportedSpaceError, FaultyEnvironmentError: The environment cannot be trained on.
        KeyboardInterrupt: Ctrl-C ended the run, after its epoch was saved; `trpl.load(out).resume()` continues it.

    Examples:
        ```python
        run = trpl.train("kl", "Pendulum-v1", steps=50_000, seed=1)
        run.plot(), run.table(), run.policy(observation)
        ```
    """
    if callable(callbacks):
        raise TypeError("callbacks must be a list of functions, not one function: callbacks=[function]")
    env_id = env if isinstance(env, str) else register_local(env)
    given = settings if steps is None else settings | {"total_steps": steps}
    config = preset(method, env_id, **given)
    return _ended(train_run(config, out, progress=progress, callbacks=callbacks))


def load(path: str | Path, *, env: Any = None) -> Run:
    """Open an existing run.

    Args:
        path: A run folder, one of its checkpoint folders, or RUN/best.
        env: The environment, for a run that another process trained on an environment given as an object or a callable:
            to resume or evaluate that run here, hand the environment over again.

    Returns:
        The run; given a checkpoint, with that checkpoint's policy.

    Raises:
        ConfigError: `env` is given for a run whose environment is known by its name.
        RunError: The path is not in a run.
        CheckpointError: The checkpoint is damaged.

    Examples:
        ```python
        run = trpl.load("runs/Hopper-v4/kl/seed-0")
        run.plot()
        action = run.best.policy(observation)
        ```
    """
    folder, checkpoint = (Path(path), None) if is_run(Path(path)) else locate(path)
    if env is not None:
        if not is_local(env_id := read_config(folder).env_id):
            raise ConfigError(f"{folder} was trained on {env_id} by its name: load it without env")
        register_local(env, env_id=env_id)
    return Run(folder, checkpoint)


def _ended(result: RunResult) -> Run:
    """Return the run; after Ctrl-C or SIGTERM pass the signal on first, so that a loop over runs ends too."""
    if result.signal is not None:
        signal.raise_signal(result.signal)
    return Run(result.folder)
