"""The progress of runs in other processes, read from the records that they write."""

import os
from collections.abc import Iterable
from pathlib import Path

from trpl.errors import RecordError
from trpl.runs import records
from trpl.runs.folder import EVALUATIONS, TIMINGS
from trpl.sweeps.jobs import Job


class JsonLinesTail:
    """A JSON-lines file that another process appends to and may truncate; `new` returns the lines added since."""

    def __init__(self, path: Path):
        self.path, self._offset = path, 0

    def new(self) -> tuple[list[dict], bool]:
        """Return complete unread lines, and whether the file was truncated, and all lines are returned again."""
        try:
            with open(self.path, "rb") as file:
                cut = file.seek(0, os.SEEK_END) < self._offset
                file.seek(0 if cut else self._offset)
                added = file.read()
        except FileNotFoundError:
            return [], False
        whole = added[: added.rfind(b"\n") + 1]
        self._offset = len(whole) if cut else self._offset + len(whole)
        return [found for line in whole.splitlines() if (found := _record(line))], cut


def _record(line: bytes) -> dict | None:
    """Parse a line; return None if it is damaged, which the run itself reports."""
    try:
        return records.parse(line, where="")
    except RecordError:
        return None


class JobProgress:
    """Epochs done, seconds spent and best evaluation of one job."""

    def __init__(self, job: Job):
        self.job = job
        self.epochs, self.seconds = 0, 0.0
        self.best: float | None = None
        self._timings = JsonLinesTail(job.folder / TIMINGS)
        self._evaluations = JsonLinesTail(job.folder / EVALUATIONS)

    def update(self) -> None:
        timings, cut = self._timings.new()
        if timings or cut:
            self.epochs, self.seconds = (timings[-1]["epoch"], timings[-1].get("seconds", 0.0)) if timings else (0, 0.0)
        evaluations, cut = self._evaluations.new()
        means = [sum(line["returns"]) / len(line["returns"]) for line in evaluations if line.get("returns")]
        self.best = max(means if cut or self.best is None else [self.best, *means], default=None)

    @property
    def steps_left(self) -> int:
        return max(0, self.job.config.last_epoch - self.epochs) * self.job.config.rollout_size


def seconds_left(of: Iterable[JobProgress], *, among: Iterable[JobProgress], num_workers: int) -> float | None:
    """Estimate the time for the jobs `of`, each at the mean speed of its method and task, spread over the workers.

    A method and task without a finished epoch gets the mean speed of all jobs; None before the first epoch of any.
    """
    taken: dict[tuple[str, str] | None, list[float]] = {}
    for progress in among:
        config = progress.job.config
        for kind in ((config.method, config.env_id), None):
            sums = taken.setdefault(kind, [0.0, 0.0])
            sums[0] += progress.seconds
            sums[1] += progress.epochs * config.rollout_size
    total = 0.0
    for progress in of:
        seconds, steps = taken[progress.job.config.method, progress.job.config.env_id]
        if not steps:
            seconds, steps = taken[None]
        if not steps:
            return None
        total += progress.steps_left * seconds / steps
    return total / max(1, num_workers)
