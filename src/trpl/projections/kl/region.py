"""The KL's trust region, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trpl.engines import is_number
from trpl.gaussians.distances import kl_cov, lower_only
from trpl.gaussians.values import FullGaussian, Gaussian
from trpl.implicit.problems import Like, Saved, Solved
from trpl.projections.kl import diagonal
from trpl.projections.kl import full as full_covariances
from trpl.projections.kl.routes import NARROW, Route, route_for

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.projections.regions import Cotangents
    from trpl.types import Array, PerState, Scale


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
        return _part(full).residuals()

    def solve_cov(
        self, e: Engine, p: Scale, q: Scale, bound: PerState, route: Route | None, *, full: bool, whole: bool
    ) -> Solved | None:
        return _part(full).solve(e, p, q, bound, route, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return diagonal.recover(e, p, q, projected)

    def pullback_cov(self, e: Engine, saved: Saved, cotangent: Scale, *, full: bool, old_too: bool) -> Cotangents:
        return _part(full).pullback(e, saved, cotangent, old_too=old_too)

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        return _part(isinstance(p, FullGaussian)).multiplier(e, p.scale, q.scale, bound)


def _part(full: bool):
    return full_covariances if full else diagonal
