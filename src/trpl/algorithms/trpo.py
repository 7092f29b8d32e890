"""TRPO (Schulman et al. 2015): one natural-gradient step per epoch, as long as the trust region allows.

maximise E[ratio · A]  subject to  E[KL(π‖π_old)] ≤ ε over the rollout's states.

The direction solves F x = g by conjugate gradients, F the Fisher matrix of the whole batch, never formed; the step is
scaled to the bound of the quadratic model, then halved until the measured KL is within the bound and the surrogate has
improved. As everywhere in this project the KL is that of the new policy to the old one; to second order both
directions agree.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from trpl.algorithms.base import Algorithm, Metrics
from trpl.algorithms.learner import Learner, LearnerState, Samples
from trpl.algorithms.minibatches import Orders
from trpl.families import Policy, entropy, kl
from trpl.losses import normalised, surrogate
from trpl.methods.trpo import Trpo
from trpl.policies.heads import Head
from trpl.policies.networks import PolicyNetwork, Weights

CG_TOLERANCE = 1e-10  # on the squared residual, relative to its start


def make(config: Trpo, *, obs_size: int, head: Head) -> Algorithm:
    """Make TRPO from its settings."""
    learner = Learner.of(config, obs_size=obs_size, head=head)

    def improve(state: LearnerState, samples: Samples, orders: Orders[Array], learning_rate: None):
        return natural_step(learner, state, samples)

    return learner.algorithm(improve, passes=Orders(config.value_epochs))


def natural_step(learner: Learner[Trpo], state: LearnerState, samples: Samples) -> tuple[LearnerState, Metrics]:
    """Find a direction by conjugate gradients and a length by line search, and take the step."""
    config, network = learner.config, learner.policy

    def loss(weights):
        policy = network(weights, samples.observations)
        advantages = normalised(samples.advantages, unbiased=config.released_deviation)
        policy_loss = surrogate(network.log_prob(policy, samples.actions) - samples.old_log_prob, advantages)
        if config.entropy_weight:
            policy_loss -= config.entropy_weight * entropy(policy).mean()
        return policy_loss

    before, gradient = jax.value_and_grad(loss)(state.policy)
    fisher = fisher_product(network, state.policy, samples, damping=config.cg_damping)
    flat_gradient, unravel = ravel_pytree(gradient)
    direction = conjugate_gradients(lambda v: ravel_pytree(fisher(unravel(v)))[0], flat_gradient, config.cg_steps)
    curvature = jnp.vdot(direction, ravel_pytree(fisher(unravel(direction)))[0])
    length = jnp.sqrt(2.0 * config.bound / jnp.maximum(curvature, jnp.finfo(curvature.dtype).tiny))
    policy, search = line_search(
        loss,
        lambda weights: mean_kl(network(weights, samples.observations), samples.old),
        state.policy,
        unravel(-length * direction),
        loss_before=before,
        bound=config.bound,
        num_halvings=config.line_search_steps,
    )
    report = {**search, "bound": jnp.asarray(config.bound), "gradient_norm": jnp.linalg.norm(flat_gradient)}
    return state._replace(policy=policy), report


def mean_kl(new: Policy[Array], old: Policy[Array]) -> Array:
    """Average KL(new‖old) over states."""
    return kl(new, old).mean()


def fisher_product(
    policy: PolicyNetwork, weights: Weights, samples: Samples, *, damping: float
) -> Callable[[Weights], Weights]:
    """Make v ↦ (F + damping·I) v with F = JᵀHJ: J the Jacobian of the network's outputs, H the Hessian of the KL there.

    The KL and its gradient vanish at the old policy, so F is exactly its Hessian in the weights. The network is
    linearised once.
    """
    outputs, push = jax.linearize(lambda w: policy(w, samples.observations), weights)
    pull = jax.linear_transpose(push, weights)
    slope = jax.grad(lambda new: mean_kl(new, samples.old))

    def product(v: Weights) -> Weights:
        (fisher_v,) = pull(jax.jvp(slope, (outputs,), (push(v),))[1])
        return jax.tree.map(lambda f, x: f + damping * x, fisher_v, v)

    return product


def conjugate_gradients(product: Callable[[Array], Array], target: Array, num_steps: int) -> Array:
    """Solve product(x) = target approximately, from 0, in at most `num_steps` steps."""

    def step(carry):
        x, residual, direction, norm, done = carry
        image = product(direction)
        alpha = norm / jnp.vdot(direction, image)
        x, residual = x + alpha * direction, residual - alpha * image
        next_norm = jnp.vdot(residual, residual)
        return x, residual, residual + next_norm / norm * direction, next_norm, done + 1

    start = jnp.vdot(target, target)
    unsolved = lambda carry: (carry[4] < num_steps) & (carry[3] > CG_TOLERANCE * start)  # noqa: E731
    return lax.while_loop(unsolved, step, (jnp.zeros_like(target), target, target, start, 0))[0]


def line_search(
    loss: Callable[[Weights], Array],
    kl_of: Callable[[Weights], Array],
    weights: Weights,
    step: Weights,
    *,
    loss_before: Array,
    bound: float,
    num_halvings: int,
) -> tuple[Weights, Metrics]:
    """Take the longest of step, step/2, step/4, … that lowers the loss within the bound; stay if there is none."""

    def moved(share):
        return jax.tree.map(lambda w, s: w + share * s, weights, step)

    def attempt(carry):
        num_tried, _, _, _ = carry
        share = 0.5**num_tried
        candidate = moved(share)
        loss_after = loss(candidate)
        return num_tried + 1, share, loss_after, (kl_of(candidate) <= bound) & (loss_after < loss_before)

    def undecided(carry):
        num_tried, _, _, accepted = carry
        return ~accepted & (num_tried < num_halvings)

    start = (jnp.zeros((), jnp.int32), jnp.zeros(()), loss_before, jnp.zeros((), bool))
    num_tried, share, loss_after, accepted = lax.while_loop(undecided, attempt, start)
    share, loss_after = jnp.where(accepted, share, 0.0), jnp.where(accepted, loss_after, loss_before)
    return moved(share), {"policy_loss": loss_after, "step_share": share, "line_search_tries": num_tried}
