"""The terms of the joint KL projection: the solution at a given multiplier, and its KL.

Whitened by the old policy, with V = L_p⁻¹L_q, Λ = VᵀV the predicted precision and m the mean's shift, the dual's
solution is

    Q = yI + xΛ,    covariance k Q⁻¹,    mean m̃ = x Q⁻¹Λm,

where x = 1/(1 + η), y = 1 − x and k = 1 + ω/(1 + η) encode the multipliers of the KL and of the entropy. For given
x the entropy fixes k:

    log k = (2/d)(β − H_old) + (1/d) log|Q|,  at least 0 for the inequality.

For well-conditioned full covariances `newton` finds the root without eigenvalues. If one direction of the prediction is
so much narrower than another that rounding of the first hides the second, `FINE` uses singular values of V and a QR
decomposition for the factor of Q (neither squares a condition number), and corrects the rounding error of the bound on
the result itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trpl.engines import mT
from trpl.errors import ConvergenceError
from trpl.linalg import apply
from trpl.projections.kl.factor import kl_of_factor, qr_factor

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, Matrix, PerState, Scale, Vector

LONGEST_CORRECTION = 1e-2
"""Largest relative correction of the distance from the old policy; rounding leaves far less."""


class Target(NamedTuple):
    """(2/d)(β − H_old), the entropy's condition on log k, and whether k may fall below 1 (equality)."""

    log_scale: PerState | None
    equality: bool

    def log_k(self, e: Engine, log_det: PerState, dim: int) -> tuple[PerState, Mask]:
        """Return log k and the mask where the entropy determines it."""
        xp = e.xp
        if self.log_scale is None:
            return xp.zeros_like(log_det), log_det != log_det
        wanted = self.log_scale + log_det / dim
        if self.equality:
            return wanted, wanted == wanted
        unheld = wanted <= 0.0  # NaN counts as held, and gives NaN
        return xp.where(unheld, xp.zeros_like(wanted), wanted), ~unheld


class Spectrum(NamedTuple):
    """Eigenvalues λ of Λ, and λ − 1, each to full precision, and the shift in their basis."""

    precision: Vector
    excess: Vector
    shift: Vector

    def unit(self, e: Engine, target: Target) -> PerState:
        """Return s, by which Λ is divided (see `rescaled`)."""
        xp = e.xp
        smallest = xp.min(self.precision, axis=-1)
        if not target.equality:
            return xp.ones_like(smallest)
        return xp.clip(smallest, float(xp.finfo(smallest.dtype).smallest_normal) ** 0.5, 1.0)

    def rescaled(self, e: Engine, unit: PerState) -> Spectrum:
        """Replace Λ by Λ/s.

        x = 1/(1 + η) cannot resolve multipliers far below 1. A bound on the KL alone keeps them above 1/(2ε). With the
        entropy fixed, a prediction far wider than the old policy has smaller ones. But then k compensates any factor of
        Q, and Q ∝ (1 − t)I + tΛ/s with η = s(1 − t)/t is the same problem in t for every s: the smallest eigenvalue
        keeps t away from 1, and every λ/s − 1 positive.
        """
        s = unit[..., None]
        excess = e.xp.where(s > 0.5, self.excess + (1.0 - s), self.precision - s)  # the one without cancellation
        return Spectrum(self.precision / s, excess / s, self.shift)


def evaluator(e: Engine, spectrum: Spectrum, target: Target) -> Callable[[PerState], tuple[PerState, PerState]]:
    """Make t ↦ KL at the k that the entropy determines, and t times its derivative, for a rescaled spectrum."""
    xp = e.xp
    dim = spectrum.excess.shape[-1]

    def evaluate(t: PerState) -> tuple[PerState, PerState]:
        u = t[..., None] * spectrum.excess
        v = 1.0 / (1.0 + u)
        logs = xp.log1p(u)
        log_k, held = target.log_k(e, xp.sum(logs, axis=-1), dim)
        excess = xp.expm1(log_k[..., None] - logs)  # projected variances less 1
        kept = spectrum.shift * t[..., None] * spectrum.precision * v  # m̃
        value = 0.5 * xp.sum(excess - log_k[..., None] + logs + kept * kept, axis=-1)
        # t dKL/dt = ½ Σ (2m̃²v − uv excess) at fixed k; through k, with t dk/dt = (k/d) Σ uv, excess less its mean
        centre = xp.where(held, xp.sum(excess, axis=-1) / dim, 0.0 * value)[..., None]
        return value, xp.sum(v * (kept * kept - 0.5 * u * (excess - centre)), axis=-1)

    return evaluate


class Terms(NamedTuple):
    """The solution at a given multiplier: its KL, and its factor and mean whitened by the old policy."""

    kl: PerState
    factor: Scale
    mean: Vector
    log_k: PerState
    held: Mask


class Method(NamedTuple):
    """Functions for the terms; `change` is V − I from the two scales, `correct` removes rounding from the result."""

    change: Callable[[Engine, Scale, Scale], Scale]
    spectrum: Callable[[Engine, Scale, Vector], Spectrum]
    terms: Callable[[Engine, PerState, PerState, Scale, Vector, Target], Terms]
    correct: Callable[[Engine, Terms, PerState], Terms]


def _diag_change(e: Engine, p: Vector, q: Vector) -> Vector:
    return (q - p) / p


def _full_change(e: Engine, p: Matrix, q: Matrix) -> Matrix:
    return e.solve_triangular(p, q - p, lower=True)


def _diag_spectrum(e: Engine, change: Vector, shift: Vector) -> Spectrum:
    ratio = 1.0 + change
    return Spectrum(ratio * ratio, change * (2.0 + change), shift)


def _diag_terms(e: Engine, t: PerState, unit: PerState, change: Vector, shift: Vector, target: Target) -> Terms:
    xp = e.xp
    spectrum = _diag_spectrum(e, change, shift)
    spectrum = spectrum.rescaled(e, unit) if target.equality else spectrum
    u = t[..., None] * spectrum.excess
    logs = xp.log1p(u)
    log_k, held = target.log_k(e, xp.sum(logs, axis=-1), change.shape[-1])
    half = 0.5 * (log_k[..., None] - logs)
    grown = xp.expm1(half)
    mean = shift * t[..., None] * spectrum.precision / (1.0 + u)
    kl = xp.sum(0.5 * grown * grown + grown - half + 0.5 * mean * mean, axis=-1)
    return Terms(kl, xp.exp(half), mean, log_k, held)


def _scaled_terms(e: Engine, factor: Matrix, mean: Vector, target: Target) -> Terms:
    """Compute the terms from W, WWᵀ = Q⁻¹, and m̃; the factor is that of kQ⁻¹."""
    log_k, held = target.log_k(e, -2.0 * e.xp.sum(e.xp.log(e.diagonal(factor)), axis=-1), factor.shape[-1])
    factor = factor * e.xp.exp(0.5 * log_k)[..., None, None]
    return Terms(kl_of_factor(e, factor) + 0.5 * e.vecdot(mean, mean), factor, mean, log_k, held)


def _singular_spectrum(e: Engine, change: Matrix, shift: Vector) -> Spectrum:
    """Compute the spectrum from singular values of V, whose errors scale with the largest, not with its square."""
    matrix = e.eye(change) + change
    failures = (np.linalg.LinAlgError, RuntimeError)
    try:
        _, ratio, basis = e.svd(matrix)
    except failures:  # LAPACK may fail for equal singular values, but then not for the transpose
        try:
            turned, ratio, _ = e.svd(mT(matrix))
        except failures as error:
            raise ConvergenceError("the singular value decomposition of a pair of policies failed") from error
        basis = mT(turned)
    return Spectrum(ratio * ratio, (ratio - 1.0) * (ratio + 1.0), apply(basis, shift))


def _qr_terms(e: Engine, t: PerState, unit: PerState, change: Matrix, shift: Vector, target: Target) -> Terms:
    """Compute the terms by a QR decomposition for Q = (1 − t)I + tΛ/s.

    The mean is (t/s)Q⁻¹Λm, or equivalently m − (1 − t)Q⁻¹m where tΛ/s is not small: there the rounding of the former
    grows with the condition number of Λ.
    """
    xp = e.xp
    ratio = (e.eye(change) + change) / xp.sqrt(unit)[..., None, None]
    factor = qr_factor(e, t, ratio)

    def inverse(v: Vector) -> Vector:
        return apply(factor, apply(mT(factor), v))

    small = (t * e.matrix_dot(ratio, ratio) < 1.0)[..., None]
    pulled = t[..., None] * inverse(apply(mT(ratio), apply(ratio, shift)))
    mean = xp.where(small, pulled, shift - (1.0 - t)[..., None] * inverse(shift))
    return _scaled_terms(e, factor, mean, target)


def _corrected(e: Engine, found: Terms, limit: PerState) -> Terms:
    """Scale the distance from the old policy slightly, so that its KL equals the bound.

    W = I + E becomes I + E + (c − 1)F and m̃ becomes cm̃, with F equal to E except for the negative part of its
    diagonal, which might change sign. If the entropy fixes the covariance, only the mean moves. With f the diagonal of
    F, dKL/dc = ‖F‖² + Σ f²/(1 + f) + ‖m̃‖².
    """
    xp = e.xp
    one = e.eye(found.factor)
    for _ in range(2):
        held, mean, factor = found.held, found.mean, found.factor
        stretch = xp.where(one > 0.0, xp.clip(factor - one, 0.0, None), factor)
        diag = e.diagonal(stretch)
        cov_slope = e.matrix_dot(stretch, stretch) + xp.sum(diag * diag / (1.0 + diag), axis=-1)
        slope = e.vecdot(mean, mean) + xp.where(held, 0.0 * limit, cov_slope)
        step = (limit - found.kl) / xp.where(slope > 0.0, slope, 1.0)
        step = xp.clip(step, -LONGEST_CORRECTION, LONGEST_CORRECTION)
        cov_step = xp.where(held, 0.0 * step, step)[..., None, None]
        factor, mean = factor + cov_step * stretch, mean + step[..., None] * mean
        found = found._replace(kl=kl_of_factor(e, factor) + 0.5 * e.vecdot(mean, mean), factor=factor, mean=mean)
    return found


DIAG = Method(_diag_change, _diag_spectrum, _diag_terms, lambda e, found, limit: found)
FINE = Method(_full_change, _singular_spectrum, _qr_terms, _corrected)
