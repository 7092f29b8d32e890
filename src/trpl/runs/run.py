"""Training and resuming of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trpl.errors import ConfigError, RunError
from trpl.messages import needs
from trpl.runs.folder import is_run, locked, place_of, read_config, write_config
from trpl.settings.config import WITHOUT_EFFECT, Config

with needs("train"):
    from trpl.runs.progress import Progress
    from trpl.runs.resuming import resume_command
    from trpl.runs.trainer import Callback, RunResult, Trainer

__all__ = ["RunResult", "resume", "train"]


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    progress: bool = True,
    tracker: Any = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Train from the start in a new folder.

    Args:
        config: The settings, from `trpl.presets.preset`.
        out: The run folder, which must not hold a run yet; runs/<env>/<method>/seed-<n> by default.
        progress: Whether to show progress on standard error.
        tracker: `tracker(folder=..., config=...)` returns a context manager of a function of steps and scalars.
        callbacks: Functions of steps and scalars, called after every epoch; one that returns False ends the run there,
            saved and ready to be resumed.

    Returns:
        The run folder and how the run ended.

    Raises:
        RunError: The folder already holds a run, or training diverged.
        FaultyEnvironmentError: The environment raised, hung, or returned a non-finite number.
    """
    folder = Path("runs", place_of(config)) if out is None else Path(out)
    refuse_existing(folder, env_id=config.env_id)
    with Trainer(config, folder) as trainer:  # first, so that a run that cannot start leaves no folder behind
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            refuse_existing(folder, env_id=config.env_id)
            write_config(folder, config)
            return trainer.run(Progress.of(config, enabled=progress), tracker, callbacks)


def resume(
    out: str | Path,
    *,
    progress: bool = True,
    tracker: Any = None,
    callbacks: Sequence[Callback] = (),
    total_steps: int | None = None,
    other_versions: bool = False,
    **changes: Any,
) -> RunResult:
    """Resume a run from its newest sound checkpoint, or from its start without one.

    Args:
        out: The run folder.
        progress: See `train`.
        tracker: See `train`.
        callbacks: See `train`.
        total_steps: A new number of steps, in the place of `stop_after` too. Schedules over the run (learning rates,
            entropy) span the new number from here on.
        other_versions: Resume although library versions differ from those the run was computed with.
        **changes: Settings without effect on results (`WITHOUT_EFFECT`), for this session.

    Returns:
        The run folder and how the run ended.

    Raises:
        RunError: It is not a run, it is in use, or library versions differ.
    """
    folder = Path(out)
    if unknown := set(changes).difference(WITHOUT_EFFECT):
        raise ConfigError(f"{', '.join(sorted(unknown))} cannot change when a run is resumed")
    config = read_config(folder).replace(**changes)
    config = config if total_steps is None else config.replace(total_steps=total_steps, stop_after=None)
    with locked(folder), Trainer(config, folder) as trainer:
        trainer.restore(other_versions=other_versions)
        return trainer.run(Progress.of(config, enabled=progress), tracker, callbacks)


def refuse_existing(folder: Path, *, env_id: str) -> None:
    """Refuse a folder that holds a run."""
    if is_run(folder):
        raise RunError(
            f"{folder} already holds a run: continue it with `{resume_command(folder, env_id=env_id)}`, or name another"
            " with --out (out= in Python)"
        )
