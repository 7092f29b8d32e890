"""KL projection of full covariances, and its pullback.

With W the projected factor whitened by the old policy (WWᵀ = P⁻¹, L̃ = L_qW) and N = WᵀW − I, all derivatives are
short. Let S = ½(Φ + Φᵀ)(L̃ᵀḠ) be the cotangent of L̃ pulled back to P, and S⊥ = S − (⟨S, N⟩/‖N‖²) N its part tangential
to the bound's surface: the derivative of x removes the rest. Then with Y = L_p⁻¹L̃ = VW and Z = L_p⁻ᵀYS⊥

    L̄_p = 2x ZYᵀ,    L̄_q = (Ḡ − 2x Z)Wᵀ,    ε̄ = 2⟨S, N⟩/‖N‖²,    each on its lower triangle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import mT
from trpl.gaussians.distances import kl_of_scales
from trpl.implicit.problems import Saved, Solved, align
from trpl.linalg import chosen, symmetrised_half_tril
from trpl.projections.closed_form import pulled_outside
from trpl.projections.kl.equation import any_root, excess_of_change, kl_range, singular_excess
from trpl.projections.kl.factor import LARGEST_VARIANCE, normal, scale_ratio, widest_variance
from trpl.projections.kl.routes import Route, choose

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, Matrix, PerState


def solve(e: Engine, p: Matrix, q: Matrix, bound: PerState, known: Route | None, *, whole: bool) -> Solved | None:
    """Return the factor with KL = ε to the old covariance where the predicted one is outside.

    The residuals are W, x (1 inside) and V.
    """
    xp = e.xp
    change = e.solve_triangular(p, q - p, lower=True)
    excess = excess_of_change(e, change)
    outside, wide = _outside(e, p, q, bound, excess)
    if not whole and not e.any(outside):
        return None
    factor_for = choose(e, known, bound).factor

    def work(
        p: Matrix, q: Matrix, bound: PerState, outside: Mask, wide: Mask, change: Matrix, excess: Matrix
    ) -> tuple[Matrix, Matrix, PerState, Matrix]:
        factor, x = factor_for(e, change, excess, bound, outside)
        below = 1.0 - float(xp.finfo(x.dtype).eps)  # x = 1 is reserved for inside
        return (
            chosen(e, outside[..., None, None], e.lower_product(q, factor), p),
            factor,
            xp.where(outside, xp.clip(x, None, below), 1.0),
            scale_ratio(e, change, p, q, wide),
        )

    def idle(
        p: Matrix, q: Matrix, bound: PerState, outside: Mask, wide: Mask, change: Matrix, excess: Matrix
    ) -> tuple[Matrix, Matrix, PerState, Matrix]:
        shape = xp.broadcast_arrays(p, q, outside[..., None, None])[0]
        zero = xp.zeros_like(shape)
        return xp.where(outside[..., None, None], shape, p), zero, xp.ones_like(shape[..., 0, 0]), zero

    outside, bound = xp.broadcast_arrays(outside, bound) if whole else (outside, bound)
    operands = (p, q, bound, outside, wide, change, excess)
    found = e.branch(outside, work, idle, *operands) if whole else work(*operands)
    return Solved(found[:1], found[1:])


MARGIN = 1.5
"""Factor between the bound and a KL that `kl_range` decides: more than rounding of ill-conditioned factors takes."""
NEAR = 0.99
"""Largest ‖A‖ that shows that a prediction is not wide: its variances are at most 1/(1 − ‖A‖) of the old ones."""


def _outside(e: Engine, p: Matrix, q: Matrix, bound: PerState, excess: Matrix) -> tuple[Mask, Mask]:
    """Return which predictions are outside, and which are wide; by ‖A‖, unless it leaves a state undecided.

    The KL itself would take a second triangular solve.
    """
    size = e.xp.sqrt(e.matrix_dot(excess, excess))
    least, most = kl_range(e, size)
    far = size > NEAR
    sure = (least > 2.0 * MARGIN * bound) & ~far | (MARGIN * most <= 2.0 * bound)

    def by_kl(p: Matrix, q: Matrix, bound: PerState, least: PerState, far: Mask) -> tuple[Mask, Mask]:
        kl = kl_of_scales(e, p, q, full=True)
        return ~(kl <= bound), ~(widest_variance(e, kl) <= LARGEST_VARIANCE)

    def by_size(p: Matrix, q: Matrix, bound: PerState, least: PerState, far: Mask) -> tuple[Mask, Mask]:
        return least > 2.0 * bound, far

    return e.branch(~sure, by_kl, by_size, p, q, bound, least, far)


def pullback(
    e: Engine, saved: Saved, cotangent: Matrix, *, old_too: bool
) -> tuple[Matrix, Matrix | None, PerState | None]:
    """Compute the cotangents of L_p and, with `old_too`, of L_q and ε; in place where arrays are new."""
    xp = e.xp
    (p, _, _), (projected,), (factor, x, ratio) = saved
    outside = x < 1.0

    def work(cotangent: Matrix) -> tuple:
        inner = symmetrised_half_tril(e, mT(projected) @ cotangent)
        n = normal(e, factor)
        squared = xp.clip(e.matrix_dot(n, n), xp.finfo(x.dtype).smallest_normal, None)  # 0 where nothing moves
        along = e.matrix_dot(inner, n) / squared
        n *= along[..., None, None]
        inner -= n
        inner *= 2.0 * x[..., None, None]  # now 2x S⊥
        stretch = e.lower_product(ratio, factor)
        pulled = e.solve_triangular(p, stretch @ inner, transpose=True)
        lower, mask = e.lower(p), outside[..., None, None]
        p_bar = pulled @ mT(stretch)
        p_bar *= lower
        p_bar = chosen(e, mask, p_bar, cotangent)
        if not old_too:
            return (p_bar,)
        q_bar = chosen(e, mask, lower * ((cotangent - pulled) @ mT(factor)), 0.0 * cotangent)
        return p_bar, q_bar, xp.where(outside, 2.0 * along, 0.0 * along)

    return pulled_outside(e, outside, work, cotangent, old_too=old_too)


def multiplier(e: Engine, p: Matrix, q: Matrix, bound: PerState) -> PerState:
    """Compute η = 1/x − 1; 0 inside."""
    p, q, bound = align((p, 2), (q, 2), (bound, 0))
    outside = kl_of_scales(e, p, q, full=True) > bound
    return 1.0 / any_root(e, singular_excess(e, e.solve_triangular(p, q - p, lower=True)), bound, outside) - 1.0
