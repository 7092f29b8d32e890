"""The trust regions with a bound for the mean and one for the covariance: what is measured, and how it is held.

The mean's projection is shared. Each region is a frozen value, so layers of any framework can hold it as configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from trpl.engines import is_number
from trpl.gaussians.distances import Form, check_form, frobenius_cov, kl_cov, lower_only, mahalanobis, wasserstein_cov
from trpl.gaussians.values import FullGaussian, Gaussian, Parts
from trpl.implicit.problems import Like, Solved, align
from trpl.projections import frobenius, wasserstein
from trpl.projections.kl import diagonal as kl_diagonal
from trpl.projections.kl import full as kl_full
from trpl.projections.kl.routes import NARROW, Route, route_for
from trpl.projections.mean import shrinkage

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState, Scale

Cotangents = tuple["Scale", "Scale | None", "PerState | None"]
"""Of the predicted scale, the old scale and the bound."""


class Region(Protocol):
    """A trust region with a bound for the mean and one for the covariance.

    `p` and `q` are the predicted and the old scale: standard deviations or, if `full`, Cholesky factors; with their
    bound they have as many leading axes each.
    """

    mean_weight: ClassVar[float]
    """The mean part of the region's distance is so many times the Mahalanobis distance."""

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        """The covariance part of the region's distance."""
        ...

    def route(self, cov_bound: object) -> Route | None:
        """The way to solve, as far as a bound that is a number decides it."""
        ...

    def fusible(self, route: Route | None, *, full: bool) -> bool:
        """Whether the covariance's solution is elementwise and without a loop."""
        ...

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        """Shapes of what `solve_cov` leaves, of inputs (mean, scale, old mean, old scale, mean bound, cov bound)."""
        ...

    def solve_cov(
        self, e: Engine, p: Scale, q: Scale, bound: PerState, route: Route | None, *, full: bool, whole: bool
    ) -> Solved | None:
        """The scale on the bound where the predicted one is outside, else that; None if nothing is outside."""
        ...

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        """What `solve_cov` leaves, from its result; for fusible solutions."""
        ...

    def pullback_cov(
        self,
        e: Engine,
        inputs: tuple[Scale, Scale, PerState],
        projected: Scale,
        residuals: Sequence[Array],
        cotangent: Scale,
        *,
        full: bool,
        old_too: bool,
    ) -> Cotangents:
        """Cotangents of the predicted scale and, with `old_too`, of the old scale and the bound."""
        ...

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        """The Lagrangian multiplier η of the covariance bound; 0 inside."""
        ...


@dataclass(frozen=True)
class KL:
    """Reverse KL: ½ Mahalanobis² for the mean, ½(tr − d + log det) for the covariance."""

    mean_weight: ClassVar[float] = 0.5

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        return kl_cov(e, lower_only(e, p), lower_only(e, q))

    def route(self, cov_bound: object) -> Route | None:
        return route_for(float(cov_bound)) if is_number(cov_bound) else None  # pyright: ignore[reportArgumentType]

    def fusible(self, route: Route | None, *, full: bool) -> bool:
        return route is NARROW and not full

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        return kl_full.residuals() if full else kl_diagonal.residuals()

    def solve_cov(
        self, e: Engine, p: Scale, q: Scale, bound: PerState, route: Route | None, *, full: bool, whole: bool
    ) -> Solved | None:
        return (kl_full if full else kl_diagonal).solve(e, p, q, bound, route, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return kl_diagonal.recover(e, p, q, projected)

    def pullback_cov(
        self,
        e: Engine,
        inputs: tuple[Scale, Scale, PerState],
        projected: Scale,
        residuals: Sequence[Array],
        cotangent: Scale,
        *,
        full: bool,
        old_too: bool,
    ) -> Cotangents:
        part = kl_full if full else kl_diagonal
        return part.pullback(e, inputs[0], inputs[1], projected, residuals, cotangent, old_too=old_too)

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        part = kl_full if isinstance(p, FullGaussian) else kl_diagonal
        return part.multiplier(e, p.scale, q.scale, bound)


def _closed_form_multiplier(e: Engine, distance: PerState, bound: PerState) -> PerState:
    """η = √(distance/ε) − 1, and 0 inside."""
    return 1.0 / shrinkage(e, *align((distance, 0), (bound, 0))) - 1.0


@dataclass(frozen=True)
class Wasserstein:
    """Wasserstein-2 scaled by the old covariance."""

    form: Form = "commuting"
    mean_weight: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_form(self.form)

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        return wasserstein_cov(e, p, q, form=self.form)

    def route(self, cov_bound: object) -> Route | None:
        return None

    def fusible(self, route: Route | None, *, full: bool) -> bool:
        return not full

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        return wasserstein.full_residuals(self.form) if full else wasserstein.diagonal_residuals()

    def solve_cov(
        self, e: Engine, p: Scale, q: Scale, bound: PerState, route: Route | None, *, full: bool, whole: bool
    ) -> Solved | None:
        if full:
            return wasserstein.solve_full(e, p, q, bound, self.form, whole=whole)
        return wasserstein.solve_diagonal(e, p, q, bound, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return wasserstein.recover_diagonal(e, p, q, bound)

    def pullback_cov(
        self,
        e: Engine,
        inputs: tuple[Scale, Scale, PerState],
        projected: Scale,
        residuals: Sequence[Array],
        cotangent: Scale,
        *,
        full: bool,
        old_too: bool,
    ) -> Cotangents:
        if full:
            return wasserstein.pullback_full(e, inputs, residuals, cotangent, self.form, old_too=old_too)
        return wasserstein.pullback_diagonal(e, inputs, residuals, cotangent, old_too=old_too)

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        return _closed_form_multiplier(e, self.cov_distance(e, p, q), bound)


@dataclass(frozen=True)
class Frobenius:
    """Frobenius norm of the difference of covariances, plain or whitened by the old one."""

    whitened: bool = False
    mean_weight: ClassVar[float] = 1.0

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        return frobenius_cov(e, p, q, whitened=self.whitened)

    def route(self, cov_bound: object) -> Route | None:
        return None

    def fusible(self, route: Route | None, *, full: bool) -> bool:
        return not full

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        return frobenius.full_residuals() if full else frobenius.diagonal_residuals()

    def solve_cov(
        self, e: Engine, p: Scale, q: Scale, bound: PerState, route: Route | None, *, full: bool, whole: bool
    ) -> Solved | None:
        solve = frobenius.solve_full if full else frobenius.solve_diagonal
        return solve(e, p, q, bound, whitened=self.whitened, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return frobenius.recover_diagonal(e, p, q, bound, whitened=self.whitened)

    def pullback_cov(
        self,
        e: Engine,
        inputs: tuple[Scale, Scale, PerState],
        projected: Scale,
        residuals: Sequence[Array],
        cotangent: Scale,
        *,
        full: bool,
        old_too: bool,
    ) -> Cotangents:
        pullback = frobenius.pullback_full if full else frobenius.pullback_diagonal
        return pullback(e, inputs, projected, residuals, cotangent, whitened=self.whitened, old_too=old_too)

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        return _closed_form_multiplier(e, self.cov_distance(e, p, q), bound)


def parts(e: Engine, region: Region, p: Gaussian, q: Gaussian) -> Parts:
    """The region's distance by parts."""
    return Parts(mean=mean_distance(e, region, p, q), cov=region.cov_distance(e, p, q))


def mean_distance(e: Engine, region: Region, p: Gaussian, q: Gaussian) -> PerState:
    """The mean part of the region's distance."""
    return region.mean_weight * mahalanobis(e, p, q)
