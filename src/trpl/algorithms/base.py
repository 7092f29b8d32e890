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

from trpl.policies.networks import GaussianPolicy

State = Any
Metrics = dict[str, Array]
Settings = Any  # a trpl.experiments.config.Config; algorithms read hyperparameters from it by name


class Batch(NamedTuple):
    """One epoch's experience, time-major [T, N, ...]: a `trpl.rollouts.Rollout` without its finished episodes."""

    observations: Any
    next_observations: Any
    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any

    @classmethod
    def of(cls, rollout: Any) -> "Batch":
        return cls(**{name: getattr(rollout, name) for name in cls._fields})


class Algorithm(NamedTuple):
    policy: GaussianPolicy
    init: Callable[[Array], State]  # key -> state
    update: Callable[[State, Batch, np.random.Generator], tuple[State, Metrics]]  # consumes the state; scalars by name
