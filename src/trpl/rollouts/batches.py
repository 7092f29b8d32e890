"""Vectorised environments: one after the other, in threads, in processes, or by `envpool`.

An episode that ends is followed by the first observation of the next one within the same step, and its last observation
is returned separately, so that no step of a rollout is a mere reset.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import numpy as np

from trpl.cores import num_cores
from trpl.errors import FaultyEnvironmentError
from trpl.messages import needs
from trpl.policies.heads import Head
from trpl.rollouts.environments import Ended, Environment
from trpl.rollouts.processes import ProcessEnvironments
from trpl.rollouts.seeds import ENVIRONMENT_STREAM, derived_seed
from trpl.rollouts.spaces import head_of, observing
from trpl.rollouts.task_spec import Task, as_task


class Environments(Protocol):
    """N environments that a collector steps together."""

    num_envs: int
    observation_size: int
    action_size: int
    head: Head
    single: Environment | None  # the only one, if it can be stepped by itself

    def begin(self) -> np.ndarray:
        """Start an episode in each environment; return observations [N, obs]."""
        ...

    def step(
        self,
        actions: np.ndarray,
        *,
        observations: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> Ended:
        """Step each environment, writing to the arrays [N, ...]; observations are those to act on next."""
        ...

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the state for `restore`: named arrays, and metadata that JSON can hold."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], *, observations: np.ndarray) -> bool:
        """Restore the unfinished episodes; return whether that was possible."""
        ...

    def position(self) -> Any:
        """Return a value that changes with every step of any environment, for time-outs in another thread."""
        ...

    def close(self) -> None: ...


class SyncEnvironments:
    """Any Gymnasium environment, N times, stepped one after the other in this process."""

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        self.num_envs = num_envs
        self.environments = [
            Environment(task, seed=derived_seed(seed, n, ENVIRONMENT_STREAM), index=n) for n in range(num_envs)
        ]
        self._numbered = list(enumerate(self.environments))
        self.single = self.environments[0] if num_envs == 1 else None
        self.observation_size = self.environments[0].observation_size
        self.action_size = self.environments[0].action_size
        self.head = self.environments[0].head

    def begin(self) -> np.ndarray:
        return np.stack([environment.begin() for environment in self.environments])

    def step(self, actions, **arrays: np.ndarray) -> Ended:
        ended: Ended = []
        self._step_some(self._numbered, ended, actions, **arrays)
        return ended

    def _step_some(self, numbered, ended: Ended, actions, *, observations, rewards, terminated, truncated) -> None:
        """Step some of the environments, given with their numbers, and add to `ended`."""
        for n, environment in numbered:
            observation, rewards[n], ends, stops = environment.step(actions[n])
            if ends or stops:
                terminated[n], truncated[n] = ends, stops
                ended.append((n, observation))
                observation = environment.begin()
            observations[n] = observation

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        states = [environment.state() for environment in self.environments]
        arrays = {f"actions.{n}": actions for n, (actions, _) in enumerate(states)}
        return arrays, {"environments": [meta for _, meta in states]}

    def restore(self, arrays, meta, *, observations) -> bool:
        for n, (environment, saved) in enumerate(zip(self.environments, meta["environments"], strict=True)):
            environment.restore(arrays[f"actions.{n}"], saved, observation=observations[n])
        return True

    def position(self) -> list[tuple[int, int]]:
        return [environment.position() for environment in self.environments]

    def close(self) -> None:
        for environment in self.environments:
            environment.close()


class ThreadedEnvironments(SyncEnvironments):
    """`SyncEnvironments` shared among threads, one per core, for simulators that release Python's lock.

    MuJoCo does while it steps. Environments are independent, so results are bit-identical to `sync`.
    """

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        super().__init__(task, num_envs=num_envs, seed=seed)
        self._work, self._outcomes = SimpleQueue(), SimpleQueue()  # an executor's futures cost 0.1 ms more per step
        self._helpers = [Thread(target=self._run_tasks, daemon=True) for _ in range(min(num_envs, num_cores()) - 1)]
        for helper in self._helpers:
            helper.start()

    def step(self, actions, **arrays: np.ndarray) -> Ended:
        ended: Ended = []
        open_numbers = iter(self._numbered)  # each idle thread takes the next one
        work = partial(self._step_some, open_numbers, ended, actions, **arrays)
        for _ in self._helpers:
            self._work.put(work)
        try:
            work()
        finally:
            outcomes = [self._outcomes.get() for _ in self._helpers]
        for error in filter(None, outcomes):
            raise error
        return sorted(ended, key=lambda found: found[0])

    def _run_tasks(self) -> None:
        """Run tasks until None arrives, and answer each with its exception or None."""
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:  # `step` raises it
                self._outcomes.put(error)
            else:
                self._outcomes.put(None)

    def close(self) -> None:
        for _ in self._helpers:
            self._work.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers = []
        super().close()


class PooledEnvironments:
    """`envpool`'s own tasks, stepped by its threads: faster with many environments and many cores.

    Limitations: it has its own simulations of the standard tasks, not those registered with Gymnasium (such as the
    project's own), and its generators cannot be set, so an unfinished episode cannot be replayed: a resumed run starts
    new episodes and is not identical to an uninterrupted one.
    """

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        task = as_task(task)
        env_id = task.env_id
        with needs("envpool"):
            import envpool
        if env_id not in envpool.list_all_envs():
            raise ValueError(f"envpool has no task {env_id!r}; vectorisation 'sync' takes any Gymnasium environment")
        self.env_id, self.num_envs = env_id, num_envs
        self.single: Environment | None = None
        self._pool = envpool.make_gymnasium(
            env_id, num_envs=num_envs, seed=derived_seed(seed, ENVIRONMENT_STREAM) >> 1, **task.kwargs
        )
        self.observation_size, flatten = observing(self._pool.observation_space, env_id=env_id)
        if flatten is not None:
            raise ValueError(f"observations of {env_id} are not vectors; vectorisation 'sync' flattens them")
        self.head = head_of(self._pool.action_space, task)
        self.action_size, self._action_dtype = self.head.action_size, self._pool.action_space.dtype
        self._num_calls = 0

    def begin(self) -> np.ndarray:
        observations, _ = self._pool.reset()
        return np.array(observations, dtype=np.float64)

    def step(self, actions, *, observations, rewards, terminated, truncated) -> Ended:
        self._num_calls += 1
        own = self.head.take(actions).astype(self._action_dtype)
        reached, rewards[:], terminated[:], truncated[:], _ = self._pool.step(own)
        if not (np.isfinite(reached).all() and np.isfinite(rewards).all()):
            raise FaultyEnvironmentError(f"{self.env_id} (envpool): observation or reward is not finite")
        observations[:] = reached
        stopped = np.flatnonzero(terminated | truncated)
        if not len(stopped):
            return []
        observations[stopped], _ = self._pool.reset(stopped.astype(np.int32))
        return [(int(n), np.array(reached[n], dtype=np.float64)) for n in stopped]

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {}, {"environments": [None] * self.num_envs}

    def restore(self, arrays, meta, *, observations) -> bool:
        warnings.warn(
            f"envpool cannot replay {self.env_id}: the resumed run starts new episodes and will differ from one that"
            " was never stopped",
            stacklevel=2,
        )
        return False

    def position(self) -> int:
        return self._num_calls

    def close(self) -> None:
        self._pool.close()


VECTORISATIONS: dict[str, Callable[..., Environments]] = {
    "sync": SyncEnvironments,
    "threads": ThreadedEnvironments,
    "processes": ProcessEnvironments,
    "envpool": PooledEnvironments,
}


def make_environments(task: str | Task, *, num_envs: int, seed: int, vectorisation: str = "sync") -> Environments:
    """Make the environments of a collector; `vectorisation` is a key of `VECTORISATIONS`."""
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if vectorisation not in VECTORISATIONS:
        raise ValueError(f"vectorisation {vectorisation!r} is not one of {', '.join(VECTORISATIONS)}")
    return VECTORISATIONS[vectorisation](task, num_envs=num_envs, seed=seed)
