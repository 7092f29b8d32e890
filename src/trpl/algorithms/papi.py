"""PAPI: projected approximate policy iteration (Akrour et al. 2019), on top of PPO.

The bound ε is on the KL to the policy q that collected the data, **expected** over the rollout's states. PPO runs its
epochs; the newest of its snapshots within the bound is the intermediate policy. Then the mean head and the covariance,
which is one for all states, are projected so that the bound holds and the entropy does not fall too fast.

`papi` projects the intermediate policy, as in the experiments of the trust-region layers' paper. `papi-gradient` first
improves head and covariance by gradient steps through the projection, as PAPI was first published.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

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
from trpl.algorithms.minibatches import draw_orders, fit
from trpl.algorithms.ppo import fit_policy
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian, entropy, kl_parts, log_prob
from trpl.gaussians.density import whiten
from trpl.gaussians.distances import kl_cov
from trpl.policies.networks import GaussianPolicy, Weights, hidden
from trpl.projections.entropy import control_entropy

MAX_ROUNDS = 20
MANY_REJECTED, LEARNING_RATE_CUT = 4, 0.8
ROUNDING = 1e-4  # share of the bound left to rounding: projected onto ε(1 − this), policies stay within ε as measured
SLACK = 1e-5  # what counts as met when rounds are counted, well inside what is left to rounding
FREE_FALL = math.log(2.0)  # nats per action dimension: entropy is bounded once standard deviations have halved


class PapiState(NamedTuple):
    """What every learner has, and the factor by which roll-backs have cut its learning rates."""

    learner: LearnerState
    learning_rate_factor: Array

    @property
    def policy(self) -> Weights:
        return self.learner.policy


def make(config: Settings, *, obs_size: int, action_size: int) -> Algorithm:
    networks = ActorCritic.of(config, obs_size=obs_size, action_size=action_size)
    through_projection = config.method == "papi-gradient"
    learn = jax.jit(
        partial(_update, config=config, networks=networks, through_projection=through_projection), donate_argnums=0
    )

    def init(key):
        return PapiState(networks.init(key), learning_rate_factor=jnp.ones(()))

    def update(state, batch, rng):
        phases = [config.value_epochs, config.policy_epochs] + [config.policy_epochs] * through_projection
        return learn(state, batch, [draw_orders(rng, n, config.rollout_size) for n in phases])

    return Algorithm(networks.policy, init, update)


def _update(
    state: PapiState,
    batch: Batch,
    orders: list[Array],
    *,
    config: Settings,
    networks: ActorCritic,
    through_projection: bool,
) -> tuple[PapiState, Metrics]:
    """One epoch: advantages, value function, PPO epochs, roll-back to the bound, projection of head and covariance."""
    learner, factor = state
    samples = networks.samples(learner, batch, config=config)
    learner = networks.begin(learner, samples.old)
    learning_rate, learning_rate_vf = (rate * factor for rate in learning_rates(config, learner.epoch))
    learner, value_loss = networks.fit_value(
        learner, samples, orders=orders[0], config=config, learning_rate=learning_rate_vf
    )
    limit = config.bound * (1.0 - ROUNDING)
    snapshots, report = snapshots_of_ppo(
        learner, samples, orders=orders[1], config=config, networks=networks, learning_rate=learning_rate
    )
    learner, num_rejected = roll_back(learner, snapshots, limit=limit)
    factor = factor * learning_rate_cut(num_rejected)

    region, features = trust_region(networks.policy, learner.policy, samples)
    entropy_bound = minimum_entropy(samples.old, initial_entropy=learner.initial_entropy, bound=config.bound)
    candidate = Candidate(region.head, networks.policy(learner.policy, samples.observations[:1]))
    if through_projection:
        candidate = ascend(
            learner.policy,
            samples,
            region,
            features,
            orders=orders[2],
            config=config,
            networks=networks,
            limits=Limits(limit, entropy_bound),
            learning_rate=learning_rate,
        )
    projected, num_rounds = project(candidate, region, Limits(limit, entropy_bound))
    changed = (num_rounds > 0) | through_projection
    policy = with_head(networks.policy, learner.policy, projected)
    policy = jax.tree.map(lambda new, same: jnp.where(changed, new, same), policy, learner.policy)

    network = networks.policy(policy, samples.observations)
    divergence = kl_parts(network, samples.old)
    metrics = {
        **policy_measurements(network, samples.old),
        **distance_measurements("before", divergence.mean, divergence.cov),
        **distance_measurements("after", divergence.mean, divergence.cov),  # the projection is what acts
        "policy_loss": report["policy_loss"],
        "value_loss": value_loss,
        "learning_rate": learning_rate,
        "learning_rate_vf": learning_rate_vf,
        "bound": jnp.asarray(config.bound),
        "ppo_kl": snapshots.kl[-1],
        "rejected_snapshots": num_rejected,
        "projection_rounds": num_rounds,
        "entropy_bounded": jnp.isfinite(entropy_bound),
    }
    return PapiState(learner._replace(policy=policy, epoch=learner.epoch + 1), factor), metrics


class Snapshots(NamedTuple):
    """Policy and optimiser after each PPO epoch, stacked, with the mean KL to q."""

    policy: Weights
    policy_optimiser: Any
    kl: Array


def snapshots_of_ppo(
    learner: LearnerState,
    samples: Samples,
    *,
    orders: Array,
    config: Settings,
    networks: ActorCritic,
    learning_rate: Array,
) -> tuple[Snapshots, Metrics]:
    """PPO's epochs on the clipped surrogate, and what the last of them reports."""

    def epoch(running, order):
        running, report = fit_policy(
            running, samples, orders=order[None], config=config, networks=networks, learning_rate=learning_rate
        )
        divergence = kl_parts(networks.policy(running.policy, samples.observations), samples.old)
        kl = (divergence.mean + divergence.cov).mean()
        return running, (Snapshots(running.policy, running.policy_optimiser, kl), report)

    _, (snapshots, reports) = lax.scan(epoch, learner, orders)
    return snapshots, jax.tree.map(lambda x: x[-1], reports)


def roll_back(learner: LearnerState, snapshots: Snapshots, *, limit: float | Array) -> tuple[LearnerState, Array]:
    """The newest snapshot whose mean KL to q is within the limit, with its optimiser; q and its own where none is.

    Returns the number of snapshots rejected too.
    """
    fits = snapshots.kl <= limit
    num_rejected = jnp.argmax(jnp.append(fits[::-1], True))  # newest first; q, after the oldest, always fits
    newest = jnp.maximum(len(fits) - 1 - num_rejected, 0)
    policy, optimiser_state = jax.tree.map(
        lambda stacked, before: jnp.where(fits.any(), stacked[newest], before),
        (snapshots.policy, snapshots.policy_optimiser),
        (learner.policy, learner.policy_optimiser),
    )
    return learner._replace(policy=policy, policy_optimiser=optimiser_state), num_rejected


def learning_rate_cut(num_rejected: Array) -> Array:
    """Four or more rejected snapshots: steps were too long, and both learning rates fall to 0.8 of what they were."""
    return jnp.where(num_rejected >= MANY_REJECTED, LEARNING_RATE_CUT, 1.0)


def minimum_entropy(old: Gaussian, *, initial_entropy: Array, bound: float) -> Array:
    """H(q) − ε once the entropy has fallen by log 2 per action dimension since the start, no bound (−∞) before.

    A fall is a difference, so it means the same whatever the signs of the entropies are.
    """
    present = entropy(old)
    fallen = initial_entropy - present > FREE_FALL * old.dim
    return jnp.where(fallen, present - bound, -jnp.inf)


class Candidate(NamedTuple):
    """What the projection moves: the mean head, bias in its last row, and the covariance (as a Gaussian's scale)."""

    head: Array
    shape: Gaussian


class Limits(NamedTuple):
    kl: float | Array
    entropy: Array


class Region(NamedTuple):
    """The trust region around q for mean heads on the intermediate policy's features φ (1 appended), in q's units.

    With D = (A − A′)L_q⁻ᵀ, the mean part of the expected KL is m = m′ + ⟨D, cross⟩ + ½⟨D, gram·D⟩: inner products are
    taken per state and averaged over states, once, here.
    """

    old: Gaussian  # q
    head: Array  # A′
    gram: Array  # E[φφᵀ]
    cross: Array  # E[φ (L_q⁻¹(μ′ − μ_q))ᵀ]
    mean_part: Array  # m′ = ½ E‖L_q⁻¹(μ′ − μ_q)‖²


def trust_region(policy: GaussianPolicy, weights: Weights, samples: Samples) -> tuple[Region, Array]:
    """The region for the intermediate policy's `weights`, and its features with 1 appended."""
    features = hidden(weights, samples.observations)
    features = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
    head = jnp.concatenate([weights["mean/weight"], weights["mean/bias"][None]])
    shift = whiten(samples.old, features @ head - samples.old.mean)
    num_states = len(features)
    region = Region(
        old=samples.old,
        head=head,
        gram=features.T @ features / num_states,
        cross=features.T @ shift / num_states,
        mean_part=0.5 * jnp.square(shift).sum(-1).mean(),
    )
    return region, features


def project(candidate: Candidate, region: Region, limits: Limits) -> tuple[Candidate, Array]:
    """Rounds of `project_once` until both limits hold, at most 20; a candidate within them is returned bit for bit."""

    def violated(carry):
        candidate, num_rounds = carry
        outside = expected_kl(candidate, region) > limits.kl * (1.0 + SLACK)
        return (num_rounds < MAX_ROUNDS) & (outside | (entropy(candidate.shape) < limits.entropy - SLACK))

    def again(carry):
        candidate, num_rounds = carry
        return project_once(candidate, region, limits), num_rounds + 1

    return lax.while_loop(violated, again, (candidate, jnp.zeros((), jnp.int32)))


def expected_kl(candidate: Candidate, region: Region) -> Array:
    """m + r + e: mean part, trace and determinant of KL(candidate‖q), expected over the rollout's states."""
    quadratic, linear = mean_terms(candidate.head, region)
    return region.mean_part + linear + quadratic + kl_cov(candidate.shape, region.old)


def project_once(candidate: Candidate, region: Region, limits: Limits) -> Candidate:
    """One round, differentiable: lift the covariance to the entropy bound, pull it to q's, then the head to A′.

    With m + r + e > ε: Σ ← (1 − η)Σ_q + ηΣ, η = (ε − min(m, m′))/(m + r + e − min(m, m′)). r is linear in Σ and e
    convex, so r + e falls at least to ε − min(m, m′). Where that is not enough, A ← (1 − η)A′ + ηA with η the larger
    root of m(η) + r + e = ε; the head is linear in the mean, so this interpolates the means.
    """
    shape = control_entropy(candidate.shape, minimum=limits.entropy)
    quadratic, linear = mean_terms(candidate.head, region)
    mean_part = region.mean_part + linear + quadratic
    least = jnp.minimum(mean_part, region.mean_part)
    excess = mean_part + kl_cov(shape, region.old) - least
    outside = excess + least > limits.kl
    share = jnp.where(outside, jnp.maximum(limits.kl - least, 0.0) / jnp.where(outside, excess, 1.0), 1.0)
    pulled = interpolate_covariance(region.old, shape, share)
    shape = jax.tree.map(lambda moved, same: jnp.where(outside, moved, same), pulled, shape)

    cov_part = kl_cov(shape, region.old)
    outside = (mean_part + cov_part > limits.kl) & (quadratic > 0.0)
    root = larger_root(
        jnp.where(outside, quadratic, 1.0),
        jnp.where(outside, linear, 0.0),
        jnp.where(outside, region.mean_part + cov_part - limits.kl, -1.0),
    )
    return Candidate(region.head + jnp.where(outside, root, 1.0) * (candidate.head - region.head), shape)


def mean_terms(head: Array, region: Region) -> tuple[Array, Array]:
    """½⟨D, gram·D⟩ and ⟨D, cross⟩ of `Region`: how m grows with the square of the way from A′ to `head`, and with
    it."""
    way = whiten(region.old, head - region.head)
    return 0.5 * jnp.vdot(way, region.gram @ way), jnp.vdot(way, region.cross)


def larger_root(quadratic: Array, linear: Array, constant: Array) -> Array:
    """The root ≥ 0 of ax² + bx + c = 0 for a > 0 ≥ c, without cancellation."""
    constant = jnp.minimum(constant, 0.0)
    discriminant = jnp.square(linear) - 4.0 * quadratic * constant
    positive = discriminant > 0.0
    root = jnp.where(positive, jnp.sqrt(jnp.where(positive, discriminant, 1.0)), 0.0)
    rising = (linear > 0.0) & positive
    return jnp.where(rising, -2.0 * constant / jnp.where(rising, linear + root, 1.0), (root - linear) / (2 * quadratic))


def interpolate_covariance(old: Gaussian, shape: Gaussian, share: Array) -> Gaussian:
    """`shape` with covariance (1 − η)Σ_q + ηΣ."""
    if isinstance(old, DiagGaussian):
        return shape.with_scale(jnp.sqrt((1.0 - share) * jnp.square(old.std) + share * jnp.square(shape.scale)))
    assert isinstance(old, FullGaussian)
    mixed = (1.0 - share) * old.chol @ old.chol.T + share * shape.scale @ shape.scale.T
    return shape.with_scale(jnp.linalg.cholesky(mixed))


def ascend(
    weights: Weights,
    samples: Samples,
    region: Region,
    features: Array,
    *,
    orders: Array,
    config: Settings,
    networks: ActorCritic,
    limits: Limits,
    learning_rate: Array,
) -> Candidate:
    """Gradient steps on head and covariance through the projection, features held; Adam starts afresh."""
    raw = f"{networks.policy.spread_name}/raw"

    def candidate(free):
        return Candidate(free["head"], networks.policy.gaussian(region.old.mean[:1], free["raw"]))

    def loss(free, minibatch):
        features, actions, advantages, old_log_prob = minibatch
        projected = project_once(candidate(free), region, limits)
        policy = type(projected.shape)(features @ projected.head, projected.shape.scale)
        policy_loss = surrogate(
            log_prob(policy, actions) - old_log_prob, normalised(advantages, unbiased=config.released_deviation)
        )
        return policy_loss, {"policy_loss": policy_loss}

    free = {"head": region.head, "raw": weights[raw]}
    free, _, _ = fit(
        loss,
        free,
        networks.optimiser.init(free),
        data=(features, samples.actions, samples.advantages, samples.old_log_prob),
        orders=orders,
        minibatch_size=config.minibatch_size,
        optimiser=networks.optimiser,
        learning_rate=learning_rate,
    )
    return candidate(free)


def with_head(policy: GaussianPolicy, weights: Weights, candidate: Candidate) -> Weights:
    """`weights` with the candidate's mean head and covariance."""
    weights = weights | {"mean/weight": candidate.head[:-1], "mean/bias": candidate.head[-1]}
    return policy.set_spread(weights, candidate.shape)
