"""KL projection of standard deviations, and its pullback.

With r = L̃/L_q, N = r² − 1, S = ½L̃Ḡ and c = 2⟨S, N⟩/‖N‖², the derivatives of `full` become, entry by entry,

    L̄_p = x (L̃Ḡ − cN) L̃²/L_p³,    L̄_q = r (Ḡ − x (L̃Ḡ − cN) L̃/L_p²),    ε̄ = c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.implicit.problems import Saved, Solved, align
from trpl.linalg import chosen
from trpl.projections.kl.equation import any_root, diag_excess, narrow_root, surely_within, within
from trpl.projections.kl.routes import NARROW, Route, choose

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import PerState, Vector


def solve(e: Engine, p: Vector, q: Vector, bound: PerState, known: Route | None, *, whole: bool) -> Solved | None:
    """Return the scale at KL = ε from the old one where the predicted one is outside; residuals: r, N, x (1 inside)."""
    xp = e.xp
    excess = diag_excess(p, q)
    x = _root(e, excess, bound, known, whole=whole)
    if x is None:
        return None
    ratio = 1.0 / xp.sqrt(1.0 + x[..., None] * excess)
    projected = chosen(e, x[..., None] >= 1.0, p, q * ratio)  # an excess that overflows gives NaN, not the prediction
    return Solved((projected,), (ratio, ratio * ratio - 1.0, x))


SURELY_OUTSIDE = 0.999
"""A root below this is outside whatever the rounding."""


def _root(e: Engine, excess: Vector, bound: PerState, known: Route | None, *, whole: bool) -> PerState | None:
    """Find x, 1 where a covariance is inside; None if all are."""
    xp = e.xp
    if known is NARROW and not e.branches:  # nothing is skipped anyway, and x alone shows what is outside
        x = narrow_root(e, excess, bound)
        return xp.where(xp.any(excess != 0.0, axis=-1), x, 1.0)  # equal policies give NaN; so does an overflow
    route = choose(e, known, bound)
    if not whole:
        if e.all(surely_within(e, excess, bound)):
            return None
        if route is NARROW:
            x = narrow_root(e, excess, bound)
            if e.all(x < SURELY_OUTSIDE):
                return x
    inside = within(e, excess, bound)
    if not whole and e.all(inside):
        return None
    outside, limit = xp.broadcast_arrays(~inside, bound)
    if not whole:
        return route.root(e, excess, limit, outside)
    return e.branch(
        outside,
        lambda excess, bound, outside: route.root(e, excess, bound, outside),
        lambda excess, bound, outside: xp.ones_like(bound),
        *(excess, limit, outside),
    )


def recover(e: Engine, p: Vector, q: Vector, projected: Vector) -> tuple[Vector, Vector, PerState]:
    """Recompute the residuals of `solve` from its result: xr²A = −N, of one sign along N.

    If the bound is below rounding, N and x are 0.
    """
    xp = e.xp
    ratio, normal = projected / q, diag_excess(q, projected)
    x = _coefficient(e, e.vecdot(normal, normal), -e.vecdot(normal * ratio * ratio, diag_excess(p, q)))
    below = 1.0 - float(xp.finfo(p.dtype).eps)
    return ratio, normal, xp.where(xp.any(projected != p, axis=-1), xp.clip(x, None, below), 1.0)


def pullback(
    e: Engine, saved: Saved, cotangent: Vector, *, old_too: bool
) -> tuple[Vector, Vector | None, PerState | None]:
    """Compute the cotangents of L_p and, with `old_too`, of L_q and ε."""
    xp = e.xp
    (p, _, _), (projected,), (ratio, normal, x) = saved
    outside = x < 1.0
    mask = outside[..., None]
    inner = projected * cotangent
    along = _coefficient(e, e.vecdot(inner, normal), e.vecdot(normal, normal))
    tangent = x[..., None] * (inner - along[..., None] * normal) / p
    stretch = projected / p
    p_bar = chosen(e, mask, tangent * stretch * stretch, cotangent)
    if not old_too:
        return p_bar, None, None
    q_bar = xp.where(mask, (cotangent - tangent * stretch) * ratio, xp.zeros_like(p_bar))
    return p_bar, q_bar, xp.where(outside, along, xp.zeros_like(along))


def _coefficient(e: Engine, inner: PerState, squared: PerState) -> PerState:
    """Compute the component along N; 0 for N = 0, where projected and old agree."""
    return inner / e.xp.clip(squared, e.xp.finfo(squared.dtype).smallest_normal, None)


def multiplier(e: Engine, p: Vector, q: Vector, bound: PerState) -> PerState:
    """Compute η = 1/x − 1; 0 inside."""
    excess, bound = align((diag_excess(p, q), 1), (bound, 0))
    return 1.0 / any_root(e, excess, bound, ~within(e, excess, bound)) - 1.0
