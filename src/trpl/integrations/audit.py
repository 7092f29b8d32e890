"""The exact KL divergence of an update, state by state, beside the estimate that PPO prints.

    before = read(policy(observations))           # any framework's distribution, or a policy value
    ...                                           # any update
    found = exact_kl(policy(observations), before, bound=0.01)
    print(found)                                  # found.mean, found.max, found.share_above, found.states

PPO's `approx_kl` is a mean over sampled actions: it is noisy, it hides the worst state, and it is often computed from
the last minibatch alone. Here nothing is sampled: each state's divergence has a closed form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from trpl.families import Categorical, Policy, SparseCategorical, family_of, is_policy, kl, log_prob
from trpl.integrations.distributions import matching, split
from trpl.types import cast


class KLAudit(NamedTuple):
    """The divergence of an update over all its states.

    Attributes:
        mean: The mean over the states.
        max: The maximum over the states.
        share_above: The share of states above the bound; None without one.
        estimate: PPO's estimate, the mean of (ratio − 1) − log ratio over the actions taken; None without actions.
        states: KL(new ‖ old) of every state, flat.
    """

    mean: float
    max: float
    share_above: float | None
    estimate: float | None
    states: np.ndarray

    def __str__(self) -> str:
        """Format the numbers in one line, without the states."""
        above = "" if self.share_above is None else f", {self.share_above:.1%} above the bound"
        estimate = "" if self.estimate is None else f"; PPO's estimate of the mean {self.estimate:.4g}"
        return f"exact KL in {self.states.size} states: mean {self.mean:.4g}, largest {self.max:.4g}{above}{estimate}"

    def figures(self, prefix: str = "") -> dict[str, float]:
        """Return the numbers by name, for a logger.

        Args:
            prefix: A prefix of the names.

        Returns:
            `kl`, `kl_max` and, if known, `kl_above` and `kl_estimate`.
        """
        names = {"kl": self.mean, "kl_max": self.max, "kl_above": self.share_above, "kl_estimate": self.estimate}
        return {prefix + name: value for name, value in names.items() if value is not None}


def read(policy: object) -> Policy:
    """Copy the policy value out of a distribution, as a constant that later updates do not change.

    Args:
        policy: A policy value of trpl's of any family, or a distribution of PyTorch, Distrax or TensorFlow
            Probability, squashed or not.

    Returns:
        Its policy value, in NumPy's float64.

    Raises:
        ValueError: If it contains no policy of a known family.
    """
    found = split(policy).policy
    made = family_of(found).make([_constant(x).astype(np.float64) for x in found.arrays], found)
    return made._replace(ids=_constant(made.ids)) if isinstance(made, SparseCategorical) else made


def exact_kl(
    new: object, old: object, *, bound: float | None = None, actions: object = None, weights: object = None
) -> KLAudit:
    """Compute KL(new ‖ old) in every state.

    Args:
        new: The policy after the update, at the states of the rollout: a distribution, or a policy value.
        old: The policy that collected the rollout, at the same states; copy it with `read` before the update.
        bound: Count the states above this.
        actions: The actions taken (before squashing), for PPO's estimate.
        weights: 0 for states to leave out, 1 for the others: for padded recurrent batches.

    Returns:
        Mean, maximum, share above the bound, estimate, and every state's divergence.

    Raises:
        ValueError: If a policy is of no known family, the two do not match, or there is not one action per state.
    """
    states, estimates = divergences(new, old, actions=actions)
    if weights is not None:
        kept = _constant(weights).ravel() > 0
        states, estimates = states[kept], None if estimates is None else estimates[kept]
    return summary([Divergences(states, estimates)], bound=bound)


class Divergences(NamedTuple):
    """KL(new ‖ old) state by state, flat, and (ratio − 1) − log ratio at the actions taken, if given."""

    states: np.ndarray
    estimates: np.ndarray | None


def divergences(new: object, old: object, *, actions: object = None) -> Divergences:
    """Measure some of an update's states, for `summary` to combine.

    Args:
        new: See `exact_kl`.
        old: See `exact_kl`.
        actions: See `exact_kl`.

    Returns:
        The measurements.

    Raises:
        ValueError: See `exact_kl`.
    """
    if not is_policy(new) and not is_policy(old):  # what `read` returned is the policy inside of any bijections
        matching(split(new), old, "old", first="new")
    p, q = read(new), read(old)
    if type(p) is not type(q):
        raise ValueError(f"new is a {family_of(p).words} and old a {family_of(q).words}: they must be of one kind")
    family_of(p).check_pair("new", p, q)
    every = cast("np.ndarray", kl(p, q))
    states = np.ravel(every)
    if actions is None:
        return Divergences(states, None)
    taken = _constant(actions)
    num_axes = 0 if isinstance(p, Categorical | SparseCategorical) else 1  # of one action
    if taken.shape[: taken.ndim - num_axes] != every.shape:
        kind = "vector" if num_axes else "whole number"
        raise ValueError(f"actions {taken.shape} for states {every.shape}: needs one per state, and each is a {kind}")
    log_ratio = np.ravel(cast("np.ndarray", log_prob(p, taken) - log_prob(q, taken)))
    return Divergences(states, np.expm1(log_ratio) - log_ratio)


def summary(parts: Iterable[Divergences], *, bound: float | None = None) -> KLAudit:
    """Combine the measurements of an update's states.

    Args:
        parts: What `divergences` returned, part by part.
        bound: Count the states above this.

    Returns:
        The audit of all states.
    """
    states, estimates = zip(*parts, strict=True)
    every = np.concatenate(states)
    known = [part for part in estimates if part is not None]
    return KLAudit(
        mean=float(every.mean()),
        max=float(every.max()),
        share_above=None if bound is None else float(np.mean(every > bound)),
        estimate=float(np.concatenate(known).mean()) if known else None,
        states=every,
    )


def _constant(x: object) -> np.ndarray:
    """Copy an array of any framework to NumPy."""
    detach = getattr(x, "detach", None)
    if detach is None:
        return np.array(x)
    tensor = detach().cpu()
    return np.array((tensor.double() if tensor.is_floating_point() else tensor).numpy())  # NumPy has no bfloat16
