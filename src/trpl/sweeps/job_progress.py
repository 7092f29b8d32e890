"""How far runs are, read from the records they write while they are at work elsewhere."""

import os
from collections.abc import Iterable
from pathlib import Path

from trpl.errors import RecordError
from trpl.runs import records
from trpl.runs.folder import EVALUATIONS, TIMINGS
from trpl.sweeps.jobs import Job


class NewLines:
    """A file of JSON lines that somebody else appends to, and may cut back: `new` gives the whole lines added since."""

    def __init__(self, path: Path):
        self.path, self._offset = path, 0

    def new(self) -> tuple[list[dict], bool]:
        """Return lines not seen before, and whether the file was cut back, so that all lines are given again."""
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
    """Return a line's record, None where it is damaged: that is for the run itself to say."""
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
        self._timings = NewLines(job.folder / TIMINGS)
        self._evaluations = NewLines(job.folder / EVALUATIONS)

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
    """Return what is left of the jobs `of`, each at the pace of jobs of its method and task, spread over the workers.

    A method and task without an epoch yet goes at the pace of all jobs; None while there is none.
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
