"""A tuning session: single-threaded workers on one study, supervised by this process."""

import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from trpl.cores import num_cores
from trpl.methods.registry import plugins
from trpl.runs.environments import make_evaluator
from trpl.runs.folder import COMPILED
from trpl.runs.screen import Screen, standard_error
from trpl.runs.stopping import stop_requests
from trpl.sweeps.jobs import log_tail, options, release, start_worker, take_ended
from trpl.sweeps.sweep import NUM_TRIES
from trpl.tuning.study import STORAGE_VARIABLE, Tuning, best_preset, best_trial, breakdowns, count_states, open_study

TICK_SECONDS = 1.0
NUM_SHOWN = 5  # best trials in the table


class TuneResult(NamedTuple):
    """The outcome of a tuning session."""

    counts: dict[str, int]
    """The number of trials by state."""
    best: dict[str, Any] | None
    """The settings of the best complete trial."""
    value: float | None
    """The mean return of that trial."""
    failures: tuple[str, ...]
    """Failures of workers, with the ends of their logs."""
    signal: int | None = None
    """The signal that stopped the session: SIGINT or SIGTERM."""
    broken: tuple[str, ...] = ()
    """Why training broke down, for each trial that was pruned for it."""


def tune(
    tuning: Tuning, *, workers: int | None = None, best: str | Path | None = None, console: Console | None = None
) -> TuneResult:
    """Bring a study to its number of trials; other sessions may work on the same study.

    Args:
        tuning: The study.
        workers: Single-threaded processes; as many as cores by default.
        best: A file for the best trial, as a preset.
        console: Where to show progress; standard error by default.

    Returns:
        The number of trials by state, the best one, and failures.

    Raises:
        ConfigError: The study in that database, or the folder of its runs, has other settings.
        UnknownEnvironmentError, FaultyEnvironmentError: There is no such environment, or it cannot be made.
    """
    make_evaluator(tuning.base).close()  # an environment that cannot be made is said here, not by every worker
    if best is not None:
        Path(best).parent.mkdir(parents=True, exist_ok=True)  # now: the trials may take days
    study = open_study(tuning)
    num_workers = min(workers or num_cores(), tuning.num_trials)
    with StudyTable(console or standard_error()) as screen:
        failures, signal = watch(tuning, study, num_workers=num_workers, screen=screen)
    found = best_trial(study)
    if best is not None and found is not None:
        Path(best).write_text(best_preset(study, tuning, found))
    settings, value = (dict(found.params), found.value) if found is not None else (None, None)
    return TuneResult(count_states(study), settings, value, tuple(failures), signal, tuple(breakdowns(study)))


def watch(tuning: Tuning, study: Any, *, num_workers: int, screen: "StudyTable") -> tuple[list[str], int | None]:
    """Run workers until none finds more to do, or until SIGTERM or Ctrl-C; return failures and the signal."""
    workers = Workers(tuning)
    with stop_requests() as stop:
        try:
            for number in range(num_workers):
                workers.start(number)
            while workers.processes:
                time.sleep(TICK_SECONDS)
                if stop.is_set():
                    workers.stop()
                workers.handle_ended(stopping=stop.is_set())
                screen.show(study)
        except BaseException:
            workers.kill()
            raise
        return workers.failures, stop.signal


class Workers:
    """The processes of a session, by number; one that crashes is restarted once."""

    def __init__(self, tuning: Tuning):
        self.tuning = tuning
        self.processes: dict[int, subprocess.Popen] = {}
        self.failures: list[str] = []
        self._crashes: Counter[int] = Counter()

    def start(self, number: int) -> None:
        self.processes[number] = start_worker(
            [*command(self.tuning), f"--as-worker={number}"],
            log=self.log(number),
            compiled=self.tuning.out / COMPILED,
            variables={STORAGE_VARIABLE: self.tuning.storage} if self.tuning.storage else {},
        )

    def log(self, number: int) -> Path:
        return self.tuning.folder / f"worker-{number}.log"

    def handle_ended(self, *, stopping: bool) -> None:
        """Forget processes that have ended; restart a crashed one, or note its second crash."""
        for number, reason in take_ended(self.processes):
            if stopping or not reason:
                continue
            self._crashes[number] += 1
            if self._crashes[number] < NUM_TRIES:
                self.start(number)
            else:
                log = self.log(number)
                self.failures.append(f"worker {number} {reason}; the end of {log}:\n{log_tail(log)}")

    def stop(self) -> None:
        """Ask every worker to save and stop."""
        for process in self.processes.values():
            release(process)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()


def command(tuning: Tuning) -> list[str]:
    """Return the arguments of `trpl` for a worker, without the database's address, which may hold a password."""
    where = [f"--study={tuning.study_name}", f"--out={tuning.out}", f"--heartbeat={tuning.heartbeat}"]
    amount = [f"--trials={tuning.num_trials}", f"--seeds={tuning.num_seeds}"]
    extra = [f"--plugin={word}" for word in plugins()]
    return ["tune", tuning.method, tuning.env_id, *amount, *where, *options(tuning.fixed), *extra]


class StudyTable(Screen):
    """The best trials: a live table on a terminal, a line per change in a log."""

    def __init__(self, console: Console):
        super().__init__(console)
        self._last = ""

    def show(self, study: Any) -> None:
        best = best_trial(study)
        counts = ", ".join(f"{count} {name}" for name, count in count_states(study).items())
        line = f"trials: {counts}; best {'-' if best is None else f'{best.value:.2f} (trial {best.number})'}"
        if self.live is not None:
            self.draw(table(study.get_trials(deepcopy=False), title=line))
        elif line != self._last:
            self.say(line)
        self._last = line


def table(trials: Sequence[Any], *, title: str) -> Table:
    """Make a table of the best complete trials with their settings."""
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    shown = sorted(complete, key=lambda trial: -trial.value)[:NUM_SHOWN]
    found = Table(title=title, title_justify="left")
    for heading in ("setting", *(f"trial {trial.number}" for trial in shown)):
        found.add_column(heading)
    found.add_row("mean return", *(f"{trial.value:.2f}" for trial in shown))
    for name in shown[0].params if shown else ():
        cells = [trial.params.get(name) for trial in shown]
        found.add_row(name, *(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return found


def summary(result: TuneResult) -> str:
    """Summarise a tuning session.

    Args:
        result: The outcome of `tune`.

    Returns:
        The text.
    """
    counts = ", ".join(f"{count} {name}" for name, count in result.counts.items() if count)
    lines = [f"trials: {counts}"]
    if result.best is not None:
        lines += [f"best mean return {result.value:.2f} with", *(f"  {name} = {v}" for name, v in result.best.items())]
    if result.broken:
        lines += [f"training broke down in {len(result.broken)} of the pruned trials, in the last: {result.broken[-1]}"]
    lines += result.failures
    if result.signal is not None:
        lines += ["stopped before the end; the same command continues"]
    return "\n".join(lines)
