"""Many runs, each done exactly once: on this machine's cores or on a Ray cluster, killed and restarted at will.

Progress is read from the run folders, so a sweep has no state of its own to lose. Finished runs, and those with kept
records, are skipped; unfinished ones resume from their checkpoints; a run that another process holds is waited for, so
two sweeps over the same folder share the work.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.console import Console

from trpl.cores import num_cores
from trpl.runs.folder import COMPILED, in_use, is_run
from trpl.runs.screen import standard_error
from trpl.runs.stopping import stop_requests
from trpl.sweeps.compact import compact, recorded
from trpl.sweeps.jobs import Job, check_folder, log_tail
from trpl.sweeps.plan import PlannedRun
from trpl.sweeps.table import SweepTable

NUM_TRIES = 2
TICK_SECONDS = 0.5
LOCKED_POLL_SECONDS = 2.0  # between checks of a run that another process holds


class Pool(Protocol):
    """A place that runs jobs."""

    @property
    def num_workers(self) -> int | None: ...  # None: as many as the cluster takes
    def has_room(self) -> bool: ...
    def start(self, job: Job) -> None: ...
    def running(self) -> set[Job]: ...
    def ended(self, *, timeout: float) -> list[tuple[Job, str]]: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Failure(NamedTuple):
    """A job that failed, and the reason as a predicate for the subject "it"."""

    job: Job
    reason: str


class SweepResult(NamedTuple):
    """The outcome of a sweep."""

    done: tuple[Job, ...]
    failed: tuple[Failure, ...]
    stopped: bool
    """Whether a signal stopped it before all runs were done; the same command continues."""
    signal: int | None = None
    """The signal that stopped it: SIGINT or SIGTERM."""


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
    """Do runs, each exactly once; skip finished ones and resume unfinished ones.

    Args:
        runs: The runs, from `trpl.sweeps.plan.planned_runs`.
        out: The parent of the run folders.
        workers: Single-threaded processes at a time; the number of cores by default.
        ray_address: A Ray cluster to use instead, or "auto".
        results: A folder for compact records of finished runs. A run with the same settings and a record there
            counts as done, even without its run folder.
        other_versions: Resume unfinished runs with other library versions than they began with.
        console: Where to show progress; standard error by default.

    Returns:
        The runs done, the failed ones with reasons, and whether the sweep was stopped.

    Raises:
        ConfigError: A folder holds a run with other settings.
        MissingExtraError: `ray_address` is given and Ray is not installed.
    """
    out = Path(out)
    jobs = [
        Job(config=run.config, folder=out / run.folder, compiled=out / COMPILED, other_versions=other_versions)
        for run in runs
    ]
    for job in jobs:
        check_folder(job)
    kept = []
    if results is not None:
        Path(results).mkdir(parents=True, exist_ok=True)  # now: the first run may take hours
        # a run without a folder may have a record, as in a clone of a repository with results
        places = [(job, Path(results) / job.folder.relative_to(out)) for job in jobs if not is_run(job.folder)]
        kept = [job for job, place in places if recorded(job.config, place)]
    missing = [job for job in jobs if job not in kept]
    pool = make_pool(workers=workers, ray_address=ray_address)
    with SweepTable(missing, console=console or standard_error()) as table:
        if kept:
            table.say(f"{len(kept)} of {len(jobs)} runs have their records in {results}")
        result = Sweep(missing, pool=pool, table=table, out=out, results=results).run()
    return result._replace(done=(*kept, *result.done))


def make_pool(*, workers: int | None, ray_address: str | None) -> Pool:
    if ray_address is not None:
        from trpl.sweeps.ray_pool import RayPool

        return RayPool(address=ray_address, num_workers=workers)
    from trpl.sweeps.local_pool import LocalPool

    return LocalPool(num_workers=workers or num_cores())


class Sweep:
    """The jobs and their states."""

    def __init__(self, jobs: Sequence[Job], *, pool: Pool, table: SweepTable, out: Path, results: str | Path | None):
        self.jobs, self.pool, self.table, self.out, self.results = jobs, pool, table, out, results
        self.done: list[Job] = []
        self.pending: dict[Job, float] = {}  # not submitted: the time before which not to check the job
        self.submitted: set[Job] = set()
        self.tries = dict.fromkeys(jobs, 0)
        self.failed: list[Failure] = []

    def run(self) -> SweepResult:
        """Run until all jobs are done or failed twice, or until SIGTERM or Ctrl-C; a second signal kills workers."""
        for job in self.jobs:
            if job.finished:
                self.finish(job)
            else:
                self.pending[job] = 0.0
        if self.done:
            self.table.say(f"{len(self.done)} of {len(self.jobs)} runs are done already")
        try:
            with stop_requests() as stop:
                while (self.pending or self.submitted) and not stop.is_set():
                    self.submit()
                    self.handle_ended(self.pool.ended(timeout=TICK_SECONDS))
                    self.show()
                if stop.is_set():
                    self.shut_down()
        except BaseException:
            self.pool.kill()
            raise
        self.show(last=True)
        return SweepResult(tuple(self.done), tuple(self.failed), stopped=bool(self.pending), signal=stop.signal)

    def submit(self) -> None:
        """Start as many pending jobs as the pool has room for; check jobs that other processes hold again later."""
        now = time.monotonic()
        for job, not_before in list(self.pending.items()):
            if not self.pool.has_room():
                return
            if not_before > now:
                continue
            if in_use(job.folder):
                self.pending[job] = now + LOCKED_POLL_SECONDS
                continue
            del self.pending[job]
            if job.finished:
                self.finish(job)
            else:
                self.pool.start(job)
                self.submitted.add(job)

    def handle_ended(self, ended: Iterable[tuple[Job, str]]) -> None:
        """Finish, requeue or retry ended jobs: the state of the folder decides, then the reason given."""
        for job, reason in ended:
            self.submitted.remove(job)
            if job.finished:
                self.finish(job)
                self.table.say(f"done    {job.name}")
            elif in_use(job.folder):  # another process was faster
                self.pending[job] = time.monotonic() + LOCKED_POLL_SECONDS
            else:
                self.retry(job, reason or "ended before its last epoch")

    def retry(self, job: Job, reason: str) -> None:
        self.tries[job] += 1
        if self.tries[job] < NUM_TRIES:
            self.pending = {job: 0.0, **self.pending}
            self.table.say(f"again   {job.name}: it {reason}")
        else:
            self.failed.append(Failure(job, reason))
            self.table.say(f"failed  {job.name}: it {reason}")

    def finish(self, job: Job) -> None:
        self.done.append(job)
        if self.results is not None:
            compact(job.folder, self.results, place=job.folder.relative_to(self.out))

    def shut_down(self) -> None:
        """Let the workers end their epochs and save."""
        if self.submitted:
            self.table.say("stopping: runs end their epoch and save; Ctrl-C once more kills them")
        self.pool.stop()
        while self.submitted:
            for job, _ in self.pool.ended(timeout=TICK_SECONDS):
                self.submitted.remove(job)
                if job.finished:
                    self.finish(job)
                else:
                    self.pending[job] = 0.0
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
    """Summarise a sweep: the counts, and for each failure its reason and the end of its log.

    Args:
        result: The outcome of `sweep`.

    Returns:
        The text.
    """
    runs = "1 run" if len(result.done) == 1 else f"{len(result.done)} runs"
    lines = [f"{runs} done, {len(result.failed)} failed"]
    for job, reason in result.failed:
        lines += ["", f"{job.name}: it {reason}; the end of {job.log}:"]
        lines += [f"  | {line}" for line in log_tail(job.log).splitlines()]
    if result.stopped:
        lines += ["stopped before the end; the same command continues"]
    return "\n".join(lines)
