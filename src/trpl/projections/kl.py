"""KL projection of the covariance (paper, section 4.2 and appendix): numerical root, derivative by hand.

Whitened by the old policy, with V = L_p⁻¹L_q and A = VᵀV − I (predicted precision minus old), the projected precision
is P(x) = I + xA, x = 1/(1 + η) in (0, 1], and the constraint a sum over the eigenvalues a of A, u = xa:

    KL(x) = ½ Σ (log(1 + u) − u/(1 + u)) = ε,    x KL′(x) = ½ Σ (u/(1 + u))².

With W the projected factor as the old policy sees it (WWᵀ = P⁻¹, L̃ = L_qW) and N = WᵀW − I, all derivatives are short.
Let S = ½(Φ + Φᵀ)(L̃ᵀḠ) be the cotangent of L̃ seen on P, and S⊥ = S − (⟨S, N⟩/‖N‖²) N its part along the bound's
surface: x moves so as to remove the rest. Then with Y = L_p⁻¹L̃ = VW and Z = L_p⁻ᵀYS⊥

    L̄_p = 2x ZYᵀ,    L̄_q = (Ḡ − 2x Z)Wᵀ,    ε̄ = 2⟨S, N⟩/‖N‖²,    each on its lower triangle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from trpl.backend import (
    Rule,
    all_true,
    any_true,
    computes_again,
    namespace,
    solve_triangular,
    stop_gradient,
    unless_none,
    when_any,
)
from trpl.gaussians.distances import kl_cov
from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.linalg import (
    cholesky_inverse_factor,
    diagonal,
    identity_like,
    interpolated_factor,
    lower_mask,
    squared_frobenius,
    squared_norm,
    symmetrised_half_tril,
)
from trpl.projections.alignment import align
from trpl.projections.series import LARGEST_BOUND, series_root
from trpl.roots import increasing_root

Array = Any

ACCURACY = 1e-10
"""Relative error of the KL that is left alone, where rounding would allow less."""
LARGEST_ORDINARY = 3.0
"""Up to here the condition number of P stays below e^(2ε + 1)(2ε + 3) ≈ 1e4, whatever the policies."""


class Width(Enum):
    """How wide a trust region is known to be before any value is looked at: it says which ways can be left out."""

    NARROW = LARGEST_BOUND
    ORDINARY = LARGEST_ORDINARY
    ANY = math.inf

    @classmethod
    def of(cls, largest: float) -> Width:
        """That of a bound which is never above `largest`."""
        if largest > LARGEST_ORDINARY:
            return cls.ANY
        return cls.ORDINARY if largest > LARGEST_BOUND else cls.NARROW


def twice_kl_of_excess(u: Array) -> tuple[Array, Array]:
    """2 KL and its derivative by log x, from the eigenvalues u of xA; `log1p` keeps the digits of small ones."""
    ratio = u / (1.0 + u)
    return _twice_kl(u, ratio), squared_norm(ratio)


def _twice_kl(u: Array, ratio: Array) -> Array:
    xp = namespace(u)
    return xp.sum(xp.log1p(u) - ratio, axis=-1)


def kl_of_factor(factor: Array) -> Array:
    """KL of a whitened covariance WWᵀ from I, written about W = I."""
    excess = factor - identity_like(factor)
    diag = diagonal(excess)
    xp = namespace(factor)
    return 0.5 * squared_frobenius(excess) + xp.sum(diag - xp.log1p(diag), axis=-1)


def _two_terms(eigenvalues: Array, bound: Array) -> tuple[Array, Array]:
    """The x of the KL's first term alone, and by which part of it the second one moves it.

    KL ≈ ¼ x²‖a‖² (1 − (4/3) x Σa³/‖a‖²); as parts of the largest eigenvalue no square overflows, not even in float32.
    Equal policies have no number here, and are not outside.
    """
    xp = namespace(eigenvalues)
    largest = xp.max(xp.abs(eigenvalues), axis=-1)
    share = eigenvalues / largest[..., None]
    squares = share * share
    norm = xp.sum(squares, axis=-1)
    near = xp.sqrt(4.0 * bound / norm)
    return near / largest, (2.0 / 3.0) * near * xp.sum(squares * share, axis=-1) / norm


def _start(eigenvalues: Array, bound: Array, width: Width) -> Array:
    """A first x from two terms, but no more than the smallest eigenvalue alone allows.

    In a narrow region the second term is below a tenth of the first. Elsewhere an exponential keeps the sum positive,
    and for one eigenvalue a < 0 the root is a Lambert W, here by its bound: −u/(1 + u) < 2√ε + (4/3)ε.
    """
    xp = namespace(eigenvalues)
    near, correction = _two_terms(eigenvalues, bound)
    if width is Width.NARROW:
        return near * (1.0 + correction)
    excess = 2.0 * xp.sqrt(bound) + (4.0 / 3.0) * bound
    tiny = xp.finfo(eigenvalues.dtype).smallest_normal
    most = excess / ((1.0 + excess) * xp.clip(-xp.min(eigenvalues, axis=-1), tiny, None))
    return xp.clip(xp.minimum(near * xp.exp(xp.clip(correction, -1.0, 1.0)), most), None, 1.0)


def kl_root(eigenvalues: Array, bound: Array, outside: Array, width: Width = Width.ANY) -> Array:
    """x = 1/(1 + η) with KL(x) = ε where `outside`, else 1."""
    start = _start(eigenvalues, bound, width)
    return increasing_root(
        lambda x: twice_kl_of_excess(x[..., None] * eigenvalues),
        2.0 * bound,
        start=namespace(start).where(outside, start, 1.0),
        active=outside,
        tame=width is Width.NARROW,
    )


def diag_excess(p: Array, q: Array) -> Array:
    """A = q²/p² − 1 of standard deviations, from their difference so that close ones keep their digits."""
    change = (q - p) / p
    return change * (change + 2.0)


def excess_of_change(change: Array) -> Array:
    """VᵀV − I from V − I; in place, as elsewhere for what is new and large: it is in the cache."""
    excess = change.mT @ change
    excess += change + change.mT
    return excess


def _diag_forward(p: Array, q: Array, bound: Array, excess: Array, outside: Array, *, width: Width) -> tuple:
    xp = namespace(p)

    def work(p: Array, q: Array, bound: Array, excess: Array, outside: Array) -> tuple[Array, ...]:
        x = kl_root(excess, bound, outside, width)
        ratio = 1.0 / xp.sqrt(1.0 + x[..., None] * excess)
        projected = xp.where(outside[..., None], q * ratio, p)
        if computes_again(projected):
            ratio, x = _seen_from(projected, q, excess)
        return projected, ratio, x

    def idle(p: Array, q: Array, bound: Array, excess: Array, outside: Array) -> tuple[Array, ...]:
        shape = xp.broadcast_arrays(p, q, outside[..., None])[0]
        return xp.where(outside[..., None], shape, p), xp.ones_like(shape), xp.ones_like(shape[..., 0])

    return unless_none(outside, work, idle, p, q, bound, excess, outside)


def _seen_from(projected: Array, q: Array, excess: Array) -> tuple[Array, Array]:
    """The ratio L̃/L_q and x of a result, without the search: xa = −N/(1 + N), all its terms of one sign along N.

    Where the bound is below rounding, N = 0 and so is x.
    """
    ratio = projected / q
    normal = diag_excess(q, projected)
    return ratio, _coefficient(squared_norm(normal / ratio), -namespace(q).sum(normal * excess, axis=-1))


def _diag_backward(inputs: tuple, outputs: tuple, cotangent: Array, needed: Any) -> tuple[Array | None, ...]:
    (p, _, _, _, outside), (projected, ratio, x) = inputs, outputs
    xp = namespace(p)
    mask = outside[..., None]
    normal = ratio * ratio - 1.0
    inner = projected * cotangent
    along = _coefficient(xp.sum(inner * normal, axis=-1), squared_norm(normal))
    tangent = x[..., None] * (inner - along[..., None] * normal) / p
    stretch = projected / p
    p_bar = xp.where(mask, tangent * stretch * stretch, cotangent)
    if not (needed[1] or needed[2]):
        return p_bar, None, None, None, None
    q_bar = xp.where(mask, (cotangent - tangent * stretch) * ratio, xp.zeros_like(p_bar))
    return p_bar, q_bar, xp.where(outside, along, xp.zeros_like(along)), None, None


def _coefficient(inner: Array, squared: Array) -> Array:
    """⟨S, N⟩/‖N‖², or another ratio along N, and 0 where N = 0: there projected and old agree."""
    xp = namespace(inner)
    return inner / xp.clip(squared, xp.finfo(squared.dtype).smallest_normal, None)


def _of_each_width(forward: Callable[..., tuple], backward: Callable[..., tuple]) -> dict[Width, Rule]:
    """A rule for each width; in closures, since `torch.compile` knows no partial functions here."""

    def of(width: Width) -> Rule:
        return Rule(lambda *inputs: forward(*inputs, width=width), backward)

    return {width: of(width) for width in Width}


_project_diag = _of_each_width(_diag_forward, _diag_backward)


def _full_forward(p: Array, q: Array, bound: Array, outside: Array, *, width: Width) -> tuple[Array, ...]:
    xp = namespace(p)

    def work(p: Array, q: Array, bound: Array, outside: Array) -> tuple[Array, ...]:
        change = solve_triangular(p, q - p)
        factor, x = _whitened_projection(change, bound, outside, width)
        return _where(outside, q @ factor, p), factor, x

    def idle(p: Array, q: Array, bound: Array, outside: Array) -> tuple[Array, ...]:
        shape = xp.broadcast_arrays(p, q, outside[..., None, None])[0]
        return xp.where(outside[..., None, None], shape, p), xp.zeros_like(shape), xp.ones_like(shape[..., 0, 0])

    return unless_none(outside, work, idle, p, q, bound, outside)


def _where(outside: Array, moved: Array, kept: Array) -> Array:
    """Matrices that are moved where they are outside; where all are known to be, there is nothing to choose."""
    return moved if all_true(outside) else namespace(moved).where(outside[..., None, None], moved, kept)


def _whitened_projection(change: Array, bound: Array, outside: Array, width: Width) -> tuple[Array, Array]:
    """W and x; wide regions, in which P can be ill-conditioned, go a way that never squares a condition number."""
    ordinarily = partial(_ordinarily, width=width)
    if width is not Width.ANY:
        return ordinarily(change, bound, outside)
    return when_any(outside & (bound > LARGEST_ORDINARY), _finely, ordinarily, change, bound, outside)


def _ordinarily(change: Array, bound: Array, outside: Array, *, width: Width) -> tuple[Array, Array]:
    """x from A's series or eigenvalues, W from a Cholesky factor of P(x).

    It is the lower triangular one: with rows and columns in reverse order, P = CCᵀ, and W is C⁻ᵀ back in order.
    """
    xp = namespace(change)
    excess = xp.flip(excess_of_change(change), axis=(-2, -1))
    if width is Width.NARROW:
        x = series_root(excess, bound, outside)
    else:
        x = when_any(
            outside & (bound > LARGEST_BOUND),
            lambda excess, bound, outside: kl_root(xp.linalg.eigvalsh(excess), bound, outside),
            series_root,
            *(excess, bound, outside),
        )

    def factor_at(x: Array) -> Array:
        precision = x[..., None, None] * excess
        precision += identity_like(excess)
        inverse = cholesky_inverse_factor(precision)
        return xp.flip(inverse.mT, axis=(-2, -1))

    return _polished(factor_at, x, bound, outside)


def _finely(change: Array, bound: Array, outside: Array) -> tuple[Array, Array]:
    """x from singular values of V, W from a QR decomposition that stands for P(x) = (1 − x)I + xVᵀV."""
    xp = namespace(change)
    one = identity_like(change)
    ratio = one + change
    x = xp.clip(kl_root(_singular_excess(change), bound, outside), None, 1.0)  # rounding may pass 1
    reverse = xp.flip(ratio.mT, axis=(-2, -1))

    def factor_at(x: Array) -> Array:
        bracket = interpolated_factor.forward(x, reverse, one)[0]
        return xp.flip(solve_triangular(bracket, xp.broadcast_to(one, bracket.shape)).mT, axis=(-2, -1))

    return _polished(factor_at, x, bound, outside)


def _singular_excess(change: Array) -> Array:
    """The eigenvalues of A from V − I: (σ − 1)(σ + 1) with the singular values σ of V."""
    singular = namespace(change).linalg.svdvals(identity_like(change) + change)
    return (singular - 1.0) * (singular + 1.0)


def _polished(factor_at: Callable[[Array], Array], x: Array, bound: Array, outside: Array) -> tuple[Array, Array]:
    """W at x, moved by a Newton step on the KL of W itself where that misses the bound."""
    xp = namespace(x)

    def polish(x: Array, factor: Array, residual: Array) -> tuple[Array, Array]:
        slope = squared_frobenius(_normal(factor)) / (2.0 * x)
        moved = xp.where(outside, x - residual / slope, x)
        x = xp.where((moved > 0.0) & (moved <= 1.0), moved, x)
        return factor_at(x), x

    factor = factor_at(x)
    residual = kl_of_factor(factor) - bound
    rounding = 100.0 * math.sqrt(factor.shape[-1]) * xp.finfo(x.dtype).eps * xp.sqrt(bound)
    rough = outside & ~(xp.abs(residual) <= xp.maximum(rounding, ACCURACY * bound))
    return when_any(rough, polish, lambda x, factor, residual: (factor, x), x, factor, residual)


def _normal(factor: Array) -> Array:
    """N = WᵀW − I: against it the KL of P⁻¹ = WWᵀ grows."""
    normal = factor.mT @ factor
    normal -= identity_like(factor)
    return normal


def _full_backward(inputs: tuple, outputs: tuple, cotangent: Array, needed: Any) -> tuple[Array | None, ...]:
    (p, _, _, outside), (projected, factor, x) = inputs, outputs
    xp = namespace(p)
    old_too = needed[1] or needed[2]

    def work(cotangent: Array) -> tuple[Array, ...]:
        inner = symmetrised_half_tril(projected.mT @ cotangent)
        normal = _normal(factor)
        along = _coefficient(xp.sum(inner * normal, axis=(-2, -1)), squared_frobenius(normal))
        normal *= along[..., None, None]
        inner -= normal
        inner *= 2.0 * x[..., None, None]  # now 2x S⊥
        stretch = solve_triangular(p, projected)
        pulled = solve_triangular(p, stretch @ inner, transpose=True)
        lower = lower_mask(p)
        p_bar = pulled @ stretch.mT
        p_bar *= lower
        p_bar = _where(outside, p_bar, cotangent)
        if not old_too:
            return (p_bar,)
        q_bar = _where(outside, lower * ((cotangent - pulled) @ factor.mT), 0.0 * cotangent)
        return p_bar, q_bar, xp.where(outside, 2.0 * along, 0.0 * along)

    def idle(cotangent: Array) -> tuple[Array, ...]:
        return (cotangent, xp.zeros_like(cotangent), xp.zeros_like(x)) if old_too else (cotangent,)

    found = unless_none(outside, work, idle, cotangent)
    return (*found, None) if old_too else (*found, None, None, None)


_project_full = _of_each_width(_full_forward, _full_backward)


def _within(excess: Array, bound: Array) -> Array:
    """Where a diagonal covariance is within ε, by the function whose root is sought.

    One so wide that 1 + a rounds to 0 has no number there, and is not within.
    """
    return _twice_kl(excess, excess / (1.0 + excess)) <= 2.0 * bound


def project_cov(predicted: Gaussian, old: Gaussian, bound: Array, *, largest: float = math.inf) -> Array:
    """The scale with KL = ε to the old covariance where the predicted one is further; else that.

    `largest` is what the bound is known not to exceed: what only a larger one would need is left out.
    """
    width = Width.of(largest)
    p, q, limit = predicted.detached(), old.detached(), stop_gradient(bound)
    if isinstance(predicted, DiagGaussian):
        excess = diag_excess(p.scale, q.scale)
        within = _within(excess, limit)
        if all_true(within):
            return predicted.std
        return _project_diag[width](*align((predicted.std, 1), (old.scale, 1), (bound, 0), (excess, 1), (~within, 0)))
    outside = kl_cov(p, q) > limit
    if not any_true(outside):
        return predicted.scale
    return _project_full[width](*align((predicted.scale, 2), (old.scale, 2), (bound, 0), (outside, 0)))


def multiplier(predicted: Gaussian, old: Gaussian, bound: Array) -> Array:
    """η = 1/x − 1, and 0 where nothing is projected."""
    p, q = predicted.scale, old.scale
    if isinstance(predicted, DiagGaussian):
        eigenvalues = diag_excess(p, q)
        outside = ~_within(eigenvalues, bound)
    else:
        eigenvalues = _singular_excess(solve_triangular(p, q - p))
        outside = kl_cov(predicted, old) > bound
    eigenvalues, bound, outside = align((eigenvalues, 1), (bound, 0), (outside, 0))
    return 1.0 / kl_root(eigenvalues, bound, outside) - 1.0
