"""Heads of discrete actions: classes and binary decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trpl import families
from trpl.families import Bernoulli, Categorical, Policy, Product
from trpl.policies.heads.protocol import Ending, Outputs, WithoutCovariance
from trpl.types import A


@dataclass(frozen=True)
class CategoricalHead(WithoutCovariance):
    """One class from each of several sets: a Categorical, or a Product of them.

    `shape` is that of the environment's array of whole numbers, None for a single number.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...] | None = None
    kind = "categorical"

    @property
    def words(self) -> str:
        return "Categorical" if self.shape is None else "Product of Categoricals"

    @property
    def max_entropy(self) -> float:
        return sum(math.log(size) for size in self.sizes)

    @property
    def action_size(self) -> int:
        return len(self.sizes)

    @property
    def layers(self) -> tuple[Ending, ...]:
        return (Ending("logits", sum(self.sizes)),)

    def _parts(self, outputs: Outputs) -> list[Any]:
        ends = np.cumsum(self.sizes).tolist()
        return [outputs["logits"][..., end - size : end] for size, end in zip(self.sizes, ends, strict=True)]

    def distribution(self, outputs: Outputs[A]) -> Policy[A]:
        if self.shape is None:
            return Categorical(outputs["logits"])
        return Product(tuple(Categorical(logits) for logits in self._parts(outputs)))

    def log_prob(self, policy: Policy[A], actions: A) -> A:
        return families.log_prob(policy, actions[..., 0] if self.shape is None else actions)

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> np.ndarray:
        return 1.0 - rng.random((num_steps, *states, self.action_size), dtype=np.float32)  # above 0, at most 1

    def sample(self, outputs: Mapping[str, np.ndarray], noise: np.ndarray) -> np.ndarray:
        if len(self.sizes) == 1:
            return _drawn(outputs["logits"], noise)
        parts = self._parts(outputs)
        return np.concatenate([_drawn(logits, noise[..., i : i + 1]) for i, logits in enumerate(parts)], axis=-1)

    def mode(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.stack([logits.argmax(-1) for logits in self._parts(outputs)], axis=-1).astype(np.float32)

    def take(self, action: np.ndarray) -> Any:
        if self.shape is None:
            return action[..., 0].astype(np.int64) + self.starts[0]
        return (action.astype(np.int64) + np.array(self.starts)).reshape(*action.shape[:-1], *self.shape)

    def to_json(self) -> dict[str, Any]:
        shape = None if self.shape is None else list(self.shape)
        return {"kind": self.kind, "sizes": list(self.sizes), "starts": list(self.starts), "shape": shape}


def _drawn(logits: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draw classes [..., 1] by inverting their distribution function at uniform numbers [..., 1] in (0, 1]."""
    cumulative = np.cumsum(np.exp(logits - logits.max(-1, keepdims=True)), axis=-1)
    return (cumulative < uniform * cumulative[..., -1:]).sum(-1, keepdims=True).astype(np.float32)


@dataclass(frozen=True)
class BernoulliHead(WithoutCovariance):
    """Independent binary decisions; `shape` is that of the environment's array."""

    action_size: int
    shape: tuple[int, ...]
    kind = "bernoulli"
    words = "Bernoulli"

    @property
    def max_entropy(self) -> float:
        return self.action_size * math.log(2.0)

    @property
    def layers(self) -> tuple[Ending, ...]:
        return (Ending("logits", self.action_size),)

    def distribution(self, outputs: Outputs[A]) -> Bernoulli[A]:
        return Bernoulli(outputs["logits"])

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> np.ndarray:
        uniform = 1.0 - rng.random((num_steps, *states, self.action_size))  # above 0, at most 1
        with np.errstate(divide="ignore"):
            return np.log(uniform / (1.0 - uniform)).astype(np.float32)

    def sample(self, outputs: Mapping[str, np.ndarray], noise: np.ndarray) -> np.ndarray:
        return (noise < outputs["logits"]).astype(np.float32)  # logistic noise below the logit: probability σ(logit)

    def mode(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return (outputs["logits"] > 0.0).astype(np.float32)

    def take(self, action: np.ndarray) -> np.ndarray:
        return action.astype(np.int8).reshape(*action.shape[:-1], *self.shape)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "action_size": self.action_size, "shape": list(self.shape)}
