"""Noise-free evaluation on a separate environment: frozen normaliser, raw rewards, no memory of earlier calls."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from trpl.errors import FaultyEnvironmentError
from trpl.rollouts.environments import Environment
from trpl.rollouts.lanes import Actor
from trpl.rollouts.seeds import EVALUATION_STREAM, derived_seed
from trpl.rollouts.task_spec import Task

STEP_LIMIT = 100_000  # a longer episode is considered endless
Normalise = Callable[[np.ndarray], np.ndarray]  # raw observation -> the policy's input


class Evaluation(NamedTuple):
    """Returns and lengths of episodes.

    Args:
        returns: float64, sums of raw rewards.
        lengths: int64, numbers of steps.
    """

    returns: np.ndarray
    lengths: np.ndarray


class Episode(NamedTuple):
    total: float  # sum of raw rewards
    length: int
    ended: bool  # by the environment, not cut


class Evaluator:
    """Runs a policy without noise. The environment is made once; every episode starts from its own seed.

    With `released` it evaluates as the authors' release does, which steps as many test environments as episodes in
    parallel until each has ended once, and meanwhile continues those that ended early. Their step counts towards the
    time limit are not reset, so the next evaluation's episodes are cut that much earlier. (Nothing is cut if all
    episodes last until the time limit.)
    """

    def __init__(self, task: str | Task, *, seed: int, released: bool = False):
        self.environment = Environment(task, seed=derived_seed(seed, 0, EVALUATION_STREAM))
        self.seed, self.released = seed, released
        self._left_over: list[int] = []  # steps that count towards the time limit of each test environment

    def evaluate(self, actor: Actor, normalise: Normalise, *, epoch: int, num_episodes: int = 5) -> Evaluation:
        """Run noise-free episodes, whose initial states are a function of (seed, epoch, episode) alone.

        Args:
            actor: The policy.
            normalise: A function from raw observation to the policy's input.
            epoch: The evaluated epoch.
            num_episodes: How many.

        Returns:
            The return and the length of each episode.
        """

        def run(number: int, limit: int = STEP_LIMIT) -> Episode:
            seed = derived_seed(self.seed, epoch, number, EVALUATION_STREAM)
            return run_episode(self.environment, actor, normalise, seed=seed, limit=limit)

        time_limit = self.environment.time_limit
        if self.released and time_limit is not None:
            episodes = self._run_as_released(run, num_episodes, time_limit)
        else:
            episodes = [run(n) for n in range(num_episodes)]
        return Evaluation(
            returns=np.array([episode.total for episode in episodes], dtype=np.float64),
            lengths=np.array([episode.length for episode in episodes], dtype=np.int64),
        )

    def _run_as_released(self, run: Callable[[int, int], Episode], num_episodes: int, time_limit: int) -> list[Episode]:
        """Run episodes that leftover steps cut short; continue those that ended early, and keep their steps."""
        left_over = self._left_over or [0] * num_episodes
        episodes = [run(n, time_limit - left_over[n]) for n in range(num_episodes)]
        longest = max(episode.length for episode in episodes)
        self._left_over = [
            _continue(run, range(n + num_episodes, STEP_LIMIT, num_episodes), steps=longest - episode.length)
            for n, episode in enumerate(episodes)
        ]
        return episodes

    def state(self) -> dict[str, Any]:
        """Return what the next evaluation depends on besides its arguments.

        Returns:
            A dictionary that JSON can hold.
        """
        return {"left_over": self._left_over}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Args:
            state: The output of `state`.
        """
        self._left_over = [int(steps) for steps in state.get("left_over", ())]

    def close(self) -> None:
        self.environment.close()


def _continue(run: Callable[[int, int], Episode], numbers: Iterable[int], *, steps: int) -> int:
    """Step a test environment through the episodes of these numbers; return the steps of the unfinished one."""
    for number in numbers:
        if not steps:
            break
        episode = run(number, steps)
        if not episode.ended:
            break
        steps -= episode.length
    return steps


def run_episode(
    environment: Environment, actor: Actor, normalise: Normalise, *, seed: int, limit: int = STEP_LIMIT
) -> Episode:
    """Run one noise-free episode, cut after `limit` steps."""
    act, observation, total = actor.mode, environment.begin(seed=seed), 0.0
    while environment.num_steps < limit:
        observation, reward, terminated, truncated = environment.step(act(normalise(observation)))
        total += reward
        if terminated or truncated:
            return Episode(total, environment.num_steps, ended=True)
    if limit < STEP_LIMIT:
        return Episode(total, limit, ended=False)
    raise FaultyEnvironmentError(
        f"{environment.env_id}: an episode had not ended after {STEP_LIMIT} steps; wrap it in a time limit"
    )
