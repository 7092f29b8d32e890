"""Noise-free evaluation on an environment of its own: frozen normaliser, raw rewards, no memory of earlier calls."""

from typing import NamedTuple

import numpy as np

from trpl.rollouts.batches import derived_seed
from trpl.rollouts.collection import Actor
from trpl.rollouts.environments import Environment, FaultyEnvironmentError
from trpl.rollouts.normalisation import ObservationNormaliser

EVALUATION_STREAM = 103
STEP_LIMIT = 100_000  # an episode longer than this has no end


class Evaluation(NamedTuple):
    """One entry per episode."""

    returns: np.ndarray  # float64, sums of raw rewards
    lengths: np.ndarray  # int64


class Evaluator:
    """Runs the mean of a policy. The environment is made once; every episode starts from its own seed."""

    def __init__(self, env_id: str, *, seed: int):
        self.environment = Environment(env_id, seed=derived_seed(seed, 0, EVALUATION_STREAM))
        self.seed = seed

    def evaluate(
        self, actor: Actor, normaliser: ObservationNormaliser, *, epoch: int, num_episodes: int = 5
    ) -> Evaluation:
        """Episodes whose starts are a function of (seed, epoch, episode) alone."""
        episodes = [
            run_episode(
                self.environment, actor, normaliser, seed=derived_seed(self.seed, epoch, episode, EVALUATION_STREAM)
            )
            for episode in range(num_episodes)
        ]
        return Evaluation(
            returns=np.array([total for total, _ in episodes], dtype=np.float64),
            lengths=np.array([length for _, length in episodes], dtype=np.int64),
        )

    def close(self) -> None:
        self.environment.close()


def run_episode(
    environment: Environment, actor: Actor, normaliser: ObservationNormaliser, *, seed: int
) -> tuple[float, int]:
    """Return and length of one episode under the policy's mean."""
    shift, scale, enabled, clip = normaliser.mean, normaliser.scale, normaliser.enabled, normaliser.clip
    act, observation, total = actor.mean, environment.begin(seed=seed), 0.0
    while environment.num_steps < STEP_LIMIT:
        if enabled:
            observation = (observation - shift) / scale
            if clip is not None:
                observation = np.minimum(np.maximum(observation, -clip), clip)
        observation, reward, terminated, truncated = environment.step(act(observation.astype(np.float32)))
        total += reward
        if terminated or truncated:
            return total, environment.num_steps
    raise FaultyEnvironmentError(
        f"{environment.env_id}: an episode had not ended after {STEP_LIMIT} steps; wrap it in a time limit"
    )
