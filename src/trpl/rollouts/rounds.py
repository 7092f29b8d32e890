"""The interface between a collector and its environments: rounds, in each of which every environment takes a step."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from trpl.policies.heads import Head
from trpl.rollouts.environments import Environment


class Round(NamedTuple):
    """The actions [N, act] of a step of N environments, and where its results go, arrays [N, ...].

    Observations are those to act on next: where an episode ends, the first one of the next episode. `ended` gets the
    environment's number and last observation of each episode that ends, in any order.
    """

    actions: np.ndarray
    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: list[tuple[int, np.ndarray]]


class Environments(Protocol):
    """N environments that a collector steps together."""

    num_envs: int
    observation_size: int
    head: Head
    single: Environment | None = None  # the only one, if it can be stepped by itself

    def begin(self) -> np.ndarray:
        """Start an episode in each environment; return observations [N, obs]."""
        ...

    def step(self, step: Round) -> None:
        """Step each environment."""
        ...

    def run(self, rounds: Iterator[Round]) -> None:
        """Step each environment once per round; the iterator computes a round's actions when it is asked for it."""
        for step in rounds:
            self.step(step)

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
