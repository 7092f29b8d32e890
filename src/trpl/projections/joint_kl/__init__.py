"""Joint KL projection of Gaussians: mean, covariance and entropy at once (paper, appendix "KL-Divergence Projection").

    min KL(π̃‖π)  subject to  KL(π̃‖π_old) ≤ ε  and  H(π̃) ≥ β (or = β).

`terms` computes the solution at a given multiplier, `solution` finds the multiplier, `gradient` is the pullback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import engine_of
from trpl.projections.joint_kl import solution

if TYPE_CHECKING:
    from trpl.types import PerState

__all__ = ["entropy_range"]


def entropy_range(bound: PerState, dim: int) -> tuple[PerState, PerState]:
    """Return the range of H − H_old over all Gaussians within KL ≤ ε of the old policy.

    Args:
        bound: ε, an array.
        dim: The number of action dimensions.

    Returns:
        Two arrays of the bound's shape, the first negative, the second positive.
    """
    return solution.entropy_range(engine_of(bound), bound, dim)
