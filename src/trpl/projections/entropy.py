"""Entropy control: scale the standard deviation so that the entropy meets its target (paper, section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import engine_of
from trpl.gaussians.density import entropy
from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.types import A


def control_entropy(p: Gaussian[A], target: A | float, *, equality: bool = False) -> Gaussian[A]:
    """Multiply p's standard deviation by c = exp((β − H(p))/d), so that H = β exactly.

    Args:
        p: The policy.
        target: β.
        equality: Whether every state has that entropy; else it is a lower bound, and states above stay bit for bit.

    Returns:
        The policy.
    """
    e = engine_of(*p)
    xp = e.xp
    present = entropy(e, p)
    factor = xp.exp((target - present) / p.dim)
    axes = (None,) if isinstance(p, DiagGaussian) else (None, None)
    if not equality:
        factor = xp.where(target <= present, xp.ones_like(factor), factor)  # a NaN gives NaN
    return p.with_scale(cast("A", p.scale * factor[(..., *axes)]))
