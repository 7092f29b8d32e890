"""Projection of the mean (paper, section 4.1), and the step length that it shares with the closed forms.

With δ = μ − μ_old, z = L⁻¹δ and m = ‖z‖² the Mahalanobis distance, μ̃ = μ_old + wδ, w = √(ε/m). The derivative is
written by hand: with y = L⁻ᵀz and c = ⟨δ, ḡ⟩/m

    μ̄ = w(ḡ − cy),    μ̄_old = ḡ − μ̄,    L̄ = wc yzᵀ on its lower triangle,    ε̄ = ½ wc m/ε.
"""

from __future__ import annotations

from typing import Any

from trpl.backend import Rule, any_true, namespace, stop_gradient
from trpl.gaussians.density import whiten
from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.linalg import lower_mask, solve_vector, squared_norm
from trpl.projections.alignment import align

Array = Any


def shrinkage(distance: Array, bound: Array) -> Array:
    """√(ε/distance) where the distance exceeds ε, else 1: how far along the way from old to predicted one may go.

    It is 1/(1 + multiplier) in every closed-form projection of the paper.
    """
    xp = namespace(distance, bound)
    return xp.sqrt(bound / xp.maximum(distance, bound))


def _forward(
    mean: Array, old_mean: Array, scale: Array, bound: Array, whitened: Array, distance: Array
) -> tuple[Array, ...]:
    weight = shrinkage(distance, bound)
    moved = old_mean + weight[..., None] * (mean - old_mean)
    return namespace(mean).where((distance > bound)[..., None], moved, mean), weight


def _backward(inputs: tuple, outputs: tuple, cotangent: Array, needed: Any) -> tuple[Array | None, ...]:
    (mean, old_mean, scale, bound, whitened, distance), (_, weight) = inputs, outputs
    xp = namespace(mean)
    longest = xp.maximum(distance, bound)  # of what is outside the distance; never 0
    diag = scale.ndim == mean.ndim
    outside = (distance > bound)[..., None]
    along = xp.sum((mean - old_mean) * cotangent, axis=-1) / longest
    pulled = whitened / scale if diag else solve_vector(scale, whitened, transpose=True)
    inner = weight[..., None] * (cotangent - along[..., None] * pulled)
    mean_bar = xp.where(outside, inner, cotangent)
    if not any(needed[1:]):
        return mean_bar, None, None, None, None, None
    zero = xp.zeros_like(inner)
    push = xp.where(outside, (weight * along)[..., None] * pulled, zero)
    scale_bar = push * whitened if diag else lower_mask(scale) * (push[..., None] * whitened[..., None, :])
    bound_bar = xp.where(outside[..., 0], 0.5 * weight * along * longest / bound, zero[..., 0])
    return mean_bar, xp.where(outside, cotangent - inner, zero), scale_bar, bound_bar, None, None


_project = Rule(_forward, _backward)


def project_mean(predicted: Gaussian, old: Gaussian, bound: Array) -> Array:
    """μ̃ = (μ + ω μ_old)/(1 + ω) at Mahalanobis distance ε from μ_old where μ is further; else μ itself."""
    fixed = old.detached()
    whitened = whiten(fixed, stop_gradient(predicted.mean) - fixed.mean)
    distance = squared_norm(whitened)
    if not any_true(distance > stop_gradient(bound)):
        return predicted.mean
    core = 1 if isinstance(old, DiagGaussian) else 2
    return _project(
        *align((predicted.mean, 1), (old.mean, 1), (old.scale, core), (bound, 0), (whitened, 1), (distance, 0))
    )
