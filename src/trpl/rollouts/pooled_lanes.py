"""The environments of `envpool`, which steps them together in its own threads."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from trpl.errors import FaultyEnvironmentError
from trpl.messages import needs
from trpl.rollouts.lanes import Actor, Lanes, Segment
from trpl.rollouts.normalisation import ObservationNormaliser
from trpl.rollouts.seeds import ENVIRONMENT_STREAM, derived_seed
from trpl.rollouts.spaces import head_of, observing
from trpl.rollouts.task_spec import Task, as_task


class PooledLanes(Lanes):
    """`envpool`'s own tasks: faster with many environments and many cores. All share one normaliser and one generator.

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

    def begin(self, normaliser: ObservationNormaliser) -> None:
        observations, _ = self._pool.reset()
        self._raw = np.array(observations, dtype=np.float64)
        self._normalised = normaliser.observe(self._raw)

    def collect(
        self, actor: Actor, generator: np.random.Generator, num_steps: int, normaliser: ObservationNormaliser
    ) -> Segment:
        shape = (num_steps, self.num_envs)
        observations = np.empty((*shape, self.observation_size), np.float32)
        actions = np.empty((*shape, self.head.action_size), np.float32)
        rewards, terminated, truncated = np.empty(shape), np.empty(shape, bool), np.empty(shape, bool)
        noise, final = actor.noise(generator, num_steps, (self.num_envs,)), []
        for t in range(num_steps):
            observations[t] = self._normalised
            actions[t] = actor.sample(self._normalised, noise[t])
            own = self.head.take(actions[t]).astype(self._action_dtype)
            reached, rewards[t], terminated[t], truncated[t], _ = self._pool.step(own)
            self._num_calls += 1
            if not (np.isfinite(reached).all() and np.isfinite(rewards[t]).all()):
                raise FaultyEnvironmentError(f"{self.env_id} (envpool): observation or reward is not finite")
            self._raw = np.array(reached, dtype=np.float64)
            ended = np.flatnonzero(terminated[t] | truncated[t])
            if len(ended):
                final += [(t, int(n), normaliser(self._raw[n])) for n in ended]
                self._raw[ended], _ = self._pool.reset(ended.astype(np.int32))
            self._normalised = normaliser.observe(self._raw)
        return Segment(observations, actions, rewards, terminated, truncated, self._normalised, final)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {}, {"environments": [None] * self.num_envs}

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
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
