"""Policy gradient through a trust-region layer (paper, Algorithm 2)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trpl import entropy_schedule
from trpl.algorithms.actor_critic import (
    ActorCritic,
    LearnerState,
    Samples,
    distance_measurements,
    from_rows,
    learning_rates,
    policy_measurements,
    rows,
)
from trpl.algorithms.base import Algorithm, Batch, Metrics, Settings
from trpl.algorithms.losses import normalised, surrogate
from trpl.algorithms.minibatches import draw_orders, fit
from trpl.gaussians import DiagGaussian, Gaussian, entropy, log_prob, mahalanobis
from trpl.jax import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection
from trpl.projections.joint_kl import entropy_range

REACH = 0.9  # of the entropies within a KL bound: at the very edge only one policy is left, and no gradient


def separate(layer: Any, config: Settings, **options: Any) -> Any:
    entropy_first = bool(config.entropy_first)
    return layer(config.mean_bound, config.cov_bound, entropy_first=entropy_first, check=False, **options)


LAYERS: dict[str, Callable[[Settings], Any]] = {
    "kl": lambda c: separate(KLProjection, c),
    "w2": lambda c: separate(WassersteinProjection, c, form=c.wasserstein_form),
    "frobenius": lambda c: separate(FrobeniusProjection, c, whitened=c.whitened),
    "kl-joint": lambda c: JointKLProjection(c.bound, check=False),
}


def make(config: Settings, *, obs_size: int, action_size: int) -> Algorithm:
    networks = ActorCritic.of(config, obs_size=obs_size, action_size=action_size)
    layer = LAYERS[config.method.removesuffix("-e")](config)
    learn = jax.jit(partial(_update, config=config, networks=networks, layer=layer), donate_argnums=0)

    def update(state, batch, rng):
        orders = [draw_orders(rng, n, config.rollout_size) for n in (config.value_epochs, config.policy_epochs)]
        if config.regression == "full":
            orders.append(draw_orders(rng, config.regression_epochs, config.rollout_size))
        return learn(state, batch, orders)

    return Algorithm(networks.policy, networks.init, update)


def _update(
    state: LearnerState,
    batch: Batch,
    orders: list[Array],
    *,
    config: Settings,
    networks: ActorCritic,
    layer: Any,
) -> tuple[LearnerState, Metrics]:
    """One epoch: advantages, value function, policy epochs through the layer, covariance set, audit."""
    samples = networks.samples(state, batch, config=config)
    state = networks.begin(state, samples.old)
    learning_rate, learning_rate_vf = learning_rates(config, state.epoch)
    state, value_loss = networks.fit_value(
        state, samples, orders=orders[0], config=config, learning_rate=learning_rate_vf
    )

    target = entropy_target(state, config=config, action_size=networks.policy.action_size)
    project = projection(layer, target, config=config)
    state, report = fit_policy(
        state,
        samples,
        orders=orders[1],
        config=config,
        networks=networks,
        layer=layer,
        project=project,
        learning_rate=learning_rate,
    )
    predicted = networks.policy(state.policy, samples.observations)
    projected = jax.lax.stop_gradient(project(predicted, samples.old))
    audited = predicted, projected  # before the shared covariance is set: afterwards it is always inside
    if config.regression == "full":
        state, report["penalty"] = regress(
            state,
            samples,
            projected,
            orders=orders[2],
            config=config,
            networks=networks,
            layer=layer,
            learning_rate=learning_rate,
        )
        regressed = networks.policy(state.policy, samples.observations)
        audited = regressed, project(regressed, samples.old)
    if not networks.policy.contextual:
        state = state._replace(policy=networks.policy.set_spread(state.policy, shared(projected)))

    network = networks.policy(state.policy, samples.observations)
    metrics = {
        **policy_measurements(network, samples.old),
        **audit(layer, *audited, samples.old),
        **report,
        "value_loss": value_loss,
        "learning_rate": learning_rate,
        "learning_rate_vf": learning_rate_vf,
    }
    bounds = {name: getattr(config, name) for name in ("mean_bound", "cov_bound", "bound")}
    metrics |= {name: jnp.asarray(bound) for name, bound in bounds.items() if bound is not None}
    if target is not None:
        metrics["entropy_target"] = target
    return state._replace(epoch=state.epoch + 1), metrics


def fit_policy(
    state: LearnerState,
    samples: Samples,
    *,
    orders: Array,
    config: Settings,
    networks: ActorCritic,
    layer: Any,
    project: Callable[[Gaussian, Gaussian], Gaussian],
    learning_rate: Array,
) -> tuple[LearnerState, Metrics]:
    """Policy epochs: maximise the surrogate of the projected policy minus α times the penalty (paper, eq. 12)."""

    def loss(weights, minibatch):
        observations, actions, advantages, old_log_prob, old_rows = minibatch
        predicted = networks.policy(weights, observations)
        projected = project(predicted, from_rows(old_rows, samples.old))
        policy_loss = surrogate(
            log_prob(projected, actions) - old_log_prob, normalised(advantages, unbiased=config.released_deviation)
        )
        penalty_of = released_penalty if config.released_penalty else layer.penalty
        penalty = penalty_of(predicted, projected).mean()
        total = policy_loss
        if config.regression == "penalty":
            total += config.regression_weight * penalty
        if config.entropy_weight:
            total -= config.entropy_weight * entropy(projected).mean()
        return total, {"policy_loss": policy_loss, "penalty": penalty}

    policy, optimiser_state, report = fit(
        loss,
        state.policy,
        state.policy_optimiser,
        data=(samples.observations, samples.actions, samples.advantages, samples.old_log_prob, rows(samples.old)),
        orders=orders,
        minibatch_size=config.minibatch_size,
        optimiser=networks.optimiser,
        learning_rate=learning_rate,
    )
    return state._replace(policy=policy, policy_optimiser=optimiser_state), report


def regress(
    state: LearnerState,
    samples: Samples,
    projected: Gaussian,
    *,
    orders: Array,
    config: Settings,
    networks: ActorCritic,
    layer: Any,
    learning_rate: Array,
) -> tuple[LearnerState, Array]:
    """Full regression: after the policy epochs, supervised epochs pull the network to its own projection.

    Adam starts afresh each time: its targets are new. Returns the remaining distance too.
    """

    def loss(weights, minibatch):
        observations, target_rows = minibatch
        distance = layer.penalty(networks.policy(weights, observations), from_rows(target_rows, projected)).mean()
        return distance, {"penalty": distance}

    policy, _, report = fit(
        loss,
        state.policy,
        networks.optimiser.init(state.policy),
        data=(samples.observations, rows(projected)),
        orders=orders,
        minibatch_size=config.minibatch_size,
        optimiser=networks.optimiser,
        learning_rate=learning_rate,
    )
    return state._replace(policy=policy), report["penalty"]


def entropy_target(state: LearnerState, *, config: Settings, action_size: int) -> Array | None:
    """β of this epoch, or None without entropy control; κ is meant per action dimension."""
    if not config.entropy_controlled:
        return None
    course = {
        "initial": state.initial_entropy,
        "target": config.target_entropy,
        "progress": state.epoch / config.num_epochs,
        "dim": action_size,
    }
    if config.entropy_schedule == "linear":
        return entropy_schedule.linear(**course)
    return entropy_schedule.exponential(**course, temperature=config.temperature)


def projection(layer: Any, target: Array | None, *, config: Settings) -> Callable[[Gaussian, Gaussian], Gaussian]:
    """(predicted, old) ↦ projected, with this epoch's entropy target as equality or lower bound.

    Where one KL bound holds for everything, no policy may exist that has the target's entropy too: then the nearest
    entropy within the bound is asked for.
    """
    if target is None:
        return layer
    name = "entropy" if config.entropy_equality else "min_entropy"

    def project(predicted: Gaussian, old: Gaussian) -> Gaussian:
        wanted = target
        if config.bound is not None:
            here = entropy(old)
            least, most = entropy_range(jnp.asarray(config.bound), old.dim)
            wanted = here + jnp.clip(target - here, REACH * least, REACH * most)
        return layer(predicted, old, **{name: wanted})

    return project


def shared(projected: Gaussian) -> Gaussian:
    """One covariance for all states from the projected ones.

    The separate projections keep it shared, and there is nothing to do. The joint one makes it depend on the state:
    then the mean of the Cholesky factors, with the geometric mean on the diagonal, which keeps the mean entropy.
    """
    if projected.shares_covariance:
        return projected
    if isinstance(projected, DiagGaussian):
        return projected.with_scale(jnp.exp(jnp.log(projected.std).mean(0)))
    diagonal = jnp.diagonal(projected.chol, axis1=-2, axis2=-1)
    geometric = jnp.exp(jnp.log(diagonal).mean(0))
    return projected.with_scale(jnp.tril(projected.chol.mean(0), -1) + jnp.diag(geometric))


def released_penalty(predicted: Gaussian, projected: Gaussian) -> Array:
    """The Frobenius penalty of the authors' release, state by state.

    Its gradient goes through the projection too, and with a covariance per state it has the squared difference of the
    standard deviations (Cholesky factors) where the Frobenius norm of the covariances would be.
    """
    mean = mahalanobis(predicted, projected)
    if predicted.shares_covariance:
        return mean
    axes = tuple(range(predicted.mean.ndim - 1, predicted.scale.ndim))
    return mean + jnp.square(predicted.scale - projected.scale).sum(axes)


def audit(layer: Any, network: Gaussian, projected: Gaussian, old: Gaussian) -> Metrics:
    """The layer's own distances to the old policy before and after projection, over all states of the rollout."""
    found = layer.audit(network, projected, old)
    return {
        **distance_measurements("before", found.before.mean, found.before.cov),
        **distance_measurements("after", found.after.mean, found.after.cov),
        "projected_mean_share": jnp.mean(found.mean_projected),
        "projected_cov_share": jnp.mean(found.cov_projected),
        "projected_entropy": entropy(projected).mean(),
    }
