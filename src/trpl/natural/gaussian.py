"""The path between two Gaussians in a product: interpolated precisions and precision-weighted means.

In coordinates in which the old policy is N(0, I) and the predicted precision diagonal, with entries λ and mean m,

    K̃ = τ((1 − s) + sλ),    mean m̃ = τsλm/K̃,    variance v = 1/K̃,

and for directions (a, b) of (η, K), F has cᵀFd = Σ v(a_c − b_c m̃)(a_d − b_d m̃) + ½ b_c b_d v². The coordinates are
constants for differentiation: the path is invariant to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trpl.engines import mT
from trpl.gaussians.density import entropy
from trpl.gaussians.values import DiagGaussian, FullGaussian
from trpl.linalg import apply, gram_factor, gram_pullback, outer
from trpl.natural.path import Back, FullSupport, Linear, Moments, Pulled
from trpl.special import log1p_excess

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array


class Spectrum(NamedTuple):
    """λ, λ − 1 and m, each to full precision, and the old policy's entropy."""

    precision: Array
    excess: Array
    shift: Array
    entropy: Array


class Local(NamedTuple):
    """The policy at (s, τ) in the path's coordinates."""

    variance: Array
    mean: Array
    stretch: Array  # 1 + s(λ − 1)
    log_precision: Array


def _local(e: Engine, spectrum: Spectrum, s: Array, tau: Array | None) -> Local:
    moved = s[..., None] * spectrum.excess
    stretch, logs = 1.0 + moved, e.xp.log1p(moved)
    mean = s[..., None] * spectrum.precision * spectrum.shift / stretch
    if tau is not None:
        logs = logs + e.xp.log(tau)[..., None]
    return Local(e.xp.exp(-logs), mean, stretch, logs)


def _moments(e: Engine, spectrum: Spectrum, s: Array, tau: Array | None) -> Moments:
    here = _local(e, spectrum, s, tau)
    rise = e.xp.expm1(-here.log_precision)
    kl = 0.5 * e.xp.sum(log1p_excess(e, rise, -here.log_precision) + here.mean * here.mean, axis=-1)
    entropy = spectrum.entropy - 0.5 * e.xp.sum(here.log_precision, axis=-1)
    turn = spectrum.precision * spectrum.shift / here.stretch  # of Δ: a − b m̃
    wide, tall = spectrum.excess * here.variance, here.stretch * here.variance
    change = e.xp.sum(here.variance * turn * turn + 0.5 * wide * wide, axis=-1)
    return Moments(kl, entropy, change, 0.5 * e.vecdot(wide, tall), 0.5 * e.vecdot(tall, tall))


class Spectral(FullSupport):
    """The path in its own coordinates, shared by diagonal and full Gaussians."""

    spectrum: Spectrum

    def spread(self, e: Engine) -> Array:
        return e.xp.sum((self.spectrum.precision * self.spectrum.shift) ** 2 + 0.5 * self.spectrum.excess**2, axis=-1)

    def along(self, e: Engine, s: Array) -> tuple[Array, Array]:
        found = _moments(e, self.spectrum, s, None)
        return found.kl, found.change

    def moments(self, e: Engine, s: Array, tau: Array) -> Moments:
        return _moments(e, self.spectrum, s, tau)

    def _linear(
        self, e: Engine, s: Array, tau: Array | None, here: Local, pull_eta: Array, pull_k: Array, back: Back
    ) -> Linear:
        """Compute the products of F, and those of Δ and w with the cotangent's entries of η and of K's diagonal."""
        spectrum, found = self.spectrum, _moments(e, self.spectrum, s, tau)
        eta = spectrum.precision * spectrum.shift
        pull_change = e.xp.sum(pull_eta * eta + pull_k * spectrum.excess, axis=-1)
        pull_warmth = e.xp.sum(pull_eta * s[..., None] * eta + pull_k * here.stretch, axis=-1)
        return Linear(found.change, found.cross, found.warmth, pull_change, pull_warmth, back)


@dataclass(frozen=True)
class DiagPath(Spectral):
    """The path between two batches of Gaussians with standard deviations."""

    old_mean: Array
    old_std: Array
    spectrum: Spectrum

    @classmethod
    def between(cls, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> DiagPath:
        (mean, std), (old_mean, old_std) = predicted, old
        change = (old_std - std) / std
        shift = (mean - old_mean) / old_std
        precision = (1.0 + change) * (1.0 + change)
        spectrum = Spectrum(precision, change * (2.0 + change), shift, entropy(e, DiagGaussian(old_mean, old_std)))
        return cls(old_mean, old_std, spectrum)

    def at(self, e: Engine, s: Array, tau: Array | None) -> tuple[Array, ...]:
        here = _local(e, self.spectrum, s, tau)
        return self.old_mean + self.old_std * here.mean, self.old_std * e.xp.exp(-0.5 * here.log_precision)

    def linear(self, e: Engine, s: Array, tau: Array | None, cotangents: Sequence[Array]) -> Linear:
        pull_mean, pull_std = (self.old_std * g for g in cotangents)
        spectrum, here = self.spectrum, _local(e, self.spectrum, s, tau)
        v, mean = here.variance, here.mean
        pull_eta = pull_mean * v
        pull_k = -pull_eta * mean - 0.5 * pull_std * v * e.xp.sqrt(v)
        eta = spectrum.precision * spectrum.shift
        warmed = 1.0 if tau is None else tau[..., None]

        def back(along_path: Array, along_warmth: Array, old: bool) -> Pulled:
            c2, c1, t = along_path[..., None], along_warmth[..., None], s[..., None]
            b = c2 * spectrum.excess + c1 * here.stretch
            turn = v * c2 * eta / here.stretch  # w contributes nothing
            k_eta = warmed * (pull_eta - turn)
            k_k = warmed * (pull_k + mean * turn - 0.5 * b * v * v)
            slope = -2.0 * t * spectrum.precision * e.xp.sqrt(spectrum.precision)
            to_mean = t * spectrum.precision * k_eta
            to_std = slope * (spectrum.shift * k_eta + k_k)
            to_predicted = to_mean / self.old_std, to_std / self.old_std
            if not old:
                return to_predicted, None
            pressed = c2 / e.xp.where(t > 0.0, t, 1.0)
            old_eta = (1.0 - t) * k_eta + pressed * mean
            old_k = (1.0 - t) * k_k - pressed * 0.5 * (mean * mean + e.xp.expm1(-here.log_precision))
            return to_predicted, (old_eta / self.old_std, -2.0 * old_k / self.old_std)

        return self._linear(e, s, tau, here, pull_eta, pull_k, back)


@dataclass(frozen=True)
class FullPath(Spectral):
    """The path between two batches of Gaussians with Cholesky factors; `basis` has the coordinate axes as columns."""

    old_mean: Array
    predicted_chol: Array
    basis: Array  # L_q U
    inverse: Array  # Uᵀ L_q⁻¹
    old_chol: Array
    spectrum: Spectrum

    @classmethod
    def between(cls, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> FullPath:
        (mean, chol), (old_mean, old_chol) = predicted, old
        chol, old_chol = chol * e.lower(chol), old_chol * e.lower(old_chol)
        shift = e.solve_triangular(old_chol, (mean - old_mean)[..., None])[..., 0]
        ratio = e.solve_triangular(*e.xp.broadcast_arrays(chol, old_chol))
        _, singular, turn = e.svd(ratio)  # L_p⁻¹L_q, whose square is the precision
        one = e.xp.broadcast_to(e.eye(ratio), ratio.shape)
        inverse = turn @ e.solve_triangular(e.xp.broadcast_to(old_chol, ratio.shape), one)
        spectrum = Spectrum(
            singular * singular,
            (singular - 1.0) * (singular + 1.0),
            apply(turn, shift),
            entropy(e, FullGaussian(old_mean, old_chol)),
        )
        return cls(old_mean, chol, old_chol @ mT(turn), inverse, old_chol, spectrum)

    def at(self, e: Engine, s: Array, tau: Array | None) -> tuple[Array, ...]:
        here = _local(e, self.spectrum, s, tau)
        root = self.basis * e.xp.exp(-0.5 * here.log_precision)[..., None, :]
        return self.old_mean + apply(self.basis, here.mean), gram_factor(e, root)

    def linear(self, e: Engine, s: Array, tau: Array | None, cotangents: Sequence[Array]) -> Linear:
        spectrum, here = self.spectrum, _local(e, self.spectrum, s, tau)
        v, mean = here.variance, here.mean
        chol = self.at(e, s, tau)[1]
        pull_cov = mT(self.basis) @ gram_pullback(e, chol, cotangents[1]) @ self.basis
        pull_eta = v * apply(mT(self.basis), cotangents[0])
        pull_k = -(v[..., :, None] * pull_cov * v[..., None, :]) - _symmetric(outer(pull_eta, mean))
        eta = spectrum.precision * spectrum.shift
        warmed = 1.0 if tau is None else tau[..., None]
        eye = e.eye(pull_k)

        def back(along_path: Array, along_warmth: Array, old: bool) -> Pulled:
            c2, c1, t = along_path[..., None], along_warmth[..., None], s[..., None]
            b = c2 * spectrum.excess + c1 * here.stretch
            turn = v * c2 * eta / here.stretch
            k_eta = warmed * (pull_eta - turn)
            factor = 1.0 if tau is None else tau[..., None, None]
            k_k = factor * (pull_k + _symmetric(outer(turn, mean)) - (0.5 * b * v * v)[..., None] * eye)
            inner = k_k + _symmetric(outer(k_eta, spectrum.shift))
            to_cov = -t[..., None] * spectrum.precision[..., :, None] * inner * spectrum.precision[..., None, :]
            lower = e.lower(k_k)
            to_mean = apply(mT(self.inverse), t * spectrum.precision * k_eta)
            to_chol = 2.0 * lower * (mT(self.inverse) @ to_cov @ (self.inverse @ self.predicted_chol))
            if not old:
                return (to_mean, to_chol), None
            pressed = c2 / e.xp.where(t > 0.0, t, 1.0)
            old_eta = (1.0 - t) * k_eta + pressed * mean
            spread = outer(mean, mean) + e.xp.expm1(-here.log_precision)[..., None] * eye
            old_k = (1.0 - t)[..., None] * k_k - (0.5 * pressed)[..., None] * spread
            to_old_chol = -2.0 * lower * (mT(self.inverse) @ old_k @ (self.inverse @ self.old_chol))
            return (to_mean, to_chol), (apply(mT(self.inverse), old_eta), to_old_chol)

        return self._linear(e, s, tau, here, pull_eta, e.diagonal(pull_k), back)


def _symmetric(x: Array) -> Array:
    return 0.5 * (x + mT(x))
