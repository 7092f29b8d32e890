"""Lanes: environments that collect their parts of a rollout without waiting for each other.

A lane has an environment, exploration noise and running observation statistics of its own. The statistics of all lanes
are merged after the rollout, so that each lane normalises with everything seen before the rollout and with what it has
seen itself since. What a lane collects depends on nothing that another lane does: lanes may run one after the other, in
threads or in processes, with the same bits.
"""

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from trpl.policies.heads import Head
from trpl.rollouts.environments import Environment
from trpl.rollouts.normalisation import ObservationNormaliser


class Actor(Protocol):
    """A lane's interface to a policy, in NumPy: normalised observations are [obs] or [N, obs], float32.

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


class Segment(NamedTuple):
    """T steps of one environment, arrays [T, ...], or of N environments, arrays [T, N, ...].

    Args:
        observations: float32, normalised: the policy's inputs.
        actions: float32, the policy's own.
        rewards: float64, raw.
        terminated: bool.
        truncated: bool.
        following: float32 [obs] or [N, obs], normalised: the observations to act on next.
        final: For each episode that ended, its step, its environment, and its last observation, normalised.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    following: np.ndarray
    final: list[tuple[int, int, np.ndarray]]


Part = Generator[None, None, Segment]  # a lane's part of a rollout: suspended after each step, returned at the end


class LaneState(NamedTuple):
    """What `Environment.state` returned, actions and metadata, and the current observation, raw and normalised."""

    actions: np.ndarray
    meta: dict[str, Any]
    raw: np.ndarray
    normalised: np.ndarray


class Lane:
    """One environment, stepped under a policy; episodes continue from one rollout to the next."""

    def __init__(self, environment: Environment):
        self.environment = environment
        self.raw = self.normalised = np.empty(0)

    def begin(self, normaliser: ObservationNormaliser) -> None:
        """Start an episode; the normaliser takes in its first observation."""
        self.raw = self.environment.begin()
        self.normalised = normaliser.observe(self.raw)

    def collect(
        self, actor: Actor, generator: np.random.Generator, num_steps: int, normaliser: ObservationNormaliser
    ) -> Part:
        """Take the steps of a rollout; suspend after each, so that lanes can take turns (`advance`).

        Only what has to happen at every step happens here. Arguments are those of `Lanes.collect`.
        """
        sample, noise = actor.prepared(actor.noise(generator, num_steps, ()))
        step, observe = self.environment.step, normaliser.observe
        terminated, truncated = np.zeros(num_steps, bool), np.zeros(num_steps, bool)
        observations, actions, rewards, final = [], [], [], []
        for t, epsilon in enumerate(noise):
            observations.append(self.normalised)
            action = sample(self.normalised, epsilon)
            actions.append(action)
            raw, reward, ends, stops = step(action)
            rewards.append(reward)
            if ends or stops:
                terminated[t], truncated[t] = ends, stops
                final.append((t, self.environment.index, normaliser(raw)))
                raw = self.environment.begin()
            self.raw, self.normalised = raw, observe(raw)
            yield
        return Segment(
            observations=np.concatenate(observations, dtype=np.float32).reshape(num_steps, -1),
            actions=np.concatenate(actions, dtype=np.float32).reshape(num_steps, -1),
            rewards=np.array(rewards, dtype=np.float64),
            terminated=terminated,
            truncated=truncated,
            following=self.normalised,
            final=final,
        )

    def state(self) -> LaneState:
        """Return the state for `restore`.

        Raises:
            ReplayError: The environment's episodes cannot be replayed.
        """
        return LaneState(*self.environment.state(), self.raw, self.normalised)

    def restore(self, state: LaneState) -> None:
        """Replay the unfinished episode.

        Raises:
            ReplayError: The replay leads to another observation.
        """
        self.environment.restore(state.actions, state.meta, observation=state.raw)
        self.raw, self.normalised = state.raw, state.normalised


def advance(part: Part, num_steps: int) -> Segment | None:
    """Take so many steps of a lane's part of a rollout; return the part at its end, else None."""
    try:
        for _ in range(num_steps):
            next(part)
    except StopIteration as end:
        return end.value
    return None


class Lanes(Protocol):
    """The environments of a collector, as `sync`, `threads`, `processes` or `envpool` has them."""

    num_envs: int
    observation_size: int
    head: Head

    def begin(self, normaliser: ObservationNormaliser) -> None:
        """Start an episode in each environment; the normaliser takes in its first observations."""
        ...

    def collect(
        self, actor: Actor, generator: np.random.Generator, num_steps: int, normaliser: ObservationNormaliser
    ) -> Segment:
        """Step each environment; the normaliser takes in what they observe.

        Args:
            actor: The policy.
            generator: For the exploration noise.
            num_steps: Steps of each environment, T.
            normaliser: The statistics of all observations so far.

        Returns:
            The steps, arrays [T, N, ...].
        """
        ...

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the state for `restore`: named arrays, and metadata that JSON can hold."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
        """Restore the unfinished episodes; return whether that was possible."""
        ...

    def position(self) -> Any:
        """Return a value that keeps changing while environments are stepped, for time-outs in another thread."""
        ...

    def close(self) -> None: ...


def spawned(generator: np.random.Generator, number: int) -> list[np.random.Generator]:
    """Return so many independent generators; a single one is the generator itself."""
    return [generator] if number == 1 else generator.spawn(number)


def joined(segments: Sequence[Segment]) -> Segment:
    """Put the segments of N lanes side by side, and what ended in order of time."""
    *steps, following, final = zip(*segments, strict=True)
    ended = sorted(itertools.chain(*final), key=lambda episode: episode[:2])
    return Segment(*(np.stack(part, axis=1) for part in steps), following=np.stack(following), final=ended)


def joined_states(states: Sequence[LaneState]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Make one state of those of all lanes, as `Lanes.state` returns it."""
    arrays = {f"actions.{n}": state.actions for n, state in enumerate(states)}
    arrays["observations"] = np.stack([state.raw for state in states])
    arrays["normalised"] = np.stack([state.normalised for state in states])
    return arrays, {"environments": [state.meta for state in states]}


def separate_states(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[LaneState]:
    """Undo `joined_states`."""
    raw = np.array(arrays["observations"], dtype=np.float64)
    normalised = np.array(arrays["normalised"], dtype=np.float32).reshape(raw.shape)
    return [LaneState(arrays[f"actions.{n}"], own, raw[n], normalised[n]) for n, own in enumerate(meta["environments"])]
