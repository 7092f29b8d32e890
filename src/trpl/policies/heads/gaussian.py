"""The Gaussian head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trpl import families
from trpl.families import Policy
from trpl.gaussians import Gaussian
from trpl.policies import covariances
from trpl.policies.actions import ActionMap
from trpl.policies.heads.protocol import Ending, Outputs
from trpl.policies.weights import SPREADS
from trpl.types import A, Array, cast


@dataclass(frozen=True)
class GaussianHead:
    """A Gaussian over a box: a mean, and a covariance of one of four kinds."""

    action_size: int
    covariance: str = "diagonal"  # or "full"
    contextual: bool = False  # a covariance per state
    initial_std: float = 1.0
    actions: ActionMap | None = field(default=None, compare=False)
    kind = "gaussian"
    words = "Gaussian"
    gaussian = True
    max_entropy = math.inf

    @property
    def spread(self) -> str:
        """The name of the covariance's layer or shared numbers."""
        return SPREADS[self.covariance]

    @property
    def spread_size(self) -> int:
        """The number of raw numbers per covariance."""
        return covariances.spread_size(self.covariance, self.action_size)

    @property
    def layers(self) -> tuple[Ending, ...]:
        mean = Ending("mean", self.action_size)
        return (mean, Ending(self.spread, self.spread_size)) if self.contextual else (mean,)

    @property
    def shared(self) -> Mapping[str, int]:
        return {} if self.contextual else {self.spread: self.spread_size}

    def initial(self, xp: Any) -> dict[str, Array]:
        if self.initial_std == 1.0:
            return {}
        raw = covariances.raw_from_positive(xp.asarray(self.initial_std))
        zeros = xp.zeros(self.spread_size - self.action_size)
        start = xp.concatenate([xp.broadcast_to(raw, (self.action_size,)), zeros])
        return {f"{self.spread}/{'bias' if self.contextual else 'raw'}": start}

    def shaped(self, *, covariance: str, contextual: bool, initial_std: float) -> GaussianHead:
        return replace(self, covariance=covariance, contextual=contextual, initial_std=initial_std)

    def distribution(self, outputs: Outputs[A]) -> Gaussian[A]:
        return covariances.gaussian(outputs["mean"], outputs[self.spread], self.covariance)

    def log_prob(self, policy: Policy[A], actions: A) -> A:
        return families.log_prob(policy, actions)

    def shared_values(self, projected: Policy[A]) -> dict[str, A]:
        if self.contextual:
            return {}
        return {self.spread: covariances.raw_from(covariances.share_covariance(cast("Gaussian[A]", projected)))}

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal((num_steps, *states, self.action_size), dtype=np.float32)

    def sample(self, outputs: Mapping[str, np.ndarray], noise: np.ndarray) -> np.ndarray:
        mean, scale = self.distribution(outputs)
        return mean + self.scaled(scale, noise)

    def scaled(self, scale: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Multiply standard normal noise by L with Σ = LLᵀ: standard deviations, or a Cholesky factor."""
        return scale * noise if self.covariance == "diagonal" else (scale @ noise[..., None])[..., 0]

    def mode(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return outputs["mean"]

    def take(self, action: np.ndarray) -> np.ndarray:
        return action if self.actions is None else self.actions(action)

    def to_json(self) -> dict[str, Any]:
        own = {"action_size": self.action_size, "covariance": self.covariance, "contextual": self.contextual}
        return {"kind": self.kind, **own, "actions": None if self.actions is None else self.actions.to_json()}
