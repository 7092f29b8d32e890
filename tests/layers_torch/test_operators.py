"""The operators that compiled code calls: what eager code gives, in memory of their own."""

import numpy as np
import pytest
import torch

from cases import CASES, by_name, policies
from generators import close_pair, gentle_pair
from trpl.implicit import operators

TORCH = by_name("torch")
PAIRS = {
    "outside": gentle_pair,
    "mean outside": lambda kind: close_pair(kind)._replace(mean=gentle_pair(kind, seed=1).mean),
    "covariance outside": lambda kind: gentle_pair(kind)._replace(mean=gentle_pair(kind).old_mean),
    "inside": close_pair,
}
FREE = [case for case in CASES if case.entropy is None]
OPAQUE = [(case, "full") for case in FREE] + [(case, "diag") for case in FREE if case.metric == "kl"]
"""What no compiler can fuse; with bounds as tensors diagonal KL layers too."""


@pytest.mark.parametrize("where", PAIRS)
@pytest.mark.parametrize(("case", "kind"), OPAQUE, ids=str)
def test_compiled_code_goes_the_eager_way(case, where, kind):
    """Every input has a gradient."""
    pair = PAIRS[where](kind)
    layer, options = case.make(TORCH), case.call_options(TORCH, pair)
    rng = np.random.default_rng(0)
    weights = [torch.as_tensor(rng.normal(size=x.shape)) for x in (pair.mean, pair.scale)]

    def found(call):
        predicted, old = policies(TORCH, pair, "float64")
        leaves = [x.requires_grad_() for x in (*predicted, *old, *options.values())]
        projected = tuple(call(predicted, old, **options))
        return projected, torch.autograd.grad(projected, leaves, weights, allow_unused=True)

    torch.compiler.reset()
    (values, gradients), (expected, wanted) = found(torch.compile(layer, backend="aot_eager")), found(layer)
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-14)
    for one, other in zip(gradients, wanted, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("where", PAIRS)
@pytest.mark.parametrize("case", [case for case, kind in OPAQUE if kind == "full"], ids=str)
def test_results_share_no_memory(case, where, monkeypatch):
    """Compilers overwrite what nobody reads any more."""
    seen, solve = [], operators._fresh
    monkeypatch.setattr(operators, "_fresh", lambda *given: seen.append(solve(*given)) or seen[-1])
    pair = PAIRS[where]("full")
    predicted, old = policies(TORCH, pair, "float64")
    torch.compiler.reset()
    torch.compile(case.make(TORCH), backend="aot_eager")(predicted, old, **case.call_options(TORCH, pair))
    (results,) = seen
    memory = [x.untyped_storage().data_ptr() for x in (*results, *predicted, *old)]
    assert len(set(memory)) == len(memory)
