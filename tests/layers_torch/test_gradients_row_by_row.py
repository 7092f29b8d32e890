"""Gradients of a batch in which some states are inside are those of its states alone: every projection and family."""

import numpy as np
import pytest
import torch

from cases import CASES, KINDS
from families.pairs import KINDS as FAMILIES
from frameworks import TYPES, Torch, policies
from generators import gentle_pair
from trpl.torch import JointKLProjection

framework = Torch()
NUM = 4


def linear(x):
    """A weighted sum of the entries; of a factor none above its diagonal."""
    weights = torch.arange(1.0, 1.0 + x[0].numel(), dtype=x.dtype).reshape(x[0].shape)
    return (weights * (x.detach() != 0.0) * x).sum()


def pulled(call, inputs, outputs=None):
    """Gradients of a random linear function of some outputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    found = call(*leaves)
    total = sum(linear(x) for i, x in enumerate(found) if outputs is None or i in outputs)
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)]


def compare(call, inputs, num, inside):
    """All at once against one by one; inside, the gradient passes and nothing goes to the old policy."""
    whole = pulled(call, inputs)
    for row in range(NUM):
        alone = pulled(call, [x[row : row + 1] for x in inputs])
        for x, y in zip(whole, alone, strict=True):
            torch.testing.assert_close(x[row : row + 1], y, rtol=1e-9, atol=1e-11)
        if inside[row]:
            assert all(not g.any() for g in alone[num:])
            assert all(not g[row].any() for g in whole[num:])
    parts = [pulled(call, inputs, outputs=[i]) for i in range(num)]  # a cotangent of one output alone
    for x, y in zip(map(sum, zip(*parts, strict=True)), whole, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [case for case in CASES if not case.entropy], ids=str)
def test_projections(case, kind):
    (mean, scale), (old_mean, old_scale) = policies(framework, gentle_pair(kind, NUM, 2))
    inside = np.array([True, False, True, False])
    near = torch.as_tensor(inside)
    shape = (-1,) + (1,) * (scale.ndim - 1)
    mean = torch.where(near[:, None], old_mean + 1e-4, mean)
    scale = torch.where(near.reshape(shape), old_scale * (1 + 1e-4), scale)
    layer, make = case.make(framework, 0.02, 0.005), TYPES[kind]

    def call(*x):
        return tuple(layer(make(*x[:2]), make(*x[2:])))

    compare(call, (mean, scale, old_mean, old_scale), 2, inside)


@pytest.mark.parametrize("kind", FAMILIES, ids=str)
def test_families(kind):
    new, old = ([torch.as_tensor(x) for own in kind.draw(NUM, seed=seed) for x in own] for seed in (1, 2))
    inside = np.array([True, False, True, False])
    near = torch.as_tensor(inside)
    new = [
        torch.where(near.reshape(-1, *(1,) * (x.ndim - 1)), y * (1 + 1e-4), x) for x, y in zip(new, old, strict=True)
    ]
    layer, num = JointKLProjection(0.02), len(new)

    def call(*arrays):
        return tuple(kind.arrays(layer(kind.unflatten(arrays[:num]), kind.unflatten(arrays[num:]))))

    compare(call, (*new, *old), num, inside)
