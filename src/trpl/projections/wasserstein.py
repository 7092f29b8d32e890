"""Wasserstein-2 projection of the covariance, scaled by the old one (paper, section 4.2 and appendix).

Square roots are interpolated: S̃ = (S + η S_old)/(1 + η), η = √(distance/ε) − 1. In the commuting form S is the
symmetric root of the covariance itself, as in the paper. In the exact form it is the root of the whitened covariance M
= L_q⁻¹ΣL_q⁻ᵀ: the optimal transport from I to M is M^½, so the ball's nearest point lies on the geodesic I + t(M^½ −
I), with no assumption that anything commutes. For diagonal covariances the two are one.
"""

from __future__ import annotations

from typing import Any

from trpl.backend import any_true, namespace, when_any
from trpl.gaussians.distances import Form, root_change, root_distance
from trpl.gaussians.values import DiagGaussian, Pair
from trpl.linalg import gram_factor
from trpl.projections.alignment import align
from trpl.projections.mean import shrinkage

Array = Any


def project_cov(pair: Pair, bound: Array, *, form: Form) -> Array:
    """The scale at distance ε from the old one where the predicted one is further; else that."""
    predicted, old, _, _ = pair
    xp = namespace(predicted.scale)
    root, change = root_change(predicted, old, form=form)
    distance = root_distance(root, change, predicted, form=form)
    outside = distance > bound
    if not any_true(outside):
        return predicted.scale
    weight = shrinkage(distance, bound)
    if isinstance(predicted, DiagGaussian):
        p, root, change, weight, outside = align((predicted.std, 1), (root, 1), (change, 1), (weight, 0), (outside, 0))
        return xp.where(outside[..., None], root + weight[..., None] * change, p)

    def work(p: Array, q: Array, root: Array, change: Array, weight: Array, outside: Array) -> Array:
        factor = gram_factor(root + weight[..., None, None] * change)
        return xp.where(outside[..., None, None], factor if form == "commuting" else q @ factor, p)

    def idle(p: Array, q: Array, root: Array, change: Array, weight: Array, outside: Array) -> Array:
        return xp.broadcast_arrays(p, q, change, weight[..., None, None])[0]

    operands = align((predicted.scale, 2), (old.scale, 2), (root, 2), (change, 2), (weight, 0), (outside, 0))
    return when_any(outside, work, idle, *operands)
