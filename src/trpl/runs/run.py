"""Train a policy, and go on with a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trpl.errors import ConfigError, RunError
from trpl.runs.folder import default_folder, is_run, locked, read_config, write_config
from trpl.runs.progress import Progress
from trpl.runs.trainer import Callback, RunResult, Trainer
from trpl.settings.config import WITHOUT_EFFECT, Config

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
        config: The settings, as `trpl.presets.preset` gives them.
        out: The run folder, which must not hold a run yet; runs/<env>/<method>/seed-<n> by default.
        progress: Whether to show progress on standard error.
        tracker: `tracker(folder=..., config=...)` is a context whose function gets steps and scalars of every epoch.
        callbacks: Functions of steps and scalars, called after every epoch; one that returns False ends the run there,
            saved, to be resumed.

    Returns:
        Where the run is and how it ended.

    Raises:
        RunError: The folder holds a run already, or training broke down.
        FaultyEnvironmentError: The environment raised, hung, or returned something that is not a number.
    """
    folder = Path(out) if out is not None else default_folder(config)
    refuse_existing(folder)
    with Trainer(config, folder) as trainer:  # made first: what cannot be trained leaves no folder behind
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            refuse_existing(folder)
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
    """Go on from the newest sound checkpoint of a run, or from its start where there is none yet.

    Args:
        out: The run folder.
        progress: As in `train`; `tracker` and `callbacks` too.
        tracker: See `train`.
        callbacks: See `train`.
        total_steps: Go on to this many steps instead of the run's own number. What is scheduled over the run (learning
            rates, entropy) is from here on scheduled over the new number.
        other_versions: Go on although libraries have other versions than the run was computed with.
        **changes: Settings that change nothing of the result (`WITHOUT_EFFECT`), for this session.

    Returns:
        Where the run is and how it ended.

    Raises:
        RunError: It is not a run, it is in use, or libraries have other versions.
    """
    folder = Path(out)
    if unknown := set(changes).difference(WITHOUT_EFFECT):
        raise ConfigError(f"{', '.join(sorted(unknown))} cannot change in the middle of a run")
    config = read_config(folder).replace(**changes)
    config = config if total_steps is None else config.replace(total_steps=total_steps)
    with locked(folder), Trainer(config, folder) as trainer:
        trainer.restore(other_versions=other_versions)
        return trainer.run(Progress.of(config, enabled=progress), tracker, callbacks)


def refuse_existing(folder: Path) -> None:
    """Refuse a folder that holds a run."""
    if is_run(folder):
        raise RunError(f"{folder} already holds a run: go on with `trpl resume {folder}`, or choose another folder")
