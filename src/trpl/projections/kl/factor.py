"""The projected factor for a given root: W, lower triangular with WWᵀ = P⁻¹, whitened by the old policy.

Both methods also serve the joint projection, whose Q = (1 − t)I + tΛ/s has the same form as P.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from trpl.engines import mT
from trpl.linalg import interpolated_factor, reversed_lower

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, Matrix, PerState

ACCURACY = 1e-10
"""Relative error of the KL that is accepted even if rounding would allow less."""
LARGEST_VARIANCE = 1e4
"""Largest whitened variance of a prediction for which V = I + (V − I) has no relevant cancellation."""


def widest_variance(e: Engine, kl: PerState) -> PerState:
    """Bound every variance ρ of a policy at this KL from I: ρ − 1 − log ρ ≤ 2 KL, so ρ ≤ 1 + 2 KL + 2√KL."""
    return 1.0 + 2.0 * kl + 2.0 * e.xp.sqrt(kl)


def scale_ratio(e: Engine, change: Matrix, p: Matrix, q: Matrix, wide: Mask) -> Matrix:
    """Compute V = L_p⁻¹L_q from V − I, or from the factors where the prediction is `wide` and I + (V − I) cancels."""
    wide = e.xp.broadcast_to(wide, change.shape[:-2])
    p, q = (e.xp.broadcast_to(x, change.shape) for x in (p, q))
    return e.recompute(wide, lambda p, q: (e.solve_triangular(p, q, lower=True),), (change + e.eye(change),), p, q)[0]


def cholesky_factor(e: Engine, x: PerState, reversed_excess: Matrix) -> Matrix:
    """Compute W of P = I + xA from a Cholesky factor of P; A has rows and columns in reverse order."""
    precision = x[..., None, None] * reversed_excess
    precision += e.eye(reversed_excess)  # in place: the array is new
    return reversed_lower(e, e.cholesky(precision))


def qr_factor(e: Engine, x: PerState, ratio: Matrix) -> Matrix:
    """Compute W of P = (1 − x)I + xVᵀV from a QR decomposition of V and I: no condition number is squared."""
    reverse = e.xp.flip(mT(ratio), axis=(-2, -1))
    return reversed_lower(e, interpolated_factor(e, x, reverse, e.eye(ratio)))


def kl_of_factor(e: Engine, factor: Matrix) -> PerState:
    """Compute the KL of a whitened covariance WWᵀ from I, expanded about W = I."""
    excess = factor - e.eye(factor)
    diag = e.diagonal(excess)
    return 0.5 * e.matrix_dot(excess, excess) + e.xp.sum(diag - e.xp.log1p(diag), axis=-1)


def normal(e: Engine, factor: Matrix) -> Matrix:
    """Compute N = WᵀW − I, the normal of the bound's surface: ‖N‖² = 2x KL′(x)."""
    found = e.gram(factor)
    found -= e.eye(factor)  # in place: the array is new
    return found


def polished(
    e: Engine, factor_at: Callable[[PerState], Matrix], x: PerState, bound: PerState, outside: Mask
) -> tuple[Matrix, PerState]:
    """Compute W at x, with a Newton step on the KL of W itself where that misses the bound."""
    xp = e.xp

    def polish(x: PerState, factor: Matrix, residual: PerState) -> tuple[Matrix, PerState]:
        n = normal(e, factor)
        slope = e.matrix_dot(n, n) / (2.0 * x)
        moved = xp.where(outside, x - residual / slope, x)
        x = xp.where((moved > 0.0) & (moved <= 1.0), moved, x)
        return factor_at(x), x

    factor = factor_at(x)
    residual = kl_of_factor(e, factor) - bound
    rounding = 100.0 * math.sqrt(factor.shape[-1]) * float(xp.finfo(x.dtype).eps) * xp.sqrt(bound)
    rough = outside & ~(xp.abs(residual) <= xp.maximum(rounding, ACCURACY * bound))
    return e.branch(rough, polish, lambda x, factor, residual: (factor, x), x, factor, residual)
