"""Distances, entropy and log-density against textbook formulas, SciPy, and arithmetic with fifty digits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import reference
from frameworks import FRAMEWORKS, Torch, policies, torch
from generators import close_pair, gentle_pair, hard_pairs
from trpl import DiagGaussian, FullGaussian, entropy, frobenius_parts, kl_parts, log_prob, wasserstein_parts

mpmath = pytest.importorskip("mpmath")
pytestmark = pytest.mark.usefixtures("x64")
METRICS = {
    "kl": kl_parts,
    "w2": wasserstein_parts,
    "w2-exact": lambda p, q: wasserstein_parts(p, q, form="exact"),
    "frobenius": frobenius_parts,
    "frobenius-whitened": lambda p, q: frobenius_parts(p, q, whitened=True),
}
every_kind = pytest.mark.parametrize("kind", ["diag", "full"])


@every_kind
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
@pytest.mark.parametrize("metric", METRICS)
def test_against_the_textbook(metric, framework, kind):
    pair = gentle_pair(kind)
    p, q = policies(framework, pair)
    parts = METRICS[metric](p, q)
    np.testing.assert_allclose(framework.numpy(parts.mean), reference.mean_part(metric, pair), rtol=1e-9)
    np.testing.assert_allclose(framework.numpy(parts.cov), reference.cov_part(metric, pair), rtol=1e-9)


@every_kind
def test_plain_wasserstein(kind):
    pair = gentle_pair(kind)
    p, q = policies(Torch(), pair)
    cov, old = reference.covariances(pair)
    half = reference.root(old)
    exact = reference.trace(cov + old - 2 * reference.root(half @ cov @ half))
    commuting = np.sum((reference.root(cov) - half) ** 2, axis=(-2, -1))
    for form, expected in (("exact", exact), ("commuting", commuting)):
        parts = wasserstein_parts(p, q, scaled=False, form=form)
        np.testing.assert_allclose(parts.cov, expected, rtol=1e-9)
        np.testing.assert_allclose(parts.mean, np.sum((pair.mean - pair.old_mean) ** 2, -1), rtol=1e-12)


@every_kind
@pytest.mark.parametrize("metric", METRICS)
def test_zero_at_equality_with_zero_gradient(metric, kind):
    p, _ = policies(Torch(), gentle_pair(kind))
    leaves = [x.clone().requires_grad_() for x in p]
    parts = METRICS[metric](type(p)(*leaves), p)
    assert float(parts.mean.detach().abs().max()) == 0.0
    assert float(parts.cov.detach().abs().max()) < 1e-28
    for gradient in torch.autograd.grad((parts.mean + parts.cov).sum(), leaves):
        lower = gradient.tril() if gradient.ndim == 3 else gradient
        assert float(lower.abs().max()) < 1e-12


@every_kind
def test_small_distances_keep_their_digits(kind):
    """float32 policies a part in 1e3 apart: the KL is 1e-6, and right to a thousandth of that."""
    pair = close_pair(kind, change=1e-3).astype(np.float32)
    single, double = (kl_parts(*policies(Torch(), pair, dtype)).cov.double() for dtype in ("float32", "float64"))
    torch.testing.assert_close(single, double, rtol=1e-3, atol=0)


def exact_kl(chol, old):
    """½(tr Σ_q⁻¹Σ_p − d + log|Σ_q|/|Σ_p|) with fifty digits."""
    with mpmath.workdps(50):
        a, b = mpmath.matrix(chol.tolist()), mpmath.matrix(old.tolist())
        w = b**-1 * a
        dim = chol.shape[-1]
        trace = sum(w[i, j] ** 2 for i in range(dim) for j in range(dim))
        logs = sum(mpmath.log(b[i, i] / a[i, i]) for i in range(dim))
        return float((trace - dim) / 2 + logs)


def test_kl_of_hard_pairs_with_fifty_digits():
    """The yardstick of the bound tests is itself right on hard pairs, to the rounding that their condition allows."""
    for dim in (1, 2, 5):
        pair = hard_pairs("full", 40, dim, seed=50).pair
        found = kl_parts(*policies(Torch(), pair)).cov.numpy()
        expected = np.array([exact_kl(p, q) for p, q in zip(pair.scale, pair.old_scale, strict=True)])
        inverse = np.abs(np.linalg.inv(pair.old_scale))
        ratio = np.linalg.solve(pair.old_scale, pair.scale)
        spread = inverse @ np.abs(pair.old_scale) @ np.abs(ratio)
        gradient = np.abs(
            ratio - np.einsum("nii->ni", 1 / np.where(np.eye(dim) > 0, ratio, 1))[:, :, None] * np.eye(dim)
        )
        limit = dim * 4 * 2.0**-52 * np.sum(gradient * spread, axis=(-2, -1))
        assert (np.abs(found - expected) <= 1e-9 * expected + limit).all()


@every_kind
def test_entropy_and_log_prob_against_scipy(kind):
    pair = gentle_pair(kind)
    p, _ = policies(Torch(), pair)
    cov, _ = reference.covariances(pair)
    x = np.random.default_rng(0).normal(size=pair.mean.shape)
    for i in range(6):
        known = multivariate_normal(pair.mean[i], cov[i])
        assert float(entropy(p)[i]) == pytest.approx(known.entropy())
        assert float(log_prob(p, torch.as_tensor(x))[i]) == pytest.approx(known.logpdf(x[i]))


def test_numpy_arrays_work_too():
    p = DiagGaussian(np.zeros((4, 2)), np.ones(2))
    assert entropy(p).shape == ()
    assert p.shares_covariance
    assert kl_parts(p, DiagGaussian(np.ones((4, 2)), np.ones(2))).mean.tolist() == [1.0] * 4


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(-5, 5), st.floats(0.1, 10.0), st.floats(-5, 5), st.floats(0.1, 10.0))
def test_one_dimension_on_paper(mean, std, old_mean, old_std):
    p, q = (
        DiagGaussian(torch.tensor([[m]], dtype=torch.float64), torch.tensor([[s]], dtype=torch.float64))
        for m, s in ((mean, std), (old_mean, old_std))
    )
    ratio = std / old_std
    assert float(kl_parts(p, q).mean) == pytest.approx(0.5 * ((mean - old_mean) / old_std) ** 2, rel=1e-12, abs=1e-13)
    assert float(kl_parts(p, q).cov) == pytest.approx(0.5 * (ratio**2 - 1) - np.log(ratio), rel=1e-12, abs=1e-12)
    assert float(wasserstein_parts(p, q).cov) == pytest.approx((ratio - 1) ** 2, rel=1e-12, abs=1e-12)
    assert float(frobenius_parts(p, q).cov) == pytest.approx((std**2 - old_std**2) ** 2, rel=1e-12, abs=1e-9)
    assert float(frobenius_parts(p, q, whitened=True).cov) == pytest.approx((ratio**2 - 1) ** 2, rel=1e-12, abs=1e-9)


def test_shape_properties():
    p, _ = policies(Torch(), gentle_pair("full").reshaped(2, 3))
    assert (p.dim, p.batch_shape, p.shares_covariance) == (3, (2, 3), False)
    assert p.with_scale(p.chol[0, 0]).shares_covariance
    assert not type(p)(*(x.requires_grad_() for x in p)).detached().chol.requires_grad


@pytest.mark.parametrize("metric", METRICS)
def test_two_structures_have_no_distance(metric):
    """A mean of 2 entries and factors of 2 × 2 broadcast, to NaN or infinity."""
    diag, full = DiagGaussian(np.zeros((4, 2)), np.ones(2)), FullGaussian(np.zeros((4, 2)), np.eye(2))
    with pytest.raises(ValueError, match="the new policy is a DiagGaussian and the old one a FullGaussian"):
        METRICS[metric](diag, full)
