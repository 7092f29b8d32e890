"""Policy and value networks in JAX.

A network is a frozen description; its weights are a flat dictionary of arrays under the names of `weights`, the very
names that stand in a checkpoint and that `acting` reads.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from trpl.gaussians import Gaussian
from trpl.policies import heads
from trpl.policies.weights import SPREADS, affine, hidden_name, hidden_names

Weights = dict[str, Array]

HIDDEN_GAIN, MEAN_GAIN, SPREAD_GAIN, VALUE_GAIN = 2.0**0.5, 0.01, 0.01, 1.0


@dataclass(frozen=True, kw_only=True)
class GaussianPolicy:
    """A tanh network for the mean, and a covariance: diagonal or full, one for all states or one per state.

    The covariance is parametrised as in `heads`; standard deviations are 1 at first.
    """

    obs_size: int
    action_size: int
    hidden_sizes: tuple[int, ...] = (64, 64)
    covariance: str = "diagonal"  # or "full"
    contextual: bool = False  # a covariance per state
    initial_std: float = 1.0

    @property
    def spread_size(self) -> int:
        """Count the numbers that describe one covariance."""
        return heads.spread_size(self.covariance, self.action_size)

    @property
    def spread_name(self) -> str:
        """Name the layer, or the raw numbers, of the covariance."""
        return SPREADS[self.covariance]

    def init(self, key: Array) -> Weights:
        """Draw orthogonal weights (gain √2, mean head 0.01); biases are 0, standard deviations `initial_std`."""
        hidden_key, mean_key, spread_key = jax.random.split(key, 3)
        weights = init_hidden(hidden_key, self.obs_size, self.hidden_sizes)
        features_size = ([self.obs_size, *self.hidden_sizes])[-1]
        weights |= init_layer(mean_key, "mean", (features_size, self.action_size), gain=MEAN_GAIN)
        start = jnp.zeros(self.spread_size)
        if self.initial_std != 1.0:
            start = start.at[: self.action_size].set(heads.raw_from_positive(jnp.asarray(self.initial_std)))
        if self.contextual:
            weights |= init_layer(spread_key, self.spread_name, (features_size, self.spread_size), gain=SPREAD_GAIN)
            weights[f"{self.spread_name}/bias"] = start
        else:
            weights[f"{self.spread_name}/raw"] = start
        return weights

    def __call__(self, weights: Weights, observations: Array) -> Gaussian:
        """Predict a Gaussian for each observation; the covariance has no batch axes when it is shared."""
        features = hidden(weights, observations)
        mean = layer(weights, "mean", features)
        raw = layer(weights, self.spread_name, features) if self.contextual else weights[f"{self.spread_name}/raw"]
        return self.gaussian(mean, raw)

    def gaussian(self, mean: Array, raw: Array) -> Gaussian:
        """Build the Gaussian with this mean whose covariance `raw` describes."""
        return heads.gaussian(mean, raw, self.covariance)

    def set_spread(self, weights: Weights, gaussian: Gaussian) -> Weights:
        """Set the shared covariance to that of `gaussian`, whose covariance must not depend on the state."""
        return weights | {f"{self.spread_name}/raw": heads.raw_from(gaussian)}


@dataclass(frozen=True, kw_only=True)
class ValueNetwork:
    """A tanh network from observation to one number."""

    obs_size: int
    hidden_sizes: tuple[int, ...] = (64, 64)

    def init(self, key: Array) -> Weights:
        hidden_key, value_key = jax.random.split(key)
        features_size = ([self.obs_size, *self.hidden_sizes])[-1]
        return init_hidden(hidden_key, self.obs_size, self.hidden_sizes) | init_layer(
            value_key, "value", (features_size, 1), gain=VALUE_GAIN
        )

    def __call__(self, weights: Weights, observations: Array) -> Array:
        return layer(weights, "value", hidden(weights, observations))[..., 0]


def init_layer(key: Array, name: str, shape: tuple[int, int], *, gain: float) -> Weights:
    """Draw one layer: an orthogonal weight of the given gain, and bias 0."""
    weight = jax.nn.initializers.orthogonal(gain)(key, shape)
    return {f"{name}/weight": weight, f"{name}/bias": jnp.zeros(shape[1])}


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
