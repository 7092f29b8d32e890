"""The display of a sweep: a live table on a terminal, plain lines in a log."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from trpl.messages import decimals
from trpl.runs.screen import Screen
from trpl.sweeps.job_progress import JobProgress, seconds_left
from trpl.sweeps.jobs import Job

STATES = ("done", "running", "waiting", "failed")
SECONDS_BETWEEN_LINES = 30.0


class SweepTable(Screen):
    """The states of runs by task and method; a context manager."""

    def __init__(self, jobs: Sequence[Job], *, console: Console):
        super().__init__(console)
        self.progress = {job: JobProgress(job) for job in jobs}
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def show(self, states: Mapping[Job, str], *, num_workers: int, last: bool = False) -> None:
        """Show the states of all jobs, which are words of STATES."""
        for job, progress in self.progress.items():
            if states[job] in ("running", "done"):
                progress.update()
        if self.live is not None:
            self.draw(self.table(states, num_workers=num_workers))
        elif last or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            self.say(self.line(states, num_workers=num_workers))

    def line(self, states: Mapping[Job, str], *, num_workers: int) -> str:
        counted = [f"{list(states.values()).count(state)} {state}" for state in STATES]
        return f"{', '.join(counted)}; best {_best(self.progress.values())}; left {self._left(states, num_workers)}"

    def table(self, states: Mapping[Job, str], *, num_workers: int) -> Table:
        table = Table(title=self.line(states, num_workers=num_workers), title_justify="left")
        for heading in ("task", "method", *STATES, "best return", "left"):
            table.add_column(heading, justify="left" if heading in ("task", "method") else "right")
        rows: dict[tuple[str, str], list[Job]] = {}
        for job in states:
            rows.setdefault((job.config.env_id, job.config.method), []).append(job)
        for (env_id, method), jobs in rows.items():
            counts = [sum(states[job] == state for job in jobs) for state in STATES]
            here = {job: states[job] for job in jobs}
            cells = [str(count) if count else "·" for count in counts]
            table.add_row(
                env_id, method, *cells, _best(self.progress[job] for job in jobs), self._left(here, num_workers),
                style="red" if counts[-1] else None,
            )  # fmt: skip
        return table

    def _left(self, states: Mapping[Job, str], num_workers: int) -> str:
        """Estimate the time left; the rows add up to the total."""
        waited_for = [self.progress[job] for job, state in states.items() if state in ("running", "waiting")]
        seconds = seconds_left(waited_for, among=self.progress.values(), num_workers=num_workers)
        return "?" if seconds is None else str(timedelta(seconds=round(seconds)))


def _best(progress: Iterable[JobProgress]) -> str:
    best = max((s.best for s in progress if s.best is not None), default=None)
    return "-" if best is None else f"{best:.{decimals(best)}f}"
