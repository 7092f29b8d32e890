"""Schedules for the entropy that a policy is held to.

`initial` is the entropy of the policy before its first update, `target` the final entropy **per action dimension**, and
`progress` the share of training done, i/N in the paper. All may be arrays of any framework.
"""

from __future__ import annotations

from trpl.types import Array

SCHEDULES = ("none", "exponential", "linear")


def exponential(*, initial: Array, target: Array, temperature: float, progress: Array, dim: int) -> Array:
    """Compute β = κd + (H₀ − κd) τ^(10 i/N): the paper's schedule, section 5."""
    final = target * dim
    return final + (initial - final) * temperature ** (10.0 * progress)


def linear(*, initial: Array, target: Array, progress: Array, dim: int) -> Array:
    """Compute β = H₀ + (κd − H₀) i/N."""
    return initial + (target * dim - initial) * progress


def scheduled(
    schedule: str, *, initial: Array, target: Array, temperature: float | None, progress: Array, dim: int
) -> Array:
    """Compute β by the schedule of this name, "exponential" or "linear"; only the first has a temperature."""
    if schedule == "linear":
        return linear(initial=initial, target=target, progress=progress, dim=dim)
    assert temperature is not None
    return exponential(initial=initial, target=target, temperature=temperature, progress=progress, dim=dim)
