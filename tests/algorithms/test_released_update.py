"""The release's update, switched on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from trpl.algorithms.trpl import released_penalty
from trpl.errors import ConfigError
from trpl.gaussians import DiagGaussian
from trpl.jax import FrobeniusProjection
from trpl.losses import normalised
from trpl.presets import preset

RELEASED = ("variance", "evaluation", "time_limits", "deviation", "penalty")


def test_unbiased_deviation():
    advantages = np.random.default_rng(0).normal(2.0, 3.0, 32).astype(np.float32)
    expected = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    np.testing.assert_allclose(normalised(advantages, unbiased=True), expected, rtol=1e-5)
    np.testing.assert_allclose(normalised(advantages), expected * np.sqrt(32 / 31), rtol=1e-5)


def gaussians(*, contextual):
    rng = np.random.default_rng(1)
    std = np.exp(0.3 * rng.normal(size=(6, 3) if contextual else 3))
    old = DiagGaussian(jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(np.ones_like(std)))
    return DiagGaussian(old.mean + rng.normal(size=(6, 3)), jnp.asarray(std)), old


@pytest.mark.parametrize("contextual", [False, True])
def test_frobenius_penalty(contextual):
    predicted, old = gaussians(contextual=contextual)
    layer = FrobeniusProjection(0.1, 0.01, check=False)
    projected = layer(predicted, old)
    expected = np.sum(np.square((predicted.mean - projected.mean) / projected.std), axis=-1)
    if contextual:
        expected += np.sum(np.square(predicted.std - projected.std), axis=-1)
    np.testing.assert_allclose(released_penalty(predicted, projected), expected, rtol=1e-6)


def test_frobenius_penalty_is_not_detached():
    """Its gradient has a part through the projection, by finite differences of the whole."""
    predicted, old = gaussians(contextual=False)
    layer = FrobeniusProjection(0.1, 0.01, check=False)

    def penalty(mean):
        moved = DiagGaussian(mean, predicted.std)
        return released_penalty(moved, layer(moved, old)).sum()

    gradient, step = jax.grad(penalty)(predicted.mean), 1e-3
    direction = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    ahead, behind = (penalty(predicted.mean + sign * step * direction) for sign in (1, -1))
    assert float((gradient * direction).sum()) == pytest.approx(float((ahead - behind) / (2 * step)), rel=2e-2)
    detached = jax.grad(lambda m: layer.penalty(DiagGaussian(m, predicted.std), layer(predicted, old)).sum())
    assert not np.allclose(gradient, detached(predicted.mean), rtol=1e-2)


@pytest.mark.parametrize(("method", "switch"), [("kl", "deviation"), ("ppo", "deviation"), ("kl", "time_limits"),
                                                ("frobenius", "penalty")])  # fmt: skip
def test_each_switch_changes_the_update(method, switch):
    plain, _ = small.update(small.config(method))
    released, _ = small.update(small.config(method, **{f"released_{switch}": True}))
    assert not np.array_equal(plain.policy["mean/weight"], released.policy["mean/weight"])


def test_as_released_is_every_switch_that_means_something():
    for method in ("kl", "frobenius", "ppo-m"):
        config = preset(method, "Hopper-v4", as_released=True)
        for quirk in RELEASED:
            expected = None if quirk == "penalty" and method != "frobenius" else True
            assert config.get(f"released_{quirk}") is expected
    assert preset("kl", "Hopper-v4", as_released=True, released_evaluation=False).released_evaluation is False
    with pytest.raises(ConfigError, match="released_penalty does not apply to method 'kl'"):
        preset("kl", "Hopper-v4", released_penalty=True)


def test_the_audit_sees_the_covariance_before_it_is_set():
    """Steps this large leave the covariance bound; what acts is inside."""
    _, metrics = small.update(small.config("kl", cov_bound=1e-4))
    assert metrics["before_cov"] > 1.5e-4
    assert metrics["projected_cov_share"] == 1.0
    assert metrics["after_cov"] == pytest.approx(1e-4, rel=1e-2)
