"""Projection of the mean (paper, section 4.1), and the step length that it shares with the closed forms."""

from __future__ import annotations

from typing import Any

from trpl.backend import namespace

Array = Any


def shrinkage(distance: Array, bound: Array) -> Array:
    """√(ε/distance) where the distance exceeds ε, else 1: how far along the way from old to predicted one may go.

    It is 1/(1 + multiplier) in every closed-form projection of the paper.
    """
    xp = namespace(distance, bound)
    return xp.sqrt(bound / xp.maximum(distance, bound))


def project_mean(mean: Array, old_mean: Array, *, outside: Array, weight: Array) -> Array:
    """μ̃ = (μ + ω μ_old)/(1 + ω) with weight 1/(1 + ω) where `outside`; else μ itself."""
    moved = old_mean + weight[..., None] * (mean - old_mean)
    return namespace(mean).where(outside[..., None], moved, mean)
