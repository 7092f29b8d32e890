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
from typing import TYPE_CHECKING, ClassVar

from trpl.engines import mT
from trpl.gaussians.distances import Form, check_form, wasserstein_cov
from trpl.gaussians.values import Gaussian
from trpl.implicit.problems import Like, Saved, Solved
from trpl.linalg import chosen, gram_factor_pullback, square_factor
from trpl.matrix_roots import root_of_factor, root_pullback
from trpl.projections.closed_form import SCALES, diagonal_residuals, multiplier, pulled_outside
from trpl.projections.mean import shrinkage

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.projections.kl.routes import Route
    from trpl.projections.regions import Cotangents
    from trpl.types import Array, Mask, Matrix, PerState, Scale, Vector

# Standard deviations -------------------------------------------------------------------------------------------------


def solve_diagonal(e: Engine, p: Vector, q: Vector, bound: PerState, *, whole: bool) -> Solved | None:
    """q + w(p − q) where the distance exceeds ε, else p; leaves the distance and w."""
    xp = e.xp
    change = p - q
    relative = change / q
    distance = e.vecdot(relative, relative)
    outside = distance > bound
    if not whole and not e.any(outside):
        return None
    weight = shrinkage(e, distance, bound)
    projected = chosen(e, outside[..., None], q + weight[..., None] * change, p)
    return Solved((projected,), (xp.broadcast_to(distance, weight.shape) if whole else distance, weight))


def recover_diagonal(e: Engine, p: Vector, q: Vector, bound: PerState) -> tuple[PerState, PerState]:
    """What `solve_diagonal` leaves."""
    relative = (p - q) / q
    distance = e.vecdot(relative, relative)
    return distance, shrinkage(e, distance, bound)


def pullback_diagonal(
    e: Engine, saved: Saved, cotangent: Vector, *, old_too: bool
) -> tuple[Vector, Vector | None, PerState | None]:
    """Cotangents of p and, with `old_too`, of q and ε."""
    xp = e.xp
    (p, q, bound), _, (distance, weight) = saved
    longest = xp.maximum(distance, bound)
    outside = distance > bound
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


def solve_full(e: Engine, p: Matrix, q: Matrix, bound: PerState, form: Form, *, whole: bool) -> Solved | None:
    """The factor of S̃² where the distance exceeds ε, else p.

    Leaves the distance, w, S̃ and its factor, C and S; then S_old and L_q⁻¹ or, in the exact form, where S_old = I, the
    ratio L_q⁻¹L_p. The distance is ‖L_q⁻¹C‖², too: L_q is S_old with a rotation.
    """
    xp = e.xp
    if form == "commuting":
        inverse = e.solve_triangular(q, e.eye(q))
        root, bad = root_of_factor(e, q, inverse)
        new, also_bad = root_of_factor(e, p, e.solve_triangular(p, e.eye(p)))
        bad, old = bad | also_bad, (root, inverse)  # S̃, a mean of both, is conditioned no worse than the worse
        change = new - root
        relative = inverse @ change
    else:
        ratio = e.solve_triangular(q, p)
        root = e.eye(ratio)
        new, bad = root_of_factor(e, ratio, e.solve_triangular(ratio, root))
        change = relative = new - root
        old = (ratio,)
    distance = e.matrix_dot(relative, relative)
    outside = distance > bound
    if not whole and not e.any(outside):
        return None
    weight = shrinkage(e, distance, bound)
    moved = root + weight[..., None, None] * change

    def work(p: Matrix, q: Matrix, moved: Matrix, outside: Mask, bad: Mask) -> tuple[Matrix, Matrix]:
        factor = square_factor(e, moved, bad)
        result = factor if form == "commuting" else q @ factor
        return chosen(e, outside[..., None, None], result, p), factor

    def idle(p: Matrix, q: Matrix, moved: Matrix, outside: Mask, bad: Mask) -> tuple[Matrix, Matrix]:
        shape = xp.broadcast_arrays(p, q, moved)[0]
        return xp.where(outside[..., None, None], shape, p), xp.zeros_like(moved)

    projected, factor = e.branch(outside, work, idle, p, q, moved, outside, xp.broadcast_to(bad, moved.shape[:-2]))
    batch = weight.shape
    left = [distance, weight, moved, factor, change, new, *old]
    if whole:
        cores = [like.core for like in full_residuals(form)]
        left = [xp.broadcast_to(x, (*batch, *x.shape[x.ndim - len(c) :])) for x, c in zip(left, cores, strict=True)]
    return Solved((projected,), tuple(left))


def full_residuals(form: Form) -> tuple[Like, ...]:
    """Shapes of what `solve_full` leaves."""
    number, matrix = Like(SCALES), Like(SCALES, ((1, -2), (1, -1)))
    return (number,) * 2 + (matrix,) * (6 if form == "commuting" else 5)


def pullback_full(
    e: Engine, saved: Saved, cotangent: Matrix, form: Form, *, old_too: bool
) -> tuple[Matrix, Matrix | None, PerState | None]:
    """Cotangents of p and, with `old_too`, of q and ε."""
    xp = e.xp
    (p, q, bound), _, (distance, weight, moved, factor, change, new, *old) = saved
    longest = xp.maximum(distance, bound)
    outside = distance > bound

    def work(cotangent: Matrix) -> tuple:
        factor_bar = cotangent if form == "commuting" else mT(q) @ cotangent
        moved_bar = gram_factor_pullback(e, moved, factor, factor_bar)
        along = e.matrix_dot(change, moved_bar) / longest
        w, c = weight[..., None, None], along[..., None, None]
        lower, mask = e.lower(p), outside[..., None, None]
        if form == "commuting":
            root, inverse = old
            pulled = c * (mT(inverse) @ (inverse @ change))  # S_old⁻¹z
            change_bar = w * (moved_bar - pulled)
            p_bar = root_pullback(e, p, new, change_bar)
            q_bar = None
            if old_too:
                relative = (mT(inverse) @ (inverse @ root)) @ change
                q_bar = root_pullback(e, q, root, moved_bar - change_bar + w * pulled @ mT(relative))
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
        return full_residuals(self.form) if full else diagonal_residuals()

    def solve_cov(
        self, e: Engine, p: Scale, q: Scale, bound: PerState, route: Route | None, *, full: bool, whole: bool
    ) -> Solved | None:
        if full:
            return solve_full(e, p, q, bound, self.form, whole=whole)
        return solve_diagonal(e, p, q, bound, whole=whole)

    def recover_cov(self, e: Engine, p: Scale, q: Scale, bound: PerState, projected: Scale) -> tuple[Array, ...]:
        return recover_diagonal(e, p, q, bound)

    def pullback_cov(self, e: Engine, saved: Saved, cotangent: Scale, *, full: bool, old_too: bool) -> Cotangents:
        if full:
            return pullback_full(e, saved, cotangent, self.form, old_too=old_too)
        return pullback_diagonal(e, saved, cotangent, old_too=old_too)

    def cov_multiplier(self, e: Engine, p: Gaussian, q: Gaussian, bound: PerState) -> PerState:
        return multiplier(e, self.cov_distance(e, p, q), bound)
