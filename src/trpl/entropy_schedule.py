"""Schedules for the entropy that a policy is held to.

`initial` is the entropy of the policy before its first update, `target` the final entropy **per action dimension**, and
`progress` the share of training done, i/N in the paper. All may be arrays of any framework.
"""

from __future__ import annotations

from trpl.types import Array

SCHEDULES = ("none", "exponential", "linear")


def exponential(*, initial: Array, target: Array, temperature: float, progress: Array, dim: int) -> Array:
    """Compute β = κd + (H₀ − κd) τ^(10 i/N): the paper's schedule, section 5.

    Args:
        initial: H₀, the entropy of the policy before its first update.
        target: κ, the final entropy per action dimension.
        temperature: τ, how fast the entropy falls: the share of the way that is left after a tenth of training.
        progress: i/N, the share of training that is done.
        dim: d, the number of action dimensions.

    Returns:
        The entropy to hold the policy to.

    Example:
        >>> from trpl.entropy_schedule import exponential
        >>> exponential(initial=8.0, target=-0.5, temperature=0.5, progress=0.1, dim=6)
        2.5
    """
    final = target * dim
    return final + (initial - final) * temperature ** (10.0 * progress)


def linear(*, initial: Array, target: Array, progress: Array, dim: int) -> Array:
    """Compute β = H₀ + (κd − H₀) i/N.

    Args:
        initial: H₀, the entropy of the policy before its first update.
        target: κ, the final entropy per action dimension.
        progress: i/N, the share of training that is done.
        dim: d, the number of action dimensions.

    Returns:
        The entropy to hold the policy to.
    """
    return initial + (target * dim - initial) * progress


def scheduled(
    schedule: str, *, initial: Array, target: Array, temperature: float | None, progress: Array, dim: int
) -> Array:
    """Compute β by the schedule of this name.

    Args:
        schedule: "exponential" or "linear".
        initial: The entropy of the policy before its first update.
        target: The final entropy per action dimension.
        temperature: How fast an exponential schedule falls; the linear one has none.
        progress: The share of training that is done, from 0 to 1.
        dim: The number of action dimensions.

    Returns:
        The entropy to hold the policy to.
    """
    if schedule == "linear":
        return linear(initial=initial, target=target, progress=progress, dim=dim)
    assert temperature is not None
    return exponential(initial=initial, target=target, temperature=temperature, progress=progress, dim=dim)
