"""What an algorithm is, for the training loop.

An algorithm is two pure functions. `init` makes a state, any pytree (a NamedTuple as a rule) with a field `policy` that holds
the weights that act; `update` is one epoch's learning, compiled once. Everything that must survive a restart is in the state;
everything random comes from the key. The loop knows no algorithm by name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from trpl.policies.networks import GaussianPolicy

State = Any
Metrics = dict[str, Array]


class Batch(NamedTuple):
    """One epoch's experience, time-major [T, N, ...], as `trpl.rollouts.Rollout` has it without the finished episodes."""

    observations: Array
    next_observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array


class Algorithm(NamedTuple):
    policy: GaussianPolicy
    init: Callable[[Array], State]  # key -> state
    update: Callable[[State, Batch, Array], tuple[State, Metrics]]  # state, batch, key -> state, scalars by name
