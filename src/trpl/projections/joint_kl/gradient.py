"""The pullback of the joint KL projection, from its result alone.

The projection interpolates natural parameters, θ̃ = (x/k) θ + ((1 − x)/k) θ_old, where x and k keep the KL and, if it
is constrained, the entropy constant. Write cotangents of the result as pairs (S, n): with those Ḡ of L̃ and ḡ of μ̃,
S = ½(Φ + Φᵀ)(L̃ᵀḠ) and n = L̃ᵀḡ. With W and m̃ the result whitened by the old policy, N = WᵀW − I and v = Wᵀm̃, the
KL's own derivative is the pair (½N, v) and the entropy's (½I, 0). Projecting onto the constraints' tangent space gives

    S⊥ = S − ½aN − ½bI,    n⊥ = n − av,    a = (⟨S, N₀⟩ + ⟨n, v⟩)/(½‖N₀‖² + ‖v‖²),    b = (2/d)(tr S − ½a tr N),

with N₀ = N less the mean of its diagonal if the entropy is constrained; else N₀ = N and b = 0. Then ε̄ = a, β̄ = b, and
with Y = L_p⁻¹L̃ = VW, y = Yn⊥, r_q and δ_q the shifts μ − μ̃ and μ − μ_old whitened by the old policy, r = Vr_q

    μ̄   = (x/k) L_p⁻ᵀy,                                         μ̄_old = ḡ − μ̄,
    L̄_p = (x/k) L_p⁻ᵀ(2YS⊥Yᵀ − yrᵀ − ryᵀ),
    L̄_q = ḠWᵀ + ḡm̃ᵀ − μ̄δ_qᵀ − (x/k) L_p⁻ᵀ(2YS⊥Wᵀ − yr_qᵀ − r(Wn⊥)ᵀ) − b diag(L_q)⁻¹,

on lower triangles; L̄_q follows from the others because the projection commutes with linear maps. Inside, if only the
entropy constrains, L̃ = √k L_p:  L̄_p = √k Ḡ − b diag(L_p)⁻¹ and b = ⟨Ḡ, L̃⟩/d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trpl.engines import mT
from trpl.gaussians.values import FullGaussian, Gaussian
from trpl.linalg import apply, outer, symmetrised_half_tril
from trpl.projections.kl.factor import normal

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, Matrix, PerState, Scale, Vector


class _Result(NamedTuple):
    """The projected policy and the residuals of `solution.solve`."""

    mean: Vector
    scale: Scale
    shift: Vector
    white_mean: Vector
    factor: Scale
    share: PerState
    held: Mask


def _constraints(
    e: Engine, inner: PerState, squared: PerState, trace: PerState, normal_trace: PerState, result: _Result, dim: int
) -> tuple[PerState, PerState]:
    """Compute a and b; `inner` and `squared` are ⟨S, N⟩ + ⟨n, v⟩ and ½‖N‖² + ‖v‖², before subtracting the trace."""
    xp = e.xp
    inner = xp.where(result.held, inner - trace * normal_trace / dim, inner)
    squared = xp.where(result.held, squared - 0.5 * normal_trace * normal_trace / dim, squared)
    a = inner / xp.clip(squared, xp.finfo(squared.dtype).smallest_normal, None)
    b = (2.0 / dim) * (trace - 0.5 * a * normal_trace)
    return a, xp.where(result.held, b, 0.0 * b)


def _outside_diagonal(
    e: Engine, p: Gaussian, q: Gaussian, result: _Result, mean_bar: Vector, scale_bar: Vector
) -> tuple[Array, ...]:
    """Compute the cotangents of μ, L_p, μ_old, L_q, ε and β, entry by entry."""
    w = result.factor
    n, v = result.scale * mean_bar, w * result.white_mean
    s, normal = 0.5 * result.scale * scale_bar, w * w - 1.0
    sums = e.xp.sum(s, axis=-1), e.xp.sum(normal, axis=-1)
    inner, squared = e.vecdot(s, normal) + e.vecdot(n, v), 0.5 * e.vecdot(normal, normal) + e.vecdot(v, v)
    a, b = _constraints(e, inner, squared, *sums, result, p.dim)
    s = s - 0.5 * a[..., None] * normal - 0.5 * b[..., None]
    n = n - a[..., None] * v
    stretch, r = result.scale / p.scale, (p.mean - result.mean) / p.scale
    share, y = result.share[..., None] / p.scale, stretch * n
    p_mean = share * y
    p_scale = share * 2.0 * (stretch * s * stretch - y * r)
    white = result.shift - result.white_mean
    q_scale = scale_bar * w + mean_bar * result.white_mean - p_mean * result.shift - b[..., None] / q.scale
    q_scale = q_scale - share * (2.0 * stretch * s * w - y * white - r * w * n)
    return p_mean, p_scale, mean_bar - p_mean, q_scale, a, b


def _outside_full(
    e: Engine,
    p: Gaussian,
    q: Gaussian,
    result: _Result,
    mean_bar: Vector,
    scale_bar: Matrix,
    ratio: Matrix,
    *,
    old_too: bool,
) -> tuple[Array, ...]:
    """Compute the cotangents of μ, L_p and, with `old_too`, of μ_old, L_q, ε and β; in place where arrays are new."""
    xp = e.xp
    w, one, lower = result.factor, e.eye(result.factor), e.lower(result.factor)
    n, v = apply(mT(result.scale), mean_bar), apply(mT(w), result.white_mean)
    s, big_n = symmetrised_half_tril(e, mT(result.scale) @ scale_bar), normal(e, w)
    sums = xp.sum(e.diagonal(s), axis=-1), xp.sum(e.diagonal(big_n), axis=-1)
    inner, squared = e.matrix_dot(s, big_n) + e.vecdot(n, v), 0.5 * e.matrix_dot(big_n, big_n) + e.vecdot(v, v)
    a, b = _constraints(e, inner, squared, *sums, result, p.dim)
    big_n *= 0.5 * a[..., None, None]
    s -= big_n
    s = e.plus_diagonal(s, -0.5 * b)
    s *= (2.0 * result.share)[..., None, None]  # now (x/k) 2S⊥
    n = result.share[..., None] * (n - a[..., None] * v)
    stretch, white = ratio @ w, result.shift - result.white_mean
    r, y = apply(ratio, white), apply(stretch, n)
    half = stretch @ s
    half -= outer(r, n)
    sides = [half @ mT(stretch) - outer(y, r), y[..., None]]
    if old_too:
        sides.append(half @ mT(w) - outer(y, white))
    pulled = e.solve_triangular(p.scale, xp.concat(sides, axis=-1), transpose=True)
    dim = p.dim
    p_mean, p_scale = pulled[..., dim], lower * pulled[..., :dim]
    if not old_too:
        return p_mean, p_scale
    q_scale = scale_bar @ mT(w) + outer(mean_bar, result.white_mean) - outer(p_mean, result.shift)
    q_scale = lower * (q_scale - pulled[..., dim + 1 :]) - b[..., None, None] * one / e.diagonal(q.scale)[..., None]
    return p_mean, p_scale, mean_bar - p_mean, q_scale, a, b


def pullback(
    e: Engine,
    p: Gaussian,
    q: Gaussian,
    outputs: Sequence[Array],
    residuals: Sequence[Array],
    cotangents: Sequence[Array | None],
    *,
    old_too: bool,
) -> tuple[Array | None, ...]:
    """Compute the cotangents of μ, L_p and, with `old_too`, of μ_old, L_q, ε and β.

    All arrays have the same number of leading axes, which broadcast.
    """
    xp = e.xp
    full = isinstance(p, FullGaussian)
    mean_bar, scale_bar = (xp.zeros_like(y) if g is None else g for g, y in zip(cotangents, outputs, strict=True))
    shift, white_mean, factor, share, state, *ratio = residuals
    outside, held = state >= 2.0, (state == 1.0) | (state == 3.0)
    result = _Result(outputs[0], outputs[1], shift, white_mean, factor, share, held)
    axes = (..., *(None,) * (2 if full else 1))
    num = 6 if old_too else 2

    def moved(mean_bar: Vector, scale_bar: Scale) -> tuple[Array, ...]:
        if full:
            return _outside_full(e, p, q, result, mean_bar, scale_bar, *ratio, old_too=old_too)
        return _outside_diagonal(e, p, q, result, mean_bar, scale_bar)[:num]

    def work(mean_bar: Vector, scale_bar: Scale) -> tuple[Array, ...]:
        found = moved(mean_bar, scale_bar)
        if e.all(outside):
            return found
        masks = (outside[..., None], outside[axes], outside[..., None], outside[axes], outside, outside)
        rest = _inside(e, p, result, mean_bar, scale_bar, full)
        return tuple([xp.where(m, x, y) for m, x, y in zip(masks, found, rest, strict=False)])

    def idle(mean_bar: Vector, scale_bar: Scale) -> tuple[Array, ...]:
        return _inside(e, p, result, mean_bar, scale_bar, full)[:num]

    return e.branch(outside, work, idle, mean_bar, scale_bar) + (None,) * (6 - num)


def _inside(
    e: Engine, p: Gaussian, result: _Result, mean_bar: Vector, scale_bar: Scale, full: bool
) -> tuple[Array, ...]:
    """Compute the same cotangents where the prediction, with the target entropy, is inside."""
    xp = e.xp
    axes = (..., *(None,) * (2 if full else 1))
    b = (e.matrix_dot if full else e.vecdot)(scale_bar, result.scale) / p.dim
    diag = e.eye(p.scale) / e.diagonal(p.scale)[..., None] if full else 1.0 / p.scale
    scaled = result.share[axes] * scale_bar - b[axes] * diag
    zero = 0.0 * b
    return (
        mean_bar,
        xp.where(result.held[axes], scaled, scale_bar),
        xp.zeros_like(mean_bar),
        xp.zeros_like(scale_bar),
        zero,
        xp.where(result.held, b, zero),
    )
