"""Corners of the updates: one covariance from many, and a reward for entropy."""

import jax.numpy as jnp
import numpy as np
import pytest
import small

from trpl import DiagGaussian, FullGaussian, entropy
from trpl.policies.covariances import share_covariance as shared

RNG = np.random.default_rng(3)


def test_one_covariance_from_many_keeps_the_mean_entropy():
    mean, std = jnp.zeros((5, 3)), jnp.asarray(np.exp(RNG.normal(size=(5, 3))))
    chol = jnp.asarray(np.tril(RNG.normal(size=(5, 3, 3)), -1) + np.einsum("ni,ij->nij", std, np.eye(3)))
    for many in (DiagGaussian(mean, std), FullGaussian(mean, chol)):
        one = shared(many)
        assert one.shares_covariance
        assert float(entropy(one)) == pytest.approx(float(entropy(many).mean()), abs=1e-5)
    np.testing.assert_allclose(jnp.tril(one.chol, -1), jnp.tril(chol.mean(0), -1), rtol=1e-6)
    assert (jnp.triu(one.chol, 1) == 0.0).all()
    assert shared(one) is one


def test_an_entropy_bonus_widens_the_policy():
    plain, widened = (small.update(small.config("ppo", entropy_weight=weight))[1] for weight in (0.0, 10.0))
    assert widened["entropy"] > plain["entropy"] + 0.1
