"""PAPI: projected approximate policy iteration (Akrour et al. 2019), on top of PPO.

The bound ε is on the KL to the policy q that collected the data, **expected** over the rollout's states. PPO runs its
epochs; the newest of its snapshots within the bound is the intermediate policy. Then the mean head and the covariance,
which all states share, are projected so that the bound holds and the entropy does not fall too fast.

`papi` projects the intermediate policy, as in the experiments of the trust-region layers' paper. `papi-gradient` first
improves head and covariance by gradient steps through the projection, as in the original publication.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from trpl.algorithms.base import Algorithm, Metrics
from trpl.algorithms.head_projection import Candidate, Limits, Region, project, project_once
from trpl.algorithms.learner import Learner, LearnerState, Samples, distance_measurements
from trpl.algorithms.minibatches import Orders
from trpl.algorithms.ppo import fit_clipped
from trpl.families import Policy
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian, entropy, kl_parts, log_prob
from trpl.losses import normalised, surrogate
from trpl.methods.papi import Papi
from trpl.policies.heads import GaussianHead
from trpl.policies.networks import PolicyNetwork, Weights, hidden
from trpl.policies.weights import affine, as_affine, raw_name

MANY_REJECTED, LEARNING_RATE_CUT = 4, 0.8
ROUNDING = 1e-4  # relative margin for rounding: projecting onto ε(1 − this) keeps the measured KL within ε
ENTROPY_FALL = math.log(2.0)  # nats per action dimension: the entropy is bounded once standard deviations have halved


def make(config: Papi, *, obs_size: int, head: GaussianHead, through_projection: bool = False) -> Algorithm:
    """Make PAPI from its settings; `through_projection` selects `papi-gradient`."""
    learner = Learner.of(config, obs_size=obs_size, head=head, value_clip=config.value_clip)

    def init(key: Array) -> LearnerState:
        return learner.init(key)._replace(learning_rate_factor=jnp.ones(()))

    passes = Orders(config.value_epochs, config.policy_epochs, config.policy_epochs if through_projection else None)
    return learner.algorithm(partial(improve_within, learner), passes=passes)._replace(init=init)


def improve_within(
    learner: Learner[Papi], state: LearnerState, samples: Samples, orders: Orders[Array], learning_rate: Array
) -> tuple[LearnerState, Metrics]:
    """Run PPO's epochs, roll back to the bound, improve through the projection given `orders.after`, and project."""
    config, policy = learner.config, learner.policy
    limit = config.bound * (1.0 - ROUNDING)
    snapshots, report = snapshots_of_ppo(learner, state, samples, orders=orders.policy, learning_rate=learning_rate)
    state, num_rejected = roll_back(state, snapshots, limit=limit)

    region, features = region_of(state.policy, samples)
    entropy_bound = minimum_entropy(_gaussian(samples.old), initial_entropy=state.initial_entropy, bound=config.bound)
    limits = Limits(limit, entropy_bound)
    candidate = Candidate(region.head, _gaussian(policy(state.policy, samples.observations[:1])))
    if orders.after is not None:
        candidate = ascend(
            learner,
            state.policy,
            samples,
            region,
            features,
            limits=limits,
            orders=orders.after,
            learning_rate=learning_rate,
        )
    projected, num_rounds = project(candidate, region, limits)
    changed = (num_rounds > 0) | (orders.after is not None)
    weights = with_head(policy, state.policy, projected)
    weights = jax.tree.map(lambda new, same: jnp.where(changed, new, same), weights, state.policy)

    divergence = kl_parts(_gaussian(policy(weights, samples.observations)), _gaussian(samples.old))
    metrics = {
        **distance_measurements("after", divergence),  # of the projected policy, which acts next
        "policy_loss": report["policy_loss"],
        "bound": jnp.asarray(config.bound),
        "ppo_kl": snapshots.kl[-1],
        "rejected_snapshots": num_rejected,
        "projection_rounds": num_rounds,
        "entropy_bounded": jnp.isfinite(entropy_bound),
    }
    assert state.learning_rate_factor is not None
    factor = state.learning_rate_factor * learning_rate_cut(num_rejected)
    return state._replace(policy=weights, learning_rate_factor=factor), metrics


class Snapshots(NamedTuple):
    """Policy and optimiser after each PPO epoch, stacked, with the mean KL to q."""

    policy: Weights
    policy_optimiser: Any
    kl: Array


def snapshots_of_ppo(
    learner: Learner[Papi], state: LearnerState, samples: Samples, *, orders: Array, learning_rate: Array
) -> tuple[Snapshots, Metrics]:
    """Run PPO's epochs on the clipped surrogate; return the metrics of the last epoch too."""

    def epoch(running, order):
        running, report = fit_clipped(learner, running, samples, orders=order[None], learning_rate=learning_rate)
        predicted = _gaussian(learner.policy(running.policy, samples.observations))
        divergence = kl_parts(predicted, _gaussian(samples.old))
        kl = (divergence.mean + divergence.cov).mean()
        return running, (Snapshots(running.policy, running.policy_optimiser, kl), report)

    _, (snapshots, reports) = lax.scan(epoch, state, orders)
    return snapshots, jax.tree.map(lambda x: x[-1], reports)


def roll_back(state: LearnerState, snapshots: Snapshots, *, limit: float | Array) -> tuple[LearnerState, Array]:
    """Return to the newest snapshot whose mean KL to q is within the limit, with its optimiser; to q if there is none.

    Returns the state and the number of rejected snapshots.
    """
    fits = snapshots.kl <= limit
    num_rejected = jnp.argmax(jnp.append(fits[::-1], True))  # newest first; q, after the oldest, always fits
    newest = jnp.maximum(len(fits) - 1 - num_rejected, 0)
    policy, optimiser_state = jax.tree.map(
        lambda stacked, before: jnp.where(fits.any(), stacked[newest], before),
        (snapshots.policy, snapshots.policy_optimiser),
        (state.policy, state.policy_optimiser),
    )
    return state._replace(policy=policy, policy_optimiser=optimiser_state), num_rejected


def learning_rate_cut(num_rejected: Array) -> Array:
    """Return the factor on both learning rates: 0.8 after four or more rejected snapshots, 1 otherwise."""
    return jnp.where(num_rejected >= MANY_REJECTED, LEARNING_RATE_CUT, 1.0)


def _gaussian(policy: Policy[Array]) -> Gaussian[Array]:
    """Return the policy as a Gaussian, the only family that PAPI supports."""
    assert isinstance(policy, DiagGaussian | FullGaussian)
    return policy


def minimum_entropy(old: Gaussian[Array], *, initial_entropy: Array, bound: float) -> Array:
    """Return H(q) − ε once the entropy has fallen by log 2 per action dimension since the start, −∞ before.

    A fall is a difference, so the rule does not depend on the signs of the entropies.
    """
    present = entropy(old)
    fallen = initial_entropy - present > ENTROPY_FALL * old.dim
    return jnp.where(fallen, present - bound, -jnp.inf)


def region_of(weights: Weights, samples: Samples) -> tuple[Region, Array]:
    """Build the region for the intermediate policy's `weights`; return its features with 1 appended too."""
    features = hidden(weights, samples.observations)
    features = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
    weight, bias = affine(weights, "mean")
    return Region.of(_gaussian(samples.old), jnp.concatenate([weight, bias[None]]), features), features


def ascend(
    learner: Learner[Papi],
    weights: Weights,
    samples: Samples,
    region: Region,
    features: Array,
    *,
    limits: Limits,
    orders: Array,
    learning_rate: Array,
) -> Candidate:
    """Improve head and covariance by gradient steps through the projection, with fixed features and a fresh Adam."""
    head = learner.policy.head
    assert isinstance(head, GaussianHead)  # by `Method.needs_gaussian`

    def candidate(free):
        return Candidate(free["head"], head.distribution({"mean": region.old.mean[:1], head.spread: free["raw"]}))

    def loss(free, minibatch):
        features, actions, advantages, old_log_prob = minibatch
        projected = project_once(candidate(free), region, limits)
        policy = type(projected.shape)(features @ projected.head, projected.shape.scale)
        advantages = normalised(advantages, unbiased=learner.config.released_deviation)
        policy_loss = surrogate(log_prob(policy, actions) - old_log_prob, advantages)
        return policy_loss, {"policy_loss": policy_loss}

    free = {"head": region.head, "raw": weights[raw_name(head.spread)]}
    data = (features, samples.actions, samples.advantages, samples.old_log_prob)
    free, _ = learner.fit_afresh(loss, free, data, orders=orders, learning_rate=learning_rate)
    return candidate(free)


def with_head(policy: PolicyNetwork, weights: Weights, candidate: Candidate) -> Weights:
    """Write the candidate's mean head and covariance into `weights`."""
    mean = as_affine("mean", candidate.head[:-1], candidate.head[-1])
    return policy.set_shared(weights | mean, candidate.shape)
