"""Implicit gradients against the solver's own steps: the projections written plainly, every step differentiated."""

import math

import pytest
import torch

from cases import CASES
from frameworks import TYPES, Torch, policies
from generators import gentle_pair
from trpl import entropy as entropy_of

framework = Torch()
STEPS = 12


def newton(residual, start: torch.Tensor) -> torch.Tensor:
    """Newton's steps in a row, each with a slope from autograd, all of it differentiable."""
    x = start
    for _ in range(STEPS):
        if not x.requires_grad:
            x = x.clone().requires_grad_()
        value = residual(x)
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        x = x - value / slope
    return x


def as_matrices(kind: str, scale: torch.Tensor) -> torch.Tensor:
    return torch.diag_embed(scale) if kind == "diag" else scale


def unrolled(case, kind, inputs, options, x_start):
    """Projected mean and factor from covariances, inverses and log-determinants."""
    mean, old_mean = inputs[0], inputs[2]
    cov, old = (s @ s.mT for s in (as_matrices(kind, inputs[1]), as_matrices(kind, inputs[3])))
    precision, old_precision = torch.linalg.inv(cov), torch.linalg.inv(old)
    dim = mean.shape[-1]
    bound = options["bound"] if case.joint else options["cov_bound"]

    def solution(x):
        share = x[..., None, None]
        q = old_precision + share * (precision - old_precision)
        scale = 1.0
        if case.entropy is not None:
            entropy = 0.5 * (dim * math.log(2.0 * math.pi * math.e) - torch.logdet(q))
            log_k = (2.0 / dim) * (options[case.entropy] - entropy)
            scale = torch.exp(log_k if case.entropy == "entropy" else log_k.clamp_min(0.0))[..., None, None]
        new_cov = scale * torch.linalg.inv(q)
        linear = share * (precision @ mean[..., None]) + (1.0 - share) * (old_precision @ old_mean[..., None])
        return torch.linalg.solve(q, linear)[..., 0], new_cov

    def divergence(x):
        new_mean, new_cov = solution(x)
        shift = (new_mean - old_mean)[..., None]
        trace = torch.diagonal(old_precision @ new_cov, dim1=-2, dim2=-1).sum(-1)
        cov_part = 0.5 * (trace - dim + torch.logdet(old) - torch.logdet(new_cov))
        return cov_part + 0.5 * (shift.mT @ old_precision @ shift)[..., 0, 0] if case.joint else cov_part

    x = newton(lambda x: torch.sqrt(divergence(x)) - torch.sqrt(bound), x_start)
    new_mean, new_cov = solution(x)
    if not case.joint:
        distance = 0.5 * ((mean - old_mean)[..., None].mT @ old_precision @ (mean - old_mean)[..., None])[..., 0, 0]
        new_mean = old_mean + torch.sqrt(options["mean_bound"] / distance)[..., None] * (mean - old_mean)
    factor = torch.linalg.cholesky(new_cov)
    return new_mean, torch.diagonal(factor, dim1=-2, dim2=-1) if kind == "diag" else factor


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("case", [c for c in CASES if c.metric == "kl"], ids=str)
def test_implicit_gradient_equals_unrolled(case, kind):
    for seed in (0, 1, 2):
        pair = gentle_pair(kind, 6, 3, seed=seed)
        predicted, old = policies(framework, pair)
        options = case.call_options(framework, pair)
        leaves = [x.clone().requires_grad_() for x in (*predicted, *old, *options.values())]
        named = dict(zip(options, leaves[4:], strict=True))
        layer, make = case.make(framework), TYPES[kind]
        projected = layer(make(*leaves[:2]), make(*leaves[2:4]), **named)
        audit = layer.audit(
            predicted, make(*(x.detach() for x in projected)), old, **{k: v.detach() for k, v in named.items()}
        )
        start = 0.97 / (1.0 + audit.cov_multiplier)
        plain = unrolled(case, kind, leaves[:4], named, start)
        weights = [torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape) for x in projected]
        for one, other in zip(projected, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
        implicit, explicit = (
            torch.autograd.grad(sum((w * x).sum() for w, x in zip(weights, found, strict=True)), leaves)
            for found in (projected, plain)
        )
        for one, other in zip(implicit, explicit, strict=True):
            one, other = (x.tril() if x.ndim == 3 else x for x in (one, other))
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


def test_entropy_of_the_comparison_is_the_packages():
    """The comparison above uses the same entropy."""
    predicted, _ = policies(framework, gentle_pair("full"))
    cov = predicted.chol @ predicted.chol.mT
    expected = 0.5 * torch.logdet(2 * torch.pi * torch.e * cov)
    torch.testing.assert_close(entropy_of(predicted), expected)
