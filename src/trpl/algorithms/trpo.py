"""TRPO (Schulman et al. 2015): one natural-gradient step per epoch, as long as the trust region allows.

maximise E[ratio · A]  subject to  E[KL(π‖π_old)] ≤ ε over the rollout's states.

The direction solves F x = g by conjugate gradients, F the Fisher matrix of the whole batch, never formed; the step is
scaled to the bound of the quadratic model, then halved until the measured KL is within the bound and the surrogate has
improved. As everywhere in this project the KL is that of the new policy to the old one; to second order the other
direction is the same.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from trpl.algorithms.actor_critic import (
    ActorCritic,
    LearnerState,
    Samples,
    distance_measurements,
    learning_rates,
    policy_measurements,
)
from trpl.algorithms.base import Algorithm, Batch, Metrics, Settings
from trpl.algorithms.losses import normalised, surrogate
from trpl.algorithms.minibatches import draw_orders
from trpl.gaussians import Gaussian, entropy, kl_parts, log_prob
from trpl.policies.networks import GaussianPolicy, Weights

SOLVED = 1e-10  # squared residual, relative to that of the start, at which conjugate gradients stop


def make(config: Settings, *, obs_size: int, action_size: int) -> Algorithm:
    networks = ActorCritic.of(config, obs_size=obs_size, action_size=action_size)
    learn = jax.jit(partial(_update, config=config, networks=networks), donate_argnums=0)

    def update(state, batch, rng):
        return learn(state, batch, draw_orders(rng, config.value_epochs, config.rollout_size))

    return Algorithm(networks.policy, networks.init, update)


def _update(
    state: LearnerState, batch: Batch, orders: Array, *, config: Settings, networks: ActorCritic
) -> tuple[LearnerState, Metrics]:
    """One epoch: advantages, value function, direction, line search."""
    samples = networks.samples(state, batch, config=config)
    state = networks.begin(state, samples.old)
    _, learning_rate_vf = learning_rates(config, state.epoch)
    state, value_loss = networks.fit_value(state, samples, orders=orders, config=config, learning_rate=learning_rate_vf)

    def loss(weights):
        policy = networks.policy(weights, samples.observations)
        policy_loss = surrogate(
            log_prob(policy, samples.actions) - samples.old_log_prob,
            normalised(samples.advantages, unbiased=config.released_deviation),
        )
        if config.entropy_weight:
            policy_loss -= config.entropy_weight * entropy(policy).mean()
        return policy_loss

    before, gradient = jax.value_and_grad(loss)(state.policy)
    fisher = fisher_product(networks.policy, state.policy, samples, damping=config.cg_damping)
    flat_gradient, unravel = ravel_pytree(gradient)
    direction = conjugate_gradients(lambda v: ravel_pytree(fisher(unravel(v)))[0], flat_gradient, config.cg_steps)
    curvature = jnp.vdot(direction, ravel_pytree(fisher(unravel(direction)))[0])
    length = jnp.sqrt(2.0 * config.bound / jnp.maximum(curvature, jnp.finfo(curvature.dtype).tiny))
    policy, search = line_search(
        loss,
        partial(expected_kl, networks.policy, samples=samples),
        state.policy,
        unravel(-length * direction),
        loss_before=before,
        bound=config.bound,
        num_halvings=config.line_search_steps,
    )

    network = networks.policy(policy, samples.observations)
    divergence = kl_parts(network, samples.old)
    metrics = {
        **policy_measurements(network, samples.old),
        **distance_measurements("before", divergence.mean, divergence.cov),
        **search,
        "value_loss": value_loss,
        "learning_rate_vf": learning_rate_vf,
        "bound": jnp.asarray(config.bound),
        "gradient_norm": jnp.linalg.norm(flat_gradient),
    }
    return state._replace(policy=policy, epoch=state.epoch + 1), metrics


def expected_kl(policy: GaussianPolicy, weights: Weights, *, samples: Samples) -> Array:
    return mean_kl(policy(weights, samples.observations), samples.old)


def mean_kl(new: Gaussian, old: Gaussian) -> Array:
    """KL(new‖old), averaged over states."""
    divergence = kl_parts(new, old)
    return (divergence.mean + divergence.cov).mean()


def fisher_product(
    policy: GaussianPolicy, weights: Weights, samples: Samples, *, damping: float
) -> Callable[[Weights], Weights]:
    """v ↦ (F + damping·I) v with F = JᵀHJ: J the Jacobian of the network's outputs, H the Hessian of the KL in them.

    The KL is 0 and flat at the old policy, so this is its Hessian in the weights, exactly. The network is linearised
    once.
    """
    outputs, push = jax.linearize(lambda w: policy(w, samples.observations), weights)
    pull = jax.linear_transpose(push, weights)
    slope = jax.grad(lambda new: mean_kl(new, samples.old))

    def product(v: Weights) -> Weights:
        (fisher_v,) = pull(jax.jvp(slope, (outputs,), (push(v),))[1])
        return jax.tree.map(lambda f, x: f + damping * x, fisher_v, v)

    return product


def conjugate_gradients(product: Callable[[Array], Array], target: Array, num_steps: int) -> Array:
    """x with product(x) ≈ target, after `num_steps` steps from 0, or fewer where it is solved before."""

    def step(carry):
        x, residual, direction, norm, done = carry
        image = product(direction)
        alpha = norm / jnp.vdot(direction, image)
        x, residual = x + alpha * direction, residual - alpha * image
        next_norm = jnp.vdot(residual, residual)
        return x, residual, residual + next_norm / norm * direction, next_norm, done + 1

    start = jnp.vdot(target, target)
    unsolved = lambda carry: (carry[4] < num_steps) & (carry[3] > SOLVED * start)  # noqa: E731
    return lax.while_loop(unsolved, step, (jnp.zeros_like(target), target, target, start, 0))[0]


def line_search(
    loss: Callable[[Weights], Array],
    kl: Callable[[Weights], Array],
    weights: Weights,
    step: Weights,
    *,
    loss_before: Array,
    bound: float,
    num_halvings: int,
) -> tuple[Weights, Metrics]:
    """The longest of step, step/2, step/4, … that improves the loss within the bound; none of it where none does."""

    def moved(share):
        return jax.tree.map(lambda w, s: w + share * s, weights, step)

    def attempt(carry):
        num_tried, _, _, _ = carry
        share = 0.5**num_tried
        candidate = moved(share)
        loss_after = loss(candidate)
        return num_tried + 1, share, loss_after, (kl(candidate) <= bound) & (loss_after < loss_before)

    def undecided(carry):
        num_tried, _, _, accepted = carry
        return ~accepted & (num_tried < num_halvings)

    start = (jnp.zeros((), jnp.int32), jnp.zeros(()), loss_before, jnp.zeros((), bool))
    num_tried, share, loss_after, accepted = lax.while_loop(undecided, attempt, start)
    share, loss_after = jnp.where(accepted, share, 0.0), jnp.where(accepted, loss_after, loss_before)
    return moved(share), {"policy_loss": loss_after, "step_share": share, "line_search_tries": num_tried}
