"""The trust regions: what is measured, and how a policy is brought back inside.

A region with separate bounds is a metric and a covariance projection; the mean's projection is shared. Each is a frozen
value, so layers of any framework can hold it as configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from trpl.gaussians.distances import Form, check_form, frobenius_cov, kl_cov, lowered, mahalanobis, wasserstein_cov
from trpl.gaussians.values import Gaussian, Pair, Parts
from trpl.projections import frobenius, kl, wasserstein
from trpl.projections.mean import project_mean, shrinkage

Array = Any


class SeparateRegion(Protocol):
    """A trust region with a bound for the mean and one for the covariance."""

    mean_weight: ClassVar[float]
    """The mean part of the region's distance is so many times the Mahalanobis distance."""
    by_hand: ClassVar[bool]
    """Whether all derivatives of the projection are written by hand, so that no framework need see its operations."""

    def cov_distance(self, p: Gaussian, q: Gaussian) -> Array:
        """The covariance part of the region's distance."""
        ...

    def project_cov(self, pair: Pair, bound: Array, *, largest: float = math.inf) -> Array:
        """Standard deviations or Cholesky factors on the bound where the predicted ones are outside, else those.

        `largest` is what the bound is known not to exceed, also where its value cannot be looked at.
        """
        ...

    def cov_multiplier(self, predicted: Gaussian, old: Gaussian, bound: Array) -> Array:
        """The Lagrangian multiplier η of the covariance bound; 0 inside."""
        ...


@dataclass(frozen=True)
class KL:
    """Reverse KL: ½ Mahalanobis² for the mean, ½(tr − d + log det) for the covariance."""

    mean_weight: ClassVar[float] = 0.5
    by_hand: ClassVar[bool] = True

    def cov_distance(self, p: Gaussian, q: Gaussian) -> Array:
        return kl_cov(lowered(p), lowered(q))

    def project_cov(self, pair: Pair, bound: Array, *, largest: float = math.inf) -> Array:
        return kl.project_cov(pair, bound, largest=largest)

    def cov_multiplier(self, predicted: Gaussian, old: Gaussian, bound: Array) -> Array:
        return kl.multiplier(predicted, old, bound)


@dataclass(frozen=True)
class Wasserstein:
    """Wasserstein-2 scaled by the old covariance."""

    form: Form = "commuting"
    mean_weight: ClassVar[float] = 1.0
    by_hand: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_form(self.form)

    def cov_distance(self, p: Gaussian, q: Gaussian) -> Array:
        return wasserstein_cov(p, q, form=self.form)

    def project_cov(self, pair: Pair, bound: Array, *, largest: float = math.inf) -> Array:
        return wasserstein.project_cov(pair, bound, form=self.form)

    def cov_multiplier(self, predicted: Gaussian, old: Gaussian, bound: Array) -> Array:
        return 1.0 / shrinkage(self.cov_distance(predicted, old), bound) - 1.0


@dataclass(frozen=True)
class Frobenius:
    """Frobenius norm of the difference of covariances, plain or whitened by the old one."""

    whitened: bool = False
    mean_weight: ClassVar[float] = 1.0
    by_hand: ClassVar[bool] = False

    def cov_distance(self, p: Gaussian, q: Gaussian) -> Array:
        return frobenius_cov(p, q, whitened=self.whitened)

    def project_cov(self, pair: Pair, bound: Array, *, largest: float = math.inf) -> Array:
        return frobenius.project_cov(pair, bound, whitened=self.whitened)

    def cov_multiplier(self, predicted: Gaussian, old: Gaussian, bound: Array) -> Array:
        return 1.0 / shrinkage(self.cov_distance(predicted, old), bound) - 1.0


def parts(region: SeparateRegion, p: Gaussian, q: Gaussian) -> Parts:
    """The region's distance by parts."""
    return Parts(mean=mean_distance(region, p, q), cov=region.cov_distance(p, q))


def mean_distance(region: SeparateRegion, p: Gaussian, q: Gaussian) -> Array:
    """The mean part of the region's distance."""
    return region.mean_weight * mahalanobis(p, q)


def project_separately(
    region: SeparateRegion, pair: Pair, *, mean_bound: Array, cov_bound: Array, largest_cov_bound: float
) -> Gaussian:
    """Algorithm 1 of the paper without entropy: mean and covariance, each onto its own bound where it is outside.

    A part of which nothing is outside is handed back as it came, without any work.
    """
    mean = project_mean(pair, mean_bound / region.mean_weight)
    return type(pair.predicted)(mean, region.project_cov(pair, cov_bound, largest=largest_cov_bound))
