"""A gradient asked for alone is the one that comes with all the others: rules leave out only what nobody needs."""

import pytest
import torch

from cases import CASES, KINDS
from frameworks import TYPES, Torch, policies
from generators import gentle_pair


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.entropy is None], ids=str)
def test_each_alone(case, kind):
    framework, make = Torch(), TYPES[kind]
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    inputs = (*predicted, *old, *options.values())

    def gradients(wanted: list[int]):
        leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
        named = dict(zip(options, leaves[4:], strict=True))
        projected = case.make(framework)(make(*leaves[:2]), make(*leaves[2:4]), **named)
        total = sum((torch.cos(torch.arange(x.numel()).reshape(x.shape)) * x).sum() for x in projected)
        return torch.autograd.grad(total, [leaves[i] for i in wanted])

    together = gradients(list(range(len(inputs))))
    for i, expected in enumerate(together):
        torch.testing.assert_close(gradients([i])[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_along_a_direction(case, kind):
    """Every gradient, sample by sample, against what a small step along a random direction does."""
    framework, make = Torch(), TYPES[kind]
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    inputs = [*predicted, *old, *options.values()]
    generator = torch.Generator().manual_seed(1)
    layer = case.make(framework)

    def totals(values):
        named = dict(zip(options, values[4:], strict=True))
        projected = layer(make(*values[:2]), make(*values[2:4]), **named)
        weighted = [torch.cos(torch.arange(x.numel()).reshape(x.shape)) * x for x in projected]
        return sum(x.flatten(1).sum(1) for x in weighted)

    for i, x in enumerate(inputs):
        direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        direction = (torch.tril(direction) if kind == "full" and i in (1, 3) else direction) * (0.1 + x.abs())
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(totals([*inputs[:i], leaf, *inputs[i + 1 :]]).sum(), leaf)
        step = 1e-6
        above, below = (totals([*inputs[:i], x + sign * step * direction, *inputs[i + 1 :]]) for sign in (1.0, -1.0))
        found = (gradient * direction).reshape(len(above), -1).sum(1)
        torch.testing.assert_close(found, (above - below) / (2.0 * step), rtol=2e-6, atol=2e-7)
