"""PPO with its code-level options, and PPO-M without them: only the configurations differ.

Options beyond the clipped ratio: clipped value loss and decaying learning rates (here), normalised and clipped rewards
and clipped observations (in the rollouts).
"""

from typing import TypeVar

from jax import Array

from trpl.algorithms.base import Algorithm, Metrics
from trpl.algorithms.learner import Learner, LearnerState, Samples
from trpl.algorithms.minibatches import Orders
from trpl.families import entropy
from trpl.losses import clipped_surrogate, normalised
from trpl.methods.clipped import Clipped
from trpl.policies.heads import Head

C = TypeVar("C", bound=Clipped)


def make(config: Clipped, *, obs_size: int, head: Head) -> Algorithm:
    """Make PPO from its settings."""
    learner = Learner.of(config, obs_size=obs_size, head=head, value_clip=config.value_clip)

    def improve(state: LearnerState, samples: Samples, orders: Orders[Array], learning_rate: Array):
        return fit_clipped(learner, state, samples, orders=orders.policy, learning_rate=learning_rate)

    return learner.algorithm(improve, passes=Orders(config.value_epochs, config.policy_epochs))


def fit_clipped(
    learner: Learner[C], state: LearnerState, samples: Samples, *, orders: Array, learning_rate: Array
) -> tuple[LearnerState, Metrics]:
    """Run policy epochs on the clipped surrogate."""
    config = learner.config

    def loss(weights, minibatch):
        observations, actions, advantages, old_log_prob = minibatch
        policy = learner.policy(weights, observations)
        log_ratio = learner.policy.log_prob(policy, actions) - old_log_prob
        advantages = normalised(advantages, unbiased=config.released_deviation)
        policy_loss = clipped_surrogate(log_ratio, advantages, clip=config.ratio_clip)
        total = policy_loss
        if config.entropy_weight:
            total -= config.entropy_weight * entropy(policy).mean()
        return total, {"policy_loss": policy_loss}

    data = (samples.observations, samples.actions, samples.advantages, samples.old_log_prob)
    return learner.fit_policy(loss, state, data, orders=orders, learning_rate=learning_rate)
