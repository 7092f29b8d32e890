"""Weights & Biases and MLflow: one function for metrics, offline unless their own settings say otherwise.

    with tracker("wandb", folder=run, config=settings) as track:
        track(steps, {"train_return": 12.0})

Records are in the run folder (`wandb/`, `mlflow.db`); `wandb sync` and `mlflow ui` read them. A resumed run keeps its
identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trpl.messages import needs

Track = Callable[[int, Mapping[str, float | None]], None]


@contextlib.contextmanager
def tracker(kind: str, *, folder: str | Path, config: Mapping[str, Any]) -> Iterator[Track]:
    """Record a run with Weights & Biases or MLflow inside a context.

    Both stay offline unless the environment says otherwise: `WANDB_MODE=online`, `MLFLOW_TRACKING_URI=…`.

    Args:
        kind: "wandb" or "mlflow".
        folder: The run folder; the files of the tracker go there too.
        config: The settings of the run.

    Yields:
        A function of environment steps and scalars; None and non-finite values are left out.

    Raises:
        ValueError: There is no such kind.
        MissingExtraError: The package is not installed.
    """
    if kind not in TRACKERS:
        raise ValueError(f"there is no tracker {kind!r}; choose from {', '.join(TRACKERS)}")
    folder = Path(folder).absolute()
    with TRACKERS[kind](folder, dict(config)) as log:

        def track(steps: int, scalars: Mapping[str, float | None]) -> None:
            found = {name: float(x) for name, x in scalars.items() if x is not None and math.isfinite(x)}
            log(steps, found)

        yield track


def check_installed(kind: str) -> None:
    """Refuse a tracker whose package is missing, before a run has made its folder.

    Args:
        kind: "wandb" or "mlflow".

    Raises:
        MissingExtraError: The package is not installed.
    """
    with needs(kind):
        importlib.import_module(kind)


def run_name(config: Mapping[str, Any], folder: Path) -> str:
    """Return method, task and seed if the configuration has them, else the folder's name."""
    parts = [str(config[key]) for key in ("method", "env_id", "seed") if key in config]
    return "-".join(parts) or folder.name


def run_id(folder: Path) -> str:
    """Return an id that depends only on the folder, so that a resumed run continues its record."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _wandb(folder: Path, config: dict[str, Any]) -> Iterator[Callable[[int, dict[str, float]], None]]:
    with needs("wandb"):
        import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "trpl"),
        name=run_name(config, folder),
        id=run_id(folder),
        dir=str(folder),
        config=config,
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        resume="allow" if os.environ.get("WANDB_MODE") == "online" else None,
    )
    try:
        yield lambda steps, scalars: run.log(scalars, step=steps, commit=True)
    finally:
        run.finish()


@contextlib.contextmanager
def _mlflow(folder: Path, config: dict[str, Any]) -> Iterator[Callable[[int, dict[str, float]], None]]:
    with needs("mlflow"):
        import mlflow
        from mlflow.entities import Metric

    client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db"))
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "trpl")
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    key = run_id(folder)
    found = client.search_runs([experiment_id], f"tags.trpl_run = '{key}'")
    if found:
        run = found[0]
    else:
        run = client.create_run(experiment_id, tags={"trpl_run": key}, run_name=run_name(config, folder))
        for setting, value in config.items():
            client.log_param(run.info.run_id, setting, value)

    def log(steps: int, scalars: dict[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, steps) for name, value in scalars.items()]
        client.log_batch(run.info.run_id, metrics=metrics)

    status = "FAILED"
    try:
        yield log
        status = "FINISHED"
    finally:
        client.set_terminated(run.info.run_id, status)


TRACKERS = {"wandb": _wandb, "mlflow": _mlflow}
