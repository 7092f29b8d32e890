"""Environments in processes, by Gymnasium's vector environment: for simulators that hold Python's lock.

Each process has a guarded, replayable `Environment`: results are bit-identical to `sync`, and so is resuming.
"""

import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from trpl.errors import ConfigError, FaultyEnvironmentError, ReplayError
from trpl.policies.heads import Head
from trpl.rollouts.environments import Environment
from trpl.rollouts.rounds import Environments, Round
from trpl.rollouts.seeds import ENVIRONMENT_STREAM, derived_seed
from trpl.rollouts.task_spec import Task, as_task, is_local


class ProcessEnvironments(Environments):
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
        self._vector = AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
        self.observation_size = int(self._vector.single_observation_space.shape[0])  # type: ignore[index]
        self.head: Head = self._vector.get_attr("head")[0]
        self._num_calls = 0

    def begin(self) -> np.ndarray:
        return np.array(self._ask(self._vector.reset)[0], dtype=np.float64)

    def step(self, step: Round) -> None:
        self._num_calls += 1
        actions, observations, rewards, terminated, truncated, ended = step
        observations[:], rewards[:], terminated[:], truncated[:], info = self._ask(self._vector.step, actions)
        ended += [(int(n), info["final_obs"][n]) for n in np.flatnonzero(terminated | truncated)]

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Describe how the unfinished episodes came about, in the format of `sync`."""
        states = self._ask(self._vector.call, "episode_state")
        for found in states:
            if isinstance(found, str):
                raise ReplayError(found)
        arrays = {f"actions.{n}": actions for n, (actions, _) in enumerate(states)}
        return arrays, {"environments": [meta for _, meta in states]}

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], *, observations: np.ndarray) -> bool:
        """Replay the unfinished episodes in parallel."""
        saved = zip(meta["environments"], observations, strict=True)
        episodes = [(arrays[f"actions.{n}"], about, o) for n, (about, o) in enumerate(saved)]
        self._ask(self._vector.set_attr, "saved", episodes)
        for found in self._ask(self._vector.call, "replay"):
            if found is not None:
                raise ReplayError(found)
        return True

    def position(self) -> int:
        return self._num_calls

    def close(self) -> None:
        """End the processes, also during a call: one that hangs, or ended by itself, does not answer."""
        self._vector._state = AsyncState.DEFAULT
        self._vector.close(terminate=True)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the vector environment; name the process that does not exist any more, if any."""
        try:
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


class _WorkerEnvironment(gym.Env):
    """An `Environment` behind the interface that Gymnasium's worker process needs."""

    def __init__(self, environment: Environment):
        self.environment, self.head = environment, environment.head
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (environment.observation_size,), np.float64)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (environment.action_size,), np.float32)
        self.saved: tuple[np.ndarray, Mapping[str, Any], np.ndarray] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return self.environment.begin(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return *self.environment.step(np.array(action)), {}  # a copy: the environment keeps it

    def episode_state(self) -> tuple[np.ndarray, dict[str, Any]] | str:
        """Return `Environment.state`, or the error's message: an exception here would end the process."""
        try:
            return self.environment.state()
        except ReplayError as error:
            return str(error)

    def replay(self) -> str | None:
        """Replay the episode in `saved`; return the error's message, if any."""
        assert self.saved is not None
        actions, meta, observation = self.saved
        try:
            self.environment.restore(actions, meta, observation=observation)
        except ReplayError as error:
            return str(error)
        return None

    def close(self) -> None:
        self.environment.close()


def _maker(task: Task, *, seed: int, index: int) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        if multiprocessing.parent_process() is not None:  # Ctrl-C is for the run, which ends its epoch and saves
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _WorkerEnvironment(Environment(task, seed=seed, index=index))

    return make
