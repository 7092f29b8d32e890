"""The trust region around a slow average of past policies."""

import jax
import numpy as np
import pytest
import small

from trpl.gaussians import kl_parts


def policy_of(settings, weights):
    observations = small.batch().observations.reshape(-1, small.OBS)
    return small.algorithm(settings).policy(weights, observations)


def test_a_decay_of_zero_is_the_last_policy():
    """After the first update the average is the policy itself, so every update holds on to the last policy."""
    plain, slow = small.config("kl"), small.config("kl", anchor_decay=0.0)
    start = small.init(slow)
    start = start._replace(anchor=jax.tree.map(np.copy, start.policy))
    found, metrics = small.update(slow, start, times=3)
    wanted, wanted_metrics = small.update(plain, times=3)
    for name, weight in wanted.policy.items():
        np.testing.assert_allclose(found.policy[name], weight, rtol=1e-5, atol=1e-6)
    assert metrics["after_mean_max"] == pytest.approx(wanted_metrics["after_mean_max"], rel=1e-4)


def test_the_average_moves_by_its_share():
    settings = small.config("kl", anchor_decay=0.75)
    start = small.init(settings)
    anchor = {name: np.array(weight) for name, weight in start.anchor.items()}
    after, _ = small.update(settings, start)
    for name, weight in after.anchor.items():
        np.testing.assert_allclose(weight, 0.75 * anchor[name] + 0.25 * np.asarray(after.policy[name]), atol=1e-6)


def test_the_bound_is_around_the_average():
    """The covariance that is set keeps its bound to the average, which the last policy has left long since."""
    settings = small.config("kl", anchor_decay=0.9, cov_bound=1e-3, learning_rate=0.1, policy_epochs=8)
    state = small.init(settings)
    state = state._replace(anchor=jax.tree.map(np.copy, state.policy))
    state, _ = small.update(settings, state, times=5)
    anchor, last = ({name: np.array(w) for name, w in weights.items()} for weights in (state.anchor, state.policy))
    state, metrics = small.update(settings, state, seed=5)
    new = policy_of(settings, state.policy)
    assert kl_parts(new, policy_of(settings, anchor)).cov.max() <= 1e-3 * 1.01
    assert metrics["after_mean_max"] <= settings.mean_bound * 1.001
    moved = kl_parts(policy_of(settings, last), policy_of(settings, anchor)).cov.max()
    assert moved > 1e-4


def test_without_it_the_state_is_as_it_was():
    state = small.init(small.config("kl"))
    assert state.anchor is None
