"""Acting with trained weights: NumPy alone, no JAX.

The same forward pass serves collection, evaluation and a policy loaded from a run folder. A jitted call per environment step
would cost more than the 64 × 64 network itself.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MIN_STD = 1e-5
STD_SHIFT = 0.541308  # as in `networks`: softplus(STD_SHIFT) + MIN_STD = 1


class Actor:
    """Weights by name → mean and samples of the Gaussian policy, for normalised observations [..., obs]."""

    def __init__(self, weights: Mapping[str, Any]):
        weights = {name: np.asarray(w, np.float32) for name, w in weights.items()}
        self.obs_size = weights["layer0/weight" if "layer0/weight" in weights else "mean/weight"].shape[0]
        self.action_size = weights["mean/bias"].shape[0]
        self._hidden = []
        while f"layer{len(self._hidden)}/weight" in weights:
            name = f"layer{len(self._hidden)}"
            self._hidden.append((weights[f"{name}/weight"], weights[f"{name}/bias"]))
        self._mean = weights["mean/weight"], weights["mean/bias"]
        self._spread_name = "std" if any(name.startswith("std/") for name in weights) else "chol"
        self.contextual = f"{self._spread_name}/weight" in weights
        if self.contextual:
            self._spread_head = weights[f"{self._spread_name}/weight"], weights[f"{self._spread_name}/bias"]
        else:
            self._shared_spread = self._spread(weights[f"{self._spread_name}/raw"])

    def mean(self, observations: np.ndarray) -> np.ndarray:
        """Mean action; what acts when no noise is wanted."""
        weight, bias = self._mean
        return np.dot(self._features(observations), weight) + bias

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """mean + L·noise with standard normal `noise` [..., act] and ΣΣ = LLᵀ; raw, neither squashed nor clipped."""
        features = self._features(observations)
        weight, bias = self._mean
        action = np.dot(features, weight)
        action += bias
        if self.contextual:
            weight, bias = self._spread_head
            spread = self._spread(np.dot(features, weight) + bias)
        else:
            spread = self._shared_spread
        action += spread * noise if self._spread_name == "std" else (spread @ noise[..., None])[..., 0]
        return action

    def _features(self, x: np.ndarray) -> np.ndarray:
        for weight, bias in self._hidden:
            x = np.dot(x, weight)
            x += bias
            np.tanh(x, out=x)
        return x

    def _spread(self, raw: np.ndarray) -> np.ndarray:
        """Standard deviations [..., act], or Cholesky factors [..., act, act]."""
        if self._spread_name == "std":
            return _positive(raw)
        dim = self.action_size
        chol = np.zeros((*raw.shape[:-1], dim, dim), np.float32)
        rows, columns = np.tril_indices(dim, -1)
        chol[..., np.arange(dim), np.arange(dim)] = _positive(raw[..., :dim])
        chol[..., rows, columns] = raw[..., dim:]
        return chol


def _positive(raw: np.ndarray) -> np.ndarray:
    return np.logaddexp(np.float32(0), raw + np.float32(STD_SHIFT)) + np.float32(MIN_STD)


class Policy:
    """A trained policy with its observation normaliser: `action = policy(observation)`.

    Noise-free by default; with a NumPy generator, `policy(observation, rng)` samples as in training.
    """

    def __init__(self, actor: Actor, *, mean: np.ndarray, std: np.ndarray, clip: float | None):
        self._actor, self._mean, self._std, self._clip = actor, mean, std, clip

    def __call__(self, observation: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        observation = np.asarray(observation)
        if observation.shape[-1:] != (self._actor.obs_size,):
            raise ValueError(
                f"the policy was trained on observations of size {self._actor.obs_size}, this one has shape {observation.shape}"
            )
        normalised = ((observation - self._mean) / self._std).astype(np.float32)
        if self._clip is not None:
            normalised = np.clip(normalised, -self._clip, self._clip)
        if rng is None:
            return self._actor.mean(normalised)
        noise = rng.standard_normal((*observation.shape[:-1], self._actor.action_size), dtype=np.float32)
        return self._actor.sample(normalised, noise)


def load_policy(run: str | Path) -> Policy:
    """The policy of the newest sound checkpoint in a run folder (or of one checkpoint folder)."""
    from safetensors.numpy import load_file
    raise NotImplementedError
