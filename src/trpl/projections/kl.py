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
    all_true,
    alongside,
    any_true,
    computes_again,
    later,
    namespace,
    quiet,
    solve_triangular,
    unless_none,
    when_any,
)
from trpl.gaussians.distances import kl_cov
from trpl.gaussians.values import DiagGaussian, Gaussian, Pair
from trpl.linalg import (
    cholesky_inverse_factor,
    diagonal,
    dot,
    gram,
    identity_like,
    interpolated_factor,
    lower_mask,
    matrix_dot,
    squared_frobenius,
    squared_norm,
    symmetrised_half_tril,
)
from trpl.projections.alignment import align
from trpl.projections.series import LARGEST_BOUND, corrections, series_root
from trpl.roots import increasing_root, one_step
from trpl.rules import Rule

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


def _from_one_term(eigenvalues: Array, bound: Array) -> tuple[Array, Array]:
    """x and u = xa of the series' first term alone, KL ≈ ¼ x²‖a‖².

    As parts of the sum of all |a| no power overflows, not even in float32. Equal policies have no number here, and are
    not outside.
    """
    xp = namespace(eigenvalues)
    unit = xp.sum(xp.abs(eigenvalues), axis=-1)
    share = eigenvalues / unit[..., None]
    size = 2.0 * xp.sqrt(bound / squared_norm(share))
    return size / unit, size[..., None] * share


def _power_sums(u: Array) -> tuple[Array, Array, Array]:
    """Σu², Σu³ and Σu⁴."""
    squares = u * u
    return squared_norm(u), dot(squares, u), squared_norm(squares)


def _start(eigenvalues: Array, bound: Array) -> Array:
    """A first x, but no more than the smallest eigenvalue alone allows.

    From two terms of the series, with an exponential that keeps their sum positive. For one eigenvalue a < 0 the root
    is a Lambert W, here by its bound: −u/(1 + u) < 2√ε + (4/3)ε.
    """
    xp = namespace(eigenvalues)
    near, u = _from_one_term(eigenvalues, bound)
    correction, _ = corrections(*_power_sums(u))
    excess = 2.0 * xp.sqrt(bound) + (4.0 / 3.0) * bound
    tiny = xp.finfo(eigenvalues.dtype).smallest_normal
    most = excess / ((1.0 + excess) * xp.clip(-xp.min(eigenvalues, axis=-1), tiny, None))
    return xp.clip(xp.minimum(near * xp.exp(xp.clip(correction, -1.0, 1.0)), most), None, 1.0)


def _narrow_root(eigenvalues: Array, bound: Array) -> Array:
    """x for bounds up to `LARGEST_BOUND`, where one long step from three terms ends at rounding, whatever the a.

    With r = u/(1 + u), whose derivative by log x is r(1 − r), those of 2 KL are sums of powers of r.
    """
    xp = namespace(eigenvalues)
    near, u = _from_one_term(eigenvalues, bound)
    second, third = corrections(*_power_sums(u))
    start = 1.0 + second + third
    u = start[..., None] * u
    ratio = u / (1.0 + u)
    two, three, four = _power_sums(ratio)
    derivatives = two, 2.0 * (two - three), 4.0 * two - 10.0 * three + 6.0 * four
    grown = start * one_step(2.0 * bound, _twice_kl(u, ratio), *derivatives)
    return xp.clip(near * grown, None, 1.0)


def kl_root(eigenvalues: Array, bound: Array, outside: Array, width: Width = Width.ANY) -> Array:
    """x = 1/(1 + η) with KL(x) = ε where `outside`, else 1."""
    xp = namespace(eigenvalues)
    if width is Width.NARROW:
        return xp.where(outside, _narrow_root(eigenvalues, bound), 1.0)
    return increasing_root(
        lambda x: twice_kl_of_excess(x[..., None] * eigenvalues),
        2.0 * bound,
        start=xp.where(outside, _start(eigenvalues, bound), 1.0),
        active=outside,
    )


def diag_excess(p: Array, q: Array) -> Array:
    """A = q²/p² − 1 of standard deviations, from their difference so that close ones keep their digits."""
    change = (q - p) / p
    return change * (change + 2.0)


def excess_of_change(change: Array) -> Array:
    """VᵀV − I = EᵀE + E + Eᵀ from E = V − I; in place, as elsewhere for what is new and large: it is in the cache."""
    excess = (change + identity_like(change)).mT @ change
    excess += change.mT
    return excess


def _diag_forward(p: Array, q: Array, bound: Array, excess: Array, x: Array) -> tuple[Array, ...]:
    """The projection for an x that is below 1 where the prediction is outside; the bound only has a derivative here."""
    xp = namespace(p)
    x = x[..., None]
    ratio = 1.0 / xp.sqrt(1.0 + x * excess)
    return xp.where(x < 1.0, q * ratio, p), ratio


def _diag_root(excess: Array, bound: Array, width: Width) -> Array | None:
    """x, and 1 where a covariance is within its bound; None where all are known to be."""
    xp = namespace(excess)
    if width is Width.NARROW and computes_again(excess):  # x alone says who is outside, and equal policies have none
        x = _narrow_root(excess, bound)
        return xp.where(x < 1.0, x, 1.0)
    within = _within(excess, bound)
    if all_true(within):
        return None
    outside, bound = xp.broadcast_arrays(~within, bound)
    return unless_none(
        outside,
        lambda excess, bound, outside: kl_root(excess, bound, outside, width),
        lambda excess, bound, outside: xp.ones_like(bound),
        *(excess, bound, outside),
    )


def _seen_from(projected: Array, q: Array, excess: Array) -> tuple[Array, Array, Array]:
    """The ratio r = L̃/L_q, N = r² − 1 and x of a result, without the search: xr²a = −N, of one sign along N.

    Where the bound is below rounding, N = 0 and so is x.
    """
    ratio, normal = projected / q, diag_excess(q, projected)
    return ratio, normal, _coefficient(squared_norm(normal), -dot(normal * ratio * ratio, excess))


def _diag_backward(inputs: tuple, outputs: tuple, cotangent: Array, needed: Any) -> tuple[Array | None, ...]:
    (p, q, _, _, x), (projected, ratio) = inputs, outputs
    xp = namespace(p)
    if computes_again(cotangent):
        p, q, projected = later(cotangent, p, q, projected)
        outside = xp.any(projected != p, axis=-1)
        ratio, normal, x = _seen_from(projected, q, diag_excess(p, q))
    else:
        outside, normal = x < 1.0, ratio * ratio - 1.0
    mask = outside[..., None]
    inner = projected * cotangent
    along = _coefficient(dot(inner, normal), squared_norm(normal))
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


_project_diag = Rule(_diag_forward, _diag_backward)


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
        return xp.flip(solve_triangular(bracket, one).mT, axis=(-2, -1))

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
    normal = gram(factor)
    normal -= identity_like(factor)
    return normal


def _full_backward(inputs: tuple, outputs: tuple, cotangent: Array, needed: Any) -> tuple[Array | None, ...]:
    (p, _, _, outside), (projected, factor, x) = inputs, outputs
    xp = namespace(p)
    old_too = needed[1] or needed[2]

    def work(cotangent: Array) -> tuple[Array, ...]:
        inner = symmetrised_half_tril(projected.mT @ cotangent)
        normal = _normal(factor)
        along = _coefficient(matrix_dot(inner, normal), squared_frobenius(normal))
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


def _full_rule(width: Width) -> Rule:
    """In a closure, since `torch.compile` knows no partial functions here."""
    return Rule(lambda *inputs: _full_forward(*inputs, width=width), _full_backward)


_project_full = {width: _full_rule(width) for width in Width}


def _within(excess: Array, bound: Array) -> Array:
    """Where a diagonal covariance is within ε, by the function whose root is sought.

    One so wide that 1 + a rounds to 0 has no number there, and is not within.
    """
    return _twice_kl(excess, excess / (1.0 + excess)) <= 2.0 * bound


def project_cov(pair: Pair, bound: Array, *, largest: float = math.inf) -> Array:
    """The scale with KL = ε to the old covariance where the predicted one is further; else that.

    `largest` is what the bound is known not to exceed: what only a larger one would need is left out.
    """
    width = Width.of(largest)
    predicted, old, p, q = pair
    (limit,) = alongside(p.scale, bound)
    if isinstance(predicted, DiagGaussian):
        with quiet(p.scale):
            excess = diag_excess(p.scale, q.scale)
            x = _diag_root(excess, limit, width)
        if x is None:
            return predicted.std
        return _project_diag(*align((predicted.std, 1), (old.scale, 1), (bound, 0), (excess, 1), (x, 0)))
    with quiet(p.scale):
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
