"""Conversion of `torch.distributions` to policy values and back; subclasses, such as TorchRL's, are supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch import distributions as d
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from trpl.families import Bernoulli, Beta, Categorical, Policy, Product, is_policy, known_policies
from trpl.gaussians.values import DiagGaussian, FullGaussian
from trpl.layers.surface import Given

KNOWN = (
    "an Independent Normal, a MultivariateNormal, a Categorical, a OneHotCategorical, an Independent Bernoulli or Beta"
)


class Opened(NamedTuple):
    """The policy value inside a distribution, and the inverse conversion to a distribution of the same kind."""

    policy: Policy[Tensor]
    close: Callable[[Any], Any]


def open_distribution(p: Given, name: str) -> Opened:
    """Convert a distribution to a policy value and back; policy values pass through.

    Raises:
        ValueError: If the distribution is of no known family, or its event dimensions are not declared.
    """
    if is_policy(p):
        return Opened(cast("Policy[Tensor]", p), lambda policy: policy)
    if isinstance(p, Independent):
        base, num = p.base_dist, p.reinterpreted_batch_ndims
        if isinstance(base, Normal | d.Bernoulli | d.Beta) and num == 1:
            if isinstance(base, Normal):
                return Opened(DiagGaussian(base.loc, base.scale), to_distribution)
            if isinstance(base, d.Bernoulli):
                return Opened(Bernoulli(base.logits), to_distribution)
            return Opened(Beta(base.concentration1, base.concentration0), to_distribution)
        if isinstance(base, d.Categorical) and num == 1:  # several categoricals of one size: a product of them
            parts = tuple(Categorical(x) for x in base.logits.unbind(-2))
            return Opened(Product(parts), lambda policy: _categoricals(policy))
        if isinstance(base, Normal | d.Bernoulli | d.Beta | d.Categorical):
            kind = type(base).__name__
            raise ValueError(f"{name} must have one event dimension, Independent({kind}(...), 1), not {num}")
        if num == 0:
            inner = open_distribution(base, name)
            return Opened(inner.policy, lambda policy: Independent(inner.close(policy), 0, validate_args=False))
    if isinstance(p, MultivariateNormal):
        return Opened(FullGaussian(p.loc, p.scale_tril), to_distribution)
    if isinstance(p, d.OneHotCategorical):  # or its straight-through kind
        return Opened(Categorical(p.logits), lambda policy: type(p)(logits=policy.logits, validate_args=False))
    if isinstance(p, d.Categorical):
        return Opened(Categorical(_masked_logits(p, name)), lambda policy: _like(p, policy))
    hint = "; wrap it in Independent(..., 1)" if isinstance(p, Normal | d.Bernoulli | d.Beta) else ""
    raise ValueError(f"{name} must be a {', a '.join(known_policies())}, or {KNOWN}, not a {type(p).__name__}{hint}")


def _masked_logits(p: Any, name: str) -> Tensor:
    """Return the logits, with −inf where TorchRL's `MaskedCategorical` forbids a class by a large negative number."""
    if not hasattr(p, "_mask"):
        return p.logits
    if p._sparse_mask:
        raise ValueError(f"{name} has its allowed classes as indices; give {type(p).__name__} a boolean mask instead")
    return p.logits.masked_fill(~p.mask, -torch.inf)


def _like(p: Any, policy: Categorical[Tensor]) -> Distribution:
    """Make a categorical of the same class: TorchRL's masked and one-hot ones, else PyTorch's own."""
    options = {"mask": p.mask, "neg_inf": p.neg_inf} if hasattr(p, "_mask") else {}
    if options or (type(p) is not d.Categorical and type(p).__name__ == "OneHotCategorical"):
        return type(p)(logits=policy.logits, **options)
    return to_distribution(policy)


def from_distribution(p: Given, name: str) -> Policy[Tensor]:
    """Convert a distribution to a policy value; policy values pass through.

    Args:
        p: A policy value or a distribution.
        name: Its name in messages.

    Returns:
        The policy value.
    """
    return cast("Policy[Tensor]", p) if is_policy(p) else open_distribution(p, name).policy


def to_distribution(p: Policy[Tensor]) -> Distribution:
    """Convert a policy value to a distribution, without validating it again.

    Args:
        p: The policy value.

    Returns:
        The distribution.

    Raises:
        ValueError: For a product, which `torch.distributions` cannot represent.
    """
    if isinstance(p, DiagGaussian):
        mean, std = cast("tuple[Tensor, Tensor]", p)
        return Independent(Normal(mean, std.expand_as(mean), validate_args=False), 1, validate_args=False)
    if isinstance(p, FullGaussian):
        mean, chol = cast("tuple[Tensor, Tensor]", p)
        return MultivariateNormal(mean, scale_tril=chol, validate_args=False)
    if isinstance(p, Categorical):
        return d.Categorical(logits=cast("Tensor", p.logits), validate_args=False)
    if isinstance(p, Bernoulli):
        return Independent(d.Bernoulli(logits=cast("Tensor", p.logits), validate_args=False), 1, validate_args=False)
    if isinstance(p, Beta):
        alpha, beta = cast("tuple[Tensor, Tensor]", p)
        return Independent(d.Beta(alpha, beta, validate_args=False), 1, validate_args=False)
    raise ValueError(f"torch.distributions has no {type(p).__name__}; take its parts one by one")


def _categoricals(p: Product[Tensor]) -> Distribution:
    logits = torch.stack([x for part in p.parts for x in part.arrays], -2)
    return Independent(d.Categorical(logits=logits, validate_args=False), 1, validate_args=False)
