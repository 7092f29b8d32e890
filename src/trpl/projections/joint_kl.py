"""Joint KL projection: mean, covariance and entropy at once (paper, appendix "KL-Divergence Projection").

    min KL(π̃‖π)  subject to  KL(π̃‖π_old) ≤ ε  and  H(π̃) ≥ β (or = β).

Whitened by the old policy, with A = M⁻¹ − I the predicted precision minus the old and m the mean's shift, the dual's
solution is

    Q = I + xA,    covariance k Q⁻¹,    mean m̃ = x Q⁻¹(I + A)m,

where x = 1/(1 + η) and k = 1 + ω/(1 + η) stand for the multipliers of the KL and of the entropy. For given x the
entropy fixes k:

    log k = (2/d)(β − H_old) + (1/d) log|Q|,  at least 0 for the inequality.

The dual, minimised over ω, is convex in η, and its derivative is ε − KL: so KL(x, k(x)) increases in x, and the
two-dimensional problem is one bracketed root. Eigenvalues only find that root; the gradient comes from one Newton step
in which x alone is held constant, on the KL of the Cholesky factor that is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trpl.backend import first_order, namespace, stop_gradient
from trpl.gaussians.density import entropy as entropy_of
from trpl.gaussians.density import whiten
from trpl.gaussians.distances import lowered
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian
from trpl.linalg import apply, cholesky_inverse_factor, diagonal, identity_like, squared_norm
from trpl.projections.alignment import broadcast
from trpl.projections.kl import excess_precision, kl_of_factor
from trpl.roots import increasing_root

Array = Any


class Solution(NamedTuple):
    """The projected policy and the multipliers of the KL and the entropy constraint."""

    projected: Gaussian
    kl_multiplier: Array
    entropy_multiplier: Array


class _Target(NamedTuple):
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


def entropy_range(bound: Array, dim: int) -> tuple[Array, Array]:
    """The least and the greatest entropy, less that of the old policy, that any Gaussian within KL ≤ ε of it can have.

    The extremes scale the old covariance by c with (d/2)(c − 1 − log c) = ε; their entropies are (d/2) log c away.
    """
    xp = namespace(bound)
    share = 2.0 * bound / dim  # c − 1 − log c
    spread = xp.sqrt(2.0 * share)

    def newton(log_c: Array) -> Array:
        for _ in range(40):
            log_c = log_c - (xp.expm1(log_c) - log_c - share) / xp.expm1(log_c)
        return log_c

    return 0.5 * dim * newton(-spread - share), 0.5 * dim * newton(xp.log1p(spread + share))


def _evaluator(eigenvalues: Array, shift: Array, target: _Target) -> Callable[[Array], tuple[Array, Array]]:
    """x ↦ KL(x, k(x)) and x times its derivative, from the eigenvalues of A and the shift in their basis."""
    xp = namespace(eigenvalues)
    dim = eigenvalues.shape[-1]

    def evaluate(x: Array) -> tuple[Array, Array]:
        u = x[..., None] * eigenvalues
        v = 1.0 / (1.0 + u)
        logs = xp.log1p(u)
        log_k, held = target.log_k(xp.sum(logs, axis=-1), dim)
        excess = xp.expm1(log_k[..., None] - logs)  # projected variances less 1
        kept = shift * (x[..., None] + u) * v  # m̃
        value = 0.5 * xp.sum(excess - log_k[..., None] + logs + kept * kept, axis=-1)
        # x dKL/dx at fixed k, then through k: x dk/dx = (k/d) Σ uv, dKL/dk = (Σ(1 + excess) − d)/(2k)
        direct = 0.5 * xp.sum(-u * v * excess + 2.0 * kept * kept * v, axis=-1)
        through = xp.where(held, 0.5 / dim * xp.sum(u * v, axis=-1) * xp.sum(excess, axis=-1), 0.0 * value)
        return value, direct + through

    return evaluate


def project(
    predicted: Gaussian, old: Gaussian, *, bound: Array, entropy: Array | None = None, equality: bool = False
) -> Solution:
    """The joint projection; covariances are per state afterwards, also where they were shared before."""
    xp = namespace(predicted.mean)
    diag = isinstance(predicted, DiagGaussian)
    core = 1 if diag else 2
    predicted, old = lowered(predicted), lowered(old)
    shift = whiten(old, predicted.mean - old.mean)
    log_scale = bound if entropy is None else (2.0 / old.dim) * (entropy - entropy_of(old))
    excess = excess_precision(predicted.scale, old.scale, diag=diag)
    excess, p, q, shift, bound, log_scale = broadcast(
        (excess, core), (predicted.scale, core), (old.scale, core), (shift, 1), (bound, 0), (log_scale, 0)
    )
    target = _Target(None if entropy is None else log_scale, equality)
    terms = _diag_terms if diag else _full_terms

    eigenvalues, rotated = (excess, shift) if diag else _rotate(excess, shift)
    eigenvalues, rotated = stop_gradient(eigenvalues), stop_gradient(rotated)
    frozen = _Target(None if entropy is None else stop_gradient(log_scale), equality)
    evaluate = _evaluator(eigenvalues, rotated, frozen)
    limit = stop_gradient(bound)
    one = xp.ones_like(limit)
    at_one, _ = evaluate(one)
    outside = ~(at_one <= limit)  # so far outside that even the distance is not finite is outside too
    start = xp.clip(xp.sqrt(limit / xp.where(at_one > limit, at_one, 1e6 * limit)), 1e-3, 1.0)
    root = increasing_root(evaluate, limit, start=start, active=outside)

    # One Newton step on the returned factor's own KL: polishes the value and carries the derivative of x.
    value = terms(root, excess, shift, target).kl
    slope = evaluate(root)[1] / root
    x = xp.where(outside, first_order(root - (value - bound) / xp.where(outside, slope, one)), one)
    found = terms(x, excess, shift, target)

    moved = outside | found.held
    axis = moved[..., None]
    mean = xp.where(outside[..., None], old.mean + _unwhiten(q, found.mean, diag), predicted.mean)
    scale = q * found.factor if diag else q @ found.factor
    scale = xp.where(axis if diag else axis[..., None], scale, p)
    projected = DiagGaussian(mean, scale) if diag else FullGaussian(mean, scale)
    return Solution(projected, 1.0 / x - 1.0, (found.k - 1.0) / x)


class _Terms(NamedTuple):
    """What the solution is made of at a given x."""

    kl: Array
    factor: Array
    mean: Array
    k: Array
    held: Array


def _rotate(excess: Array, shift: Array) -> tuple[Array, Array]:
    """Eigenvalues of A and the shift in its eigenbasis; never differentiated."""
    eigenvalues, basis = namespace(excess).linalg.eigh(stop_gradient(excess))
    return eigenvalues, apply(basis.mT, stop_gradient(shift))


def _diag_terms(x: Array, excess: Array, shift: Array, target: _Target) -> _Terms:
    xp = namespace(excess)
    u = x[..., None] * excess
    log_k, held = target.log_k(xp.sum(xp.log1p(u), axis=-1), excess.shape[-1])
    half = 0.5 * (log_k[..., None] - xp.log1p(u))
    grown = xp.expm1(half)
    mean = shift * (x[..., None] + u) / (1.0 + u)
    kl = xp.sum(0.5 * grown * grown + grown - half + 0.5 * mean * mean, axis=-1)
    return _Terms(kl, xp.exp(half), mean, xp.exp(log_k), held)


def _full_terms(x: Array, excess: Array, shift: Array, target: _Target) -> _Terms:
    xp = namespace(excess)
    precision = identity_like(excess) + x[..., None, None] * xp.flip(excess, axis=(-2, -1))
    factor = xp.flip(cholesky_inverse_factor(precision).mT, axis=(-2, -1))  # WWᵀ = Q⁻¹, W lower triangular
    log_k, held = target.log_k(-2.0 * xp.sum(xp.log(diagonal(factor)), axis=-1), excess.shape[-1])
    mean = x[..., None] * apply(factor, apply(factor.mT, shift + apply(excess, shift)))
    factor = factor * xp.exp(0.5 * log_k)[..., None, None]
    return _Terms(kl_of_factor(factor) + 0.5 * squared_norm(mean), factor, mean, xp.exp(log_k), held)


def _unwhiten(q: Array, v: Array, diag: bool) -> Array:
    return q * v if diag else apply(q, v)
