"""Run folders as columns of numbers.

Reading keeps only the columns a report shows, so that hundreds of runs fit into memory.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from trpl.errors import RecordError
from trpl.runs.folder import CONFIG, EVALUATIONS, METRICS, TIMINGS, kept_stretches, read_about
from trpl.runs.records import Columns, read_columns

MEASURED = (
    "kl", "kl_max", "entropy", "bound", "mean_bound", "cov_bound",
    "before_mean", "before_mean_max", "before_cov", "before_cov_max",
    "after_mean", "after_mean_max", "after_cov", "after_cov_max", "projected_mean_share", "projected_cov_share",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """One training run, read from its folder; `notes` says what was skipped."""

    path: Path
    config: dict[str, Any]
    commit: str | None
    stretches: tuple[tuple[str | None, dict[str, str]], ...]  # commit and versions, where they change
    command: str
    created: str
    metrics: Columns
    evaluations: Columns  # values: "return", the mean over the epoch's episodes
    timings: Columns
    notes: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return self.config["method"]

    @property
    def env_id(self) -> str:
        return self.config["env_id"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def total_steps(self) -> int:
        return self.config["total_steps"]

    @property
    def steps(self) -> int:
        """Environment steps taken so far."""
        return int(self.metrics.steps[-1])

    @property
    def finished(self) -> bool:
        return self.steps >= self.total_steps

    @property
    def stopped_as_planned(self) -> bool:
        """Whether it stopped early and was asked to (`--stop-after`)."""
        stop = self.config.get("stop_after")
        return stop is not None and stop <= self.steps < self.total_steps

    @property
    def num_epochs(self) -> int:
        """Epochs of the whole training, done or not: the budget rounded up to whole epochs."""
        return math.ceil(self.total_steps * len(self.metrics.steps) / self.steps)


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Find run folders among and below `paths`, each once, in the order of their names."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RecordError(f"{path} is not a folder; give run folders or folders of them")
        inside = sorted(config.parent for config in path.rglob(CONFIG))
        if not inside:
            raise RecordError(f"no run folder in {path}: none of its folders holds a {CONFIG}")
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """Read all runs in `paths` that have at least one epoch; return notes on what was skipped too."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in find_runs(paths):
        with _without_collector():
            run = read_run(path)
        if run is None:
            notes.append(f"{path}: no epoch recorded yet, left out")
        else:
            runs.append(run)
            notes += run.notes
    if not runs:
        raise RecordError("none of the runs has recorded an epoch yet")
    return runs, notes


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable garbage collection inside the context: records have no cycles, and it takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_run(path: Path) -> Run | None:
    """Read the run in folder `path`; None if it has not finished an epoch yet."""
    about, notes = read_about(path), []
    metrics = read_columns(path, METRICS, MEASURED, notes)
    if not metrics.epoch.size:
        return None
    return Run(
        path=path, config=about["config"], commit=about.get("commit"), stretches=_stretches(about),
        command=about.get("command") or "", created=about.get("created") or "",
        metrics=metrics,
        evaluations=read_columns(path, EVALUATIONS, ("return",), notes),
        timings=read_columns(path, TIMINGS, ("seconds", "steps_per_second"), notes),
        notes=tuple(notes),
    )  # fmt: skip


def _stretches(about: dict[str, Any]) -> tuple[tuple[str | None, dict[str, str]], ...]:
    """List commit and versions of each stretch in which they differ from those of the one before."""
    found = [(part.get("commit", about.get("commit")), part["versions"]) for part in kept_stretches(about)]
    return tuple(part for part, _ in groupby(found))
