"""Brax: its PPO with an exact trust region in place of the clip, inside a context.

    with trust_region(mean_bound=0.03, cov_bound=1e-3):
        make_policy, params, metrics = ppo.train(environment, num_timesteps=..., ...)

Brax's PPO has no argument for its loss, so the context replaces `losses.compute_ppo_loss`, which `ppo.train` looks up
when called. The replacement calls Brax's own loss with a projected distribution, and adds the penalty; all of it runs
inside Brax's jit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from trpl.messages import needs

with needs("brax"):
    import jax
    import jax.numpy as jnp
    from brax.training.agents.ppo import losses
    from brax.training.distribution import ParametricDistribution

import trpl.jax
from trpl.entropy_schedule import within_reach
from trpl.gaussians import DiagGaussian, kl_parts
from trpl.methods.registry import layers

NO_CLIP = 1e9
"""A clipping range that no ratio exceeds."""


@contextmanager
def trust_region(
    *,
    projection: str = "kl",
    mean_bound: float = 0.03,
    cov_bound: float = 1e-3,
    regression_weight: float = 8.0,
    min_entropy: float | None = None,
    **projection_kwargs: Any,
) -> Iterator[None]:
    """Train Brax's PPO through a trust-region layer inside the context.

    The old policy is the one whose parameters Brax stores with each transition. A shared standard deviation is pulled
    towards its projection like the mean, since Brax's loop has no place to set it. Squashed policies are projected
    before the tanh, which is exact for the KL.

    Args:
        projection: "kl", "w2", "frobenius", or "kl-joint" with one bound, the sum of the two.
        mean_bound: Bound on the distance of the means, in every state.
        cov_bound: Bound on the distance of the covariances, in every state.
        regression_weight: Weight α of the penalty that pulls the network to its projection.
        min_entropy: A lower bound on the entropy of the Gaussian (before a tanh), per action dimension.
        **projection_kwargs: Further arguments of the layer, such as `form` or `whitened`.

    Yields:
        None: call `ppo.train` inside the context.

    Raises:
        ValueError: If the projection is unknown, or a bound or the weight is out of range.
    """
    if projection not in layers():
        raise ValueError(f"projection must be one of {', '.join(layers())}, not {projection!r}")
    if not (mean_bound > 0 and cov_bound > 0 and regression_weight >= 0):
        raise ValueError("mean_bound and cov_bound must be positive, and regression_weight must not be negative")
    bounds = {"mean_bound": mean_bound, "cov_bound": cov_bound, "bound": mean_bound + cov_bound}
    layer = layers()[projection].build(trpl.jax, bounds, **projection_kwargs)
    host = losses.compute_ppo_loss
    losses.compute_ppo_loss = _loss_through(layer, host, weight=regression_weight, min_entropy=min_entropy)
    try:
        yield
    finally:
        losses.compute_ppo_loss = host


class _Projection(NamedTuple):
    """A layer's projection of a distribution's parameters."""

    parameters: Any
    predicted: DiagGaussian[jax.Array]
    projected: DiagGaussian[jax.Array]


class _Projected(ParametricDistribution):
    """Brax's distribution with every Gaussian projected; Brax's own code computes its densities and entropies.

    Brax makes the distribution of the same parameters for the density, the entropy and the KL; it is projected only
    once, which halves the compilation. `made` lives as long as the tracing of one loss: its first entry is the
    network's, another is the old policy's, for Brax's KL.
    """

    def __init__(
        self, inner: ParametricDistribution, project: Callable[[DiagGaussian[jax.Array]], DiagGaussian[jax.Array]]
    ) -> None:
        super().__init__(inner.param_size, inner._postprocessor, inner._event_ndims, inner.reparametrizable)
        self.inner, self.project = inner, project
        self.made: list[_Projection] = []

    def create_dist(self, parameters: Any) -> Any:
        """Make the projected distribution of these parameters."""
        inner = self.inner.create_dist(parameters)
        found = next((made for made in self.made if made.parameters is parameters), None)
        if found is None:
            predicted = _gaussian(inner)
            found = _Projection(parameters, predicted, self.project(predicted))
            self.made.append(found)
        return type(inner)(found.projected.mean, found.projected.std)


def _loss_through(layer: Any, host: Callable, *, weight: float, min_entropy: float | None) -> Callable:
    """Make Brax's loss of the projected policy, without a clip, plus the penalty."""

    def loss(params: Any, normalizer_params: Any, data: Any, rng: jax.Array, ppo_network: Any, **settings: Any) -> Any:
        distribution = ppo_network.parametric_action_distribution
        stored = jax.tree_util.tree_map(  # Brax has time as the first axis
            lambda x: jnp.swapaxes(x, 0, 1), data.extras["policy_extras"]["distribution_params"]
        )
        old = _gaussian(distribution.create_dist(stored))
        floor = {}
        if min_entropy is not None:
            least = min_entropy * old.dim
            one_bound = hasattr(layer, "bound")  # on the whole KL, which may exclude the entropy
            floor = {"min_entropy": within_reach(least, old, layer.bound) if one_bound else least}

        def project(predicted: DiagGaussian[jax.Array]) -> DiagGaussian[jax.Array]:
            return layer(predicted, old, **floor)

        through = _Projected(distribution, project)
        network = ppo_network.replace(parametric_action_distribution=through)
        total, metrics = host(
            params, normalizer_params, data, rng, ppo_network=network, **settings | {"clipping_epsilon": NO_CLIP}
        )
        _, predicted, projected = through.made[0]  # Brax's loss computes the density of the actions first
        penalty = jnp.mean(layer.penalty(predicted, projected))
        parts = kl_parts(predicted.detached(), old)
        kl = parts.mean + parts.cov
        total = total + weight * penalty
        exact = {"total_loss": total, "penalty": penalty, "kl_mean": jnp.mean(kl), "kl_max": jnp.max(kl)}
        return total, metrics | exact

    return loss


def _gaussian(distribution: Any) -> DiagGaussian[jax.Array]:
    """Convert Brax's normal distribution, with a standard deviation per state."""
    if not (hasattr(distribution, "loc") and hasattr(distribution, "scale")):
        raise ValueError(
            f"the policy must be a normal distribution, squashed or not; it is {type(distribution).__name__}"
        )
    return DiagGaussian(distribution.loc, jnp.broadcast_to(distribution.scale, distribution.loc.shape))
