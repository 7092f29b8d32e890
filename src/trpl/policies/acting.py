"""Acting with trained weights, in NumPy without JAX.

The same forward pass serves collection, evaluation and a policy loaded from a run folder. A jitted call per
environment step would cost more than the 64 × 64 network itself.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trpl.policies import covariances
from trpl.policies.heads import GaussianHead, Head
from trpl.policies.normaliser import standardise
from trpl.policies.storage import newest_checkpoint, read_checkpoint, stored_head
from trpl.policies.weights import SCALE, SHIFT, affine, hidden_names, raw_name

add, tanh = np.add, np.tanh  # bound once: acting runs at every environment step


class HeadActor:
    """Modes and samples of any head by its network's weights, for normalised observations [..., obs], float32."""

    def __init__(self, weights: Mapping[str, Any], head: Head):
        weights = {name: np.asarray(weight, np.float32) for name, weight in weights.items()}
        self.head = head
        self._layers = [affine(weights, name) for name in hidden_names(weights)]
        self._endings = {ending.name: affine(weights, ending.name) for ending in head.layers}
        self._shared = {name: weights[raw_name(name)] for name in head.shared}
        first_weight, _ = [*self._layers, *self._endings.values()][0]
        self.obs_size = len(first_weight)

    def mode(self, observations: np.ndarray) -> np.ndarray:
        """Return the most likely action."""
        return self.head.mode(self._outputs(observations))

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> Any:
        """Draw the noise for `sample`, an entry per step, each for states [*states]."""
        return self.head.noise(rng, num_steps, states)

    def sample(self, observations: np.ndarray, noise: Any) -> np.ndarray:
        """Draw actions, in the form that rollouts keep."""
        return self.head.sample(self._outputs(observations), noise)

    def prepared(self, noise: Any) -> tuple[Callable[[np.ndarray, Any], np.ndarray], Any]:
        """Return an equivalent of `sample` for a loop over single observations, and the noise to give it."""
        return self.sample, noise

    def _outputs(self, x: np.ndarray) -> dict[str, np.ndarray]:
        for layer in self._layers:
            x = _affine(x, layer)
            tanh(x, x)
        return {**{name: _affine(x, layer) for name, layer in self._endings.items()}, **self._shared}


class GaussianActor(HeadActor):
    """The same for a single Gaussian, faster."""

    def __init__(self, weights: Mapping[str, Any], head: GaussianHead):
        super().__init__(weights, head)
        self._covariance, self._scaled = head.covariance, head.scaled
        self._mean, self._spread = self._endings["mean"], self._endings.get(head.spread)
        if self._spread is None:
            self._shared_scale = self._scale(self._mean[1], self._shared[head.spread])
        # single observations: matrix times vector with the transpose stored contiguously, which is fastest in NumPy
        self._single = [(np.ascontiguousarray(weight.T).dot, bias) for weight, bias in self._layers]
        self._single_mean = np.ascontiguousarray(self._mean[0].T).dot, self._mean[1]

    def mode(self, observations: np.ndarray) -> np.ndarray:
        """Return the mean, which is the most likely action."""
        return self._features_and_mean(observations)[1]

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return mean + L·noise with Σ = LLᵀ and standard normal `noise` [..., act], neither squashed nor clipped."""
        features, mean = self._features_and_mean(observations)
        scale = self._shared_scale if self._spread is None else self._scale(mean, _affine(features, self._spread))
        return add(mean, self._scaled(scale, noise), mean)

    def prepared(self, noise: np.ndarray) -> tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], np.ndarray]:
        """Return an equivalent of `sample` for a loop over single observations, and the noise [T, act] to give it.

        For a shared covariance everything but the network is computed before the loop.
        """
        if self._spread is not None:
            return self.sample, noise
        return self._shifted, self._scaled(self._shared_scale, noise) + self._mean[1]

    def _shifted(self, observation: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return the network's last product plus `shift`, which includes its bias."""
        action = self._single_mean[0](self._single_features(observation))
        return add(action, shift, action)

    def _single_features(self, x: np.ndarray) -> np.ndarray:
        for dot, bias in self._single:
            x = dot(x)
            tanh(add(x, bias, x), x)
        return x

    def _features_and_mean(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if x.ndim == 1:
            x = self._single_features(x)
            dot, bias = self._single_mean
            mean = dot(x)
            return x, add(mean, bias, mean)
        for layer in self._layers:
            x = tanh(_affine(x, layer))
        return x, _affine(x, self._mean)

    def _scale(self, mean: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return covariances.gaussian(mean, raw, self._covariance).scale


def _affine(x: np.ndarray, layer: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    weight, bias = layer
    return x @ weight + bias


def make_actor(weights: Mapping[str, Any], head: Head) -> HeadActor:
    """Make the actor of a network's weights: a faster one for a single Gaussian."""
    return GaussianActor(weights, head) if isinstance(head, GaussianHead) else HeadActor(weights, head)


class Policy:
    """A trained policy with its observation normaliser: `action = policy(observation)`.

    Noise-free as in evaluation; given a NumPy generator, `policy(observation, rng)` samples as in training.
    Observations may have any leading axes. Actions are the environment's: a number for `Discrete`, a tuple or a
    dictionary for hybrid spaces; units of the action box, squashing and clipping are applied as in training.
    """

    def __init__(self, actor: HeadActor, *, shift: np.ndarray, scale: np.ndarray, clip: float | None):
        self.actor, self.head, self.shift, self.scale, self.clip = actor, actor.head, shift, scale, clip

    @property
    def obs_size(self) -> int:
        """The length of an observation."""
        return self.actor.obs_size

    @property
    def action_size(self) -> int:
        """The length of an action as a vector."""
        return self.head.action_size

    def __call__(self, observation: np.ndarray, rng: np.random.Generator | None = None) -> Any:
        """Act.

        Args:
            observation: A raw observation `[..., obs_size]`; it is normalised here.
            rng: A generator to sample with; None for the noise-free action.

        Returns:
            The environment's action.

        Raises:
            ValueError: The observation has another size than those of training.
        """
        observation = np.asarray(observation)
        if observation.shape[-1:] != (self.obs_size,):
            raise ValueError(
                f"the policy was trained on observations of size {self.obs_size}, this has shape {observation.shape}"
            )
        normalised = standardise(observation, self.shift, self.scale, self.clip)
        if rng is None:
            action = self.actor.mode(normalised)
        else:
            action = self.actor.sample(normalised, self.actor.noise(rng, 1, observation.shape[:-1])[0])
        return self.head.take(action)


def load_policy(run: str | Path) -> Policy:
    """Load a trained policy that acts with NumPy alone.

    Args:
        run: A run folder (for its newest sound checkpoint), one of its checkpoint folders, or RUN/best.

    Returns:
        The policy: `action = policy(observation)`.

    Raises:
        CheckpointError: There is no sound checkpoint.

    Examples:
        ```python
        policy = load_policy("runs/Hopper-v4/kl/seed-0")
        action = policy(observation)
        ```
    """
    arrays, meta = read_checkpoint(newest_checkpoint(run), part="policy")
    head = stored_head(arrays, meta)
    shift, scale = arrays[SHIFT], arrays[SCALE]
    return Policy(make_actor(arrays, head), shift=shift, scale=scale, clip=meta["observation_clip"])
