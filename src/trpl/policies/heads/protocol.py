"""The protocol of a head, and a base class for heads without a covariance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from trpl import families
from trpl.errors import ConfigError
from trpl.families import Policy
from trpl.types import A, Array

Outputs: TypeAlias = Mapping[str, A]  # the last layers' results and the shared numbers, by name


class Ending(NamedTuple):
    """A last linear layer of a network: its name and its number of outputs."""

    name: str
    size: int


class Head(Protocol):
    """The head of a policy network; frozen and hashable."""

    @property
    def words(self) -> str:
        """The name of the policy's kind in messages."""
        ...

    @property
    def gaussian(self) -> bool:
        """Whether the policy is a single Gaussian, whose mean and covariance can have separate bounds."""
        ...

    @property
    def max_entropy(self) -> float:
        """The entropy of the most random policy, infinite for a Gaussian."""
        ...

    @property
    def action_size(self) -> int:
        """The number of entries of an action as rollouts keep it."""
        ...

    @property
    def layers(self) -> tuple[Ending, ...]:
        """The last layers."""
        ...

    @property
    def shared(self) -> Mapping[str, int]:
        """The counts of numbers shared by all states, by name."""
        ...

    def initial(self, xp: Any) -> dict[str, Array]:
        """Return the non-zero initial values of biases and shared numbers, by the names of their weights."""
        ...

    def shaped(self, *, covariance: str, contextual: bool, initial_std: float) -> Head:
        """Return the head with these settings of its Gaussian; refuse them if there is none."""
        ...

    def distribution(self, outputs: Outputs[A]) -> Policy[A]:
        """Make the distribution of each state."""
        ...

    def log_prob(self, policy: Policy[A], actions: A) -> A:
        """Compute the log-density of actions in the form that rollouts keep."""
        ...

    def shared_values(self, projected: Policy[A]) -> dict[str, A]:
        """Return new values of the shared numbers after a projection that made them contextual."""
        ...

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> Any:
        """Draw the noise for `sample`, an entry per step, each for states [*states]."""
        ...

    def sample(self, outputs: Mapping[str, np.ndarray], noise: Any) -> np.ndarray:
        """Draw actions [..., action_size], float32."""
        ...

    def mode(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the most likely actions."""
        ...

    def take(self, action: np.ndarray) -> Any:
        """Convert actions [..., action_size] to the environment's own."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the values for `from_json`."""
        ...


class WithoutCovariance:
    """A base class for heads without a covariance."""

    gaussian = False

    @property
    def shared(self) -> Mapping[str, int]:
        return {}

    def shaped(self: Head, *, covariance: str, contextual: bool, initial_std: float) -> Head:
        given = {"covariance": covariance != "diagonal", "contextual": contextual, "initial_std": initial_std != 1.0}
        for name in (name for name, is_given in given.items() if is_given):
            raise ConfigError(f"{name} does not apply to a {self.words} policy: it has no covariance")
        return self

    def initial(self, xp: Any) -> dict[str, Array]:
        return {}

    def log_prob(self, policy: Policy[A], actions: A) -> A:
        return families.log_prob(policy, actions)

    def shared_values(self, projected: Policy[A]) -> dict[str, A]:
        return {}
