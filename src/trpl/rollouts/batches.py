"""Vectorised environments: one after the other, in threads, in processes, or by `envpool`.

An episode that ends is followed by the first observation of the next one within the same step, and its last observation
is returned separately, so that no step of a rollout is a mere reset.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from trpl.cores import num_cores
from trpl.errors import FaultyEnvironmentError
from trpl.messages import needs
from trpl.rollouts.environments import Environment
from trpl.rollouts.processes import ProcessEnvironments
from trpl.rollouts.rounds import Environments, Round
from trpl.rollouts.seeds import ENVIRONMENT_STREAM, derived_seed
from trpl.rollouts.spaces import head_of, observing
from trpl.rollouts.task_spec import Task, as_task

PATIENCE = 1.0  # seconds for other threads to leave their environments after an error; they may hang there


class SyncEnvironments(Environments):
    """Any Gymnasium environment, N times, stepped one after the other in this process."""

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        self.num_envs = num_envs
        self.environments = [
            Environment(task, seed=derived_seed(seed, n, ENVIRONMENT_STREAM), index=n) for n in range(num_envs)
        ]
        self._numbered = list(enumerate(self.environments))
        self.single = self.environments[0] if num_envs == 1 else None
        self.observation_size = self.environments[0].observation_size
        self.head = self.environments[0].head

    def begin(self) -> np.ndarray:
        return np.stack([environment.begin() for environment in self.environments])

    def step(self, step: Round) -> None:
        self._step_some(self._numbered, step)

    def _step_some(self, numbered: Iterable[tuple[int, Environment]], step: Round) -> None:
        """Step some of the environments, given with their numbers."""
        actions, observations, rewards, terminated, truncated, ended = step
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

    MuJoCo does while it steps. Environments are independent, so results are bit-identical to `sync`. The thread that is
    the last to finish a round begins the next one itself, because waking another thread takes 30 to 50 µs.
    """

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        super().__init__(task, num_envs=num_envs, seed=seed)
        # One inbox per thread, the caller's first. True: a round has begun; False: there are no more.
        self._inboxes = [SimpleQueue() for _ in range(min(num_envs, num_cores()))]
        self._rounds: Iterator[Round] = iter(())
        self._error: BaseException | None = None
        self._running = False  # also after an interruption: another thread may still be in an environment
        self._helpers = [Thread(target=self._help, args=(inbox,), daemon=True) for inbox in self._inboxes[1:]]
        for helper in self._helpers:
            helper.start()

    def step(self, step: Round) -> None:
        self.run(iter((step,)))

    def run(self, rounds: Iterator[Round]) -> None:
        if self._running:
            raise RuntimeError("the environments were interrupted and may still be running: close them, make new ones")
        self._rounds, self._error, self._running, own = rounds, None, True, self._inboxes[0]
        try:
            begun = self._begin_round(own)
            while begun:
                begun = not self._finish_rounds(own) and own.get(timeout=None if self._error is None else PATIENCE)
            self._running = False
        except Empty:  # after an error: raise it without waiting for a thread that hangs
            pass
        except BaseException as error:  # interrupted: the others stop after this round
            self._error = error
        if self._error is not None:
            raise self._error

    def _help(self, own: SimpleQueue) -> None:
        while own.get():
            if self._finish_rounds(own):
                self._inboxes[0].put(False)

    def _begin_round(self, own: SimpleQueue) -> bool:
        """Compute the next round and wake the other threads; return whether there is one."""
        try:
            step = None if self._error is not None else next(self._rounds, None)
        except BaseException as error:  # `run` raises it
            self._error, step = error, None
        if step is None:
            return False
        self._step, self._untaken = step, iter(self._numbered)
        self._unfinished = list(range(len(self._inboxes)))
        for inbox in self._inboxes:
            if inbox is not own:
                inbox.put(True)
        return True

    def _finish_rounds(self, own: SimpleQueue) -> bool:
        """Step environments that no thread has taken, round after round while this thread is the last to finish.

        Returns:
            Whether there are no more rounds; False if another thread has yet to finish this one.
        """
        while True:
            try:
                self._step_some(self._untaken, self._step)
            except BaseException as error:  # `run` raises it
                self._error = error
            if self._unfinished.pop():  # atomic; 0 for the last thread
                return False
            if not self._begin_round(own):
                return True

    def close(self) -> None:
        for inbox in self._inboxes[1:]:
            inbox.put(False)
        deadline = time.monotonic() + PATIENCE
        for helper in self._helpers:
            helper.join(max(0.0, deadline - time.monotonic()))
        self._helpers = [helper for helper in self._helpers if helper.is_alive()]
        if not self._helpers:  # else one hangs in an environment, which cannot be closed meanwhile
            super().close()


class PooledEnvironments(Environments):
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
        self._pool = envpool.make_gymnasium(
            env_id, num_envs=num_envs, seed=derived_seed(seed, ENVIRONMENT_STREAM) >> 1, **task.kwargs
        )
        self.observation_size, flatten = observing(self._pool.observation_space, env_id=env_id)
        if flatten is not None:
            raise ValueError(f"observations of {env_id} are not vectors; vectorisation 'sync' flattens them")
        self.head = head_of(self._pool.action_space, task)
        self._action_dtype = self._pool.action_space.dtype
        self._num_calls = 0

    def begin(self) -> np.ndarray:
        observations, _ = self._pool.reset()
        return np.array(observations, dtype=np.float64)

    def step(self, step: Round) -> None:
        self._num_calls += 1
        actions, observations, rewards, terminated, truncated, ended = step
        own = self.head.take(actions).astype(self._action_dtype)
        reached, rewards[:], terminated[:], truncated[:], _ = self._pool.step(own)
        if not (np.isfinite(reached).all() and np.isfinite(rewards).all()):
            raise FaultyEnvironmentError(f"{self.env_id} (envpool): observation or reward is not finite")
        observations[:] = reached
        stopped = np.flatnonzero(terminated | truncated)
        if len(stopped):
            observations[stopped], _ = self._pool.reset(stopped.astype(np.int32))
            ended += [(int(n), np.array(reached[n], dtype=np.float64)) for n in stopped]

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
