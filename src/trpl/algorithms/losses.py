"""Losses: pure functions of arrays over a minibatch."""

import jax.numpy as jnp
from jax import Array


def normalised(advantages: Array, *, unbiased: bool = False) -> Array:
    """Mean 0 and standard deviation 1 over the minibatch; `unbiased` divides its squares by n − 1, not n."""
    return (advantages - advantages.mean()) / (advantages.std(ddof=int(unbiased)) + 1e-8)


def surrogate(log_ratio: Array, advantages: Array) -> Array:
    """−E[ratio · A], importance-weighted policy gradient (paper, eq. 1)."""
    return -(jnp.exp(log_ratio) * advantages).mean()


def clipped_surrogate(log_ratio: Array, advantages: Array, *, clip: float) -> Array:
    """−E[min(ratio · A, clip(ratio, 1 ± clip) · A)] (Schulman et al. 2017, eq. 7)."""
    ratio = jnp.exp(log_ratio)
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages).mean()


def squared_error(values: Array, returns: Array) -> Array:
    return jnp.square(values - returns).mean()


def clipped_squared_error(values: Array, returns: Array, *, old_values: Array, clip: float) -> Array:
    """The larger of the errors of V and of V held within ± clip of the old value: no gain from a longer step."""
    held = old_values + jnp.clip(values - old_values, -clip, clip)
    return jnp.maximum(jnp.square(values - returns), jnp.square(held - returns)).mean()
