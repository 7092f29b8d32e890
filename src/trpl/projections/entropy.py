"""Entropy control: scale the standard deviation so that the entropy meets its target (paper, section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import engine_of
from trpl.gaussians.density import entropy
from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.types import A


def control_entropy(p: Gaussian[A], *, minimum: A | float | None = None, equal: A | float | None = None) -> Gaussian[A]:
    """Multiply p's standard deviation by c = exp((β − H(p))/d), so that H = β exactly.

    Args:
        p: The policy.
        minimum: β as a lower bound; states above it are returned bit for bit.
        equal: β as an equality for every state.

    Returns:
        The policy, p itself without a target.
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
    return p.with_scale(cast("A", p.scale * factor[(..., *axes)]))
