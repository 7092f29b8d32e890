"""Rollouts: steps of one or many environments under a stochastic policy, collected in NumPy.

The loop over steps does only what has to happen at every step: act, step, normalise. Noise is drawn once per rollout;
rewards, episode statistics and next observations are computed afterwards, for the whole rollout at once.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from trpl.policies.weights import prefixed, without_prefix
from trpl.rollouts.lanes import Actor, Lanes
from trpl.rollouts.local_lanes import LocalLanes, ThreadedLanes
from trpl.rollouts.normalisation import ObservationNormaliser, RewardNormaliser
from trpl.rollouts.pooled_lanes import PooledLanes
from trpl.rollouts.process_lanes import ProcessLanes
from trpl.rollouts.seeds import NOISE_STREAM
from trpl.rollouts.task_spec import Task, as_task

OBSERVATIONS, REWARDS = "observation_normaliser.", "reward_normaliser."  # prefixes of their arrays in a state


class Rollout(NamedTuple):
    """T steps of N environments, time first.

    Args:
        observations: float32 [T, N, obs], normalised: the policy's inputs.
        next_observations: float32 [T, N, obs], normalised: the next ones, before any reset.
        actions: float32 [T, N, act], the policy's own.
        rewards: float32 [T, N], normalised if the settings say so.
        terminated: bool [T, N].
        truncated: bool [T, N].
        episode_returns: float64, of each finished episode, raw rewards.
        episode_lengths: int64, of each finished episode.
    """

    observations: np.ndarray
    next_observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_returns: np.ndarray
    episode_lengths: np.ndarray


VECTORISATIONS: dict[str, Callable[..., Lanes]] = {
    "sync": LocalLanes,
    "threads": ThreadedLanes,
    "processes": ProcessLanes,
    "envpool": PooledLanes,
}


def make_lanes(task: str | Task, *, num_envs: int, seed: int, vectorisation: str = "sync") -> Lanes:
    """Make the environments of a collector; `vectorisation` is a key of `VECTORISATIONS`."""
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if vectorisation not in VECTORISATIONS:
        raise ValueError(f"vectorisation {vectorisation!r} is not one of {', '.join(VECTORISATIONS)}")
    return VECTORISATIONS[vectorisation](task, num_envs=num_envs, seed=seed)


class Collector:
    """Steps environments under a policy; episodes continue from one rollout to the next."""

    def __init__(
        self,
        task: str | Task,
        *,
        num_envs: int = 1,
        vectorisation: str = "sync",
        seed: int,
        discount: float = 0.99,
        normalise_observations: bool = True,
        observation_clip: float | None = None,
        normalise_rewards: bool = False,
        reward_clip: float | None = None,
        released_variance: bool = False,
    ):
        self.env_id, self.seed, self.num_envs = as_task(task).env_id, seed, num_envs
        self.lanes = make_lanes(task, num_envs=num_envs, seed=seed, vectorisation=vectorisation)
        self.observation_size, self.head = self.lanes.observation_size, self.lanes.head
        self.action_size = self.head.action_size
        self.normaliser = ObservationNormaliser(
            self.observation_size,
            clip=observation_clip,
            enabled=normalise_observations,
            released=released_variance,
        )
        self.reward_normaliser = RewardNormaliser(
            num_envs, discount=discount, clip=reward_clip, enabled=normalise_rewards, released=released_variance
        )
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=np.int64)
        self.lanes.begin(self.normaliser)

    def collect(self, actor: Actor, *, num_steps: int, iteration: int) -> Rollout:
        """Step every environment.

        Args:
            actor: The policy.
            num_steps: Steps of each environment.
            iteration: The number of this rollout; exploration noise is a function of (seed, iteration).

        Returns:
            The rollout, arrays [T, N, ...].

        Raises:
            FaultyEnvironmentError: An environment raised, or returned a non-finite number.
        """
        generator = np.random.default_rng([self.seed, iteration, NOISE_STREAM])
        steps = self.lanes.collect(actor, generator, num_steps, self.normaliser)
        next_observations = np.empty_like(steps.observations)
        next_observations[:-1] = steps.observations[1:]
        next_observations[-1] = steps.following
        for t, n, observation in steps.final:
            next_observations[t, n] = observation
        ended = steps.terminated | steps.truncated
        episode_returns, episode_lengths = self._finished_episodes(steps.rewards, ended)
        return Rollout(
            observations=steps.observations,
            next_observations=next_observations,
            actions=steps.actions,
            rewards=self.reward_normaliser(steps.rewards, ended),
            terminated=steps.terminated,
            truncated=steps.truncated,
            episode_returns=episode_returns,
            episode_lengths=episode_lengths,
        )

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return everything needed to resume.

        Returns:
            Named arrays, and a dictionary that JSON can hold.
        """
        arrays = {
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            **prefixed(OBSERVATIONS, self.normaliser.state()),
            **prefixed(REWARDS, self.reward_normaliser.state()),
        }
        lane_arrays, lane_meta = self.lanes.state()
        return arrays | lane_arrays, {"env_id": self.env_id, **lane_meta}

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Restore a state by replaying the unfinished episodes.

        Args:
            arrays: The arrays of `state`.
            meta: The dictionary of `state`.

        Raises:
            ValueError: The state is of another environment, or of another number of environments.
            ReplayError: A replayed episode differs.
        """
        if meta["env_id"] != self.env_id or len(meta["environments"]) != self.num_envs:
            raise ValueError(
                f"the saved state is of {len(meta['environments'])} × {meta['env_id']}, not of"
                f" {self.num_envs} × {self.env_id}"
            )
        self._returns, self._lengths = np.array(arrays["returns"]), np.array(arrays["lengths"])
        self.normaliser.restore(without_prefix(OBSERVATIONS, arrays))
        self.reward_normaliser.restore(without_prefix(REWARDS, arrays))
        if not self.lanes.restore(arrays, meta):
            self._returns[:], self._lengths[:] = 0.0, 0
            self.lanes.begin(self.normaliser)

    def close(self) -> None:
        self.lanes.close()

    def _finished_episodes(self, rewards: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return returns and lengths of the ended episodes, in order of time; keep running sums of the others."""
        finished: list[tuple[int, int, float, int]] = []
        for n in range(self.num_envs):
            start = 0
            for t in np.flatnonzero(ended[:, n]):
                returned = self._returns[n] + rewards[start : t + 1, n].sum()
                finished.append((int(t), n, returned, self._lengths[n] + t + 1 - start))
                self._returns[n], self._lengths[n], start = 0.0, 0, t + 1
            self._returns[n] += rewards[start:, n].sum()
            self._lengths[n] += len(rewards) - start
        finished.sort()
        return (
            np.array([returned for _, _, returned, _ in finished], dtype=np.float64),
            np.array([length for _, _, _, length in finished], dtype=np.int64),
        )
