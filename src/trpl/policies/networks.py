"""Policy and value networks in JAX.

A network is a frozen description; its weights are a flat dictionary of arrays under the names of `weights`, which
checkpoints and `acting` use too.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from trpl.families import Policy
from trpl.policies.heads import Head
from trpl.policies.weights import affine, as_affine, hidden_name, hidden_names, raw_name
from trpl.types import cast

Weights = dict[str, Array]

HIDDEN_GAIN, VALUE_GAIN = 2.0**0.5, 1.0
HEAD_GAIN = 0.01  # of the last layers: initial policies are nearly the same in every state


@dataclass(frozen=True, kw_only=True)
class PolicyNetwork:
    """A tanh network with the last layers of a head."""

    obs_size: int
    head: Head
    hidden_sizes: tuple[int, ...] = (64, 64)

    def init(self, key: Array) -> Weights:
        """Draw orthogonal weights (gain √2, last layers 0.01); biases and shared numbers are 0 or set by the head."""
        hidden_key, *keys = jax.random.split(key, max(3, 1 + len(self.head.layers)))
        weights = init_hidden(hidden_key, self.obs_size, self.hidden_sizes)
        features_size = (self.obs_size, *self.hidden_sizes)[-1]
        for own_key, (name, size) in zip(keys, self.head.layers, strict=False):
            weights |= init_layer(own_key, name, (features_size, size), gain=HEAD_GAIN)
        weights |= {raw_name(name): jnp.zeros(size) for name, size in self.head.shared.items()}
        return weights | cast("Weights", self.head.initial(jnp))

    def __call__(self, weights: Weights, observations: Array) -> Policy[Array]:
        """Predict a distribution per observation; shared numbers have no batch axes."""
        features = hidden(weights, observations)
        outputs = {ending.name: layer(weights, ending.name, features) for ending in self.head.layers}
        return self.head.distribution(outputs | {name: weights[raw_name(name)] for name in self.head.shared})

    def log_prob(self, policy: Policy[Array], actions: Array) -> Array:
        """Compute the log-density of a rollout's actions [..., action_size] under a policy of this network."""
        return self.head.log_prob(policy, actions)

    def set_shared(self, weights: Weights, projected: Policy[Array]) -> Weights:
        """Set the shared numbers to those of a projection, averaged over states if it made them contextual."""
        return weights | {raw_name(name): value for name, value in self.head.shared_values(projected).items()}


@dataclass(frozen=True, kw_only=True)
class ValueNetwork:
    """A tanh network from observation to one number."""

    obs_size: int
    hidden_sizes: tuple[int, ...] = (64, 64)

    def init(self, key: Array) -> Weights:
        hidden_key, value_key = jax.random.split(key)
        features_size = (self.obs_size, *self.hidden_sizes)[-1]
        return init_hidden(hidden_key, self.obs_size, self.hidden_sizes) | init_layer(
            value_key, "value", (features_size, 1), gain=VALUE_GAIN
        )

    def __call__(self, weights: Weights, observations: Array) -> Array:
        return layer(weights, "value", hidden(weights, observations))[..., 0]


def init_layer(key: Array, name: str, shape: tuple[int, int], *, gain: float) -> Weights:
    """Draw one layer: an orthogonal weight of the given gain, and bias 0."""
    return as_affine(name, jax.nn.initializers.orthogonal(gain)(key, shape), jnp.zeros(shape[1]))


def init_hidden(key: Array, obs_size: int, hidden_sizes: Sequence[int]) -> Weights:
    """Draw the hidden layers."""
    weights: Weights = {}
    for i, shape in enumerate(itertools.pairwise([obs_size, *hidden_sizes])):
        weights |= init_layer(jax.random.fold_in(key, i), hidden_name(i), shape, gain=HIDDEN_GAIN)
    return weights


def layer(weights: Weights, name: str, x: Array) -> Array:
    """Apply the layer `name`, without an activation."""
    weight, bias = affine(weights, name)
    return x @ weight + bias


def hidden(weights: Weights, observations: Array) -> Array:
    """Compute the features after the tanh layers."""
    x = observations
    for name in hidden_names(weights):
        x = jnp.tanh(layer(weights, name, x))
    return x
