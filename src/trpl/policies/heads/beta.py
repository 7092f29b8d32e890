"""The head of bounded actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from trpl.families import Beta
from trpl.policies.actions import ActionMap
from trpl.policies.heads.protocol import Ending, Outputs, WithoutCovariance
from trpl.types import A

TINY = np.float32(1e-30)  # puts the mode in the middle if α and β round to 1
EDGE = 1e-6  # samples stay this far inside (0, 1), where the density is finite


@dataclass(frozen=True)
class BetaHead(WithoutCovariance):
    """A Beta on each dimension of a box: α and β are 1 + softplus, so it is unimodal."""

    action_size: int
    actions: ActionMap | None = field(default=None, compare=False)
    kind = "beta"
    words = "Beta"
    max_entropy = 0.0  # uniform on (0, 1)

    @property
    def layers(self) -> tuple[Ending, ...]:
        return (Ending("shape", 2 * self.action_size),)

    def distribution(self, outputs: Outputs[A]) -> Beta[A]:
        raw = outputs["shape"]
        xp = array_namespace(raw)
        shape = 1.0 + xp.logaddexp(raw, xp.zeros_like(raw))
        return Beta(shape[..., : self.action_size], shape[..., self.action_size :])

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> Sequence[np.random.Generator]:
        return [rng] * num_steps  # rejection sampling takes a variable number of draws

    def sample(self, outputs: Mapping[str, np.ndarray], noise: np.random.Generator) -> np.ndarray:
        return np.clip(noise.beta(*self.distribution(outputs).arrays), EDGE, 1.0 - EDGE).astype(np.float32)

    def mode(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        above = np.logaddexp(outputs["shape"], np.float32(0.0)) + TINY  # α − 1 and β − 1
        alpha, beta = above[..., : self.action_size], above[..., self.action_size :]
        return alpha / (alpha + beta)

    def take(self, action: np.ndarray) -> np.ndarray:
        return action if self.actions is None else self.actions(action)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "action_size": self.action_size,
            "actions": None if self.actions is None else self.actions.to_json(),
        }
