"""The covariance parts called by themselves, with what they assume when nothing is said."""

import numpy as np
import pytest
import torch

from frameworks import Torch, policies
from generators import gentle_pair
from trpl import Categorical, DiagGaussian, FullGaussian, frobenius_parts, kl_parts, wasserstein_parts
from trpl.engines import torch_engine
from trpl.gaussians.distances import frobenius_cov, wasserstein_cov


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_defaults_are_those_of_the_whole(kind):
    p, q = policies(Torch(), gentle_pair(kind))
    assert torch.equal(
        wasserstein_cov(torch_engine(), p, q), wasserstein_parts(p, q, scaled=True, form="commuting").cov
    )
    assert torch.equal(frobenius_cov(torch_engine(), p, q), frobenius_parts(p, q, whitened=False).cov)


def test_values_are_detached_and_rescaled_whole():
    mean, std = torch.ones(2, 3, requires_grad=True), torch.full((2, 3), 2.0, requires_grad=True)
    for p in (DiagGaussian(mean, std), FullGaussian(mean, torch.diag_embed(std))):
        fixed = p.detached()
        assert not fixed.mean.requires_grad
        assert not fixed.scale.requires_grad
        np.testing.assert_array_equal(fixed.mean, p.mean.detach())
        np.testing.assert_array_equal(fixed.scale, p.scale.detach())
        other = p.with_scale(3.0 * p.scale)
        assert type(other) is type(p)
        assert other.mean is p.mean
        np.testing.assert_array_equal(other.scale.detach(), 3.0 * p.scale.detach())


@pytest.mark.parametrize("parts", [kl_parts, wasserstein_parts, frobenius_parts])
def test_policies_that_have_no_distance_by_parts(parts):
    """Three dimensions and one would broadcast to a number."""
    one, three = (DiagGaussian(np.ones((2, dim)), np.ones(dim)) for dim in (1, 3))
    with pytest.raises(ValueError, match="old policy has 1 action dimensions, new policy has 3"):
        parts(three, one)
    with pytest.raises(ValueError, match=r"not of a Categorical; trpl\.kl takes any policy"):
        parts(Categorical(np.ones((2, 3))), Categorical(np.ones((2, 3))))
