"""Entropy control: the standard deviation is scaled so that the entropy meets its target (paper, section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import engine_of
from trpl.gaussians.density import entropy
from trpl.gaussians.values import DiagGaussian, Gaussian

if TYPE_CHECKING:
    from trpl.types import PerState


def control_entropy(p: Gaussian, *, minimum: PerState | None = None, equal: PerState | None = None) -> Gaussian:
    """p with its standard deviation multiplied by c = exp((β − H(p))/d), so that H = β exactly.

    Args:
        p: The policy.
        minimum: β, where only lower entropies are raised; elsewhere p is returned bit for bit.
        equal: β, for every state.

    Returns:
        The policy, p itself if there is no target.
    """
    if minimum is None and equal is None:
        return p
    e = engine_of(*p)
    xp = e.xp
    present = entropy(e, p)
    target = minimum if equal is None else equal
    assert target is not None
    factor = xp.exp((target - present) / p.dim)
    axes = (None,) if isinstance(p, DiagGaussian) else (None, None)
    if equal is None:
        factor = xp.where(target > present, factor, xp.ones_like(factor))
    return p.with_scale(p.scale * factor[(..., *axes)])
