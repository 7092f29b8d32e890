"""The skeleton of an update, shared by all algorithms; an algorithm supplies only its own step, `improve`.

samples with advantages → value function
                        → improve(state, samples, orders, learning_rate) → measurements

Neither branch needs the other's result: with two cores they run at the same time.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from trpl.algorithms.base import Algorithm, Batch, Metrics
from trpl.algorithms.minibatches import Loss, Orders, adam, draw_orders, fit
from trpl.cores import num_cores
from trpl.engines import engine_of
from trpl.families import Policy, Product, entropy, family_of, kl
from trpl.gaussians import DiagGaussian, FullGaussian, Parts
from trpl.losses import clipped_squared_error, squared_error
from trpl.policies.heads import Head
from trpl.policies.networks import PolicyNetwork, ValueNetwork, Weights
from trpl.rollouts.advantages import generalised_advantages
from trpl.settings import Config, PolicyEpochs
from trpl.types import cast

C = TypeVar("C", bound=Config)
A = TypeVar("A")
B = TypeVar("B")


class LearnerState(NamedTuple):
    """Everything that an update changes and a restart needs."""

    policy: Weights
    policy_optimiser: Any
    value: Weights
    value_optimiser: Any
    initial_entropy: Array  # H₀, of the policy before the first update
    epoch: Array  # updates done
    anchor: Weights | None = None  # moving average of past policies, if the trust region is around one
    learning_rate_factor: Array | None = None  # on both learning rates, if the algorithm cuts them


class Samples(NamedTuple):
    """A rollout as n = T·N samples, with the old networks' values and log-densities."""

    observations: Array
    actions: Array
    advantages: Array
    returns: Array
    values: Array
    old: Policy[Array]
    old_log_prob: Array


class Rates(NamedTuple):
    """The learning rates of an epoch; `policy` is None if no optimiser trains the policy."""

    policy: Array | None
    value: Array


class ValueState(NamedTuple):
    """The part of a `LearnerState` that fitting the value function changes."""

    value: Weights
    value_optimiser: Any


Improve = Callable[[LearnerState, Samples, Orders[Array], Any], tuple[LearnerState, Metrics]]  # Any: learning rate


@dataclass(frozen=True)
class Learner(Generic[C]):
    """The two networks, their optimiser and the settings of the updates."""

    config: C
    policy: PolicyNetwork
    value: ValueNetwork
    optimiser: optax.GradientTransformation
    value_clip: float | None = None

    @classmethod
    def of(cls, config: C, *, obs_size: int, head: Head, value_clip: float | None = None) -> "Learner[C]":
        """Build the networks that the settings describe.

        Args:
            config: The settings of a run.
            obs_size: The length of an observation.
            head: The policy head for the task's action space; the settings shape its covariance.
            value_clip: If given, the change of a value per epoch beyond which the value loss gains nothing.
        """
        head = head.shaped(covariance=config.covariance, contextual=config.contextual, initial_std=config.initial_std)
        policy = PolicyNetwork(obs_size=obs_size, head=head, hidden_sizes=config.hidden_sizes)
        value = ValueNetwork(obs_size=obs_size, hidden_sizes=config.hidden_sizes_vf)
        return cls(config, policy, value, adam(config.gradient_clip), value_clip)

    def algorithm(self, improve: Improve, *, passes: Orders[int | None]) -> Algorithm:
        """Make an algorithm from `improve`; `passes` gives the number of passes over the rollout per phase.

        An update is three compiled programs: prepare the samples, fit the value function, improve the policy. Orders
        are drawn on the host; the buffers of the networks and their optimisers are donated.
        """
        prepare = jax.jit(self.prepare)
        fit_value = jax.jit(self.fit_value, donate_argnums=0)
        fit_policy = jax.jit(partial(self.improve_and_measure, improve), donate_argnums=0)

        def update(state: LearnerState, batch: Batch, rng: np.random.Generator) -> tuple[LearnerState, Metrics]:
            orders = Orders(*(n and draw_orders(rng, n, self.config.rollout_size) for n in passes))
            samples, initial_entropy, rates = prepare(state, batch)
            value = ValueState(state.value, state.value_optimiser)
            rest = state._replace(value={}, value_optimiser=None, initial_entropy=initial_entropy)
            (fitted, value_loss), (improved, metrics) = at_once(
                lambda: fit_value(value, samples, orders.value, rates.value),
                lambda: fit_policy(rest, samples, orders._replace(value=None), rates.policy),
            )
            metrics = {**metrics, "value_loss": value_loss, "learning_rate_vf": rates.value}
            return improved._replace(**fitted._asdict()), metrics

        return Algorithm(self.policy, self.init, update)

    def init(self, key: Array) -> LearnerState:
        """Draw the initial weights."""
        policy_key, value_key = jax.random.split(key)
        policy, value = self.policy.init(policy_key), self.value.init(value_key)
        return LearnerState(
            policy=policy,
            policy_optimiser=self.optimiser.init(policy),
            value=value,
            value_optimiser=self.optimiser.init(value),
            initial_entropy=jnp.zeros(()),
            epoch=jnp.zeros((), jnp.int32),
            anchor=None if self.config.get("anchor_decay") is None else policy,
        )

    def prepare(self, state: LearnerState, batch: Batch) -> tuple[Samples, Array, Rates]:
        """Compute samples, the initial entropy (in the first update, that of the old policy) and learning rates."""
        samples = self.samples(state, batch)
        initial_entropy = jnp.where(state.epoch == 0, entropy(samples.old).mean(), state.initial_entropy)
        return samples, initial_entropy, learning_rates(self.config, state)

    def improve_and_measure(
        self,
        improve: Improve,
        state: LearnerState,
        samples: Samples,
        orders: Orders[Array],
        learning_rate: Array | None,
    ) -> tuple[LearnerState, Metrics]:
        """Improve the policy, and measure how far the new one is from the old one; both ignore the value function."""
        state, report = improve(state, samples, orders, learning_rate)
        network = self.policy(state.policy, samples.observations)
        metrics = {
            **policy_measurements(network, samples.old),
            **distance_measurements("before", kl_by_parts(network, samples.old)),
            **({} if learning_rate is None else {"learning_rate": learning_rate}),
            **report,
        }
        return state._replace(epoch=state.epoch + 1), metrics

    def samples(self, state: LearnerState, batch: Batch) -> Samples:
        """Flatten a rollout; add advantages and returns by the old value function, log-densities by the old policy."""
        values = self.value(state.value, batch.observations)
        advantages = generalised_advantages(
            batch.rewards,
            values,
            self.value(state.value, batch.next_observations),
            terminated=batch.terminated,
            truncated=batch.truncated,
            discount=self.config.discount,
            gae_lambda=self.config.gae_lambda,
            released_time_limits=self.config.released_time_limits,
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
            old_log_prob=self.policy.log_prob(old, flat.actions),
        )

    def fit_value(
        self, state: ValueState, samples: Samples, orders: Array, learning_rate: Array
    ) -> tuple[ValueState, Array]:
        """Fit the value function to the returns; return the loss of the last pass too."""

        def loss(weights, minibatch):
            observations, returns, old_values = minibatch
            values = self.value(weights, observations)
            if self.value_clip is None:
                error = squared_error(values, returns)
            else:
                error = clipped_squared_error(values, returns, old_values=old_values, clip=self.value_clip)
            return error, {"value_loss": error}

        data = (samples.observations, samples.returns, samples.values)
        value, optimiser_state, report = self._fit(
            loss, state.value, state.value_optimiser, data, orders=orders, learning_rate=learning_rate
        )
        return ValueState(value, optimiser_state), report["value_loss"]

    def fit_policy(
        self, loss: Loss, state: LearnerState, data: Any, *, orders: Array, learning_rate: Array
    ) -> tuple[LearnerState, Metrics]:
        """Minimise `loss(weights, minibatch)` over the policy's weights, continuing its optimiser state."""
        policy, optimiser_state, report = self._fit(
            loss, state.policy, state.policy_optimiser, data, orders=orders, learning_rate=learning_rate
        )
        return state._replace(policy=policy, policy_optimiser=optimiser_state), report

    def fit_afresh(
        self, loss: Loss, weights: Any, data: Any, *, orders: Array, learning_rate: Array
    ) -> tuple[Any, Metrics]:
        """Minimise `loss(weights, minibatch)` over any weights, with a fresh optimiser state."""
        start = self.optimiser.init(weights)
        weights, _, report = self._fit(loss, weights, start, data, orders=orders, learning_rate=learning_rate)
        return weights, report

    def _fit(
        self, loss: Loss, weights: Any, optimiser_state: Any, data: Any, **options: Any
    ) -> tuple[Any, Any, Metrics]:
        minibatch_size, optimiser = self.config.minibatch_size, self.optimiser
        return fit(
            loss, weights, optimiser_state, data=data, minibatch_size=minibatch_size, optimiser=optimiser, **options
        )


def at_once(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Run two compiled programs and return both results: at the same time if there are two cores.

    XLA alone gains little from a second core here: it spreads the small operations of each program over its threads.
    In float64 they run in turn, because JAX's switch for it may be set for the calling thread only.
    """
    if num_cores() < 2 or jnp.result_type(float) == jnp.float64:
        return first(), second()
    with ThreadPoolExecutor(1) as other:
        pending = other.submit(lambda: jax.block_until_ready(first()))
        found = jax.block_until_ready(second())
        return pending.result(), found


def rows(policy: Policy[Array]) -> tuple[Array, ...]:
    """Return the arrays of a batch of policies that have a row per state, without those shared by all states."""
    family = family_of(policy)
    return tuple(x for x, core in zip(policy.arrays, family.cores, strict=True) if x.ndim > core)


def from_rows(parts: tuple[Array, ...], like: Policy[Array]) -> Policy[Array]:
    """Rebuild the policy of a minibatch from its `rows`, with the shared arrays of `like`."""
    family, left = family_of(like), iter(parts)
    every = zip(like.arrays, family.cores, strict=True)
    return family.make([next(left) if x.ndim > core else x for x, core in every])


def kl_by_parts(policy: Policy[Array], old: Policy[Array]) -> Parts[Array]:
    """Compute KL(policy‖old) by parts; for a non-Gaussian policy all of it is in the mean part."""
    e = engine_of(*policy.arrays, *old.arrays)
    return cast("Parts[Array]", family_of(policy).kl_parts(e, policy, old))


def learning_rates(config: Config, state: LearnerState) -> Rates:
    """Compute this epoch's rates: constant, or falling linearly to 0 over the run; times the state's factor, if any."""
    left = 1.0 - state.epoch / config.num_epochs if config.learning_rate_decay else jnp.ones(())
    value = config.learning_rate_vf * left
    policy = config.learning_rate * left if isinstance(config, PolicyEpochs) else None
    if (factor := state.learning_rate_factor) is not None:
        policy, value = None if policy is None else policy * factor, value * factor
    return Rates(policy, value)


def policy_measurements(policy: Policy[Array], old: Policy[Array]) -> Metrics:
    """Measure how far the new policy is from the one that collected the data, and how broad it is."""
    divergence = kl(policy, old)
    found = {"kl": divergence.mean(), "kl_max": divergence.max(), "entropy": entropy(policy).mean()}
    std = deviations(policy)
    return found if std is None else found | {"std_mean": std.mean()}


def deviations(policy: Policy[Array]) -> Array | None:
    """Return the standard deviations of a policy, or of its first Gaussian part; None without one."""
    if isinstance(policy, Product):
        return next((std for part in policy.parts if (std := deviations(part)) is not None), None)
    if isinstance(policy, FullGaussian):
        return jnp.sqrt(jnp.square(policy.chol).sum(-1))
    return policy.std if isinstance(policy, DiagGaussian) else None


def distance_measurements(prefix: str, distance: Parts[Array]) -> Metrics:
    """Return mean and maximum over states of a distance by parts, e.g. `before_mean`, `before_mean_max`."""
    return {
        f"{prefix}_mean": distance.mean.mean(),
        f"{prefix}_mean_max": distance.mean.max(),
        f"{prefix}_cov": distance.cov.mean(),
        f"{prefix}_cov_max": distance.cov.max(),
    }
