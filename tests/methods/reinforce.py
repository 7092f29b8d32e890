"""A method from outside the package, all of it in this file: REINFORCE with a baseline, one gradient step per epoch."""

from dataclasses import dataclass

import jax
from jax import Array

import trpl
from trpl.algorithms import Algorithm
from trpl.algorithms.learner import Learner, LearnerState, Samples
from trpl.algorithms.minibatches import Orders
from trpl.losses import normalised
from trpl.policies.heads import Head
from trpl.settings import Config, Real, setting


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    step: float = setting(0.01, "length of the gradient step", above=0.0, search=Real(1e-3, 1.0, log=True))


def make(config: Settings, *, obs_size: int, head: Head) -> Algorithm:
    learner = Learner.of(config, obs_size=obs_size, head=head)

    def improve(state: LearnerState, samples: Samples, orders: Orders[Array], learning_rate: None):
        def loss(weights):
            policy = learner.policy(weights, samples.observations)
            return -(learner.policy.log_prob(policy, samples.actions) * normalised(samples.advantages)).mean()

        value, gradient = jax.value_and_grad(loss)(state.policy)
        policy = jax.tree.map(lambda w, g: w - config.step * g, state.policy, gradient)
        return state._replace(policy=policy), {"policy_loss": value}

    return learner.algorithm(improve, passes=Orders(config.value_epochs))


trpl.register(
    trpl.Method(
        name="reinforce", label="REINFORCE", settings=Settings, make=make, style=trpl.Style("#aa3377", "#cc6699")
    )
)
