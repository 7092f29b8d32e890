"""The interface between an algorithm and the training loop.

An algorithm is two functions. `init` makes a state: any pytree of arrays (usually a NamedTuple) with a field `policy`,
the weights that act. `update` learns from one epoch: it draws random orders on the host and calls a compiled function.
The state holds everything that must survive a restart; all randomness comes from the generator. The loop knows no
algorithm by name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from trpl.policies.networks import PolicyNetwork

Metrics = dict[str, Array]


class Batch(NamedTuple):
    """One epoch's experience, time-major [T, N, ...]: a `trpl.rollouts.Rollout` without its finished episodes.

    The arrays are NumPy's until a compiled update takes them.

    Args:
        observations: The policy's inputs.
        next_observations: The next observations, before any reset.
        actions: The raw actions.
        rewards: The rewards, normalised if the settings say so.
        terminated: Whether a step ended its episode.
        truncated: Whether a step reached a time limit.
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
    """A policy network and the functions that train it.

    Args:
        policy: The network.
        init: Maps a random key to the initial state.
        update: Maps state, batch and generator to the next state and scalars by name; donates the state's buffers.
    """

    policy: PolicyNetwork
    init: Callable[[Array], Any]
    update: Callable[[Any, Batch, np.random.Generator], tuple[Any, Metrics]]
