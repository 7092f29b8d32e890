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
