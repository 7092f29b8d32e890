"""Many runs, each done exactly once: on this machine's cores or on a Ray cluster, killed and started again at will.

What is done is read from the run folders, so a sweep has no state of its own to lose. Runs that are finished, or whose
records are kept already, are passed over; half-done ones go on from their checkpoints; one that another process works
on is waited for: two sweeps over the same folder share the work.
"""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.console import Console

from trpl.runs.folder import COMPILED, in_use, is_run
from trpl.runs.stopping import stop_requests
from trpl.sweeps.compact import compact, recorded
from trpl.sweeps.jobs import Job, check_folder, log_tail
from trpl.sweeps.plan import PlannedRun
from trpl.sweeps.table import SweepTable

NUM_TRIES = 2
TICK_SECONDS = 0.5
SECONDS_BETWEEN_LOOKS = 2.0  # at a run that another process works on


class Pool(Protocol):
    """Where jobs are done."""

    @property
    def num_workers(self) -> int | None: ...  # None: as many as the cluster takes
    def has_room(self) -> bool: ...
    def start(self, job: Job) -> None: ...
    def running(self) -> set[Job]: ...
    def ended(self, *, timeout: float) -> list[tuple[Job, str]]: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Failure(NamedTuple):
    """A job that did not end well, and why; the reason goes on after "it"."""

    job: Job
    reason: str


class SweepResult(NamedTuple):
    """How a sweep ended."""

    done: tuple[Job, ...]
    failed: tuple[Failure, ...]
    stopped: bool
    """Whether it was asked to stop before all was done; the same command goes on."""
    signal: int | None = None
    """What asked it to stop: SIGINT or SIGTERM."""


def sweep(
    runs: Iterable[PlannedRun],
    *,
    out: str | Path = "runs",
    workers: int | None = None,
    ray_address: str | None = None,
    results: str | Path | None = None,
    other_versions: bool = False,
    console: Console | None = None,
) -> SweepResult:
    """Do runs, each exactly once; those that are done already are passed over, half-done ones go on.

    Args:
        runs: What to do, as `trpl.sweeps.plan.planned_runs` gives it.
        out: The folder below which the run folders are.
        workers: Processes of one thread at a time; the number of cores by default.
        ray_address: The Ray cluster that does the work instead, or "auto".
        results: A folder in which to keep compact records of finished runs. A run whose record is there with the same
            settings is done, even where its run folder is gone.
        other_versions: Go on with half-done runs although libraries have other versions than these began with.
        console: Where progress is shown; standard error by default.

    Returns:
        Which runs are done, which failed and why, and whether the sweep was stopped.

    Raises:
        ConfigError: A folder holds a run of another configuration.
        MissingExtraError: Ray was asked for and is not installed.
    """
    out = Path(out)
    jobs = [
        Job(config=run.config, folder=out / run.folder, compiled=out / COMPILED, other_versions=other_versions)
        for run in runs
    ]
    for job in jobs:
        check_folder(job)
    kept = [job for job in jobs if results is not None and _kept(job, Path(results) / job.folder.relative_to(out))]
    missing = [job for job in jobs if job not in kept]
    pool = make_pool(workers=workers, ray_address=ray_address)
    with SweepTable(missing, console=console or Console(stderr=True)) as table:
        if kept:
            table.say(f"{len(kept)} of {len(jobs)} runs have their records in {results}")
        result = Sweep(missing, pool=pool, table=table, out=out, results=results).run()
    return result._replace(done=(*kept, *result.done))


def _kept(job: Job, record: Path) -> bool:
    """Tell whether a run that is not here has its record kept, as in a clone of a repository with results."""
    return not is_run(job.folder) and recorded(job.config, record)


def make_pool(*, workers: int | None, ray_address: str | None) -> Pool:
    if ray_address is not None:
        from trpl.sweeps.ray_pool import RayPool

        return RayPool(address=ray_address, num_workers=workers)
    from trpl.sweeps.local_pool import LocalPool

    return LocalPool(num_workers=workers or num_cores())


def num_cores() -> int:
    """Count the cores this process may use, which on a shared machine are not all.

    Returns:
        The number.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Sweep:
    """The jobs and where each stands."""

    def __init__(self, jobs: Sequence[Job], *, pool: Pool, table: SweepTable, out: Path, results: str | Path | None):
        self.jobs, self.pool, self.table, self.out, self.results = jobs, pool, table, out, results
        self.done: list[Job] = []
        self.open: dict[Job, float] = {}  # not handed to the pool: the time before which not to look at it
        self.handed_over: set[Job] = set()
        self.tries = dict.fromkeys(jobs, 0)
        self.failed: list[Failure] = []

    def run(self) -> SweepResult:
        """Until every job is done or has failed twice, or until SIGTERM or Ctrl-C; a second one kills the workers."""
        for job in self.jobs:
            self.finish(job) if job.finished else self.open.setdefault(job, 0.0)
        if self.done:
            self.table.say(f"{len(self.done)} of {len(self.jobs)} runs are done already")
        try:
            with stop_requests() as stop:
                while (self.open or self.handed_over) and not stop.is_set():
                    self.hand_over()
                    self.judge(self.pool.ended(timeout=TICK_SECONDS))
                    self.show()
                if stop.is_set():
                    self.wind_up()
        except BaseException:
            self.pool.kill()
            raise
        self.show(last=True)
        return SweepResult(tuple(self.done), tuple(self.failed), stopped=bool(self.open), signal=stop.signal)

    def hand_over(self) -> None:
        """Give the pool what it has room for; what others are at work on is looked at again later."""
        now = time.monotonic()
        for job, not_before in list(self.open.items()):
            if not self.pool.has_room():
                return
            if not_before > now:
                continue
            if in_use(job.folder):
                self.open[job] = now + SECONDS_BETWEEN_LOOKS
                continue
            del self.open[job]
            if job.finished:
                self.finish(job)
            else:
                self.pool.start(job)
                self.handed_over.add(job)

    def judge(self, ended: Iterable[tuple[Job, str]]) -> None:
        """Judge jobs that ended: the folder decides, then the reason given."""
        for job, reason in ended:
            self.handed_over.remove(job)
            if job.finished:
                self.finish(job)
                self.table.say(f"done    {job.name}")
            elif in_use(job.folder):  # another process was faster
                self.open[job] = time.monotonic() + SECONDS_BETWEEN_LOOKS
            else:
                self.retry(job, reason or "ended before its last epoch")

    def retry(self, job: Job, reason: str) -> None:
        self.tries[job] += 1
        if self.tries[job] < NUM_TRIES:
            self.open = {job: 0.0, **self.open}
            self.table.say(f"again   {job.name}: it {reason}")
        else:
            self.failed.append(Failure(job, reason))
            self.table.say(f"failed  {job.name}: it {reason}")

    def finish(self, job: Job) -> None:
        self.done.append(job)
        if self.results is not None:
            compact(job.folder, self.results, place=job.folder.relative_to(self.out))

    def wind_up(self) -> None:
        """Let the workers end their epochs and save."""
        if self.handed_over:
            self.table.say("stopping: runs end their epoch and save; Ctrl-C once more kills them")
        self.pool.stop()
        while self.handed_over:
            for job, _ in self.pool.ended(timeout=TICK_SECONDS):
                self.handed_over.remove(job)
                if job.finished:
                    self.finish(job)
                else:
                    self.open[job] = 0.0
            self.show()

    def show(self, *, last: bool = False) -> None:
        running = self.pool.running()
        failed = {failure.job for failure in self.failed}
        done = set(self.done)

        def state(job: Job) -> str:
            if job in failed:
                return "failed"
            return "done" if job in done else "running" if job in running else "waiting"

        workers = self.pool.num_workers or len(running)
        self.table.show({job: state(job) for job in self.jobs}, num_workers=workers, last=last)


def summary(result: SweepResult) -> str:
    """Say how a sweep ended: for each failure why, the end of its log, and where the log is.

    Args:
        result: What `sweep` gave.

    Returns:
        The text.
    """
    lines = [f"{len(result.done)} runs done, {len(result.failed)} failed"]
    for job, reason in result.failed:
        lines += ["", f"{job.name}: it {reason}; the end of {job.log}:"]
        lines += [f"  | {line}" for line in log_tail(job.log).splitlines()]
    if result.stopped:
        lines += ["stopped before the end; the same command goes on"]
    return "\n".join(lines)
