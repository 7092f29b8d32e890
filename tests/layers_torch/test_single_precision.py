"""Full covariances in float32 as episodic policies have them: 42 and 63 dimensions, condition numbers to 1e6."""

import pytest
import torch

from trpl import DiagGaussian, FullGaussian, kl_parts
from trpl.torch import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

BATCH = 8


def pair(dim, condition, seed=0):
    """A prediction and an old policy in float64; the covariances' condition number is about `condition`."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-0.25, 0.25, dim, dtype=torch.float64) ** torch.log10(torch.tensor(condition)).double()
    found = []
    for _ in range(2):
        below = torch.tril(torch.randn(BATCH, dim, dim, generator=generator, dtype=torch.float64), -1)
        chol = spread[:, None] * (torch.eye(dim, dtype=torch.float64) + 0.02 * below)
        mean = spread * torch.randn(BATCH, dim, generator=generator, dtype=torch.float64)
        found.append(FullGaussian(mean, chol * (0.8 + 0.4 * torch.rand(BATCH, 1, 1, generator=generator).double())))
    return found


@pytest.mark.parametrize("cov_bound", [5e-4, 0.05])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("dim", [42, 63])
def test_bound_and_gradient_in_single_precision(dim, condition, cov_bound):
    """The bound is held to 0.1 %, nothing is NaN, and gradients are float64's to 1 %."""
    predicted, old = pair(dim, condition)
    layer = KLProjection(0.05, cov_bound)
    weights = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).double() for x in predicted]
    gradients, parts = [], None
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in predicted]
        projected = layer(FullGaussian(*leaves), FullGaussian(*(x.to(dtype) for x in old)))
        if dtype == torch.float32:  # measured in float64, against the old policy as it was given
            parts = kl_parts(*(FullGaussian(*(x.detach().double() for x in p)) for p in (projected, old)))
        scaled = [w / x.detach().abs().amax() for w, x in zip(weights, predicted, strict=True)]
        sum((w.to(dtype) * x).sum() for w, x in zip(scaled, projected, strict=True)).backward()
        gradients.append([x.grad.double() for x in leaves])
    assert torch.isfinite(torch.stack([parts.mean, parts.cov])).all()
    assert (parts.mean - 0.05).abs().max() <= 0.05 * 1e-3
    assert (parts.cov - cov_bound).abs().max() <= cov_bound * 1e-3
    for single, double in zip(*gradients, strict=True):
        assert torch.isfinite(single).all()
        assert torch.linalg.vector_norm(single - double) <= 0.01 * torch.linalg.vector_norm(double)


@pytest.mark.parametrize("shape", [(8,), (1,), ()], ids=["batch", "one state", "no batch"])
@pytest.mark.parametrize("held", [{}, {"min_entropy": 4.4}, {"entropy": 4.4}], ids=["free", "least", "held"])
@pytest.mark.parametrize("make", [KLProjection, WassersteinProjection, FrobeniusProjection, JointKLProjection])
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_single_precision_stays(full, make, held, shape):
    """NumPy 1 makes float64 of a number without axes times a Python float: no bound may carry that into an output."""
    layer = make(0.05) if make is JointKLProjection else make(0.05, 5e-4)
    old, mean = torch.ones(*shape, 3), torch.full((*shape, 3), 2.0, requires_grad=True)
    scale = torch.full((*shape, 3), 1.5, requires_grad=True)
    if full:
        projected = layer(
            FullGaussian(mean, torch.diag_embed(scale)), FullGaussian(0 * old, torch.diag_embed(old)), **held
        )
    else:
        projected = layer(DiagGaussian(mean, scale), DiagGaussian(0 * old, old), **held)
    assert [x.dtype for x in projected] == [torch.float32] * 2
    sum(x.sum() for x in projected).backward()
    assert mean.grad.dtype == scale.grad.dtype == torch.float32
