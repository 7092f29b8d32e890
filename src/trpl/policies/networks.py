"""Policy and value networks in JAX.

A network is a frozen description; its weights are a flat dictionary of arrays under stable names (`layer0/weight`,
`mean/bias`, `std/raw`, ...), the very names that stand in a checkpoint and that `acting` reads.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from trpl.gaussians import DiagGaussian, FullGaussian
from trpl.policies.acting import MIN_STD, STD_SHIFT

Weights = dict[str, Array]
Gaussian = DiagGaussian | FullGaussian

HIDDEN_GAIN, MEAN_GAIN, SPREAD_GAIN, VALUE_GAIN = 2.0**0.5, 0.01, 0.01, 1.0


@dataclass(frozen=True, kw_only=True)
class GaussianPolicy:
    """A tanh network for the mean, and a covariance: diagonal or full, one for all states or one per state.

    std = softplus(raw + shift) + 1e-5, initially 1. A full covariance is parametrised by its Cholesky factor, the
    diagonal through the same map and the rest of the lower triangle as it is.
    """

    obs_size: int
    action_size: int
    hidden_sizes: tuple[int, ...] = (64, 64)
    covariance: str = "diagonal"  # or "full"
    contextual: bool = False  # a covariance per state

    @property
    def spread_size(self) -> int:
        """Numbers that describe one covariance."""
        d = self.action_size
        return d if self.covariance == "diagonal" else d * (d + 1) // 2

    @property
    def spread_name(self) -> str:
        return "std" if self.covariance == "diagonal" else "chol"

    def init(self, key: Array) -> Weights:
        """Orthogonal weights (gain √2, mean head 0.01), biases 0, standard deviation 1."""
        hidden_key, mean_key, spread_key = jax.random.split(key, 3)
        weights = init_hidden(hidden_key, self.obs_size, self.hidden_sizes)
        features_size = ([self.obs_size, *self.hidden_sizes])[-1]
        weights |= init_layer(mean_key, "mean", (features_size, self.action_size), gain=MEAN_GAIN)
        if self.contextual:
            weights |= init_layer(spread_key, self.spread_name, (features_size, self.spread_size), gain=SPREAD_GAIN)
        else:
            weights[f"{self.spread_name}/raw"] = jnp.zeros(self.spread_size)
        return weights

    def __call__(self, weights: Weights, observations: Array) -> Gaussian:
        """The Gaussian predicted for each observation; the covariance has no batch axes when it is shared."""
        features = hidden(weights, observations)
        mean = layer(weights, "mean", features)
        raw = layer(weights, self.spread_name, features) if self.contextual else weights[f"{self.spread_name}/raw"]
        return self.gaussian(mean, raw)

    def gaussian(self, mean: Array, raw: Array) -> Gaussian:
        if self.covariance == "diagonal":
            return DiagGaussian(mean, positive(raw))
        return FullGaussian(mean, cholesky_from_raw(raw, self.action_size))

    def set_spread(self, weights: Weights, gaussian: Gaussian) -> Weights:
        """`weights` with the shared covariance set to that of `gaussian` (only where it does not depend on the
        state).
        """
        if isinstance(gaussian, DiagGaussian):
            raw = raw_from_positive(gaussian.std)
        else:
            raw = raw_from_cholesky(gaussian.chol)
        return weights | {f"{self.spread_name}/raw": raw}


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


def positive(raw: Array) -> Array:
    """softplus(raw + shift) + 1e-5."""
    return jax.nn.softplus(raw + STD_SHIFT) + MIN_STD


def raw_from_positive(std: Array) -> Array:
    """Inverse of `positive`: log(exp(y) − 1) = y + log(1 − exp(−y)) with y = std − 1e-5."""
    y = jnp.maximum(std - MIN_STD, 1e-9)
    return y + jnp.log(-jnp.expm1(-y)) - STD_SHIFT


def cholesky_from_raw(raw: Array, dim: int) -> Array:
    """Lower-triangular factor; `raw` holds the diagonal first, then the rest of the triangle row by row."""
    rows, columns = jnp.tril_indices(dim, -1)
    chol = jnp.zeros((*raw.shape[:-1], dim, dim), raw.dtype)
    chol = chol.at[..., jnp.arange(dim), jnp.arange(dim)].set(positive(raw[..., :dim]))
    return chol.at[..., rows, columns].set(raw[..., dim:])


def raw_from_cholesky(chol: Array) -> Array:
    dim = chol.shape[-1]
    rows, columns = jnp.tril_indices(dim, -1)
    diagonal = raw_from_positive(jnp.diagonal(chol, axis1=-2, axis2=-1))
    return jnp.concatenate([diagonal, chol[..., rows, columns]], axis=-1)


def init_layer(key: Array, name: str, shape: tuple[int, int], *, gain: float) -> Weights:
    weight = jax.nn.initializers.orthogonal(gain)(key, shape)
    return {f"{name}/weight": weight, f"{name}/bias": jnp.zeros(shape[1])}


def init_hidden(key: Array, obs_size: int, hidden_sizes: Sequence[int]) -> Weights:
    weights: Weights = {}
    sizes = [obs_size, *hidden_sizes]
    for i, shape in enumerate(itertools.pairwise(sizes)):
        weights |= init_layer(jax.random.fold_in(key, i), f"layer{i}", shape, gain=HIDDEN_GAIN)
    return weights


def layer(weights: Weights, name: str, x: Array) -> Array:
    return x @ weights[f"{name}/weight"] + weights[f"{name}/bias"]


def hidden(weights: Weights, observations: Array) -> Array:
    """Features after the tanh layers `layer0`, `layer1`, ..."""
    x, i = observations, 0
    while f"layer{i}/weight" in weights:
        x, i = jnp.tanh(layer(weights, f"layer{i}", x)), i + 1
    return x
