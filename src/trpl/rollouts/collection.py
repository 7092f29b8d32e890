"""Rollouts: steps of one or many environments under a stochastic policy, collected in NumPy.

The loop over steps does only what has to happen at every step: act, step, normalise. Noise is drawn once per rollout;
rewards, episode statistics and next observations are computed afterwards, for the whole rollout at once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from trpl.rollouts.batches import make_environments
from trpl.rollouts.normalisation import ObservationNormaliser, RewardNormaliser
from trpl.rollouts.rounds import Round
from trpl.rollouts.seeds import NOISE_STREAM
from trpl.rollouts.task_spec import Task, as_task


class Actor(Protocol):
    """The collector's interface to a policy, in NumPy: normalised observations are [obs] or [N, obs], float32.

    `trpl.policies.acting.make_actor` makes one.
    """

    def mode(self, observations: np.ndarray) -> np.ndarray:
        """Return the most likely action."""
        ...

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> Any:
        """Draw the noise for `sample`, an entry per step, each for states [*states]."""
        ...

    def sample(self, observations: np.ndarray, noise: Any) -> np.ndarray:
        """Return an action per observation, from an entry of the noise."""
        ...

    def prepared(self, noise: Any) -> tuple[Callable[[np.ndarray, Any], np.ndarray], Any]:
        """Return an equivalent of `sample` for a loop over single observations, and the noise to give it."""
        ...


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


class Steps(NamedTuple):
    """The arrays that the loop over steps fills, [T, N, ...]."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


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
        self.environments = make_environments(task, num_envs=num_envs, seed=seed, vectorisation=vectorisation)
        self.observation_size = self.environments.observation_size
        self.action_size = self.environments.head.action_size
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
        self._begin()

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
        shape = (num_steps, self.num_envs)
        steps = observations, actions, rewards, terminated, truncated = Steps(
            observations=np.empty((*shape, self.observation_size), np.float32),
            actions=np.empty((*shape, self.action_size), np.float32),
            rewards=np.empty(shape),
            terminated=np.zeros(shape, bool),
            truncated=np.zeros(shape, bool),
        )
        generator = np.random.default_rng([self.seed, iteration, NOISE_STREAM])
        loop, states = (self._step_all, (self.num_envs,)) if self.environments.single is None else (self._step_one, ())
        final_observations = loop(actor, actor.noise(generator, num_steps, states), into=steps)

        next_observations = np.empty_like(observations)
        next_observations[:-1] = observations[1:]
        next_observations[-1] = self._normalised
        for t, n, observation in final_observations:
            next_observations[t, n] = observation
        ended = terminated | truncated
        episode_returns, episode_lengths = self._finished_episodes(rewards, ended)
        return Rollout(
            observations=observations,
            next_observations=next_observations,
            actions=actions,
            rewards=self.reward_normaliser(rewards, ended),
            terminated=terminated,
            truncated=truncated,
            episode_returns=episode_returns,
            episode_lengths=episode_lengths,
        )

    def _step_all(self, actor: Actor, noise: Any, *, into: Steps) -> list[tuple[int, int, np.ndarray]]:
        """Fill the arrays step by step; return (step, environment, last observation) of each ended episode."""
        final_observations: list[tuple[int, int, np.ndarray]] = []
        self.environments.run(self._rounds(actor, noise, into, final_observations))
        return final_observations

    def _rounds(
        self, actor: Actor, noise: Any, into: Steps, final_observations: list[tuple[int, int, np.ndarray]]
    ) -> Iterator[Round]:
        """Act in each round on the observations of the one before; whichever thread asks for a round computes it."""
        observations, actions, rewards, terminated, truncated = into
        raw, current, ended = self._raw, self._normalised, []
        sample, observe = actor.sample, self.normaliser.observe
        for t in range(len(actions)):
            observations[t] = current
            actions[t] = sample(current, noise[t])
            yield Round(actions[t], raw, rewards[t], terminated[t], truncated[t], ended)
            for n, observation in sorted(ended, key=lambda found: found[0]):
                final_observations.append((t, n, self.normaliser(observation)))
            ended.clear()
            current = observe(raw)
        self._normalised = current

    def _step_one(self, actor: Actor, noise: Any, *, into: Steps) -> list[tuple[int, int, np.ndarray]]:
        """Do the same for a single environment, without its axis: a microsecond less per step."""
        environment, current, raw = self.environments.single, self._normalised, self._raw[0]
        assert environment is not None
        (sample, noise), step, observe = actor.prepared(noise), environment.step, self.normaliser.observe
        seen, taken, found, final_observations = [], [], [], []
        for t, epsilon in enumerate(noise):
            seen.append(current)
            action = sample(current, epsilon)
            taken.append(action)
            raw, reward, ends, stops = step(action)
            found.append(reward)
            if ends or stops:
                into.terminated[t], into.truncated[t] = ends, stops
                final_observations.append((t, 0, self.normaliser(raw)))
                raw = environment.begin()
            current = observe(raw)
        np.concatenate(seen, out=into.observations.reshape(-1))  # assigning a list of arrays would be far slower
        np.concatenate(taken, out=into.actions.reshape(-1))
        into.rewards[:, 0] = found
        self._raw[0], self._normalised = raw, current
        return final_observations

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return everything needed to resume.

        Returns:
            Named arrays, and a dictionary that JSON can hold.
        """
        arrays = {
            "observations": self._raw.copy(),
            "normalised": np.array(self._normalised),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            **_prefixed("observation_normaliser", self.normaliser.state()),
            **_prefixed("reward_normaliser", self.reward_normaliser.state()),
        }
        environment_arrays, environment_meta = self.environments.state()
        return arrays | environment_arrays, {"env_id": self.env_id, **environment_meta}

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
        self._raw = np.array(arrays["observations"], dtype=np.float64)
        self._normalised = np.array(arrays["normalised"], dtype=np.float32)
        self._returns, self._lengths = np.array(arrays["returns"]), np.array(arrays["lengths"])
        self.normaliser.restore(_without_prefix("observation_normaliser", arrays))
        self.reward_normaliser.restore(_without_prefix("reward_normaliser", arrays))
        if not self.environments.restore(arrays, meta, observations=self._raw):
            self._returns[:], self._lengths[:] = 0.0, 0
            self._begin()

    def close(self) -> None:
        self.environments.close()

    def _begin(self) -> None:
        """Start an episode in each environment; a single environment has no axis."""
        self._raw = self.environments.begin()
        self._normalised = self.normaliser.observe(self._raw if self.environments.single is None else self._raw[0])

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


def _prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _without_prefix(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{prefix}."): array for name, array in arrays.items() if name.startswith(f"{prefix}.")}
