"""What a head is, and what heads without a covariance have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from trpl import families
from trpl.errors import ConfigError
from trpl.families import Policy
from trpl.types import Array

GAIN = 0.01  # of the last layers: policies start out nearly the same in every state
Outputs = Mapping[str, Any]  # the last layers' results and the shared numbers, by name


class Ending(NamedTuple):
    """A linear layer that a network ends in: its name, the numbers it gives, and the gain of its first weights."""

    name: str
    size: int
    gain: float


class Head(Protocol):
    """What a policy network ends in; frozen and hashable."""

    @property
    def words(self) -> str:
        """What the policy is called in messages."""
        ...

    @property
    def gaussian(self) -> bool:
        """Whether the policy is one Gaussian, with a mean and a covariance to bound apart."""
        ...

    @property
    def action_size(self) -> int:
        """Numbers in an action as rollouts keep it."""
        ...

    @property
    def layers(self) -> tuple[Ending, ...]:
        """The last layers."""
        ...

    @property
    def shared(self) -> Mapping[str, int]:
        """Numbers that are the same in every state: how many, by name."""
        ...

    def initial(self, xp: Any) -> dict[str, Array]:
        """Give the first values of biases and shared numbers that are not 0, by the names of their weights."""
        ...

    def shaped(self, *, covariance: str, contextual: bool, initial_std: float) -> Head:
        """Give the head with these settings of its Gaussian; refuse them where there is none."""
        ...

    def distribution(self, outputs: Outputs) -> Policy:
        """Make the distribution in each state."""
        ...

    def log_prob(self, policy: Policy, actions: Array) -> Array:
        """Compute the log-density of actions as rollouts keep them."""
        ...

    def settled(self, projected: Policy) -> dict[str, Array]:
        """Give what the shared numbers are to be set to after a projection that made them differ between states."""
        ...

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> Any:
        """Draw what `sample` takes, an entry for each step, each for states [*states]."""
        ...

    def sample(self, outputs: Outputs, noise: Any) -> np.ndarray:
        """Draw actions [..., action_size], float32."""
        ...

    def mode(self, outputs: Outputs) -> np.ndarray:
        """Give the most likely actions: what acts when no noise is wanted."""
        ...

    def take(self, action: np.ndarray) -> Any:
        """Turn actions [..., action_size] into the environment's own."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Give what `from_json` needs."""
        ...


class WithoutCovariance(ABC):
    """What heads without a covariance have in common."""

    @property
    @abstractmethod
    def words(self) -> str: ...

    @property
    def gaussian(self) -> bool:
        return False

    @property
    def shared(self) -> Mapping[str, int]:
        return {}

    def shaped(self, *, covariance: str, contextual: bool, initial_std: float) -> Any:
        given = {"covariance": covariance != "diagonal", "contextual": contextual, "initial_std": initial_std != 1.0}
        for name in (name for name, is_given in given.items() if is_given):
            raise ConfigError(f"{name} does not apply to a {self.words} policy: it has no covariance")
        return self

    def initial(self, xp: Any) -> dict[str, Array]:
        return {}

    def log_prob(self, policy: Policy, actions: Array) -> Array:
        return families.log_prob(policy, actions)

    def settled(self, projected: Policy) -> dict[str, Array]:
        return {}
