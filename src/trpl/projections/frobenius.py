"""Frobenius projection of the covariance (paper, section 4.2 and appendix).

Covariances are interpolated: Σ̃ = (Σ + η Σ_old)/(1 + η), η = √(distance/ε) − 1, with the distance plain or whitened by
Σ_old. The plain one depends on the actions' units and is unstable for small covariances, as the paper says.
"""

from __future__ import annotations

from typing import Any

from trpl.backend import any_true, namespace, when_any
from trpl.gaussians.distances import frobenius_cov
from trpl.gaussians.values import DiagGaussian, Pair
from trpl.linalg import interpolated_factor
from trpl.projections.alignment import align
from trpl.projections.mean import shrinkage

Array = Any


def project_cov(pair: Pair, bound: Array, *, whitened: bool) -> Array:
    """The scale at distance ε from the old one where the predicted one is further; else that."""
    predicted, old, _, _ = pair
    xp = namespace(predicted.scale)
    distance = frobenius_cov(predicted, old, whitened=whitened)
    outside = distance > bound
    if not any_true(outside):
        return predicted.scale
    core = 1 if isinstance(predicted, DiagGaussian) else 2
    p, q, weight, outside = align(
        (predicted.scale, core), (old.scale, core), (shrinkage(distance, bound), 0), (outside, 0)
    )
    if isinstance(predicted, DiagGaussian):
        weight = weight[..., None]
        variance = weight * p * p + (1.0 - weight) * q * q  # a sum of positive terms: nothing cancels
        return xp.where(outside[..., None], xp.sqrt(variance), p)

    def work(p: Array, q: Array, weight: Array, outside: Array) -> Array:
        return xp.where(outside[..., None, None], interpolated_factor(weight, p, q), p)

    def idle(p: Array, q: Array, weight: Array, outside: Array) -> Array:
        return xp.broadcast_arrays(p, q, weight[..., None, None])[0]

    return when_any(outside, work, idle, p, q, weight, outside)
