"""Projection of the mean (paper, section 4.1), and the step length that it shares with the closed forms.

With δ = μ − μ_old, z = L⁻¹δ and m = ‖z‖² the Mahalanobis distance, μ̃ = μ_old + wδ, w = √(ε/m). The derivative is
written by hand: with y = L⁻ᵀz and c = ⟨δ, ḡ⟩/m

    μ̄ = w(ḡ − cy),    μ̄_old = ḡ − μ̄,    L̄ = wc yzᵀ on its lower triangle,    ε̄ = ½ wc m/ε.
"""

from __future__ import annotations

from typing import Any

from trpl.backend import alongside, any_true, computes_again, later, namespace, quiet, unless_none
from trpl.gaussians.density import whiten
from trpl.gaussians.values import DiagGaussian, Pair
from trpl.linalg import dot, lower_mask, solve_vector, squared_norm
from trpl.projections.alignment import align
from trpl.rules import Rule

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
    diag = scale.ndim == mean.ndim
    if diag and computes_again(cotangent):
        mean, old_mean, scale = later(cotangent, mean, old_mean, scale)
        whitened = (mean - old_mean) / scale
        distance = squared_norm(whitened)
        weight = shrinkage(distance, bound)
    longest = xp.maximum(distance, bound)  # of what is outside the distance; never 0
    outside = (distance > bound)[..., None]
    old_too = any(needed[1:])

    def work(cotangent: Array) -> tuple[Array | None, ...]:
        along = dot(mean - old_mean, cotangent) / longest
        pulled = whitened / scale if diag else solve_vector(scale, whitened, transpose=True)
        inner = weight[..., None] * (cotangent - along[..., None] * pulled)
        mean_bar = xp.where(outside, inner, cotangent)
        if not old_too:
            return (mean_bar,)
        zero = xp.zeros_like(inner)
        push = xp.where(outside, (weight * along)[..., None] * pulled, zero)
        scale_bar = push * whitened if diag else lower_mask(scale) * (push[..., None] * whitened[..., None, :])
        bound_bar = xp.where(outside[..., 0], 0.5 * weight * along * longest / bound, zero[..., 0])
        return mean_bar, xp.where(outside, cotangent - inner, zero), scale_bar, bound_bar

    def idle(cotangent: Array) -> tuple[Array, ...]:
        zero = xp.zeros_like(cotangent)
        scale_bar = zero if diag else xp.zeros_like(zero[..., None] * zero[..., None, :])
        return cotangent, zero, scale_bar, zero[..., 0]

    found = unless_none(outside, work, idle, cotangent)
    return (*found, None, None) if old_too else (*found, None, None, None, None, None)


_project = Rule(_forward, _backward)


def project_mean(pair: Pair, bound: Array) -> Array:
    """μ̃ = (μ + ω μ_old)/(1 + ω) at Mahalanobis distance ε from μ_old where μ is further; else μ itself."""
    predicted, old, p, q = pair
    with quiet(p.mean):
        whitened = whiten(q, p.mean - q.mean)
        distance = squared_norm(whitened)
        (limit,) = alongside(p.mean, bound)
        if not any_true(distance > limit):
            return predicted.mean
    core = 1 if isinstance(old, DiagGaussian) else 2
    return _project(
        *align((predicted.mean, 1), (old.mean, 1), (old.scale, core), (bound, 0), (whitened, 1), (distance, 0))
    )
