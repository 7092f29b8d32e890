"""What an algorithm is, for the training loop.

An algorithm is two functions. `init` makes a state, any pytree of arrays (a NamedTuple as a rule) with a field
`policy`: the weights that act. `update` is one epoch's learning, a compiled function behind the drawing of random
orders. Everything that must survive a restart is in the state; everything random comes from the generator. The loop
knows no algorithm by name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from trpl.policies.networks import PolicyNetwork

Metrics = dict[str, Array]


class Batch(NamedTuple):
    """Hold one epoch's experience, time-major [T, N, ...]: a `trpl.rollouts.Rollout` without its finished episodes.

    The arrays are NumPy's until a compiled update takes them.

    Args:
        observations: What the policy saw.
        next_observations: The true next ones, before any reset.
        actions: The actions taken, raw.
        rewards: The rewards, normalised where rewards are.
        terminated: Whether a step ended its episode.
        truncated: Whether a step met a time limit.
    """

    observations: Array
    next_observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array

    @classmethod
    def of(cls, rollout: Any) -> "Batch":
        """Take the fields of a rollout that an update reads.

        Args:
            rollout: A `trpl.rollouts.Rollout`.

        Returns:
            The batch.
        """
        return cls(**{name: getattr(rollout, name) for name in cls._fields})


class Algorithm(NamedTuple):
    """Join a policy network and how it learns.

    Args:
        policy: The network.
        init: A function from a random key to the state that learning starts from.
        update: A function from state, batch and generator to the next state and scalars by name; it consumes the state.
    """

    policy: PolicyNetwork
    init: Callable[[Array], Any]
    update: Callable[[Any, Batch, np.random.Generator], tuple[Any, Metrics]]
