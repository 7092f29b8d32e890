"""The pieces of the joint KL projection: what the solution is made of at a given multiplier, and its KL.

`FULL` is the way for ordinary pairs: eigenvalues of Λ − I and a Cholesky factor of Q. Where one direction of the
prediction is so much narrower than another that the rounding of the first hides the second, `FINE` takes singular
values of V, the factor of Q from a QR decomposition (neither squares a condition number), and settles what rounding
leaves of the bound on the result itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trpl.backend import namespace, solve_triangular, stop_gradient
from trpl.errors import ConvergenceError
from trpl.linalg import (
    apply,
    cholesky_inverse_factor,
    diagonal,
    identity_like,
    interpolated_factor,
    squared_frobenius,
    squared_norm,
)
from trpl.projections.kl import excess_of_change, kl_of_factor

Array = Any

LONGEST = 1e-2  # of the way, to settle what rounding left


class Target(NamedTuple):
    """(2/d)(β − H_old), what the entropy asks of log k, and whether k may fall below 1 (equality)."""

    log_scale: Array | None
    equality: bool

    def log_k(self, log_det: Array, dim: int) -> tuple[Array, Array]:
        """log k and whether the entropy decides it."""
        xp = namespace(log_det)
        if self.log_scale is None:
            return xp.zeros_like(log_det), log_det != log_det
        wanted = self.log_scale + log_det / dim
        if self.equality:
            return wanted, wanted == wanted
        return xp.where(wanted > 0.0, wanted, xp.zeros_like(wanted)), wanted > 0.0

    def frozen(self) -> Target:
        """The same, a constant for differentiation."""
        return self if self.log_scale is None else self._replace(log_scale=stop_gradient(self.log_scale))


class Spectrum(NamedTuple):
    """Eigenvalues λ of Λ, the same less 1, each as precise as can be had, and the shift in their basis."""

    precision: Array
    excess: Array
    shift: Array

    def unit(self, target: Target) -> Array:
        """s, by which Λ is divided (see `rescaled`)."""
        xp = namespace(self.precision)
        smallest = xp.min(self.precision, axis=-1)
        if not target.equality:
            return xp.ones_like(smallest)
        return xp.clip(smallest, xp.finfo(smallest.dtype).smallest_normal ** 0.5, 1.0)

    def rescaled(self, unit: Array) -> Spectrum:
        """Λ/s instead of Λ.

        x = 1/(1 + η) cannot tell multipliers far below 1 apart. A bound on the KL alone keeps them above 1/(2ε). With
        the entropy fixed, a prediction far wider than the old policy has smaller ones. But then k makes up for any
        factor of Q, and Q ∝ (1 − t)I + tΛ/s with η = s(1 − t)/t is the same problem in t for every s: the smallest
        eigenvalue keeps t away from 1, and every λ/s − 1 positive.
        """
        xp = namespace(self.precision)
        s = unit[..., None]
        excess = xp.where(s > 0.5, self.excess + (1.0 - s), self.precision - s)  # the one that does not cancel
        return Spectrum(self.precision / s, excess / s, self.shift)


def evaluator(spectrum: Spectrum, target: Target) -> Callable[[Array], tuple[Array, Array]]:
    """t ↦ KL at the k that the entropy asks for, and t times its derivative, for a rescaled spectrum."""
    xp = namespace(spectrum.excess)
    dim = spectrum.excess.shape[-1]

    def evaluate(t: Array) -> tuple[Array, Array]:
        u = t[..., None] * spectrum.excess
        v = 1.0 / (1.0 + u)
        logs = xp.log1p(u)
        log_k, held = target.log_k(xp.sum(logs, axis=-1), dim)
        excess = xp.expm1(log_k[..., None] - logs)  # projected variances less 1
        kept = spectrum.shift * t[..., None] * spectrum.precision * v  # m̃
        value = 0.5 * xp.sum(excess - log_k[..., None] + logs + kept * kept, axis=-1)
        # t dKL/dt = ½ Σ (2m̃²v − uv excess) at fixed k; through k, with t dk/dt = (k/d) Σ uv, excess less its mean
        centre = xp.where(held, xp.sum(excess, axis=-1) / dim, 0.0 * value)[..., None]
        return value, xp.sum(v * (kept * kept - 0.5 * u * (excess - centre)), axis=-1)

    return evaluate


def condition(t: Array, spectrum: Spectrum) -> Array:
    """The condition number of Q."""
    xp = namespace(t)
    sums = 1.0 + t[..., None] * spectrum.excess
    return xp.max(sums, axis=-1) / xp.min(sums, axis=-1)


class Terms(NamedTuple):
    """What the solution is made of at a given multiplier: its KL, factor and mean as the old policy sees them."""

    kl: Array
    factor: Array
    mean: Array
    log_k: Array
    held: Array


class Method(NamedTuple):
    """How the pieces are computed; `change` is V − I from the two scales."""

    change: Callable[[Array, Array], Array]
    spectrum: Callable[[Array, Array], Spectrum]
    terms: Callable[[Array, Array, Array, Array, Target], Terms]
    settle: Callable[[Terms, Array], Terms]
    unwhiten: Callable[[Array, Array], Array]


def _diag_spectrum(change: Array, shift: Array) -> Spectrum:
    ratio = 1.0 + change
    return Spectrum(ratio * ratio, change * (2.0 + change), shift)


def _diag_terms(t: Array, unit: Array, change: Array, shift: Array, target: Target) -> Terms:
    xp = namespace(change)
    spectrum = _diag_spectrum(change, shift)
    spectrum = spectrum.rescaled(unit) if target.equality else spectrum
    u = t[..., None] * spectrum.excess
    logs = xp.log1p(u)
    log_k, held = target.log_k(xp.sum(logs, axis=-1), change.shape[-1])
    half = 0.5 * (log_k[..., None] - logs)
    grown = xp.expm1(half)
    mean = shift * t[..., None] * spectrum.precision / (1.0 + u)
    kl = xp.sum(0.5 * grown * grown + grown - half + 0.5 * mean * mean, axis=-1)
    return Terms(kl, xp.exp(half), mean, log_k, held)


def _eigen_spectrum(change: Array, shift: Array) -> Spectrum:
    xp = namespace(change)
    excess, basis = xp.linalg.eigh(excess_of_change(change))
    precision = xp.clip(1.0 + excess, xp.finfo(excess.dtype).smallest_normal, None)
    return Spectrum(precision, excess, apply(basis.mT, shift))


def _cholesky_terms(t: Array, unit: Array, change: Array, shift: Array, target: Target) -> Terms:
    """Rows and columns are in reverse order in between, so that W, WWᵀ = Q⁻¹, is lower triangular."""
    xp = namespace(change)
    one, s = identity_like(change), unit[..., None, None]
    excess = excess_of_change(change)
    if target.equality:
        excess = (excess + (1.0 - s) * one) / s
    factor = xp.flip(
        cholesky_inverse_factor(one + t[..., None, None] * xp.flip(excess, axis=(-2, -1))).mT, axis=(-2, -1)
    )
    log_k, held = target.log_k(-2.0 * xp.sum(xp.log(diagonal(factor)), axis=-1), change.shape[-1])
    mean = t[..., None] * apply(factor, apply(factor.mT, shift + apply(excess, shift)))
    factor = factor * xp.exp(0.5 * log_k)[..., None, None]
    return Terms(kl_of_factor(factor) + 0.5 * squared_norm(mean), factor, mean, log_k, held)


def _singular_spectrum(change: Array, shift: Array) -> Spectrum:
    """From singular values of V: the smallest are precise to the rounding of the largest, not to that of its square."""
    xp = namespace(change)
    matrix = identity_like(change) + change
    try:
        _, ratio, basis = xp.linalg.svd(matrix, full_matrices=False)
    except RuntimeError:  # LAPACK gives up on a rare matrix with equal singular values, not on its transpose
        try:
            turned, ratio, _ = xp.linalg.svd(matrix.mT, full_matrices=False)
        except RuntimeError as error:
            raise ConvergenceError("the singular values of a pair of policies could not be found") from error
        basis = turned.mT
    return Spectrum(ratio * ratio, (ratio - 1.0) * (ratio + 1.0), apply(basis, shift))


def _qr_terms(t: Array, unit: Array, change: Array, shift: Array, target: Target) -> Terms:
    """Q = (1 − t)I + tΛ/s is interpolated, as its factor is.

    The mean is (t/s)Q⁻¹Λm, or the same as m − (1 − t)Q⁻¹m where tΛ/s is not small: there the former's rounding grows
    with the condition of Λ.
    """
    xp = namespace(change)
    one = xp.broadcast_to(identity_like(change), change.shape)
    ratio = (one + change) / xp.sqrt(unit)[..., None, None]
    bracket = interpolated_factor(t, xp.flip(ratio.mT, axis=(-2, -1)), one)
    factor = xp.flip(solve_triangular(bracket, one).mT, axis=(-2, -1))
    log_k, held = target.log_k(2.0 * xp.sum(xp.log(diagonal(bracket)), axis=-1), change.shape[-1])

    def inverse(v: Array) -> Array:
        return apply(factor, apply(factor.mT, v))

    small = (t * squared_frobenius(ratio) < 1.0)[..., None]
    pulled = t[..., None] * inverse(apply(ratio.mT, apply(ratio, shift)))
    mean = xp.where(small, pulled, shift - (1.0 - t)[..., None] * inverse(shift))
    factor = factor * xp.exp(0.5 * log_k)[..., None, None]
    return Terms(kl_of_factor(factor) + 0.5 * squared_norm(mean), factor, mean, log_k, held)


def _settle(found: Terms, limit: Array) -> Terms:
    """The way from the old policy made longer or shorter by a hair, until its KL is the bound.

    W = I + E becomes I + E + (c − 1)F and m̃ cm̃, with F what stretches of E: all but the negative part of its diagonal,
    which might change sign. Only the mean moves where the entropy holds the covariance. With f the diagonal of F,
    dKL/dc = ‖F‖² + Σ f²/(1 + f) + ‖m̃‖².
    """
    xp = namespace(limit)
    one = identity_like(found.factor)
    for _ in range(2):
        held, mean, factor = found.held, stop_gradient(found.mean), stop_gradient(found.factor)
        stretch = xp.where(one > 0.0, xp.clip(factor - one, 0.0, None), factor)
        diag = diagonal(stretch)
        cov_slope = squared_frobenius(stretch) + xp.sum(diag * diag / (1.0 + diag), axis=-1)
        slope = squared_norm(mean) + xp.where(held, 0.0 * limit, cov_slope)
        step = (limit - stop_gradient(found.kl)) / xp.where(slope > 0.0, slope, 1.0)
        step = xp.clip(step, -LONGEST, LONGEST)
        cov_step = xp.where(held, 0.0 * step, step)[..., None, None]
        factor, mean = found.factor + cov_step * stretch, found.mean + step[..., None] * mean
        found = found._replace(kl=kl_of_factor(factor) + 0.5 * squared_norm(mean), factor=factor, mean=mean)
    return found


def _unchanged(found: Terms, _limit: Array) -> Terms:
    return found


DIAG = Method(lambda p, q: (q - p) / p, _diag_spectrum, _diag_terms, _unchanged, lambda q, v: q * v)
FULL = Method(lambda p, q: solve_triangular(p, q - p), _eigen_spectrum, _cholesky_terms, _unchanged, apply)
FINE = Method(FULL.change, _singular_spectrum, _qr_terms, _settle, apply)
