"""A small batch and configuration that every test of an update can afford."""

import jax
import numpy as np

from trpl.algorithms import Batch, make_algorithm
from trpl.policies.heads import GaussianHead
from trpl.presets import preset

OBS, ACT, STEPS, ENVS = 3, 2, 24, 2


def config(method, **overrides):
    """Short fits with steps large enough to reach the bounds."""
    values = {
        "rollout_size": STEPS * ENVS,
        "num_envs": ENVS,
        "total_steps": 10 * STEPS * ENVS,
        "minibatch_size": 16,
        "value_epochs": 2,
        "learning_rate_vf": 1e-3,
        "hidden_sizes": (5, 4),
        "hidden_sizes_vf": (6,),
    }
    if method != "trpo":
        values |= {"policy_epochs": 2, "learning_rate": 5e-2}
    return preset(method, "test/Small-v0", **(values | overrides))


def batch(seed=0):
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(STEPS + 1, ENVS, OBS)).astype(np.float32)
    next_observations = observations[1:].copy()
    terminated, truncated = rng.random((2, STEPS, ENVS)) < 0.1
    ended = terminated | truncated
    next_observations[ended] = rng.normal(size=(ended.sum(), OBS))
    actions = rng.normal(size=(STEPS, ENVS, ACT)).astype(np.float32)
    rewards = (observations[:-1, :, 0] - actions[..., 0] ** 2 + rng.normal(size=(STEPS, ENVS))).astype(np.float32)
    return Batch(observations[:-1], next_observations, actions, rewards, terminated, truncated)


def algorithm(settings):
    return make_algorithm(settings, obs_size=OBS, head=GaussianHead(ACT))


def init(settings, *, seed=0):
    """An initial state whose policy is not near zero, so that every part of it moves."""
    state = algorithm(settings).init(jax.random.key(seed))
    learner = getattr(state, "learner", state)  # PAPI's state has it inside
    policy = dict(learner.policy)
    for name, weight in policy.items():
        noise = np.random.default_rng(len(name)).normal(size=weight.shape).astype(np.float32)
        policy[name] = weight + 0.3 * noise
    learner = learner._replace(policy=policy)
    return state._replace(learner=learner) if hasattr(state, "learner") else learner


def update(settings, state=None, *, times=1, seed=0):
    """State and metrics after `times` updates on fresh batches."""
    state, metrics = init(settings) if state is None else state, None
    for i in range(times):
        state, metrics = algorithm(settings).update(state, batch(seed + i), np.random.default_rng([seed, i]))
    return state, {name: float(value) for name, value in metrics.items()}
