"""Lanes in processes, by Gymnasium's vector environment: for simulators that hold Python's lock.

Each process has a guarded, replayable `Environment` and collects its part of a rollout by itself: results are
bit-identical to `sync`, and so is resuming.
"""

import multiprocessing
import multiprocessing.connection
import signal
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from trpl.errors import ConfigError, FaultyEnvironmentError, ReplayError
from trpl.policies.heads import Head
from trpl.rollouts.environments import Environment
from trpl.rollouts.lanes import (
    Actor,
    Lane,
    Lanes,
    LaneState,
    Part,
    Segment,
    advance,
    joined,
    joined_states,
    separate_states,
    spawned,
)
from trpl.rollouts.normalisation import ObservationNormaliser
from trpl.rollouts.seeds import ENVIRONMENT_STREAM, derived_seed
from trpl.rollouts.task_spec import Task, as_task, is_local

TURN = 0.2  # seconds that each process steps before it answers, so that one that hangs is noticed


class ProcessLanes(Lanes):
    """Any Gymnasium environment, N times, each in a process of its own."""

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        task = as_task(task)
        if is_local(task.env_id):
            raise ConfigError(
                "vectorisation 'processes' needs an environment by its name, module:Name-v0: other processes do not"
                " know one that was handed over as an object or a callable; vectorisation 'threads' takes it"
            )
        self.env_id, self.num_envs = task.env_id, num_envs
        makers = [_maker(task, seed=derived_seed(seed, n, ENVIRONMENT_STREAM), index=n) for n in range(num_envs)]
        # spawned, not forked: JAX has threads, which a fork would not copy
        self._vector = AsyncVectorEnv(
            makers, shared_memory=False, context="spawn", autoreset_mode=AutoresetMode.DISABLED
        )
        self._kill = weakref.finalize(self, _kill, self._vector.processes)  # also when the interpreter ends
        self._ask(self._vector.call, "ignore_sigterm")
        self.observation_size = int(self._vector.single_observation_space.shape[0])  # type: ignore[index]
        self.head: Head = self._vector.get_attr("head")[0]
        self._num_turns = 0

    def begin(self, normaliser: ObservationNormaliser) -> None:
        with normaliser.copies(self.num_envs) as copies:
            for own, observed in zip(copies, self._each("begin", copies), strict=True):
                own.restore(observed)

    def collect(
        self, actor: Actor, generator: np.random.Generator, num_steps: int, normaliser: ObservationNormaliser
    ) -> Segment:
        with normaliser.copies(self.num_envs) as copies:
            drawn = spawned(generator, self.num_envs)
            self._each("start", [(actor, noise, num_steps, own) for noise, own in zip(drawn, copies, strict=True)])
            while not all(self._ask(self._vector.call, "advance")):
                self._num_turns += 1
            segments, observed = zip(*self._ask(self._vector.call, "finish"), strict=True)
            for own, statistics in zip(copies, observed, strict=True):
                own.restore(statistics)
        return joined(segments)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Describe how the unfinished episodes came about, in the format of `sync`."""
        states = self._ask(self._vector.call, "lane_state")
        for found in states:
            if isinstance(found, str):
                raise ReplayError(found)
        return joined_states(states)

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
        """Replay the unfinished episodes in parallel."""
        for found in self._each("replay", separate_states(arrays, meta)):
            if found is not None:
                raise ReplayError(found)
        return True

    def position(self) -> int:
        return self._num_turns

    def close(self) -> None:
        """End the processes, also during a call: one that hangs, or ended by itself, does not answer."""
        self._kill()
        self._vector._state = AsyncState.DEFAULT
        self._vector.close(terminate=True)

    def _each(self, name: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Call a method in every process, each with its own argument."""
        self._ask(self._vector.set_attr, "argument", list(arguments))
        return self._ask(self._vector.call, name)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the vector environment; name the process that does not exist any more, if any.

        Gymnasium warns of an error with its traceback in the process; here that is a note of the error.
        """
        logged: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as logged:
                warnings.simplefilter("always")
                return call(*arguments)
        except (EOFError, ConnectionError) as error:
            processes = self._vector.processes
            gone = multiprocessing.connection.wait([process.sentinel for process in processes], timeout=1.0)
            ended = [(n, process) for n, process in enumerate(processes) if process.sentinel in gone]
            for _, process in ended:
                process.join(timeout=1.0)  # for its exit code
            found = ", ".join(f"environment {n} with exit code {process.exitcode}" for n, process in ended)
            raise FaultyEnvironmentError(
                f"{self.env_id}: a process ended by itself ({found}); -9 is a kill, perhaps for lack of memory"
            ) from error
        except Exception as error:
            error.add_note("\n".join(str(warning.message) for warning in logged))
            raise


class _WorkerEnvironment(gym.Env):
    """A `Lane` behind the interface that Gymnasium's worker process needs; `argument` is the next call's."""

    def __init__(self, environment: Environment):
        self.lane, self.head = Lane(environment), environment.head
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (environment.observation_size,), np.float64)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (environment.action_size,), np.float32)
        self.argument: Any = None
        self._part: Part | None = None
        self._segment: Segment | None = None

    def ignore_sigterm(self) -> None:
        """Leave it to the run, which ends its epoch and saves, also where a whole process group gets it."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def begin(self) -> dict[str, np.ndarray]:
        """Start an episode; return the statistics of observations."""
        normaliser = self.argument
        self.lane.begin(normaliser)
        return normaliser.state()

    def start(self) -> None:
        """Start the lane's part of a rollout."""
        self._part, self._segment = self.lane.collect(*self.argument), None

    def advance(self) -> bool:
        """Take steps for a turn; return whether the part is complete."""
        end = time.monotonic() + TURN
        while self._part is not None and time.monotonic() < end:
            self._segment = advance(self._part, 1)
            if self._segment is not None:
                self._part = None
        return self._part is None

    def finish(self) -> tuple[Segment, dict[str, np.ndarray]]:
        """Return the lane's part and the statistics of observations."""
        segment, self._segment = self._segment, None
        assert segment is not None
        *_, normaliser = self.argument
        return segment, normaliser.state()

    def lane_state(self) -> LaneState | str:
        """Return `Lane.state`, or the error's message: an exception here would end the process."""
        try:
            return self.lane.state()
        except ReplayError as error:
            return str(error)

    def replay(self) -> str | None:
        """Replay the unfinished episode of a saved state; return the error's message, if any."""
        try:
            self.lane.restore(self.argument)
        except ReplayError as error:
            return str(error)
        return None

    def close(self) -> None:
        self.lane.environment.close()


def _kill(processes: Sequence[multiprocessing.Process]) -> None:
    for process in processes:
        process.kill()


def _maker(task: Task, *, seed: int, index: int) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        if multiprocessing.parent_process() is not None:  # Ctrl-C is for the run, which ends its epoch and saves
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _WorkerEnvironment(Environment(task, seed=seed, index=index))

    return make
