"""Policy gradient through a trust-region layer (paper, Algorithm 2)."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

import trpl.jax
from trpl.algorithms.anchor import around_anchor
from trpl.algorithms.base import Algorithm, Metrics
from trpl.algorithms.learner import Learner, LearnerState, Samples, distance_measurements, from_rows, rows
from trpl.algorithms.minibatches import Orders
from trpl.entropy_schedule import scheduled, within_reach
from trpl.errors import ConfigError
from trpl.families import Policy, entropy
from trpl.gaussians import Gaussian, mahalanobis
from trpl.layers.layer import Audit
from trpl.layers.surface import JointLayer, SeparateLayer
from trpl.losses import trust_region_loss
from trpl.methods import LayerSpec
from trpl.methods.trust_region import SeparateKL, TrustRegion
from trpl.policies.heads import Head
from trpl.types import cast

Layer: TypeAlias = SeparateLayer[Array] | JointLayer[Array]
Project: TypeAlias = Callable[[Policy[Array], Policy[Array]], Policy[Array]]
Penalty: TypeAlias = Callable[[Policy[Array], Policy[Array]], Array]


def make(config: TrustRegion, *, obs_size: int, head: Head, layer: LayerSpec) -> Algorithm:
    """Make the paper's update for one kind of layer."""
    check_entropy(config, head)
    learner = Learner.of(config, obs_size=obs_size, head=head)
    improve = partial(improve_through, make_layer(layer, config, head), learner)
    passes = Orders(config.value_epochs, config.policy_epochs, config.regression_epochs)
    return learner.algorithm(around_anchor(improve, learner), passes=passes)


def check_entropy(config: TrustRegion, head: Head) -> None:
    """Refuse a final entropy that no policy of the head has, or only the most random one."""
    if not config.entropy_controlled:
        return
    assert config.target_entropy is not None
    if config.target_entropy * head.action_size >= head.max_entropy:
        most = head.max_entropy / head.action_size
        raise ConfigError(
            f"target_entropy must be below {most:.3g}, the largest entropy per component of a {head.words} policy, not "
            f"{config.target_entropy:g}"
        )


def make_layer(layer: LayerSpec, config: TrustRegion, head: Head) -> Layer:
    """Make the method's layer; a non-Gaussian policy gets the one with a single bound on the whole KL."""
    settings = config.to_json()
    if isinstance(config, SeparateKL):
        if not head.gaussian:
            assert layer.otherwise is not None
            return layer.otherwise.build(trpl.jax, settings | {"bound": config.whole_bound})
        if config.bound is not None:
            raise ConfigError(
                f"method {config.method!r} bounds mean and covariance of a Gaussian separately, by mean_bound and"
                " cov_bound; for one bound on the whole KL use method 'kl-joint'"
            )
    return layer.build(trpl.jax, settings)


def improve_through(
    layer: Layer,
    learner: Learner[TrustRegion],
    state: LearnerState,
    samples: Samples,
    orders: Orders[Array],
    learning_rate: Array,
) -> tuple[LearnerState, Metrics]:
    """Run policy epochs through the layer, set the shared covariance to its projection, and audit the result."""
    config, policy = learner.config, learner.policy
    target = entropy_target(state, config=config, action_size=policy.head.action_size)
    project = projection(layer, target, config=config)
    state, report = fit_projected(
        layer, project, learner, state, samples, orders=orders.policy, learning_rate=learning_rate
    )
    predicted = policy(state.policy, samples.observations)
    projected = jax.lax.stop_gradient(project(predicted, samples.old))
    audited = predicted, projected  # before the shared covariance is set: afterwards it is always inside
    if orders.after is not None:
        state, report["penalty"] = regress(
            layer, learner, state, samples, projected, orders=orders.after, learning_rate=learning_rate
        )
        regressed = policy(state.policy, samples.observations)
        audited = regressed, project(regressed, samples.old)
    state = state._replace(policy=policy.set_shared(state.policy, projected))

    bounds = {name: getattr(layer, name, None) for name in ("mean_bound", "cov_bound", "bound")}
    report |= audit(layer, *audited, samples.old)
    report |= {name: jnp.asarray(bound) for name, bound in bounds.items() if bound is not None}
    return state, report if target is None else report | {"entropy_target": target}


def fit_projected(
    layer: Layer,
    project: Project,
    learner: Learner[TrustRegion],
    state: LearnerState,
    samples: Samples,
    *,
    orders: Array,
    learning_rate: Array,
) -> tuple[LearnerState, Metrics]:
    """Run policy epochs on the surrogate and the penalty of the projected policy (paper, eq. 12)."""
    config = learner.config
    penalty = cast("Penalty", released_penalty) if config.get("released_penalty") else layer.penalty

    def loss(weights, minibatch):
        observations, actions, advantages, old_log_prob, old_rows = minibatch
        predicted = learner.policy(weights, observations)
        projected = project(predicted, from_rows(old_rows, samples.old))
        found = trust_region_loss(
            projected,
            log_ratio=learner.policy.log_prob(projected, actions) - old_log_prob,
            advantages=advantages,
            penalties=penalty(predicted, projected),
            regression_weight=config.regression_weight,
            entropy_weight=config.entropy_weight,
            unbiased=config.released_deviation,
        )
        return found.total, {"policy_loss": found.surrogate, "penalty": found.penalty}

    data = (samples.observations, samples.actions, samples.advantages, samples.old_log_prob, rows(samples.old))
    return learner.fit_policy(loss, state, data, orders=orders, learning_rate=learning_rate)


def regress(
    layer: Layer,
    learner: Learner[TrustRegion],
    state: LearnerState,
    samples: Samples,
    projected: Policy[Array],
    *,
    orders: Array,
    learning_rate: Array,
) -> tuple[LearnerState, Array]:
    """Pull the network to its own projection in supervised epochs (full regression); return the remaining distance.

    Adam's state is fresh each time because the targets are new.
    """

    def loss(weights, minibatch):
        observations, target_rows = minibatch
        distance = layer.penalty(learner.policy(weights, observations), from_rows(target_rows, projected)).mean()
        return distance, {"penalty": distance}

    data = (samples.observations, rows(projected))
    policy, report = learner.fit_afresh(loss, state.policy, data, orders=orders, learning_rate=learning_rate)
    return state._replace(policy=policy), report["penalty"]


def entropy_target(state: LearnerState, *, config: TrustRegion, action_size: int) -> Array | None:
    """Compute this epoch's β, None without entropy control; κ is per action dimension."""
    if not config.entropy_controlled:
        return None
    assert config.target_entropy is not None
    found = scheduled(
        config.entropy_schedule,
        initial=state.initial_entropy,
        target=config.target_entropy,
        temperature=config.temperature,
        progress=state.epoch / config.num_epochs,
        dim=action_size,
    )
    return cast("Array", found)


def projection(layer: Layer, target: Array | None, *, config: TrustRegion) -> Project:
    """Make (predicted, old) ↦ projected, with this epoch's entropy target as equality or lower bound.

    With one bound on the whole KL the target may be infeasible; then it is clipped to the nearest feasible entropy.
    """
    if target is None:
        return layer.forward
    name = "entropy" if config.entropy_equality else "min_entropy"

    def project(predicted: Policy[Array], old: Policy[Array]) -> Policy[Array]:
        wanted = within_reach(target, old, cast("float", layer.bound)) if isinstance(layer, JointLayer) else target
        return layer.forward(predicted, old, **{name: wanted})

    return project


def released_penalty(predicted: Gaussian[Array], projected: Gaussian[Array]) -> Array:
    """Compute the Frobenius penalty of the authors' release, state by state.

    Its gradient also flows through the projection. For contextual covariances it has the squared difference of standard
    deviations (Cholesky factors) in place of the Frobenius norm of the covariances' difference.
    """
    mean = mahalanobis(predicted, projected)
    if predicted.shares_covariance:
        return mean
    axes = tuple(range(predicted.mean.ndim - 1, predicted.scale.ndim))
    return mean + jnp.square(predicted.scale - projected.scale).sum(axes)


def audit(layer: Layer, network: Policy[Array], projected: Policy[Array], old: Policy[Array]) -> Metrics:
    """Measure the layer's own distances to the old policy before and after projection, over the rollout's states."""
    found = cast("Audit[Array]", layer.audit(network, projected, old))
    return {
        **distance_measurements("before", found.before),
        **distance_measurements("after", found.after),
        "projected_mean_share": jnp.mean(found.mean_projected),
        "projected_cov_share": jnp.mean(found.cov_projected),
        "projected_entropy": entropy(projected).mean(),
    }
