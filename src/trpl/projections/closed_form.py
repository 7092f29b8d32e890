"""Code that the closed-form projections share: methods of their regions, and the branch of a pullback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self

from trpl.implicit.problems import align
from trpl.projections.mean import shrinkage

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.gaussians.values import Gaussian
    from trpl.projections.regions import Cotangents
    from trpl.types import Mask, Matrix, PerState


class ClosedForm:
    """The methods that regions with a closed form share; one solution serves every bound."""

    mean_weight: ClassVar[float] = 1.0

    if TYPE_CHECKING:

        def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState: ...

    def for_bound(self, cov_bound: object) -> Self:
        return self

    def fusible(self, *, full: bool) -> bool:
        return not full

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        """Compute η = √(distance/ε) − 1, and 0 inside."""
        return 1.0 / shrinkage(e, *align((self.cov_distance(e, p, q), 0), (bound, 0))) - 1.0


def pulled_outside(
    e: Engine, outside: Mask, work: Callable[[Matrix], tuple], cotangent: Matrix, *, old_too: bool
) -> Cotangents:
    """Compute cotangents of full covariances by `work` if any state is outside; else pass them to the prediction."""

    def idle(cotangent: Matrix) -> tuple:
        zero = e.xp.zeros_like(cotangent)
        return (cotangent, zero, zero[..., 0, 0]) if old_too else (cotangent,)

    found = e.branch(outside, work, idle, cotangent)
    return found if old_too else (*found, None, None)
