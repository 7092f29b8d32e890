"""The KL's trust region, as a value."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trpl.engines import is_number
from trpl.gaussians.distances import kl_cov, lower_only
from trpl.gaussians.values import FullGaussian, Gaussian
from trpl.implicit.problems import Like, Saved, Solved
from trpl.projections.kl import diagonal
from trpl.projections.kl import full as full_covariances
from trpl.projections.kl.routes import NARROW, Route, route_for
from trpl.projections.regions import MATRIX, NUMBER, VECTOR

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.projections.regions import Cotangents
    from trpl.types import Array, PerState, Scale


@dataclass(frozen=True)
class KL:
    """Reverse KL: ½ Mahalanobis² for the mean, ½(tr − d + log det) for the covariance.

    Args:
        route: The solver, if the bound is static; else the values of the bound select one.
    """

    route: Route | None = None
    mean_weight: ClassVar[float] = 0.5

    def __repr__(self) -> str:
        return f"KL({self.route or ''})"

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        return kl_cov(e, lower_only(e, p), lower_only(e, q))

    def for_bound(self, cov_bound: object) -> KL:
        return _routed(float(cov_bound)) if is_number(cov_bound) else self

    def fusible(self, *, full: bool) -> bool:
        return self.route is NARROW and not full

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        return (MATRIX, NUMBER, MATRIX) if full else (VECTOR, VECTOR, NUMBER)

    def solve_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, *, full: bool, whole: bool) -> Solved | None:
        return _part(full).solve(e, p, q, bound, self.route, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return diagonal.recover(e, p, q, projected)

    def pullback_cov(self, e: Engine, saved: Saved, cotangent: Scale, *, full: bool, old_too: bool) -> Cotangents:
        return _part(full).pullback(e, saved, cotangent, old_too=old_too)

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        return _part(isinstance(p, FullGaussian)).multiplier(e, p.scale, q.scale, bound)


@functools.lru_cache(maxsize=256)
def _routed(bound: float) -> KL:
    return KL(route_for(bound))


def _part(full: bool):
    return full_covariances if full else diagonal
