"""Projection of the mean (paper, section 4.1), and the step length that it shares with the closed forms.

With δ = μ − μ_old, z = L⁻¹δ and m = ‖z‖² the Mahalanobis distance, μ̃ = μ_old + wδ, w = √(ε/m). Its derivative, with
y = L⁻ᵀz and c = ⟨δ, ḡ⟩/m:

    μ̄ = w(ḡ − cy),    μ̄_old = ḡ − μ̄,    L̄ = wc yzᵀ on its lower triangle,    ε̄ = ½ wc m/ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trpl.implicit.problems import Like, Solved
from trpl.linalg import chosen, outer, solve_vector

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import PerState, Scale, Vector


def shrinkage(e: Engine, distance: PerState, bound: PerState) -> PerState:
    """Compute √(ε/distance) where the distance exceeds ε, else 1: the feasible share of the step from old to predicted.

    It is 1/(1 + multiplier) in every closed-form projection of the paper.
    """
    return e.xp.sqrt(bound / e.xp.maximum(distance, bound))


def _whiten(e: Engine, scale: Scale, v: Vector, *, full: bool, transpose: bool = False) -> Vector:
    return solve_vector(e, scale, v, transpose=transpose) if full else v / scale


def solve(
    e: Engine, mean: Vector, old_mean: Vector, old_scale: Scale, bound: PerState, *, full: bool, whole: bool
) -> Solved | None:
    """Return μ̃ at Mahalanobis distance ε from μ_old where μ is outside, else μ; the residuals are z, m and w."""
    xp = e.xp
    shift = mean - old_mean
    whitened = _whiten(e, old_scale, shift, full=full)
    distance = e.vecdot(whitened, whitened)
    outside = ~(distance <= bound)  # NaN counts as outside, and gives NaN
    if not whole and not e.any(outside):
        return None
    weight = shrinkage(e, distance, bound)
    projected = chosen(e, outside[..., None], old_mean + weight[..., None] * shift, mean)
    if whole:
        whitened, distance = xp.broadcast_to(whitened, projected.shape), xp.broadcast_to(distance, weight.shape)
    return Solved((projected,), (whitened, distance, weight))


def recover(
    e: Engine, mean: Vector, old_mean: Vector, old_scale: Scale, bound: PerState
) -> tuple[Vector, PerState, PerState]:
    """Recompute the residuals of `solve` for standard deviations."""
    whitened = (mean - old_mean) / old_scale
    distance = e.vecdot(whitened, whitened)
    return whitened, distance, shrinkage(e, distance, bound)


def residuals() -> tuple[Like, ...]:
    """Return the shapes of z, m and w; inputs are (mean, scale, old mean, old scale, mean bound, …)."""
    batch = (0, 2, 3, 4)
    return Like(batch, ((0, -1),)), Like(batch), Like(batch)


def pullback(
    e: Engine,
    inputs: tuple[Vector, Vector, Scale, PerState],
    residuals: Sequence[PerState],
    cotangent: Vector,
    *,
    full: bool,
    old_too: bool,
) -> tuple[Vector, Vector | None, Scale | None, PerState | None]:
    """Compute the cotangents of μ and, with `old_too`, of μ_old, L and ε."""
    xp = e.xp
    mean, old_mean, scale, bound = inputs
    whitened, distance, weight = residuals
    longest = xp.maximum(distance, bound)  # the distance itself where outside; never 0
    outside = ~(distance <= bound)[..., None]

    def work(cotangent: Vector) -> tuple:
        along = e.vecdot(mean - old_mean, cotangent) / longest
        pulled = _whiten(e, scale, whitened, full=full, transpose=True)
        inner = weight[..., None] * (cotangent - along[..., None] * pulled)
        mean_bar = chosen(e, outside, inner, cotangent)
        if not old_too:
            return (mean_bar,)
        zero = xp.zeros_like(inner)
        push = xp.where(outside, (weight * along)[..., None] * pulled, zero)
        scale_bar = e.lower(scale) * outer(push, whitened) if full else push * whitened
        bound_bar = xp.where(outside[..., 0], 0.5 * weight * along * longest / bound, zero[..., 0])
        return mean_bar, xp.where(outside, cotangent - inner, zero), scale_bar, bound_bar

    def idle(cotangent: Vector) -> tuple:
        zero = xp.zeros_like(cotangent)
        return (cotangent, zero, outer(zero, zero) if full else zero, zero[..., 0]) if old_too else (cotangent,)

    found = e.branch(outside, work, idle, cotangent)
    return found if old_too else (*found, None, None, None)
