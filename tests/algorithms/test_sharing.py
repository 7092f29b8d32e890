"""Corners of the updates: one covariance from many, a reward for entropy, two cores."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from trpl import DiagGaussian, FullGaussian, entropy
from trpl.algorithms import learner
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


@pytest.mark.parametrize("method", ["kl", "papi"])
def test_two_cores_give_the_bits_of_one(method, monkeypatch):
    found = []
    for cores in (1, 2):
        monkeypatch.setattr(learner, "num_cores", lambda cores=cores: cores)
        state, metrics = small.update(small.config(method), times=2)
        found.append(jax.device_get((state, dict(sorted(metrics.items())))))
    one, two = map(jax.tree.leaves, found)
    assert [np.asarray(x).tobytes() for x in one] == [np.asarray(x).tobytes() for x in two]


def test_with_two_cores_both_networks_learn_at_the_same_time(monkeypatch):
    meet = threading.Barrier(2, timeout=10)
    monkeypatch.setattr(learner, "num_cores", lambda: 2)
    first, second = learner.at_once(lambda: (meet.wait(), "value")[1], lambda: (meet.wait(), "policy")[1])
    assert (first, second) == ("value", "policy")


def test_what_goes_wrong_in_the_other_thread_is_raised(monkeypatch):
    def fails():
        raise MemoryError("too large")

    monkeypatch.setattr(learner, "num_cores", lambda: 2)
    with pytest.raises(MemoryError, match="too large"):
        learner.at_once(fails, lambda: None)
