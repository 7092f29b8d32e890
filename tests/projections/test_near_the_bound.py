"""A little outside the bound a policy is projected, a little inside nothing happens, and nobody else is asked."""

import pytest
import torch

from cases import CASES, KINDS
from frameworks import TYPES, Torch, policies
from generators import gentle_pair
from trpl import DiagGaussian
from trpl.engines import torch_engine
from trpl.gaussians import kl_cov
from trpl.projections.kl import diagonal
from trpl.projections.kl.routes import WIDE

FACTOR = 1.2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.entropy is None], ids=str)
def test_on_both_sides_of_the_bound(case, kind):
    framework, make = Torch(), TYPES[kind]
    predicted, old = policies(framework, gentle_pair(kind))
    layer = case.make(framework)
    before = layer.audit(predicted, predicted, old).before
    outside = torch.arange(len(before.cov)) % 2 == 0

    def near(distance):
        return torch.where(outside, distance / FACTOR, distance * FACTOR)

    names = ("bound",) if case.joint else ("mean_bound", "cov_bound")
    distances = (before.mean + before.cov,) if case.joint else (before.mean, before.cov)
    leaves = [x.clone().requires_grad_() for x in (*predicted, *old, *map(near, distances))]
    bounds = dict(zip(names, leaves[4:], strict=True))
    projected = layer(make(*leaves[:2]), make(*leaves[2:4]), **bounds)
    after = layer.audit(predicted, make(*(x.detach() for x in projected)), old).after
    reached = (after.mean + after.cov,) if case.joint else (after.mean, after.cov)
    for found, bound in zip(reached, map(near, distances), strict=True):
        torch.testing.assert_close(found[outside], bound[outside], rtol=1e-8, atol=0.0)
    for new, given in zip(projected, predicted, strict=True):
        assert torch.equal(new[~outside], given[~outside])
    gradients = torch.autograd.grad(sum(x.sum() for x in projected), leaves)
    for gradient in gradients[2:]:
        assert not bool(gradient[~outside].any())
        assert bool(gradient[outside].any())
    assert bool((gradients[0][~outside] == 1.0).all())


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_multipliers_are_seen_from_the_result(dtype, accuracy):
    """What compiled PyTorch works out in the backward pass is what the search found, whatever the policies."""
    draw = torch.Generator().manual_seed(0)
    size = 20_000
    old, change = (torch.randn((size, 4), generator=draw, dtype=torch.float64) for _ in range(2))
    wide = torch.rand((size, 1), generator=draw, dtype=torch.float64)
    q = torch.exp(3.0 * old).to(dtype)
    p = (q * torch.exp(10.0**wide * change)).to(dtype)
    bound = (10.0 ** (-5.0 + 6.0 * torch.rand(size, generator=draw, dtype=torch.float64))).to(dtype)
    outside = kl_cov(DiagGaussian(q, p), DiagGaussian(q, q)) > bound
    assert 0.5 < outside.double().mean() < 0.99
    e = torch_engine()
    (projected,), (ratio, _, x) = diagonal.solve(e, p, q, bound, WIDE, whole=True)
    seen_ratio, normal, seen = diagonal.recover(e, p, q, projected)
    torch.testing.assert_close(seen_ratio[outside], ratio[outside], rtol=10 * torch.finfo(dtype).eps, atol=0.0)
    torch.testing.assert_close(1.0 + normal[outside], (ratio * ratio)[outside], rtol=1e-5, atol=accuracy)
    torch.testing.assert_close(seen[outside], x[outside], rtol=accuracy, atol=0.0)
    assert bool((seen[~outside] == 1.0).all())
    nowhere = diagonal.recover(e, p, q, q)  # a bound below rounding
    for found, expected in zip(nowhere, (1.0, 0.0, 0.0), strict=True):
        assert bool((found == expected).all())
