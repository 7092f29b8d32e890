"""PPO with its code-level options, and PPO-M without them: the difference lies in the configuration alone.

Options beyond the clipped ratio: clipped value loss, decaying learning rates (here), normalised and clipped rewards
and clipped observations (in the rollouts).
"""

from functools import partial

import jax
from jax import Array

from trpl.algorithms.actor_critic import (
    ActorCritic,
    LearnerState,
    Samples,
    distance_measurements,
    learning_rates,
    policy_measurements,
)
from trpl.algorithms.base import Algorithm, Batch, Metrics, Settings
from trpl.algorithms.losses import clipped_surrogate, normalised
from trpl.algorithms.minibatches import draw_orders, fit
from trpl.gaussians import entropy, kl_parts, log_prob


def make(config: Settings, *, obs_size: int, action_size: int) -> Algorithm:
    networks = ActorCritic.of(config, obs_size=obs_size, action_size=action_size)
    learn = jax.jit(partial(_update, config=config, networks=networks), donate_argnums=0)

    def update(state, batch, rng):
        orders = [draw_orders(rng, n, config.rollout_size) for n in (config.value_epochs, config.policy_epochs)]
        return learn(state, batch, orders)

    return Algorithm(networks.policy, networks.init, update)


def _update(
    state: LearnerState, batch: Batch, orders: list[Array], *, config: Settings, networks: ActorCritic
) -> tuple[LearnerState, Metrics]:
    """One epoch: advantages, value function, policy epochs on the clipped surrogate."""
    samples = networks.samples(state, batch, config=config)
    state = networks.begin(state, samples.old)
    learning_rate, learning_rate_vf = learning_rates(config, state.epoch)
    state, value_loss = networks.fit_value(
        state, samples, orders=orders[0], config=config, learning_rate=learning_rate_vf
    )
    state, report = fit_policy(
        state, samples, orders=orders[1], config=config, networks=networks, learning_rate=learning_rate
    )
    network = networks.policy(state.policy, samples.observations)
    divergence = kl_parts(network, samples.old)
    metrics = {
        **policy_measurements(network, samples.old),
        **distance_measurements("before", divergence.mean, divergence.cov),
        **report,
        "value_loss": value_loss,
        "learning_rate": learning_rate,
        "learning_rate_vf": learning_rate_vf,
    }
    return state._replace(epoch=state.epoch + 1), metrics


def fit_policy(
    state: LearnerState,
    samples: Samples,
    *,
    orders: Array,
    config: Settings,
    networks: ActorCritic,
    learning_rate: Array,
) -> tuple[LearnerState, Metrics]:
    """Policy epochs on the clipped surrogate."""

    def loss(weights, minibatch):
        observations, actions, advantages, old_log_prob = minibatch
        policy = networks.policy(weights, observations)
        log_ratio = log_prob(policy, actions) - old_log_prob
        policy_loss = clipped_surrogate(
            log_ratio, normalised(advantages, unbiased=config.released_deviation), clip=config.ratio_clip
        )
        total = policy_loss
        if config.entropy_weight:
            total -= config.entropy_weight * entropy(policy).mean()
        return total, {"policy_loss": policy_loss}

    policy, optimiser_state, report = fit(
        loss,
        state.policy,
        state.policy_optimiser,
        data=(samples.observations, samples.actions, samples.advantages, samples.old_log_prob),
        orders=orders,
        minibatch_size=config.minibatch_size,
        optimiser=networks.optimiser,
        learning_rate=learning_rate,
    )
    return state._replace(policy=policy, policy_optimiser=optimiser_state), report
