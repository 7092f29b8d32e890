"""Losses over a minibatch: pure functions of arrays of any framework."""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import array_namespace

from trpl.families import Policy, entropy
from trpl.types import A, A_co, Generic


def normalised(advantages: A, *, unbiased: bool = False) -> A:
    """Standardise advantages to mean 0 and deviation 1 over the minibatch.

    Args:
        advantages: The advantage of each sample.
        unbiased: Whether the deviation divides by n − 1.

    Returns:
        The normalised advantages.
    """
    xp = array_namespace(advantages)
    return (advantages - xp.mean(advantages)) / (xp.std(advantages, correction=int(unbiased)) + 1e-8)


def weighted_advantages(log_ratio: A, advantages: A) -> A:
    """Compute ratio · A of each sample.

    Args:
        log_ratio: log π(a|s) − log π_old(a|s) of each sample.
        advantages: The advantage of each sample.

    Returns:
        Each sample's term of the surrogate.
    """
    return array_namespace(advantages).exp(log_ratio) * advantages


def surrogate(log_ratio: A, advantages: A) -> A:
    """Compute −E[ratio · A], the importance-weighted policy gradient (paper, eq. 1).

    Args:
        log_ratio: log π(a|s) − log π_old(a|s) of each sample.
        advantages: The advantage of each sample.

    Returns:
        The loss.
    """
    return -array_namespace(advantages).mean(weighted_advantages(log_ratio, advantages))


def clipped_surrogate(log_ratio: A, advantages: A, *, clip: float) -> A:
    """Compute −E[min(ratio · A, clip(ratio, 1 ± clip) · A)] (Schulman et al. 2017, eq. 7).

    Args:
        log_ratio: log π(a|s) − log π_old(a|s) of each sample.
        advantages: The advantage of each sample.
        clip: The largest distance of a ratio from 1.

    Returns:
        The loss.
    """
    xp = array_namespace(advantages)
    ratio = xp.exp(log_ratio)
    return -xp.mean(xp.minimum(ratio * advantages, xp.clip(ratio, 1 - clip, 1 + clip) * advantages))


class TrustRegionLoss(NamedTuple, Generic[A_co]):
    """The loss of a policy epoch, and its two terms."""

    total: A_co
    surrogate: A_co
    penalty: A_co


def trust_region_loss(
    projected: Policy[A],
    *,
    log_ratio: A,
    advantages: A,
    penalties: A,
    regression_weight: float,
    entropy_weight: float = 0.0,
    normalise: bool = True,
    unbiased: bool = False,
) -> TrustRegionLoss[A]:
    """Compute −E[ratio · A] + α E[penalty] − w E[H] for a projected policy (paper, eq. 12).

    Args:
        projected: The projected policy, for its entropy H.
        log_ratio: Log-density of each action under the projected policy minus that under the old one.
        advantages: One per sample.
        penalties: The layer's penalty between predicted and projected policy, state by state.
        regression_weight: α.
        entropy_weight: w, the weight of an entropy bonus.
        normalise: Whether to normalise the advantages over the minibatch.
        unbiased: Which deviation normalises the advantages; see `normalised`.

    Returns:
        The loss, the surrogate −E[ratio · A] and the mean penalty.
    """
    xp = array_namespace(advantages)
    advantages = normalised(advantages, unbiased=unbiased) if normalise else advantages
    total = policy_loss = surrogate(log_ratio, advantages)
    penalty = xp.mean(penalties)
    if regression_weight:
        total = total + regression_weight * penalty
    if entropy_weight:
        total = total - entropy_weight * xp.mean(entropy(projected))
    return TrustRegionLoss(total, policy_loss, penalty)


def squared_error(values: A, returns: A) -> A:
    """Compute the mean squared error of a value function.

    Args:
        values: The value function's predictions.
        returns: Their targets.

    Returns:
        The mean over the minibatch.
    """
    xp = array_namespace(values)
    return xp.mean(xp.square(values - returns))


def clipped_squared_error(values: A, returns: A, *, old_values: A, clip: float) -> A:
    """Compute E[max((V − R)², (clip(V, V_old ± clip) − R)²)]: a change of V beyond the clip gains nothing.

    Args:
        values: The value function's predictions.
        returns: Their targets.
        old_values: Its predictions before the update.
        clip: The largest change of a value.

    Returns:
        The mean over the minibatch.
    """
    xp = array_namespace(values)
    held = old_values + xp.clip(values - old_values, -clip, clip)
    return xp.mean(xp.maximum(xp.square(values - returns), xp.square(held - returns)))
