"""Gradient steps over shuffled minibatches: every epoch of a fit in one compiled loop.

The random orders are drawn on the host (sorting random keys on the device costs as much as the updates), the data are
permuted once per epoch and then only sliced, and Adam runs on one flat vector.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
import optax
from jax import Array, lax

ADAM_EPS = 1e-5

Loss = Callable[[Any, Any], tuple[Array, dict[str, Array]]]  # weights, minibatch -> loss, scalars to report
T = TypeVar("T")


class Orders(NamedTuple, Generic[T]):
    """One entry per phase of an update: its number of passes over the rollout, or their random orders.

    Phases that an algorithm lacks are None.
    """

    value: T
    policy: T | Any = None
    after: T | Any = None  # a phase after the policy epochs: full regression, or PAPI's steps through its projection


def draw_orders(rng: np.random.Generator, num_epochs: int, size: int) -> np.ndarray:
    """Draw `num_epochs` random orders of `size` samples, int32 [num_epochs, size]."""
    return rng.permuted(np.tile(np.arange(size, dtype=np.int32), (num_epochs, 1)), axis=1)


def adam(gradient_clip: float | None = None) -> optax.GradientTransformation:
    """Make Adam with ε = 1e-5 on one flat vector, without a learning rate: `fit` applies it."""
    steps = [optax.scale_by_adam(eps=ADAM_EPS)]
    if gradient_clip is not None:
        steps.insert(0, optax.clip_by_global_norm(gradient_clip))
    return optax.flatten(optax.chain(*steps))


def fit(
    loss: Loss,
    weights: Any,
    optimiser_state: Any,
    *,
    data: Any,
    orders: Array,
    minibatch_size: int,
    optimiser: optax.GradientTransformation,
    learning_rate: Array | float,
) -> tuple[Any, Any, dict[str, Array]]:
    """Minimise `loss` over `data` (pytree of [n, ...]) in the given orders [num_epochs, n].

    If `minibatch_size` does not divide n, the last minibatch of an epoch is smaller. Returns weights, optimiser state,
    and the reported scalars averaged over the minibatches of the last epoch.
    """
    num_samples = orders.shape[1]
    num_whole, rest = divmod(num_samples, minibatch_size)
    gradient = jax.grad(loss, has_aux=True)

    def step(carry, minibatch):
        weights, optimiser_state = carry
        gradients, report = gradient(weights, minibatch)
        direction, optimiser_state = optimiser.update(gradients, optimiser_state)
        weights = jax.tree.map(lambda w, d: w - learning_rate * d, weights, direction)
        return (weights, optimiser_state), report

    def epoch(carry, order):
        shuffled = jax.tree.map(lambda x: x[order], data)
        split = num_whole * minibatch_size
        whole = jax.tree.map(lambda x: x[:split].reshape(num_whole, minibatch_size, *x.shape[1:]), shuffled)
        carry, reports = lax.scan(step, carry, whole)
        means = jax.tree.map(lambda x: x.mean(0), reports)
        if rest:
            carry, report = step(carry, jax.tree.map(lambda x: x[split:], shuffled))
            means = jax.tree.map(lambda m, last: (num_whole * m + last) / (num_whole + 1), means, report)
        return carry, means

    (weights, optimiser_state), means = lax.scan(epoch, (weights, optimiser_state), orders)
    return weights, optimiser_state, jax.tree.map(lambda x: x[-1], means)
