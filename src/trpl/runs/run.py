"""One run: collect, learn, evaluate, record, epoch after epoch, in a folder that can be resumed and judged.

Nothing random is carried from epoch to epoch: every stream is a function of (seed, epoch, stream). What is carried
(weights, optimisers, normalisers, the environments' unfinished episodes) is in the checkpoint, so a run that was killed
and resumed ends with the same bits as one that was not.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from trpl.algorithms import Batch, make_algorithm
from trpl.errors import ConfigError, FaultyEnvironmentError, RunError
from trpl.messages import os_problem
from trpl.policies.acting import Actor
from trpl.policies.storage import checkpoint_folders
from trpl.rollouts import Collector, Evaluator, Rollout
from trpl.runs import checkpoints, records
from trpl.runs.events import event_writer
from trpl.runs.folder import EVALUATIONS, METRICS, TIMINGS, default_folder, is_run, locked, read_config, write_config
from trpl.runs.progress import Progress
from trpl.runs.stopping import stop_requests
from trpl.runs.watchdog import Watchdog
from trpl.settings.config import WINDOW, WITHOUT_EFFECT, Config

LEARNING_STREAM = 201  # third word of the seeds [seed, epoch, stream]


class RunResult(NamedTuple):
    folder: Path
    finished: bool  # False when it was asked to stop; `resume` goes on
    epochs: int
    final_return: float | None  # mean over the last 20 evaluations, None without any
    digest: str  # of weights, metrics and evaluations: equal for equal runs


def train(config: Config, out: str | Path | None = None, *, progress: bool = True, tracker: Any = None) -> RunResult:
    """Train from the start in the new folder `out` (runs/<env>/<method>/seed-<n> by default).

    `tracker(folder=..., config=...)`, if given, is a context whose function gets steps and scalars of every epoch.
    """
    folder = Path(out) if out is not None else default_folder(config)
    refuse_existing(folder)
    with Trainer(config, folder) as trainer:  # made first: what cannot be trained leaves no folder behind
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            refuse_existing(folder)
            write_config(folder, config)
            return trainer.run(Progress.of(config, enabled=progress), tracker)


def resume(out: str | Path, *, progress: bool = True, tracker: Any = None, **changes: Any) -> RunResult:
    """Go on from the newest sound checkpoint in `out`, or from the start where there is none yet.

    `changes` are settings that change nothing of the result (`WITHOUT_EFFECT`), for this session.
    """
    folder = Path(out)
    if unknown := set(changes).difference(WITHOUT_EFFECT):
        raise ConfigError(f"{', '.join(sorted(unknown))} cannot change in the middle of a run")
    config = read_config(folder).replace(**changes)
    with locked(folder), Trainer(config, folder) as trainer:
        trainer.restore()
        return trainer.run(Progress.of(config, enabled=progress), tracker)


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
                config, obs_size=self.collector.observation_size, action_size=self.collector.action_size
            )
            self.state = jax.jit(self.algorithm.init)(jax.random.key(config.seed))
            self._opened = opened.pop_all()
        self.epoch = self.saved = 0  # epochs done, and epochs in the newest checkpoint
        self.seconds = 0.0

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self._opened.close()

    def restore(self) -> None:
        """Back to the newest sound checkpoint; records of later epochs are cut off, since they will be written
        again.
        """
        if checkpoint_folders(self.folder):
            with self.watchdog.watching(self.collector.environments.position):
                self.state, self.epoch, self.seconds = checkpoints.restore(
                    self.folder, like=self.state, collector=self.collector, evaluator=self.evaluator
                )
            self.saved = self.epoch
        done = range(1, self.epoch + 1)
        records.cut_back(self.folder / METRICS, epochs=done)
        records.cut_back(self.folder / EVALUATIONS, epochs=filter(self.config.evaluates, done))
        records.cut_back(self.folder / TIMINGS, epochs=done)

    def run(self, progress: Progress, tracker: Any = None) -> RunResult:
        """Epochs until the end, or until SIGTERM or Ctrl-C; then a checkpoint."""
        with self.advice():
            finished = self.epochs(progress, tracker)
            return RunResult(
                folder=self.folder,
                finished=finished,
                epochs=self.epoch,
                final_return=final_return(self.folder),
                digest=records.digest(self.folder, checkpoints.learner_arrays(self.state).items()),
            )

    def epochs(self, progress: Progress, tracker: Any) -> bool:
        """The epochs that are left, saved; whether the last one was reached."""
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
            events = [write] if track is None else [write, track]
            progress.begin(self.epoch)
            while self.epoch < config.last_epoch and not stop.is_set():
                metrics, evaluation = self.step(events)
                if self.epoch % config.checkpoint_every == 0:
                    self.save()
                progress.update(self.epoch, metrics, evaluation)
        if self.saved != self.epoch:
            self.save()
        return self.epoch >= config.last_epoch

    def step(self, events: list[Any]) -> tuple[dict[str, Any], float | None]:
        """One epoch: collect, learn, evaluate, record."""
        config, started = self.config, time.perf_counter()
        with self.watchdog.watching(self.collector.environments.position):
            rollout = self.collector.collect(
                Actor(self.state.policy), num_steps=config.rollout_size // config.num_envs, iteration=self.epoch
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
        for event in events:
            event(steps, metrics | timing | {"evaluation_return": evaluation})
        return metrics | timing, evaluation

    def evaluate(self, steps: int) -> float | None:
        """Noise-free episodes where this epoch has an evaluation; their mean return."""
        if not self.config.evaluates(self.epoch):
            return None
        with self.watchdog.watching(self.evaluator.environment.position):
            found = self.evaluator.evaluate(
                Actor(self.state.policy),
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
        return float(found.returns.mean())

    def save(self) -> None:
        """A checkpoint, after the records that belong to it."""
        records.flush(self.folder)
        checkpoints.save(
            self.folder,
            epoch=self.epoch,
            state=self.state,
            collector=self.collector,
            evaluator=self.evaluator,
            seconds=self.seconds,
        )
        self.saved = self.epoch

    @contextlib.contextmanager
    def advice(self) -> Iterator[None]:
        """Errors of the environment and of the disk, with what is saved and how to go on."""
        try:
            yield
        except FaultyEnvironmentError as error:
            raise FaultyEnvironmentError(f"{error}. {self.how_to_go_on()}") from error
        except ConnectionError:  # a tracker's
            raise
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written: {os_problem(error)}. {self.how_to_go_on()}") from error

    def how_to_go_on(self) -> str:
        saved = f"It is saved up to epoch {self.saved}" if self.saved else "No checkpoint was due yet"
        return f"{saved}: once that is mended, go on with `trpl resume {self.folder}`"


def make_collector(config: Config) -> Collector:
    return Collector(
        config.env_id,
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
    return Evaluator(config.env_id, seed=config.seed, released=config.released_evaluation)


def refuse_existing(folder: Path) -> None:
    if is_run(folder):
        raise RunError(f"{folder} already holds a run: go on with `trpl resume {folder}`, or choose another folder")


def episode_means(rollout: Rollout) -> dict[str, float | None]:
    """Mean return and length of the episodes that ended in this rollout, None where none did."""
    if not len(rollout.episode_returns):
        return {"train_return": None, "train_length": None}
    return {
        "train_return": float(rollout.episode_returns.mean()),
        "train_length": float(rollout.episode_lengths.mean()),
    }


def check_finite(metrics: dict[str, Any], *, epoch: int, folder: Path) -> None:
    broken = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
    if broken:
        raise RunError(
            f"training broke down in epoch {epoch}: {', '.join(broken)} not finite. The checkpoint before it"
            f" in {folder} is untouched; a smaller learning_rate or smaller bounds may help"
        )


def final_return(folder: Path) -> float | None:
    """Mean return of the last 20 evaluations."""
    last = records.read(folder, EVALUATIONS)[-WINDOW:]
    return float(np.mean([np.mean(record["returns"]) for record in last])) if last else None
