"""Full covariances in float32 as episodic policies have them: 42 and 63 dimensions, condition numbers to 1e6."""

import pytest
import torch

from trpl import FullGaussian, kl_parts
from trpl.torch import KLProjection

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
