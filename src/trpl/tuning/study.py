"""Tuning with Optuna: many workers on one study, several seeds per trial, poor trials pruned.

A trial trains all seeds in lockstep and reports the mean over seeds of their last 20 evaluations; the pruner compares
that running mean with other trials' at the same epoch. The study is in a database and the runs are in folders, so a
study that was stopped or killed can continue: an interrupted trial is marked failed and requeued, and its runs resume
from their checkpoints.
"""

import json
import os
import re
import socket
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trpl.messages import needs

with needs("tune"):
    import optuna
    import sqlalchemy
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy import event

from trpl.errors import ConfigError, FaultyEnvironmentError, RunError
from trpl.presets import preset
from trpl.runs.folder import replace_file
from trpl.runs.stopping import stop_requests
from trpl.settings.config import NOT_COMPARED, Config
from trpl.settings.search import Choice, Range, Whole
from trpl.sweeps.plan import preset_text
from trpl.tuning.space import inside, space_of
from trpl.tuning.trials import SeedRuns, Stopped

NUM_TRIES = 2
STORAGE_VARIABLE = "TRPL_STORAGE"  # the database's address without --storage
# Names of trials' user attributes.
SURPLUS, CRASHES, FOLDER, WORKER, BROKEN = "surplus", "crashes", "folder", "worker", "broken"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A study: what is tuned, and where it is stored.

    Args:
        method: The name of a method.
        env_id: The name of an environment.
        num_trials: The study's total number of trials, including those of earlier sessions and other workers.
        num_seeds: Runs per trial.
        fixed: Settings that are not searched.
        out: The folder of the trials' runs.
        study: The study's name in the database; METHOD-ENV by default.
        storage: The database's address; a file in `out` by default.
        heartbeat: Seconds between heartbeats; a trial that misses four is considered dead.
    """

    method: str
    env_id: str
    num_trials: int
    num_seeds: int = 3
    fixed: Mapping[str, Any] = field(default_factory=dict)
    out: Path = Path("tuning")
    study: str = ""
    storage: str = ""
    heartbeat: int = 15

    @property
    def base(self) -> Config:
        """The base configuration of trials: the paper's preset with the fixed settings."""
        config = preset(self.method, self.env_id, **self.fixed)
        if not config.eval_every:
            raise ConfigError("eval_every 0 evaluates nothing, and trials are scored by evaluations")
        return config

    @property
    def study_name(self) -> str:
        return self.study or f"{self.method}-{self.env_id}"

    @property
    def folder(self) -> Path:
        return self.out / self.study_name.replace("/", "-")

    @property
    def url(self) -> str:
        return database_url(self.storage or os.environ.get(STORAGE_VARIABLE) or f"sqlite:///{self.out / 'studies.db'}")

    @property
    def space(self) -> dict[str, Range]:
        return space_of(self.base, fixed=self.fixed)


def database_url(storage: str) -> str:
    """Return the URL, for PostgreSQL with the driver that this project uses."""
    scheme, separator, rest = storage.partition("://")
    if not separator:
        raise ConfigError(f"storage {storage!r} is not a URL: sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgresql", "postgres") else storage


def without_password(url: str) -> str:
    return re.sub(r"(://[^:@/]*):[^@]*@", r"\1:...@", url)


def open_study(tuning: Tuning, *, worker: int = 0) -> optuna.Study:
    """Open or create the study; refuse one with other settings."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if tuning.url.startswith("sqlite:///"):
        tuning.out.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = open_database(tuning)
        study = optuna.create_study(
            storage=storage, study_name=tuning.study_name, direction="maximize", load_if_exists=True
        )
        num_trials = len(study.get_trials(deepcopy=False))
        seed = np.random.SeedSequence([tuning.base.seed, num_trials, worker]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed))  # a resumed study must not repeat earlier draws
    claim_folder(tuning)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=tuning.base.num_epochs // 5)
    check_study(study, tuning)
    return study


def claim_folder(tuning: Tuning) -> None:
    """Record which study's trials the folder holds; refuse the folder of another study."""
    about = {"study": tuning.study_name, "storage": without_password(tuning.url)}
    file = tuning.folder / "study.json"
    if not file.exists():
        tuning.folder.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(about).encode())
        return
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise RunError(f"{file} cannot be read: {error}") from error
    if found != about:
        whose = (
            f"study {found.get('study')!r} in {found.get('storage')}" if isinstance(found, dict) else "another study"
        )
        raise ConfigError(f"{tuning.folder} holds the trials of {whose}: give another --out or --study")


def open_database(tuning: Tuning) -> optuna.storages.RDBStorage:
    """Open the storage, with a retry: two processes that create the tables at once may conflict."""
    sqlite = tuning.url.startswith("sqlite")
    if tuning.url.startswith("postgresql"):
        with needs("tune"):
            import psycopg  # noqa: F401  (of a missing driver SQLAlchemy does not say its name)
    for tries_left in reversed(range(NUM_TRIES)):
        try:
            storage = optuna.storages.RDBStorage(
                tuning.url,
                engine_kwargs={"connect_args": {"timeout": 60}} if sqlite else None,
                heartbeat_interval=tuning.heartbeat,
                grace_period=4 * tuning.heartbeat,
                heartbeat_stale_trial_callback=lambda study, trial: requeue(study, trial, crashed=True),
            )
        except Exception as error:
            if not tries_left:
                reason = str(error).strip().splitlines()[0]
                raise RunError(f"the database {without_password(tuning.url)} cannot be used: {reason}") from error
            time.sleep(1.0)
        else:
            if sqlite:
                make_transactions_exclusive(storage.engine)
            return storage
    raise AssertionError


def make_transactions_exclusive(engine: sqlalchemy.Engine) -> None:
    """Make SQLite lock when a transaction begins, not at its first write.

    Otherwise two workers may both read that a trial is waiting, and both take it.
    """

    def connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # stops the driver from beginning transactions itself

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()
    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)


def check_study(study: optuna.Study, tuning: Tuning) -> None:
    """Record the study's settings; refuse to continue one with other settings."""
    about = {**tuning.base.to_json(), "num_seeds": tuning.num_seeds}
    found = study.user_attrs.get("about")
    if found is None:
        study.set_user_attr("about", about)
        if inside(tuning.space, tuning.base):  # the paper's values first: the best trial is then never worse
            study.enqueue_trial({name: getattr(tuning.base, name) for name in tuning.space}, skip_if_exists=True)
        return
    for name, value in about.items():
        if found.get(name) != value and name not in NOT_COMPARED:
            raise ConfigError(
                f"study {study.study_name!r} has {name} {found.get(name)!r}, not {value!r}: give another --study"
            )


def work(tuning: Tuning, *, worker: int = 0) -> None:
    """Do trials until the study has its number, or until SIGTERM or Ctrl-C.

    Args:
        tuning: The study.
        worker: The number of this worker, for its log and its seed.
    """
    study = open_study(tuning, worker=worker)
    with stop_requests() as stop:
        while not stop.is_set():
            fail_stale_trials(study)
            counts = count_states(study)
            taken = sum(counts[state] for state in ("complete", "pruned", "running"))
            if counts["waiting"] or taken < tuning.num_trials:
                study.optimize(lambda trial: objective(trial, tuning, stop=stop), n_trials=1, catch=(Surplus, Stopped))
            elif counts["running"]:
                stop.wait(min(1.0, tuning.heartbeat))  # other workers have the last trials; take over if they die
            else:
                return


class Surplus(Exception):
    """Two workers began the study's last trial at once; this is the second."""


def objective(trial: optuna.Trial, tuning: Tuning, *, stop: threading.Event) -> float:
    """Return the final return of a trial, averaged over seeds, unless it is pruned earlier."""
    refuse_surplus(trial, tuning)
    folder = trial.user_attrs.get(FOLDER) or f"trial-{trial.number:05d}"
    trial.set_user_attr(FOLDER, folder)
    trial.set_user_attr(WORKER, this_process())
    try:
        config = tuning.base.replace(**{name: suggest(trial, name, wanted) for name, wanted in tuning.space.items()})
        configs = [config.replace(seed=tuning.base.seed + number) for number in range(tuning.num_seeds)]
        with SeedRuns(configs, tuning.folder / folder) as runs:
            return report_scores(trial, runs, stop=stop)
    except (optuna.TrialPruned, Surplus):
        raise
    except BaseException as error:
        frozen = next(t for t in trial.study.get_trials(deepcopy=False) if t.number == trial.number)
        requeue(trial.study, frozen, crashed=not isinstance(error, Stopped))
        raise


def report_scores(trial: optuna.Trial, runs: SeedRuns, *, stop: threading.Event) -> float:
    """Report every score to the pruner; count diverged training as pruned, so that the sampler learns from it."""
    value = float("-inf")
    try:
        for epoch, value in runs.scores(stop=stop):
            trial.report(value, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned(f"below the median at epoch {epoch}")
    except (RunError, FaultyEnvironmentError) as error:
        trial.set_user_attr(BROKEN, str(error))
        raise optuna.TrialPruned(str(error)) from error
    return value


def breakdowns(study: optuna.Study) -> list[str]:
    """List why training broke down, for each trial that was pruned for it."""
    return [trial.user_attrs[BROKEN] for trial in study.get_trials(deepcopy=False) if BROKEN in trial.user_attrs]


def suggest(trial: optuna.Trial, name: str, wanted: Range) -> Any:
    if isinstance(wanted, Choice):
        return trial.suggest_categorical(name, list(wanted.options))
    if isinstance(wanted, Whole):
        return trial.suggest_int(name, int(wanted.low), int(wanted.high), log=wanted.log)
    return trial.suggest_float(name, wanted.low, wanted.high, log=wanted.log)


def refuse_surplus(trial: optuna.Trial, tuning: Tuning) -> None:
    before = [t for t in trial.study.get_trials(deepcopy=False) if t.number < trial.number]
    if sum(t.state != TrialState.FAIL for t in before) >= tuning.num_trials:
        trial.set_user_attr(SURPLUS, True)
        raise Surplus


def requeue(study: optuna.Study, trial: FrozenTrial, *, crashed: bool) -> None:
    """Queue an unfinished trial again, to resume from its checkpoints, unless it has crashed twice."""
    crashes = trial.user_attrs.get(CRASHES, 0) + crashed
    if crashes < NUM_TRIES and trial.params and FOLDER in trial.user_attrs:
        study.enqueue_trial(trial.params, user_attrs={FOLDER: trial.user_attrs[FOLDER], CRASHES: crashes})


def fail_stale_trials(study: optuna.Study) -> None:
    """Fail and requeue trials whose worker is gone: its heartbeats are missing or its process, if local, has exited."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if is_gone(trial.user_attrs.get(WORKER, "")):
            try:
                study.tell(trial.number, state=TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # another worker noticed first
            requeue(study, trial, crashed=True)


def this_process() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def is_gone(worker: str) -> bool:
    """Tell whether a worker was a process on this machine that has exited."""
    host, _, pid = worker.rpartition(" ")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def count_states(study: optuna.Study) -> dict[str, int]:
    """Count trials by state: complete, pruned, running, waiting and failed.

    Requeued and surplus trials count as failed.
    """
    found = [trial.state for trial in study.get_trials(deepcopy=False)]
    names = {state: "failed" if state == TrialState.FAIL else state.name.lower() for state in TrialState}
    return {name: found.count(state) for state, name in names.items()}


def best_preset(study: optuna.Study, tuning: Tuning, best: FrozenTrial) -> str:
    """Return the best trial as a preset file for `trpl train --preset` and `trpl sweep`."""
    counts = count_states(study)
    source = (
        f"trpl tune: trial {best.number} of study {study.study_name!r}, mean return {best.value:.2f} over "
        f"{tuning.num_seeds} seed{'' if tuning.num_seeds == 1 else 's'}, the best of {counts['complete']} complete and"
        f" {counts['pruned']} pruned trials"
    )
    config = tuning.base.replace(**best.params, source=source)
    comment = f"Written by trpl tune at {time.strftime('%Y-%m-%d %H:%M:%S')}."
    return preset_text(config, base=preset(tuning.method, tuning.env_id), comment=comment)


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """Return the complete trial with the highest mean return."""
    try:
        return study.best_trial
    except ValueError:  # none is complete
        return None
