"""`torch.distributions` to Gaussian values and back."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian


def from_distribution(p: Gaussian | Distribution, name: str) -> Gaussian:
    """A Gaussian value from an Independent Normal or a MultivariateNormal; Gaussian values pass."""
    if isinstance(p, DiagGaussian | FullGaussian):
        return p
    if isinstance(p, Independent) and isinstance(p.base_dist, Normal):
        if p.reinterpreted_batch_ndims != 1:
            raise ValueError(
                f"{name} must have one event dimension, Independent(Normal(...), 1), not {p.reinterpreted_batch_ndims}"
            )
        return DiagGaussian(p.base_dist.loc, p.base_dist.scale)
    if isinstance(p, MultivariateNormal):
        return FullGaussian(p.loc, p.scale_tril)
    hint = "; wrap it in Independent(..., 1)" if isinstance(p, Normal) else ""
    raise ValueError(
        f"{name} must be a DiagGaussian, a FullGaussian, an Independent Normal or a MultivariateNormal, "
        f"not {type(p).__name__}{hint}"
    )


def to_distribution(p: Gaussian) -> Distribution:
    """The Gaussian as a distribution; nothing is validated again."""
    mean, scale = cast("tuple[Tensor, Tensor]", p)
    if isinstance(p, DiagGaussian):
        return Independent(Normal(mean, scale.expand_as(mean), validate_args=False), 1, validate_args=False)
    return MultivariateNormal(mean, scale_tril=scale, validate_args=False)
