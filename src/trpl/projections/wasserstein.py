"""Wasserstein-2 projection of the covariance, scaled by the old one (paper, section 4.2 and appendix).

Square roots are interpolated: S̃ = (S + η S_old)/(1 + η), η = √(distance/ε) − 1. In the commuting form S is the
symmetric root of the covariance itself, as in the paper. In the exact form it is the root of the whitened covariance M
= L_q⁻¹ΣL_q⁻ᵀ: the optimal transport from I to M is M^½, so the ball's nearest point lies on the geodesic I + t(M^½ −
I), with no assumption that anything commutes. For diagonal covariances the two are one.
"""

from __future__ import annotations

from typing import Any

from trpl.backend import namespace, solve_triangular, when_any
from trpl.gaussians.distances import Form
from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.linalg import gram_factor, identity_like, symmetric_root
from trpl.projections.alignment import align

Array = Any


def project_cov(predicted: Gaussian, old: Gaussian, *, outside: Array, weight: Array, form: Form) -> Array:
    """The scale a share `weight` of the way from old to predicted where `outside`; else the predicted one."""
    xp = namespace(predicted.scale)
    core = 1 if isinstance(predicted, DiagGaussian) else 2
    p, q, weight, outside = align((predicted.scale, core), (old.scale, core), (weight, 0), (outside, 0))
    if isinstance(predicted, DiagGaussian):
        return xp.where(outside[..., None], q + weight[..., None] * (p - q), p)
    interpolate = _interpolate_commuting if form == "commuting" else _interpolate_exact

    def work(p: Array, q: Array, weight: Array) -> Array:
        return xp.where(outside[..., None, None], interpolate(p, q, weight[..., None, None]), p)

    def idle(p: Array, q: Array, weight: Array) -> Array:
        return xp.broadcast_arrays(p, q, weight[..., None, None])[0]

    return when_any(outside, work, idle, p, q, weight)


def _interpolate_commuting(p: Array, q: Array, weight: Array) -> Array:
    """The factor of S̃², S̃ = S_old + t(S − S_old) with S the symmetric roots of the covariances."""
    root = symmetric_root(q)
    return gram_factor(root + weight * (symmetric_root(p) - root))


def _interpolate_exact(p: Array, q: Array, weight: Array) -> Array:
    """The factor of L_q S² L_qᵀ, S = I + t(M^½ − I)."""
    root = symmetric_root(solve_triangular(q, p))
    one = identity_like(p)
    return q @ gram_factor(one + weight * (root - one))
