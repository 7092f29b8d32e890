"""Wasserstein-2 projection of the covariance, scaled by the old one (paper, section 4.2), and its pullback.

Square roots are interpolated: S̃ = S_old + w(S − S_old), w = 1/(1 + η) = √(ε/distance). In the commuting form S is the
symmetric root of the covariance itself, as in the paper. In the exact form it is the root of the whitened covariance
M = L_q⁻¹ΣL_q⁻ᵀ: the optimal transport from I to M is M^½, so the ball's nearest point lies on the geodesic
I + t(M^½ − I), with no assumption that anything commutes. For diagonal covariances the two are one.

With C = S − S_old, z = S_old⁻¹C, distance ‖z‖² and the cotangent R̄ of S̃, let c = ⟨C, R̄⟩/‖z‖². Then

    C̄ = w(R̄ − c S_old⁻¹z),    S̄_old = R̄ − C̄ + wc S_old⁻¹zzᵀ,    ε̄ = ½ wc ‖z‖²/ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trpl.engines import mT
from trpl.gaussians.distances import Form, check_form, kl_of_excess, wasserstein_cov
from trpl.gaussians.values import Gaussian
from trpl.implicit.problems import Like, Saved, Solved
from trpl.linalg import chosen, gram_factor_pullback, square_factor
from trpl.matrix_roots import root_of_factor, root_pullback
from trpl.projections.closed_form import ClosedForm, pulled_outside
from trpl.projections.mean import shrinkage
from trpl.projections.regions import MATRIX, NUMBER

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.projections.regions import Cotangents
    from trpl.types import Array, Mask, Matrix, PerState, Scale, Vector

# Standard deviations -------------------------------------------------------------------------------------------------


def solve_diagonal(e: Engine, p: Vector, q: Vector, bound: PerState, *, whole: bool) -> Solved | None:
    """Return q + w(p − q) where the distance exceeds ε, else p; the residuals are the distance and w."""
    xp = e.xp
    change = p - q
    relative = change / q
    distance = e.vecdot(relative, relative)
    outside = ~(distance <= bound)  # NaN counts as outside, and gives NaN
    if not whole and not e.any(outside):
        return None
    weight = shrinkage(e, distance, bound)
    projected = chosen(e, outside[..., None], q + weight[..., None] * change, p)
    return Solved((projected,), (xp.broadcast_to(distance, weight.shape) if whole else distance, weight))


def recover_diagonal(e: Engine, p: Vector, q: Vector, bound: PerState) -> tuple[PerState, PerState]:
    """Recompute the residuals of `solve_diagonal`."""
    relative = (p - q) / q
    distance = e.vecdot(relative, relative)
    return distance, shrinkage(e, distance, bound)


def pullback_diagonal(
    e: Engine, saved: Saved, cotangent: Vector, *, old_too: bool
) -> tuple[Vector, Vector | None, PerState | None]:
    """Compute the cotangents of p and, with `old_too`, of q and ε."""
    xp = e.xp
    (p, q, bound), _, (distance, weight) = saved
    longest = xp.maximum(distance, bound)
    outside = ~(distance <= bound)  # NaN counts as outside, and gives NaN
    mask = outside[..., None]
    change = p - q
    relative = change / q
    along = e.vecdot(change, cotangent) / longest
    pulled = along[..., None] * relative / q
    inner = weight[..., None] * (cotangent - pulled)
    p_bar = chosen(e, mask, inner, cotangent)
    if not old_too:
        return p_bar, None, None
    zero = xp.zeros_like(inner)
    q_bar = xp.where(mask, cotangent - inner + weight[..., None] * pulled * relative, zero)
    return p_bar, q_bar, xp.where(outside, 0.5 * weight * along * longest / bound, zero[..., 0])


# Cholesky factors ----------------------------------------------------------------------------------------------------


def surely_within(e: Engine, excess: Matrix, p: Matrix, q: Matrix, bound: PerState) -> Mask:
    """Return the mask where E = L_q⁻¹L_p − I alone bounds the distance by ε: it is at most 2 KL, in both forms.

    The distance is ‖Z − I‖² = ‖E + I‖² + d − 2 tr Z, with ‖Z‖ = ‖E + I‖. Z is S_old⁻¹S, or M^½, whose eigenvalues λ are
    positive and have the product |L_p|/|L_q|: tr Z − d = Σ (λ − 1) ≥ Σ log λ. For small distances 2 KL is between one
    and two times as much.
    """
    rounding = 8.0 * p.shape[-1] * float(e.xp.finfo(p.dtype).eps)
    return 2.0 * kl_of_excess(e, excess, p, q) + rounding <= bound


def solve_full(e: Engine, p: Matrix, q: Matrix, bound: PerState, form: Form, *, whole: bool) -> Solved | None:
    """Return the factor of S̃² where the distance exceeds ε, else p.

    The residuals are the distance, w, S̃, its factor and that factor's inverse, C and S; then L_q⁻¹C, S_old and L_q⁻¹
    or, in the exact form, where S_old = I, the ratio L_q⁻¹L_p. The distance is also ‖L_q⁻¹C‖²: L_q is S_old times a
    rotation.
    """
    xp = e.xp
    if form == "commuting":
        seen = e.solve_triangular(q, e.eye(q))  # L_q⁻¹
        excess = seen @ (p - q)
    else:
        seen = e.solve_triangular(q, p, lower=True)
        excess = seen - e.eye(seen)
    maybe = ~surely_within(e, excess, p, q, bound)
    if not whole and not e.any(maybe):
        return None

    def work(p: Matrix, q: Matrix, bound: PerState, seen: Matrix) -> tuple[Array, ...] | None:
        if form == "commuting":
            new, bad = root_of_factor(e, p, e.solve_triangular(p, e.eye(p)))
            root, also_bad = root_of_factor(e, q, seen)
            bad = bad | also_bad  # S̃ interpolates both, so its condition number is at most the larger
            change = new - root
            relative = seen @ change
            old = (relative, root, seen)
        else:
            new, bad = root_of_factor(e, seen, e.solve_triangular(seen, e.eye(seen)))
            root = e.eye(new)
            change = relative = new - root
            old = (seen,)
        distance = e.matrix_dot(relative, relative)
        outside = ~(distance <= bound)  # NaN counts as outside, and gives NaN
        if not whole and not e.any(outside):
            return None
        weight = shrinkage(e, distance, bound)
        moved = root + weight[..., None, None] * change
        factor, inverse = square_factor(e, moved, xp.broadcast_to(bad, weight.shape))
        projected = chosen(
            e, outside[..., None, None], factor if form == "commuting" else e.lower_product(q, factor), p
        )
        return projected, distance, weight, moved, factor, inverse, change, new, *old

    if not whole:
        found = work(p, q, bound, seen)
        return None if found is None else Solved(found[:1], found[1:])
    shape = xp.broadcast_arrays(p, q, maybe[..., None, None])[0].shape
    likes = (Like((), ((0, 0),) * 2), *full_residuals(form))

    def whole_work(*operands: Array) -> tuple[Array, ...]:
        found = work(*operands)
        assert found is not None
        return tuple(
            [xp.broadcast_to(x, shape if like.core else shape[:-2]) for x, like in zip(found, likes, strict=True)]
        )

    def idle(p: Matrix, q: Matrix, bound: PerState, seen: Matrix) -> tuple[Array, ...]:
        zero = xp.broadcast_to(0.0 * p, shape)
        return xp.broadcast_to(p, shape), *[zero if like.core else zero[..., 0, 0] for like in likes[1:]]

    found = e.branch(maybe, whole_work, idle, p, q, bound, seen)
    return Solved(found[:1], found[1:])


def full_residuals(form: Form) -> tuple[Like, ...]:
    """Return the shapes of `solve_full`'s residuals."""
    return (NUMBER,) * 2 + (MATRIX,) * (8 if form == "commuting" else 6)


def pullback_full(
    e: Engine, saved: Saved, cotangent: Matrix, form: Form, *, old_too: bool
) -> tuple[Matrix, Matrix | None, PerState | None]:
    """Compute the cotangents of p and, with `old_too`, of q and ε."""
    xp = e.xp
    (p, q, bound), _, (distance, weight, moved, factor, inverse, change, new, *old) = saved
    longest = xp.maximum(distance, bound)
    outside = ~(distance <= bound)

    def work(cotangent: Matrix) -> tuple:
        factor_bar = cotangent if form == "commuting" else mT(q) @ cotangent
        moved_bar = gram_factor_pullback(e, moved, factor, factor_bar, inverse=inverse)
        along = e.matrix_dot(change, moved_bar) / longest
        w, c = weight[..., None, None], along[..., None, None]
        lower, mask = e.lower(p), outside[..., None, None]
        if form == "commuting":
            relative, root, old_inverse = old
            pulled = mT(old_inverse) @ (c * relative)  # c S_old⁻¹z
            change_bar = w * (moved_bar - pulled)
            p_bar = root_pullback(e, p, new, change_bar)
            q_bar = None
            if old_too:
                z = mT(old_inverse @ root) @ relative
                q_bar = root_pullback(e, q, root, moved_bar - change_bar + (w * pulled) @ mT(z))
        else:
            (ratio,) = old
            change_bar = w * (moved_bar - c * change)
            p_bar = e.solve_triangular(q, root_pullback(e, ratio, new, change_bar), transpose=True)
            q_bar = cotangent @ mT(factor) - p_bar @ mT(ratio) if old_too else None
        p_kept = chosen(e, mask, lower * p_bar, cotangent)
        if q_bar is None:
            return (p_kept,)
        zero = xp.zeros_like(q_bar)
        bound_bar = 0.5 * weight * along * longest / bound
        return p_kept, xp.where(mask, lower * q_bar, zero), xp.where(outside, bound_bar, zero[..., 0, 0])

    return pulled_outside(e, outside, work, cotangent, old_too=old_too)


# The region as a value ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wasserstein(ClosedForm):
    """Wasserstein-2 scaled by the old covariance."""

    form: Form = "commuting"

    def __post_init__(self) -> None:
        check_form(self.form)

    def cov_distance(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        return wasserstein_cov(e, p, q, form=self.form)

    def residuals(self, *, full: bool) -> tuple[Like, ...]:
        return full_residuals(self.form) if full else (NUMBER, NUMBER)

    def solve_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, *, full: bool, whole: bool) -> Solved | None:
        if full:
            return solve_full(e, p, q, bound, self.form, whole=whole)
        return solve_diagonal(e, p, q, bound, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return recover_diagonal(e, p, q, bound)

    def pullback_cov(self, e: Engine, saved: Saved, cotangent: Scale, *, full: bool, old_too: bool) -> Cotangents:
        if full:
            return pullback_full(e, saved, cotangent, self.form, old_too=old_too)
        return pullback_diagonal(e, saved, cotangent, old_too=old_too)
