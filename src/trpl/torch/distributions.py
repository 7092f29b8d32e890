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

    Args:
        p: A policy value or a distribution.
        name: Its name in messages.

    Returns:
        The policy value, and the way back.

    Raises:
        ValueError: If the distribution is of no known family, or its event dimensions are not declared.
    """
    if is_policy(p):
        return Opened(cast("Policy[Tensor]", p), lambda policy: policy)
    if isinstance(p, Independent):
        base, num = p.base_dist, p.reinterpreted_batch_ndims
        for kind, read, close in SCALARS:
            if isinstance(base, kind) and num == 1:
                return Opened(read(base), close)
            if isinstance(base, kind) and (num, kind) != (0, d.Categorical):  # one class is no event dimension
                word = f"Independent({type(base).__name__}(...), 1)"
                raise ValueError(f"{name} must have one event dimension, {word}, not {num}")
        if num == 0:
            inner = open_distribution(base, name)
            return Opened(inner.policy, lambda policy: Independent(inner.close(policy), 0, validate_args=False))
    if isinstance(p, MultivariateNormal):
        return Opened(FullGaussian(p.loc, p.scale_tril), to_distribution)
    if isinstance(p, d.OneHotCategorical):  # or its straight-through kind
        return Opened(Categorical(p.logits), lambda policy: type(p)(logits=policy.logits, validate_args=False))
    if isinstance(p, d.Categorical):
        return Opened(Categorical(_masked_logits(p, name)), lambda policy: _like(p, policy))
    raise ValueError(f"{name} must be a {', a '.join(known_policies())}, or {KNOWN}, not {_what_it_is(p)}")


def _what_it_is(p: object) -> str:
    """Describe something that is not accepted, with what to do about it where that is known."""
    if isinstance(p, Independent):
        return f"an Independent({type(p.base_dist).__name__})"
    hint = ""
    if isinstance(p, tuple(kind for kind, *_ in SCALARS)):
        hint = "; wrap it in Independent(..., 1)"
    elif isinstance(p, d.TransformedDistribution):
        hint = "; for a squashed Gaussian use trpl.integrations.distributions.project and penalty"
    return f"a {type(p).__name__}{hint}"


def _masked_logits(p: Any, name: str) -> Tensor:
    """Return the logits, with −inf where TorchRL's `MaskedCategorical` forbids a class by a large negative number."""
    if not hasattr(p, "_mask"):
        return p.logits
    if p._sparse_mask:
        raise ValueError(f"{name} has its allowed classes as indices; give {type(p).__name__} a boolean mask instead")
    return p.logits.masked_fill(~p.mask, -torch.inf)


def _like(p: Any, policy: Categorical[Tensor]) -> Distribution:
    """Make a categorical that takes the same actions: TorchRL's masked and one-hot ones, else PyTorch's own.

    TorchRL's `OneHotOrdinal` becomes the `OneHotCategorical` it derives from, as it computes its logits from others.
    """
    if hasattr(p, "_mask"):
        return type(p)(logits=policy.logits, mask=p.mask, neg_inf=p.neg_inf)
    one_hot = next((kind for kind in type(p).__mro__ if kind.__name__ == "OneHotCategorical"), None)
    return to_distribution(policy) if one_hot is None else one_hot(logits=policy.logits)


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
        ValueError: For a product or a sparse categorical, which `torch.distributions` cannot represent.
    """
    make = MAKERS.get(type(p))
    if make is None:
        raise ValueError(f"torch.distributions has no {type(p).__name__}; take its parts one by one")
    return make(*p.arrays)


def _independent(base: Distribution) -> Distribution:
    return Independent(base, 1, validate_args=False)


def _categoricals(p: Product[Tensor]) -> Distribution:
    logits = torch.stack([x for part in p.parts for x in part.arrays], -2)
    return _independent(d.Categorical(logits=logits, validate_args=False))


MAKERS: dict[type, Callable[..., Distribution]] = {
    DiagGaussian: lambda mean, std: _independent(Normal(mean, std.expand_as(mean), validate_args=False)),
    FullGaussian: lambda mean, chol: MultivariateNormal(mean, scale_tril=chol, validate_args=False),
    Categorical: lambda logits: d.Categorical(logits=logits, validate_args=False),
    Bernoulli: lambda logits: _independent(d.Bernoulli(logits=logits, validate_args=False)),
    Beta: lambda alpha, beta: _independent(d.Beta(alpha, beta, validate_args=False)),
}
"""The distribution of a policy value's arrays, by its type."""
SCALARS: tuple[tuple[type, Callable[[Any], Any], Callable[[Any], Distribution]], ...] = (
    (Normal, lambda p: DiagGaussian(p.loc, p.scale), to_distribution),
    (d.Bernoulli, lambda p: Bernoulli(p.logits), to_distribution),
    (d.Beta, lambda p: Beta(p.concentration1, p.concentration0), to_distribution),
    (d.Categorical, lambda p: Product(tuple(Categorical(x) for x in p.logits.unbind(-2))), _categoricals),
)
"""Distributions of one number: class, the policy value that `Independent(..., 1)` makes of it, and the way back."""
