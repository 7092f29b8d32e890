"""The parts of a run and its epochs: collect, learn, evaluate, record, in a folder that can be resumed and judged.

Nothing random is carried from epoch to epoch: every stream is a function of (seed, epoch, stream). What is carried
(weights, optimisers, normalisers, the environments' unfinished episodes) is in the checkpoint, so a run that was killed
and resumed ends with the same bits as one that was not.
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
from trpl.rollouts import Collector, Evaluator, Rollout, Task
from trpl.runs import checkpoints, records
from trpl.runs.binding import Binding
from trpl.runs.events import event_writer
from trpl.runs.folder import (
    EVALUATIONS,
    METRICS,
    TIMINGS,
    add_stretch,
    changed_versions,
    locate,
    read_about,
    stretches,
)
from trpl.runs.progress import Progress
from trpl.runs.stopping import stop_requests
from trpl.runs.watchdog import Watchdog
from trpl.settings.config import WINDOW, Config

LEARNING_STREAM = 201  # third word of the seeds [seed, epoch, stream]


class RunResult(NamedTuple):
    """Say how a run ended.

    Args:
        folder: The run folder.
        finished: False when the run was asked to stop; `resume` goes on.
        epochs: How many epochs are done.
        final_return: The mean over the last 20 evaluations, None without any.
        digest: A hash of weights, metrics and evaluations: equal for equal runs.
        signal: What asked it to stop: SIGINT or SIGTERM.
    """

    folder: Path
    finished: bool
    epochs: int
    final_return: float | None
    digest: str
    signal: int | None = None


Callback = Callable[[int, Mapping[str, float | None]], object]  # steps so far, scalars of the epoch


class Trainer:
    """The parts of a run and where it stands."""

    def __init__(self, config: Config, folder: Path):
        self.config, self.folder = config, folder
        with contextlib.ExitStack() as opened:
            self.watchdog = opened.enter_context(
                Watchdog(seconds=config.env_timeout, env_id=config.env_id, folder=folder)
            )
            with self.watchdog.watching(tuple):  # making them all is one step
                self.collector = opened.enter_context(contextlib.closing(make_collector(config)))
                self.evaluator = opened.enter_context(contextlib.closing(make_evaluator(config)))
            self.algorithm = make_algorithm(
                config, obs_size=self.collector.observation_size, head=self.collector.environments.head
            )
            self.head = self.algorithm.policy.head
            self.state = jax.jit(self.algorithm.init)(jax.random.key(config.seed))
            if config.warm_start:
                _, source = locate(config.warm_start)
                self.state = checkpoints.warm_start(self.state, self.collector, source=source)
            self._opened = opened.pop_all()
        self.epoch = self.saved = 0  # epochs done, and epochs in the newest checkpoint
        self.seconds, self.best = 0.0, -math.inf
        self.binding = Binding()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self._opened.close()

    def restore(self, *, other_versions: bool = False) -> None:
        """Go back to the newest sound checkpoint; records of later epochs are cut off and will be written again.

        Args:
            other_versions: Go on although libraries have other versions than the run was computed with.

        Raises:
            RunError: Libraries have other versions.
            ConfigError: The run is past the number of steps that is asked for.
        """
        about = read_about(self.folder)
        self._check_versions(about, allowed=other_versions)
        if checkpoint_folders(self.folder):
            with self.watchdog.watching(self.collector.environments.position):
                self.state, self.epoch, self.seconds = checkpoints.restore(
                    self.folder, like=self.state, collector=self.collector, evaluator=self.evaluator
                )
            self.saved = self.epoch
        if self.config.last_epoch < self.epoch:
            raise ConfigError(f"{self.folder} has done {self.epoch * self.config.rollout_size} steps already")
        done = range(1, self.epoch + 1)
        records.cut_back(self.folder / METRICS, epochs=done)
        records.cut_back(self.folder / EVALUATIONS, epochs=self._evaluated(about))
        records.cut_back(self.folder / TIMINGS, epochs=done)
        self.best = checkpoints.best_evaluation(self.folder)
        if self.epoch < self.config.last_epoch:
            add_stretch(self.folder, self.config, epoch=self.epoch)

    def _check_versions(self, about: Mapping[str, Any], *, allowed: bool) -> None:
        changed, newest = changed_versions(about), next(iter(checkpoint_folders(self.folder)), None)
        if changed and not allowed and newest is not None and int(newest.name) < self.config.last_epoch:
            raise RunError(
                f"{self.folder} was computed with other versions: {'; '.join(changed)}. The result may then differ from"
                " the last digit on; to go on all the same, and have the record say so, use --other-versions"
            )

    def _evaluated(self, about: Mapping[str, Any]) -> list[int]:
        """List the epochs done that were evaluated, each by the number of steps that its stretch was to have."""
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
            progress: Where progress is shown.
            tracker: As in `trpl.runs.run.train`.
            callbacks: As in `trpl.runs.run.train`.

        Returns:
            Where the run is and how it ended.
        """
        with self.advice():
            signal = self.epochs(progress, tracker, callbacks)
            return RunResult(
                folder=self.folder,
                finished=self.epoch >= self.config.last_epoch,
                epochs=self.epoch,
                final_return=final_return(self.folder),
                digest=records.digest(self.folder, checkpoints.learner_arrays(self.state).items()),
                signal=signal,
            )

    def epochs(self, progress: Progress, tracker: Any, callbacks: Sequence[Callback]) -> int | None:
        """Do the epochs that are left, and save.

        Args:
            progress: Where progress is shown.
            tracker: As in `trpl.runs.run.train`.
            callbacks: As in `trpl.runs.run.train`.

        Returns:
            The signal that asked to stop, or None.
        """
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
            while self.epoch < config.last_epoch and not stop.is_set():
                metrics, evaluation, goes_on = self.step(events)
                if self.epoch % config.checkpoint_every == 0:
                    self.save()
                progress.update(self.epoch, metrics, evaluation)
                if word := self.binding.advice(metrics):
                    progress.say(word)
                if not goes_on:
                    break
        if self.saved != self.epoch:
            self.save()
        return stop.signal

    def step(self, events: Sequence[Callback]) -> tuple[dict[str, Any], float | None, bool]:
        """Do one epoch: collect, learn, evaluate, record.

        Args:
            events: Functions of steps and scalars.

        Returns:
            Metrics, the mean return of the evaluation, and whether to go on.

        Raises:
            RunError: A number of the update is not finite.
        """
        config, started = self.config, time.perf_counter()
        with self.watchdog.watching(self.collector.environments.position):
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
        evaluation = self.evaluate(steps)
        evaluated = time.perf_counter()
        records.append(self.folder / METRICS, records.metric_record(self.epoch, steps, metrics))
        self.seconds += time.perf_counter() - started
        timing = {
            "seconds": self.seconds,
            "steps_per_second": config.rollout_size / (updated - started),  # of training alone
            "collecting": collected - started,
            "updating": updated - collected,
            "evaluating": evaluated - updated,
        }
        records.append(self.folder / TIMINGS, {"epoch": self.epoch, "steps": steps, **timing})
        scalars = metrics | timing | {"evaluation_return": evaluation}
        answers = [event(steps, scalars) for event in events]
        return metrics | timing, evaluation, all(answer is not False for answer in answers)

    def evaluate(self, steps: int) -> float | None:
        """Run noise-free episodes where this epoch has an evaluation.

        Args:
            steps: Environment steps so far, for the record.

        Returns:
            The mean return, or None.
        """
        if not self.config.evaluates(self.epoch):
            return None
        with self.watchdog.watching(self.evaluator.environment.position):
            found = self.evaluator.evaluate(
                make_actor(self.state.policy, self.head),
                self.collector.normaliser,
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
        """Write a checkpoint, after the records that belong to it."""
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
    def advice(self) -> Iterator[None]:
        """Add to errors of the environment and of the disk what is saved and how to go on.

        Yields:
            Nothing.

        Raises:
            FaultyEnvironmentError: The environment raised, hung, or returned something that is not a number.
            RunError: The disk is full, or cannot be written to.
        """
        try:
            yield
        except FaultyEnvironmentError as error:
            raise FaultyEnvironmentError(f"{error}. {self.how_to_go_on()}") from error
        except ConnectionError:  # a tracker's
            raise
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written: {os_problem(error)}. {self.how_to_go_on()}") from error

    def how_to_go_on(self) -> str:
        """Say what is saved and how to resume.

        Returns:
            A sentence.
        """
        saved = f"It is saved up to epoch {self.saved}" if self.saved else "No checkpoint was due yet"
        return f"{saved}: once that is mended, go on with `trpl resume {self.folder}`"


def task_of(config: Config) -> Task:
    """Describe the task of a configuration.

    Args:
        config: The settings of a run.

    Returns:
        The environment's name and arguments, and how actions reach it.
    """
    return Task(config.env_id, config.env_kwargs, config.action_units, config.clip_actions, config.policy)


def make_collector(config: Config) -> Collector:
    """Make what gathers a configuration's experience."""
    return Collector(
        task_of(config),
        num_envs=config.num_envs,
        vectorisation=config.vectorisation,
        seed=config.seed,
        discount=config.discount,
        normalise_observations=config.normalise_observations,
        observation_clip=config.observation_clip,
        normalise_rewards=config.normalise_rewards,
        reward_clip=config.reward_clip,
        released_variance=config.released_variance,
    )


def make_evaluator(config: Config) -> Evaluator:
    """Make what runs a configuration's noise-free episodes."""
    return Evaluator(task_of(config), seed=config.seed, released=config.released_evaluation)


def episode_means(rollout: Rollout) -> dict[str, float | None]:
    """Average return and length of the episodes that ended in this rollout; None where none did."""
    if not len(rollout.episode_returns):
        return {"train_return": None, "train_length": None}
    return {
        "train_return": float(rollout.episode_returns.mean()),
        "train_length": float(rollout.episode_lengths.mean()),
    }


def check_finite(metrics: dict[str, Any], *, epoch: int, folder: Path) -> None:
    """Refuse an epoch after which something is not a number."""
    broken = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
    if broken:
        raise RunError(
            f"training broke down in epoch {epoch}: {', '.join(broken)} not finite. The checkpoint before it"
            f" in {folder} is untouched; a smaller learning_rate or smaller bounds may help"
        )


def final_return(folder: Path) -> float | None:
    """Average the returns of the last 20 evaluations."""
    last = records.read(folder, EVALUATIONS)[-WINDOW:]
    return float(np.mean([np.mean(record["returns"]) for record in last])) if last else None
