"""Entropies that are asked for: before or after the projection, held by the layer or given with the call, inside."""

import math

import pytest
import torch

from cases import KINDS
from frameworks import Torch, policies
from generators import close_pair, gentle_pair
from trpl import entropy
from trpl.errors import ConvergenceError
from trpl.torch import JointKLProjection, KLProjection

every_kind = pytest.mark.parametrize("kind", KINDS)
BOUND = 0.05


def scaled_to(policy, target):
    """The policy with its covariance scaled to an entropy."""
    factor = torch.exp((target - entropy(policy)) / policy.dim)
    return policy.with_scale(policy.scale * factor.reshape(-1, *(1,) * (policy.scale.ndim - 1)))


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=0.0)


@every_kind
def test_entropy_first_is_the_projection_of_the_controlled_policy(kind):
    predicted, old = policies(Torch(), gentle_pair(kind))
    least = entropy(predicted).median()
    low = entropy(predicted) < least
    assert 0 < int(low.sum()) < len(low)
    controlled = scaled_to(predicted, torch.where(low, least, entropy(predicted)))
    found = KLProjection(BOUND, BOUND, entropy_first=True)(predicted, old, min_entropy=least)
    same(found, KLProjection(BOUND, BOUND)(controlled, old))
    found = KLProjection(BOUND, BOUND, entropy_first=True)(predicted, old, entropy=least)
    same(found, KLProjection(BOUND, BOUND)(scaled_to(predicted, least), old))


@every_kind
def test_the_joint_layer_holds_an_entropy_as_the_call_gives_it(kind):
    predicted, old = policies(Torch(), gentle_pair(kind))
    target = entropy(old) + 0.1
    bare = JointKLProjection(BOUND)
    held = JointKLProjection(BOUND, min_entropy=target)(predicted, old)
    same(held, bare(predicted, old, min_entropy=target))
    equal = JointKLProjection(BOUND, min_entropy=target, entropy_equality=True)(predicted, old)
    same(equal, bare(predicted, old, entropy=target))
    torch.testing.assert_close(entropy(equal), target, rtol=0.0, atol=1e-9)
    assert bool((entropy(bare(predicted, old)) - entropy(equal)).abs().max() > 1e-3)
    same(JointKLProjection(BOUND, min_entropy=target)(predicted, old, entropy=target - 0.05),
         bare(predicted, old, entropy=target - 0.05))  # fmt: skip


@every_kind
@pytest.mark.parametrize("equality", [False, True])
def test_inside_the_bound_the_joint_projection_only_scales(kind, equality):
    """Where the entropy can be had within the bound, the mean stays and the covariance is scaled."""
    predicted, old = policies(Torch(), close_pair(kind))
    offset = torch.linspace(-0.02, 0.02, len(predicted.mean), dtype=torch.float64)
    target = entropy(predicted) + offset
    layer, named = JointKLProjection(0.5), {"entropy" if equality else "min_entropy": target}
    found = layer(predicted, old, **named)
    audit = layer.audit(predicted, found, old, **named)
    moved = torch.ones_like(offset, dtype=torch.bool) if equality else offset > 0
    reached = torch.where(moved, target, entropy(predicted))
    same(found, scaled_to(predicted, reached))
    assert bool((audit.mean_multiplier == 0.0).all())
    expected = torch.where(moved, torch.expm1(2.0 * offset / predicted.dim), 0.0)
    torch.testing.assert_close(audit.entropy_multiplier, expected, rtol=1e-9, atol=1e-12)


@every_kind
def test_a_scale_that_vanishes_is_an_error_where_the_mean_stayed(kind):
    """Unless nobody wants to know."""
    policy, _ = policies(Torch(), gentle_pair(kind))
    with pytest.raises(ConvergenceError, match="covariance singular"):
        KLProjection(BOUND, BOUND)(policy, policy, entropy=-1e5)
    unchecked = KLProjection(BOUND, BOUND, check=False)(policy, policy, entropy=-1e5)
    assert float(unchecked.scale.abs().max()) == 0.0
    assert math.isfinite(float(unchecked.mean.sum()))
