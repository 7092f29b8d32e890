"""What all algorithms here share: networks, state, samples with advantages, the value fit, measurements."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from trpl.algorithms.base import Batch, Settings
from trpl.algorithms.losses import clipped_squared_error, squared_error
from trpl.algorithms.minibatches import adam, fit
from trpl.gaussians import Gaussian, entropy, kl_parts, log_prob
from trpl.policies.networks import GaussianPolicy, ValueNetwork, Weights
from trpl.rollouts.advantages import generalised_advantages


class LearnerState(NamedTuple):
    """Everything an update changes and a restart needs."""

    policy: Weights
    policy_optimiser: Any
    value: Weights
    value_optimiser: Any
    initial_entropy: Array  # H₀, of the policy before the first update
    epoch: Array  # updates done


class Samples(NamedTuple):
    """A rollout as n = T·N samples, with what the old networks say about them."""

    observations: Array
    actions: Array
    advantages: Array
    returns: Array
    values: Array
    old: Gaussian
    old_log_prob: Array


class ActorCritic(NamedTuple):
    """The two networks and their optimisers."""

    policy: GaussianPolicy
    value: ValueNetwork
    optimiser: optax.GradientTransformation

    @classmethod
    def of(cls, config: Settings, *, obs_size: int, action_size: int) -> "ActorCritic":
        policy = GaussianPolicy(
            obs_size=obs_size,
            action_size=action_size,
            hidden_sizes=config.hidden_sizes,
            covariance=config.covariance,
            contextual=config.contextual,
        )
        value = ValueNetwork(obs_size=obs_size, hidden_sizes=config.hidden_sizes_vf)
        return cls(policy, value, adam(config.gradient_clip))

    def init(self, key: Array) -> LearnerState:
        policy_key, value_key = jax.random.split(key)
        policy, value = self.policy.init(policy_key), self.value.init(value_key)
        return LearnerState(
            policy=policy,
            policy_optimiser=self.optimiser.init(policy),
            value=value,
            value_optimiser=self.optimiser.init(value),
            initial_entropy=jnp.zeros(()),
            epoch=jnp.zeros((), jnp.int32),
        )

    def samples(self, state: LearnerState, batch: Batch, *, config: Settings) -> Samples:
        """Advantages and returns by the old value function, Gaussians and log-densities by the old policy."""
        values = self.value(state.value, batch.observations)
        advantages = generalised_advantages(
            batch.rewards,
            values,
            self.value(state.value, batch.next_observations),
            terminated=batch.terminated,
            truncated=batch.truncated,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
            released_time_limits=config.released_time_limits,
        )
        flat = Batch(*(x.reshape(-1, *x.shape[2:]) for x in batch))
        old = self.policy(state.policy, flat.observations)
        return Samples(
            observations=flat.observations,
            actions=flat.actions,
            advantages=advantages.ravel(),
            returns=(advantages + values).ravel(),
            values=values.ravel(),
            old=old,
            old_log_prob=log_prob(old, flat.actions),
        )

    def fit_value(
        self, state: LearnerState, samples: Samples, *, orders: Array, config: Settings, learning_rate: Array
    ) -> tuple[LearnerState, Array]:
        """Squared error on the returns, clipped where the configuration says so; returns the last epoch's loss too."""

        def loss(weights, minibatch):
            observations, returns, old_values = minibatch
            values = self.value(weights, observations)
            if config.value_clip is None:
                error = squared_error(values, returns)
            else:
                error = clipped_squared_error(values, returns, old_values=old_values, clip=config.value_clip)
            return error, {"value_loss": error}

        value, optimiser_state, report = fit(
            loss,
            state.value,
            state.value_optimiser,
            data=(samples.observations, samples.returns, samples.values),
            orders=orders,
            minibatch_size=config.minibatch_size,
            optimiser=self.optimiser,
            learning_rate=learning_rate,
        )
        return state._replace(value=value, value_optimiser=optimiser_state), report["value_loss"]

    def begin(self, state: LearnerState, old: Gaussian) -> LearnerState:
        """Note the initial entropy, in the first update only."""
        first = state.epoch == 0
        return state._replace(initial_entropy=jnp.where(first, entropy(old).mean(), state.initial_entropy))


def rows(gaussian: Gaussian) -> tuple[Array, ...]:
    """What a batch of Gaussians has per state: the mean, and the scale where it is not shared."""
    return (gaussian.mean,) if gaussian.shares_covariance else (gaussian.mean, gaussian.scale)


def from_rows(parts: tuple[Array, ...], like: Gaussian) -> Gaussian:
    """The Gaussian of a minibatch of `rows(like)`."""
    return type(like)(parts[0], parts[1] if len(parts) > 1 else like.scale)


def learning_rates(config: Settings, epoch: Array) -> tuple[Array, Array]:
    """For policy and value function in this epoch: constant, or falling linearly to 0 over the run."""
    left = 1.0 - epoch / config.num_epochs if config.learning_rate_decay else jnp.ones(())
    return (config.learning_rate or 0.0) * left, config.learning_rate_vf * left


def policy_measurements(policy: Gaussian, old: Gaussian) -> dict[str, Array]:
    """How far the policy that acts next is from the one that collected the data, in KL, and how broad it is."""
    divergence = kl_parts(policy, old)
    kl = divergence.mean + divergence.cov
    spread = policy.scale if policy.scale.shape[-1:] == policy.scale.shape[-2:-1] else None
    std = policy.scale if spread is None else jnp.sqrt(jnp.square(policy.scale).sum(-1))
    return {"kl": kl.mean(), "kl_max": kl.max(), "entropy": entropy(policy).mean(), "std_mean": std.mean()}


def distance_measurements(prefix: str, mean: Array, cov: Array) -> dict[str, Array]:
    """Mean and largest value over states of a distance by parts, e.g. `before_mean`, `before_mean_max`."""
    return {
        f"{prefix}_mean": mean.mean(),
        f"{prefix}_mean_max": mean.max(),
        f"{prefix}_cov": cov.mean(),
        f"{prefix}_cov_max": cov.max(),
    }
