"""Entropy control: the standard deviation is scaled so that the entropy meets its target (paper, section 4.2)."""

from __future__ import annotations

from typing import Any

from trpl.backend import namespace
from trpl.gaussians.density import entropy
from trpl.gaussians.values import DiagGaussian, Gaussian

Array = Any


def control_entropy(p: Gaussian, *, minimum: Array | None = None, equal: Array | None = None) -> Gaussian:
    """p with its standard deviation multiplied by c = exp((β − H(p))/d), so that H = β exactly.

    With `minimum` only where H(p) < β; elsewhere p is returned bit for bit. With `equal` everywhere.
    """
    if minimum is None and equal is None:
        return p
    xp = namespace(p.scale)
    present = entropy(p)
    target = equal if equal is not None else minimum
    factor = xp.exp((target - present) / p.dim)
    axes = (None,) if isinstance(p, DiagGaussian) else (None, None)
    if equal is None:
        factor = xp.where(target > present, factor, xp.ones_like(factor))
    return p.with_scale(p.scale * factor[(..., *axes)])
