"""A run and its epochs: collect, learn, evaluate and record, in a folder that can be resumed.

No random state is carried from epoch to epoch: every stream is a function of (seed, epoch, stream). The state that is
carried (weights, optimisers, normalisers, the environments' unfinished episodes) is in the checkpoint, so a run that
was killed and resumed ends with the same bits as one that was not.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from trpl.algorithms import Batch, make_algorithm
from trpl.errors import ConfigError, FaultyEnvironmentError, RunError
from trpl.messages import os_problem
from trpl.policies.acting import make_actor
from trpl.policies.storage import checkpoint_folders
from trpl.rollouts import Rollout
from trpl.rollouts.seeds import LEARNING_STREAM
from trpl.runs import checkpoints, records
from trpl.runs.binding import Binding
from trpl.runs.environments import make_collector, make_evaluator
from trpl.runs.events import event_writer
from trpl.runs.folder import (
    EVALUATIONS,
    METRICS,
    TIMINGS,
    add_stretch,
    changed_processor,
    changed_versions,
    locate,
    read_about,
    stretches,
)
from trpl.runs.progress import Progress
from trpl.runs.resuming import resume_command
from trpl.runs.stopping import stop_requests
from trpl.runs.watchdog import Watchdog
from trpl.settings.config import WINDOW, Config


class RunResult(NamedTuple):
    """The outcome of a run.

    Args:
        folder: The run folder.
        finished: False if the run was stopped before its last epoch; `resume` continues it.
        epochs: The number of epochs done.
        final_return: The mean over the last 20 evaluations, None without any.
        digest: A hash of weights, metrics and evaluations: equal for equal runs.
        signal: The signal that stopped it: SIGINT or SIGTERM.
    """

    folder: Path
    finished: bool
    epochs: int
    final_return: float | None
    digest: str
    signal: int | None = None


Callback = Callable[[int, Mapping[str, float | None]], object]  # steps so far, scalars of the epoch


class Trainer:
    """The components of a run and its progress."""

    def __init__(self, config: Config, folder: Path):
        self.config, self.folder = config, folder
        with contextlib.ExitStack() as opened:
            self.watchdog = opened.enter_context(
                Watchdog(seconds=config.env_timeout, env_id=config.env_id, folder=folder)
            )
            with self.watchdog.watching():
                self.collector = opened.enter_context(contextlib.closing(make_collector(config)))
                self.collector.state()  # fails here, not at the first checkpoint, if episodes cannot be replayed
                self.evaluator = opened.enter_context(contextlib.closing(make_evaluator(config)))
            self.algorithm = make_algorithm(config, obs_size=self.collector.observation_size, head=self.collector.head)
            self.head = self.algorithm.policy.head
            self.state = jax.jit(self.algorithm.init)(jax.random.key(config.seed))
            if config.warm_start and not checkpoint_folders(folder):  # its own are restored: the other run may be gone
                _, source = locate(config.warm_start)
                self.state = checkpoints.warm_start(self.state, self.collector, source=source)
            self._opened = opened.pop_all()
        self.epoch = self.saved = 0  # epochs done, and epochs in the newest checkpoint
        self.seconds, self.best = 0.0, -math.inf
        self.binding = Binding()
        self.notes: list[str] = []  # for the display, once it is there

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self._opened.close()

    def restore(self, *, other_versions: bool = False) -> None:
        """Restore the newest sound checkpoint and remove the records of later epochs.

        Args:
            other_versions: Resume although library versions differ from those the run was computed with.

        Raises:
            RunError: Library versions differ.
            ConfigError: The run is past its total number of steps.
        """
        about = read_about(self.folder)
        self._check_versions(about, allowed=other_versions)
        if checkpoint_folders(self.folder):
            with self.watchdog.watching(self.collector.lanes.position):
                self.state, self.epoch, self.seconds = checkpoints.restore(
                    self.folder, like=self.state, collector=self.collector, evaluator=self.evaluator
                )
            self.saved = self.epoch
        if self.config.last_epoch < self.epoch:
            done = self.epoch * self.config.rollout_size
            raise ConfigError(f"{self.folder} has already done {done} steps; the new total (--steps) must be larger")
        done = range(1, self.epoch + 1)
        records.cut_back(self.folder / METRICS, epochs=done)
        records.cut_back(self.folder / EVALUATIONS, epochs=self._evaluated(about))
        records.cut_back(self.folder / TIMINGS, epochs=done)
        self.best = checkpoints.best_evaluation(self.folder)
        if self.epoch < self.config.last_epoch:
            if self.epoch and (note := changed_processor(about)):
                self.notes.append(note)
            add_stretch(self.folder, self.config, epoch=self.epoch)

    def _check_versions(self, about: Mapping[str, Any], *, allowed: bool) -> None:
        changed, newest = changed_versions(about), next(iter(checkpoint_folders(self.folder)), None)
        if changed and not allowed and newest is not None and int(newest.name) < self.config.last_epoch:
            raise RunError(
                f"{self.folder} was computed with other versions: {'; '.join(changed)}. The results may differ in the"
                " last digits; to resume anyway, and record the change, use --other-versions"
            )

    def _evaluated(self, about: Mapping[str, Any]) -> list[int]:
        """List the epochs with an evaluation, each by the total number of steps of its stretch."""
        parts = stretches(about)
        ends = [*(part["after_epoch"] for part in parts[1:]), self.epoch]
        found: list[int] = []
        for part, end in zip(parts, ends, strict=True):
            config = self.config.replace(total_steps=part["total_steps"])
            found = [epoch for epoch in found if epoch <= part["after_epoch"]]
            found += [epoch for epoch in range(part["after_epoch"] + 1, end + 1) if config.evaluates(epoch)]
        return [epoch for epoch in found if epoch <= self.epoch]

    def run(self, progress: Progress, tracker: Any = None, callbacks: Sequence[Callback] = ()) -> RunResult:
        """Do epochs until the end, or until SIGTERM or Ctrl-C; then write a checkpoint.

        Args:
            progress: The display.
            tracker: See `trpl.runs.run.train`.
            callbacks: See `trpl.runs.run.train`.

        Returns:
            The run folder and how the run ended.
        """
        with self._advice():
            signal = self._epochs(progress, tracker, callbacks)
            return RunResult(
                folder=self.folder,
                finished=self.epoch >= self.config.last_epoch,
                epochs=self.epoch,
                final_return=final_return(self.folder),
                digest=records.digest(self.folder, checkpoints.learner_arrays(self.state).items()),
                signal=signal,
            )

    def _epochs(self, progress: Progress, tracker: Any, callbacks: Sequence[Callback]) -> int | None:
        """Do the remaining epochs, and save; return the signal that stopped the run, if any."""
        config = self.config
        tracked = (
            tracker(folder=self.folder, config=dataclasses.asdict(config)) if tracker else contextlib.nullcontext()
        )
        with (
            stop_requests() as stop,
            progress,
            event_writer(self.folder, done=self.epoch * config.rollout_size) as write,
            tracked as track,
        ):
            self.watchdog.interrupt = stop.fail
            events = [write, *([] if track is None else [track]), *callbacks]
            progress.begin(self.epoch, self.head)
            for note in self.notes:
                progress.say(f"note: {note}")
            while self.epoch < config.last_epoch and not stop.is_set():
                metrics, evaluation, proceed = self.step(events)
                progress.update(self.epoch, metrics, evaluation)
                if word := self.binding.advice(metrics):
                    progress.say(word)
                if not proceed:
                    break
        self.save()
        return stop.signal

    def step(self, events: Sequence[Callback]) -> tuple[dict[str, Any], float | None, bool]:
        """Do one epoch: collect, learn, evaluate, record, and save if a checkpoint is due.

        Args:
            events: Functions of steps and scalars.

        Returns:
            Metrics, the mean return of the evaluation, and whether to continue.

        Raises:
            RunError: A metric is not finite.
        """
        config, started = self.config, time.perf_counter()
        with self.watchdog.watching(self.collector.lanes.position):
            rollout = self.collector.collect(
                make_actor(self.state.policy, self.head),
                num_steps=config.rollout_size // config.num_envs,
                iteration=self.epoch,
            )
        collected = time.perf_counter()
        rng = np.random.default_rng([config.seed, self.epoch, LEARNING_STREAM])
        self.state, learned = self.algorithm.update(self.state, Batch.of(rollout), rng)
        learned = jax.device_get(learned)
        self.epoch += 1
        updated = time.perf_counter()
        steps = self.epoch * config.rollout_size

        metrics = episode_means(rollout) | {name: float(value) for name, value in learned.items()}
        check_finite(metrics, epoch=self.epoch, folder=self.folder)
        evaluation = self._evaluate(steps)
        evaluated = time.perf_counter()
        records.append(self.folder / METRICS, records.metric_record(self.epoch, steps, metrics))
        self.seconds += time.perf_counter() - started
        timing = {
            "seconds": self.seconds,
            "steps_per_second": config.rollout_size / (updated - started),  # without evaluation
            "collecting": collected - started,
            "updating": updated - collected,
            "evaluating": evaluated - updated,
        }
        records.append(self.folder / TIMINGS, {"epoch": self.epoch, "steps": steps, **timing})
        scalars = metrics | timing | {"evaluation_return": evaluation}
        answers = [event(steps, scalars) for event in events]
        if self.epoch % config.checkpoint_every == 0:
            self.save()
        ended = any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)
        return metrics | timing, evaluation, not ended

    def _evaluate(self, steps: int) -> float | None:
        """Run and record noise-free episodes if this epoch has an evaluation; return the mean return, or None."""
        if not self.config.evaluates(self.epoch):
            return None
        with self.watchdog.watching(self.evaluator.environment.position):
            found = self.evaluator.evaluate(
                make_actor(self.state.policy, self.head),
                self.collector.normaliser.frozen(),
                epoch=self.epoch,
                num_episodes=self.config.eval_episodes,
            )
        record = {
            "epoch": self.epoch,
            "steps": steps,
            "returns": found.returns.tolist(),
            "lengths": found.lengths.tolist(),
        }
        records.append(self.folder / EVALUATIONS, record)
        mean = float(found.returns.mean())
        if mean > self.best:
            self.best = mean
            checkpoints.save_best(
                self.folder,
                epoch=self.epoch,
                state=self.state,
                head=self.head,
                collector=self.collector,
                evaluation=mean,
            )
        return mean

    def save(self) -> None:
        """Write a checkpoint, after syncing the records that belong to it, unless this epoch has one."""
        if self.saved == self.epoch:
            return
        records.flush(self.folder)
        checkpoints.save(
            self.folder,
            epoch=self.epoch,
            state=self.state,
            head=self.head,
            collector=self.collector,
            evaluator=self.evaluator,
            seconds=self.seconds,
        )
        self.saved = self.epoch

    @contextlib.contextmanager
    def _advice(self) -> Iterator[None]:
        """Add to errors of the environment and the disk what is saved and how to resume."""
        try:
            yield
        except FaultyEnvironmentError as error:
            raise FaultyEnvironmentError(f"{error}. {self._how_to_resume()}") from error
        except ConnectionError:  # of a tracker
            raise
        except OSError as error:
            named = error.filename
            if isinstance(named, str) and not Path(named).is_relative_to(self.folder):  # a callback's own file
                raise
            raise RunError(f"{self.folder} cannot be written: {os_problem(error)}. {self._how_to_resume()}") from error

    def _how_to_resume(self) -> str:
        saved = f"It is saved up to epoch {self.saved}" if self.saved else "No checkpoint was due yet"
        command = resume_command(self.folder, env_id=self.config.env_id)
        return f"{saved}: once that is fixed, continue with `{command}`"


def episode_means(rollout: Rollout) -> dict[str, float | None]:
    """Average return and length of the episodes that ended in this rollout; None if none did."""
    if not len(rollout.episode_returns):
        return {"train_return": None, "train_length": None}
    return {
        "train_return": float(rollout.episode_returns.mean()),
        "train_length": float(rollout.episode_lengths.mean()),
    }


def check_finite(metrics: dict[str, Any], *, epoch: int, folder: Path) -> None:
    """Refuse an epoch with a non-finite metric."""
    broken = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
    if broken:
        raise RunError(
            f"training broke down in epoch {epoch}: {', '.join(broken)} not finite. The checkpoint before it"
            f" in {folder} is untouched; a smaller learning_rate or smaller bounds may help"
        )


def final_return(folder: Path) -> float | None:
    """Average the returns of the last 20 evaluations.

    Args:
        folder: The run folder.

    Returns:
        The mean, None without any evaluation.
    """
    returns = list(records.mean_returns(folder).values())
    return float(np.mean(returns[-WINDOW:])) if returns else None
