"""The exact KL divergence of an update, state by state, beside the estimate that PPO prints.

    before = read(policy(observations))           # any framework's distribution, or a Gaussian of trpl's
    ...                                           # anybody's update
    found = exact_kl(policy(observations), before, bound=0.01)
    print(found.mean, found.max, found.share_above)

PPO's `approx_kl` is a mean over sampled actions: it is noisy, it hides the worst state, and it is often taken from the
last minibatch alone. Here nothing is sampled: each state's divergence has a closed form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trpl.gaussians import DiagGaussian, Gaussian, kl_parts, log_prob
from trpl.integrations.distributions import split


class KLAudit(NamedTuple):
    """The divergence of an update over all its states.

    `states` is KL(new ‖ old) of every state, flat; `share_above` the share of states above the bound, None without
    one; `estimate` what PPO prints, the mean of (ratio − 1) − log ratio over the actions taken, None without actions.
    """

    mean: float
    max: float
    share_above: float | None
    estimate: float | None
    states: np.ndarray

    def figures(self, prefix: str = "") -> dict[str, float]:
        """The numbers by name, ready for a logger."""
        names = {"kl": self.mean, "kl_max": self.max, "kl_above": self.share_above, "kl_estimate": self.estimate}
        return {prefix + name: value for name, value in names.items() if value is not None}


def read(policy: object) -> Gaussian:
    """The Gaussian inside a distribution, as a constant that a later update does not change.

    Args:
        policy: A Gaussian of trpl's, or a distribution of PyTorch, Distrax or TensorFlow Probability, squashed or not.

    Returns:
        Its Gaussian in NumPy's float64.

    Raises:
        ValueError: If there is no Gaussian in it.
    """
    gaussian = split(policy).gaussian
    return type(gaussian)(*(_numbers(x) for x in gaussian))


def exact_kl(
    new: object, old: object, *, bound: float | None = None, actions: object = None, weights: object = None
) -> KLAudit:
    """KL(new ‖ old) in every state.

    Args:
        new: The policy after the update on the states of the rollout: a distribution, or a Gaussian.
        old: The policy that collected them; take it with `read` before the update.
        bound: Count the states above this.
        actions: The actions taken (before squashing), for PPO's estimate beside the exact value.
        weights: 0 for states to leave out, 1 for the others: the padding of recurrent batches.

    Returns:
        Mean, maximum, share above the bound, estimate, and every state's divergence.

    Raises:
        ValueError: If a policy holds no Gaussian, or the two do not belong together.
    """
    p, q = read(new), read(old)
    if type(p) is not type(q) or p.dim != q.dim:
        raise ValueError(f"new is a {_kind(p)} and old a {_kind(q)}: they must be policies of the same kind and size")
    parts = kl_parts(p, q)
    kept = slice(None) if weights is None else _numbers(weights).ravel() > 0
    states = np.ravel(parts.mean + parts.cov)[kept]
    estimate = None
    if actions is not None:
        taken = _numbers(actions)
        log_ratio = np.ravel(log_prob(p, taken) - log_prob(q, taken))[kept]
        estimate = float(np.mean(np.expm1(log_ratio) - log_ratio))
    share = None if bound is None else float(np.mean(states > bound))
    return KLAudit(float(states.mean()), float(states.max()), share, estimate, states)


def _kind(p: Gaussian) -> str:
    covariance = "diagonal" if isinstance(p, DiagGaussian) else "full"
    return f"Gaussian with a {covariance} covariance in {p.dim} dimensions"


def _numbers(x: object) -> np.ndarray:
    """A float64 copy of an array of any framework."""
    detach = getattr(x, "detach", None)
    return np.array(x if detach is None else detach().cpu().numpy(), dtype=np.float64)
