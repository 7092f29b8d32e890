"""A callback that measures the exact KL of every update of any on-policy algorithm of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor
from torch import Tensor
from torch import distributions as d

from trpl.families import Categorical, Policy, Product
from trpl.integrations.audit import KLAudit, divergences, read, summary
from trpl.integrations.sb3.policies import GaussianDistribution
from trpl.layers.surface import Given

STATES_AT_ONCE = 4096


class Part(NamedTuple):
    """Some states of a rollout, the actions taken there (before squashing), and the policy that took them."""

    inputs: tuple[Any, ...]  # arguments of the policy's `get_distribution`
    actions: Tensor
    old: Policy


class ExactKL(BaseCallback):
    """Log the exact KL of every update over all states of its rollout, beside the algorithm's estimate.

        model = PPO("MlpPolicy", "Pendulum-v1")
        model.learn(100_000, callback=ExactKL(bound=0.03))

    It logs `exact/kl`, the mean; `exact/kl_max`, the worst state; `exact/kl_above`, the share of states above `bound`;
    and `exact/kl_estimate`, PPO's estimator over the whole rollout after the whole update (`train/approx_kl` is that of
    the minibatches of the last epoch, each before its step). `last` holds the divergence of every state.

    Args:
        bound: Count the states above this; None counts none.
        prefix: A prefix of the names.
        verbose: See Stable-Baselines3.

    Raises:
        TypeError: When training begins, if the algorithm has no rollouts, or its policy is recurrent or not PyTorch's.
    """

    def __init__(self, bound: float | None = None, *, prefix: str = "exact/", verbose: int = 0) -> None:
        super().__init__(verbose)
        self.bound, self.prefix = bound, prefix
        self.last: KLAudit | None = None
        self._parts: list[Part] = []

    def _init_callback(self) -> None:
        if not isinstance(self.model, OnPolicyAlgorithm):
            raise TypeError(f"ExactKL needs an on-policy algorithm: {type(self.model).__name__} has no rollouts")
        if hasattr(self.model.rollout_buffer, "hidden_states_pi"):
            raise TypeError(f"ExactKL cannot follow the memory of a recurrent policy ({type(self.model).__name__})")
        if not hasattr(self.model.policy, "get_distribution"):  # SBX
            raise TypeError(f"ExactKL needs a policy of PyTorch, not a {type(self.model.policy).__name__}")

    def _on_rollout_end(self) -> None:
        self._parts = [self._part(*batch) for batch in self._batches()]

    def _on_rollout_start(self) -> None:
        self._measure()

    def _on_training_end(self) -> None:
        self._measure()

    def _on_step(self) -> bool:
        return True

    def _measure(self) -> None:
        """Compare the policy with the one that collected the last rollout, once per update."""
        if not self._parts:
            return
        self.last = summary(
            (divergences(_value(self._policy(part.inputs)), part.old, actions=part.actions) for part in self._parts),
            bound=self.bound,
        )
        self._parts = []
        for name, value in self.last.figures(self.prefix).items():
            self.logger.record(name, value)

    def _part(self, inputs: tuple[Any, ...], actions: Tensor) -> Part:
        distribution = self._policy(inputs)
        old = read(_value(distribution))
        squash = getattr(distribution, "bijector", None)
        if squash is not None:
            actions = squash.inverse(actions)
        return Part(inputs, actions[:, 0] if isinstance(old, Categorical) else actions, old)

    def _batches(self) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
        """Yield the policy's inputs and the actions of the last rollout."""
        buffer, device = self.model.rollout_buffer, self.model.device  # type: ignore[attr-defined]
        actions, masks = _flat(buffer.actions), getattr(buffer, "action_masks", None)  # masks: of MaskablePPO
        for start in range(0, len(actions), STATES_AT_ONCE):
            rows = slice(start, start + STATES_AT_ONCE)
            if isinstance(buffer.observations, dict):
                found: Any = {name: _flat(x)[rows] for name, x in buffer.observations.items()}
            else:
                found = _flat(buffer.observations)[rows]
            seen = obs_as_tensor(found, device)
            yield (seen,) if masks is None else (seen, _flat(masks)[rows]), torch.as_tensor(actions[rows])

    @torch.no_grad()
    def _policy(self, inputs: tuple[Any, ...]) -> Any:
        policy = self.model.policy
        policy.set_training_mode(False)
        return policy.get_distribution(*inputs)  # type: ignore[operator]


def _flat(x: np.ndarray) -> np.ndarray:
    """Merge the axes of steps and environments; an observation that is a single number becomes a vector."""
    return x.reshape(-1, *x.shape[2:])


def _value(distribution: Any) -> Given:
    """Extract what `trpl.integrations.audit.read` takes from a distribution of Stable-Baselines3."""
    if isinstance(distribution, GaussianDistribution):
        return distribution.gaussian
    several = getattr(distribution, "distributions", None)  # of MaskablePPO
    inside = distribution.distribution if several is None else several
    if isinstance(inside, list):  # MultiDiscrete
        return Product(tuple(Categorical(part.logits) for part in inside))
    return d.Independent(inside, 1) if isinstance(inside, d.Normal | d.Bernoulli) else inside
