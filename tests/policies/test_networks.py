"""Networks: initial values, parametrisations, and the same numbers in JAX and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trpl.gaussians import DiagGaussian, FullGaussian
from trpl.policies.acting import make_actor
from trpl.policies.covariances import cholesky_from_raw, positive, raw_from_cholesky, raw_from_positive
from trpl.policies.heads import GaussianHead
from trpl.policies.networks import PolicyNetwork, ValueNetwork

KINDS = [(c, x) for c in ("diagonal", "full") for x in (False, True)]


def make(covariance, contextual, hidden_sizes=(7, 5)):
    policy = PolicyNetwork(obs_size=4, head=GaussianHead(3, covariance, contextual), hidden_sizes=hidden_sizes)
    weights = policy.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    return policy, {n: w + 0.5 * rng.normal(size=w.shape).astype(np.float32) for n, w in weights.items()}


@pytest.mark.parametrize(("covariance", "contextual"), KINDS)
def test_policies_start_with_deviation_one(covariance, contextual):
    policy = PolicyNetwork(obs_size=4, head=GaussianHead(3, covariance, contextual))
    gaussian = policy(policy.init(jax.random.key(0)), jnp.ones((2, 4)))
    scale = gaussian.std if covariance == "diagonal" else jnp.diagonal(gaussian.chol, axis1=-2, axis2=-1)
    np.testing.assert_allclose(scale, 1.0, atol=0.02 if contextual else 1e-6)
    assert gaussian.shares_covariance is not contextual
    assert isinstance(gaussian, DiagGaussian if covariance == "diagonal" else FullGaussian)


def test_weights_are_orthogonal_with_the_stated_gains():
    policy = PolicyNetwork(obs_size=8, head=GaussianHead(3), hidden_sizes=(6, 6))
    weights = policy.init(jax.random.key(1))
    for name, gain in (("layer0", 2**0.5), ("layer1", 2**0.5), ("mean", 0.01)):
        w = weights[f"{name}/weight"]
        np.testing.assert_allclose(w.T @ w, gain**2 * np.eye(w.shape[1]), atol=1e-5 * gain)
        assert not weights[f"{name}/bias"].any()
    head = ValueNetwork(obs_size=8, hidden_sizes=(6,)).init(jax.random.key(1))["value/weight"]
    assert float(jnp.linalg.norm(head)) == pytest.approx(1.0, rel=1e-5)


def test_raw_numbers_and_deviations_are_inverse():
    std = jnp.array([1e-4, 0.05, 1.0, 7.0, 40.0])
    np.testing.assert_allclose(positive(raw_from_positive(std)), std, rtol=2e-6)


def test_raw_numbers_and_factors_are_inverse():
    raw = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6)), jnp.float32)
    chol = cholesky_from_raw(raw, 3)
    assert (np.triu(chol, 1) == 0).all()
    np.testing.assert_allclose(raw_from_cholesky(chol), raw, atol=1e-6)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_settling_sets_the_covariance_and_nothing_else(covariance):
    policy, weights = make(covariance, contextual=False)
    x = jnp.ones((1, 4))
    before = policy(weights, x)
    wanted = before.with_scale(0.7 * before.scale)
    after = policy(policy.set_shared(weights, wanted), x)
    np.testing.assert_allclose(after.scale, wanted.scale, rtol=1e-5)
    np.testing.assert_array_equal(after.mean, before.mean)


@pytest.mark.parametrize("hidden_sizes", [(), (7, 5)], ids=str)
@pytest.mark.parametrize(("covariance", "contextual"), KINDS)
def test_numpy_acts_as_the_network_predicts(covariance, contextual, hidden_sizes):
    policy, weights = make(covariance, contextual, hidden_sizes)
    rng = np.random.default_rng(1)
    x, noise = rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    gaussian = policy(weights, x)
    step = gaussian.std * noise if covariance == "diagonal" else (gaussian.chol @ noise[..., None])[..., 0]
    actor = make_actor(weights, policy.head)
    np.testing.assert_allclose(actor.mode(x), gaussian.mean, atol=2e-6)
    np.testing.assert_allclose(actor.sample(x, noise), gaussian.mean + step, atol=5e-6)
    for i in range(5):  # one observation at a time is another path
        np.testing.assert_allclose(actor.sample(x[i], noise[i]), (gaussian.mean + step)[i], atol=5e-6)
        np.testing.assert_allclose(actor.mode(x[i]), gaussian.mean[i], atol=2e-6)
    assert actor.mode(x).dtype == np.float32


@pytest.mark.parametrize("hidden_sizes", [(), (7, 5)])
@pytest.mark.parametrize(("covariance", "contextual"), KINDS)
def test_what_is_prepared_for_a_loop_samples_the_same(covariance, contextual, hidden_sizes):
    policy, weights = make(covariance, contextual, hidden_sizes)
    actor, rng = make_actor(weights, policy.head), np.random.default_rng(1)
    observations = rng.normal(size=(20, 4)).astype(np.float32)
    noise = rng.normal(size=(20, 3)).astype(np.float32)
    sample, rows = actor.prepared(noise)
    found = [sample(observation, row) for observation, row in zip(observations, rows, strict=True)]
    np.testing.assert_allclose(found, actor.sample(observations, noise), rtol=1e-5, atol=1e-5)
