"""Frobenius projection of the covariance (paper, section 4.2 and appendix), and its pullback.

Covariances are interpolated: Σ̃ = Σ_old + wΔ, Δ = Σ − Σ_old, w = 1/(1 + η) = √(ε/distance), with the distance ‖D‖² plain
(D = Δ) or whitened by Σ_old. The plain one depends on the actions' units and is unstable for small covariances, as the
paper says. With K̄ the cotangent of Σ̃ and c = ⟨K̄, Δ⟩/‖D‖²,

    Δ̄ = wK̄ directly,    D̄ = −wc D through the distance,    Σ̄_old = K̄ − Δ̄ − …,    ε̄ = ½ wc ‖D‖²/ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trpl.engines import mT
from trpl.gaussians.distances import cov_difference, frobenius_cov
from trpl.gaussians.values import Gaussian
from trpl.implicit.problems import Like, Saved, Solved
from trpl.linalg import chosen, gram_pullback, mixed_factor
from trpl.projections.closed_form import ClosedForm, pulled_outside
from trpl.projections.mean import shrinkage
from trpl.projections.regions import MATRIX, NUMBER

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.projections.regions import Cotangents
    from trpl.types import Array, Mask, Matrix, PerState, Scale, Vector

# Standard deviations -------------------------------------------------------------------------------------------------


def solve_diagonal(e: Engine, p: Vector, q: Vector, bound: PerState, *, whitened: bool, whole: bool) -> Solved | None:
    """Return √(wp² + (1 − w)q²) where the distance exceeds ε, else p; the residuals are the distance and w."""
    xp = e.xp
    difference = cov_difference(e, p, q, full=False, whitened=whitened)
    distance = e.vecdot(difference, difference)
    outside = ~(distance <= bound)  # NaN counts as outside, and gives NaN
    if not whole and not e.any(outside):
        return None
    weight = shrinkage(e, distance, bound)
    w = weight[..., None]
    variance = w * p * p + (1.0 - w) * q * q  # a sum of positive terms, without cancellation
    projected = chosen(e, outside[..., None], xp.sqrt(variance), p)
    return Solved((projected,), (xp.broadcast_to(distance, weight.shape) if whole else distance, weight))


def recover_diagonal(e: Engine, p: Vector, q: Vector, bound: PerState, *, whitened: bool) -> tuple[PerState, PerState]:
    """Recompute the residuals of `solve_diagonal`."""
    difference = cov_difference(e, p, q, full=False, whitened=whitened)
    distance = e.vecdot(difference, difference)
    return distance, shrinkage(e, distance, bound)


def pullback_diagonal(
    e: Engine, saved: Saved, cotangent: Vector, *, whitened: bool, old_too: bool
) -> tuple[Vector, Vector | None, PerState | None]:
    """Compute the cotangents of p and, with `old_too`, of q and ε."""
    xp = e.xp
    (p, q, bound), (projected,), (distance, weight) = saved
    longest = xp.maximum(distance, bound)
    outside = ~(distance <= bound)  # NaN counts as outside, and gives NaN
    mask, w = outside[..., None], weight[..., None]
    difference = (p - q) * (p + q)
    variance_bar = 0.5 * cotangent / projected
    along = e.vecdot(variance_bar, difference) / longest
    unit = q * q if whitened else 1.0
    pulled = along[..., None] * difference / (unit * unit)
    inner = w * (variance_bar - pulled)
    p_bar = chosen(e, mask, 2.0 * p * inner, cotangent)
    if not old_too:
        return p_bar, None, None
    zero = xp.zeros_like(p_bar)
    old_bar = variance_bar - inner
    if whitened:
        old_bar = old_bar + w * pulled * difference / unit  # the unit is the old variance
    bound_bar = xp.where(outside, 0.5 * weight * along * longest / bound, zero[..., 0])
    return p_bar, xp.where(mask, 2.0 * q * old_bar, zero), bound_bar


# Cholesky factors ----------------------------------------------------------------------------------------------------


def solve_full(e: Engine, p: Matrix, q: Matrix, bound: PerState, *, whitened: bool, whole: bool) -> Solved | None:
    """Return the factor of Σ̃ where the distance exceeds ε, else p; residuals: D, its norm, w, the factor's inverse."""
    xp = e.xp
    difference = cov_difference(e, p, q, full=True, whitened=whitened)
    distance = e.matrix_dot(difference, difference)
    outside = ~(distance <= bound)  # NaN counts as outside, and gives NaN
    if not whole and not e.any(outside):
        return None
    weight = shrinkage(e, distance, bound)

    def work(p: Matrix, q: Matrix, weight: PerState, outside: Mask, difference: Matrix) -> tuple[Matrix, Matrix]:
        factor, inverse = mixed_factor(e, weight, p, q, seen=difference if whitened else None)
        return chosen(e, outside[..., None, None], factor, p), inverse

    def idle(p: Matrix, q: Matrix, weight: PerState, outside: Mask, difference: Matrix) -> tuple[Matrix, Matrix]:
        shape = xp.broadcast_arrays(p, q, weight[..., None, None])[0]
        return shape, xp.zeros_like(shape)

    projected, inverse = e.branch(outside, work, idle, p, q, weight, outside, difference)
    if whole:
        difference = xp.broadcast_to(difference, projected.shape)
        distance = xp.broadcast_to(distance, weight.shape)
    return Solved((projected,), (difference, distance, weight, inverse))


def pullback_full(
    e: Engine, saved: Saved, cotangent: Matrix, *, whitened: bool, old_too: bool
) -> tuple[Matrix, Matrix | None, PerState | None]:
    """Compute the cotangents of p and, with `old_too`, of q and ε."""
    xp = e.xp
    (p, q, bound), (projected,), (difference, distance, weight, inverse) = saved
    longest = xp.maximum(distance, bound)
    outside = ~(distance <= bound)

    def work(cotangent: Matrix) -> tuple:
        cov_bar = gram_pullback(e, projected, cotangent, inverse=inverse)
        w, lower, mask = weight[..., None, None], e.lower(p), outside[..., None, None]
        if whitened:
            change = p - q
            moved = e.matrix_dot(cov_bar @ p, change) + e.matrix_dot(cov_bar @ q, change)  # ⟨K̄, Δ⟩
        else:
            moved = e.matrix_dot(cov_bar, difference)
        along = moved / longest
        through = (weight * along)[..., None, None] * difference  # −D̄
        direct = w * cov_bar
        if whitened:
            excess = e.solve_triangular(q, p - q, lower=True)
            pushed = e.solve_triangular(q, 2.0 * (through + through @ excess), transpose=True)
            p_bar = 2.0 * direct @ p - pushed
        else:
            excess, pushed = None, None
            direct -= through
            p_bar = 2.0 * direct @ p
        p_bar = chosen(e, mask, lower * p_bar, cotangent)
        if not old_too:
            return (p_bar,)
        pulled = pushed + pushed @ mT(excess) if pushed is not None and excess is not None else 2.0 * through @ q
        q_bar = lower * (2.0 * (1.0 - w) * (cov_bar @ q) + pulled)
        zero = xp.zeros_like(q_bar)
        bound_bar = 0.5 * weight * along * longest / bound
        return p_bar, xp.where(mask, q_bar, zero), xp.where(outside, bound_bar, zero[..., 0, 0])

    return pulled_outside(e, outside, work, cotangent, old_too=old_too)


# The region as a value ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frobenius(ClosedForm):
    """Frobenius norm of the difference of covariances, plain or whitened by the old one."""

    whitened: bool = False

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        return frobenius_cov(e, p, q, whitened=self.whitened)

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        return (MATRIX, NUMBER, NUMBER, MATRIX) if full else (NUMBER, NUMBER)

    def solve_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, *, full: bool, whole: bool) -> Solved | None:
        solve = solve_full if full else solve_diagonal
        return solve(e, p, q, bound, whitened=self.whitened, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return recover_diagonal(e, p, q, bound, whitened=self.whitened)

    def pullback_cov(self, e: Engine, saved: Saved, cotangent: Scale, *, full: bool, old_too: bool) -> Cotangents:
        pullback = pullback_full if full else pullback_diagonal
        return pullback(e, saved, cotangent, whitened=self.whitened, old_too=old_too)
