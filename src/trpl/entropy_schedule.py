"""Schedules of a policy's entropy target.

`initial` is the entropy of the policy before its first update, `target` the final entropy **per action dimension**, and
`progress` the share of training done, i/N in the paper. All may be arrays of any framework.
"""

from __future__ import annotations

from typing import TypeAlias

from trpl.engines import engine_of
from trpl.families import Policy, entropy, family_of
from trpl.types import A, Array, cast

Number: TypeAlias = "float | Array"
REACH = 0.9  # share of the feasible entropies: at the very edge only one policy is left, and no gradient
SCHEDULES = ("none", "exponential", "linear")


def exponential(*, initial: Number, target: Number, temperature: float, progress: Number, dim: int) -> Number:
    """Compute β = κd + (H₀ − κd) τ^(10 i/N): the paper's schedule, section 5.

    Args:
        initial: H₀, the entropy of the policy before its first update.
        target: κ, the final entropy per action dimension.
        temperature: τ, the remaining share of the difference after a tenth of training.
        progress: i/N, the share of training done.
        dim: d, the number of action dimensions.

    Returns:
        The entropy target.

    Examples:
        >>> from trpl.entropy_schedule import exponential
        >>> exponential(initial=8.0, target=-0.5, temperature=0.5, progress=0.1, dim=6)
        2.5
    """
    final = target * dim
    return final + (initial - final) * temperature ** (10.0 * progress)


def linear(*, initial: Number, target: Number, progress: Number, dim: int) -> Number:
    """Compute β = H₀ + (κd − H₀) i/N.

    Args:
        initial: H₀, the entropy of the policy before its first update.
        target: κ, the final entropy per action dimension.
        progress: i/N, the share of training done.
        dim: d, the number of action dimensions.

    Returns:
        The entropy target.
    """
    return initial + (target * dim - initial) * progress


def scheduled(
    schedule: str, *, initial: Number, target: Number, temperature: float | None, progress: Number, dim: int
) -> Number:
    """Compute β by the name of a schedule.

    Args:
        schedule: "exponential" or "linear".
        initial: The entropy of the policy before its first update.
        target: The final entropy per action dimension.
        temperature: τ of the exponential schedule; None for the linear one.
        progress: The share of training done, from 0 to 1.
        dim: The number of action dimensions.

    Returns:
        The entropy target.

    Raises:
        ValueError: The schedule does not exist, or the exponential one has no temperature.
    """
    if schedule == "linear":
        return linear(initial=initial, target=target, progress=progress, dim=dim)
    if schedule != "exponential" or temperature is None:
        raise ValueError(f"schedule must be 'linear', or 'exponential' with a temperature; not {schedule!r}")
    return exponential(initial=initial, target=target, temperature=temperature, progress=progress, dim=dim)


def within_reach(target: A | float, old: Policy[A], bound: A | float) -> A:
    """Clip the target to entropies that policies within a KL bound of the old one have.

    With one bound on the whole KL there may be no policy with the target entropy. The clipped target changes the
    entropy by at most nine tenths of what the bound allows.

    Args:
        target: The entropy target, one for all states or one per state.
        old: The policy at the centre of the bound.
        bound: The bound on the whole KL.

    Returns:
        An entropy per state; for Gaussians one per covariance.
    """
    e, here = engine_of(*old.arrays), entropy(old)
    least, most = family_of(old).entropy_range(e, old, e.asarray(bound, here))
    return cast("A", here + e.xp.clip(target - here, REACH * least, REACH * most))
