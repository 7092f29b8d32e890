"""The protocol of a trust region with one bound for the mean and another for the covariance.

The mean's projection is shared. Each region is a frozen value, so layers of any framework can hold it as configuration;
it is defined with its covariance projection: `kl/`, `wasserstein.py`, `frobenius.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from trpl.gaussians.distances import mahalanobis
from trpl.gaussians.values import Gaussian, Parts
from trpl.implicit.problems import Like, Saved, Solved

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState, Scale

Cotangents = tuple["Scale", "Scale | None", "PerState | None"]
"""Cotangents of the predicted scale, the old scale and the bound."""
SCALES = (1, 3, 5)
"""Predicted scale, old scale and bound among the inputs (mean, scale, old mean, old scale, mean bound, cov bound)."""
NUMBER, VECTOR, MATRIX = Like(SCALES), Like(SCALES, ((1, -1),)), Like(SCALES, ((1, -2), (1, -1)))
"""The shapes of a covariance's residuals."""


class Region(Protocol):
    """A trust region with one bound for the mean and another for the covariance.

    `p` and `q` are the predicted and the old scale: standard deviations or, if `full`, Cholesky factors; they and their
    bound have the same number of leading axes.
    """

    mean_weight: ClassVar[float]
    """The factor from the Mahalanobis distance to the mean part of the region's distance."""

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        """Compute the covariance part of the region's distance."""
        ...

    def for_bound(self, cov_bound: object) -> Region:
        """Return the region with the solver for a static bound; itself if the bound is an array or changes nothing."""
        ...

    def fusible(self, *, full: bool) -> bool:
        """Tell whether the covariance's solution is elementwise and without a loop."""
        ...

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        """Return the residuals' shapes, of `NUMBER`, `VECTOR` and `MATRIX`."""
        ...

    def solve_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, *, full: bool, whole: bool) -> Solved | None:
        """Return the predicted scale, or the one on the bound where it is outside; None if all are inside."""
        ...

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        """Recompute the residuals of `solve_cov` from its result; for fusible solutions."""
        ...

    def pullback_cov(self, e: Engine, saved: Saved, cotangent: Scale, *, full: bool, old_too: bool) -> Cotangents:
        """Compute the cotangents of the predicted scale and, with `old_too`, of the old scale and the bound."""
        ...

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        """Compute the Lagrange multiplier η of the covariance bound; 0 inside."""
        ...


def parts(e: Engine, region: Region, p: Gaussian, q: Gaussian) -> Parts:
    """Compute the region's distance by parts."""
    return Parts(mean=mean_distance(e, region, p, q), cov=region.cov_distance(e, p, q))


def mean_distance(e: Engine, region: Region, p: Gaussian, q: Gaussian) -> PerState:
    """Compute the mean part of the region's distance."""
    return region.mean_weight * mahalanobis(e, p, q)
