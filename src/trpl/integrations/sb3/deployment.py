"""The acting part of a Stable-Baselines3 model, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from trpl.errors import ExportError
from trpl.integrations.export import Deployable, Layer

ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.ELU: "elu"}


def from_model(
    model: Any, vec_normalize: VecNormalize | bool | None
) -> tuple[Deployable, Callable[[np.ndarray], np.ndarray]]:
    """Read the policy of an on-policy model with its normaliser; gives the model's own answer for raw observations too.

    The normaliser is that of the model's environment unless another is given; False says that there is none. Actions
    are clipped to the action space, as `model.predict` clips them.
    """
    if not isinstance(model, OnPolicyAlgorithm) or not isinstance(model.policy, ActorCriticPolicy):
        raise ExportError(
            f"cannot export a {type(model).__name__}: it must be a run folder or an on-policy model (TRPL, PPO, A2C)"
        )
    policy = model.policy
    if type(policy.pi_features_extractor) is not FlattenExtractor or len(model.observation_space.shape or ()) != 1:
        raise ExportError("only policies on vectors without a features extractor of their own can be exported")
    if policy.squash_output or len(getattr(model.action_space, "shape", None) or ()) != 1:
        raise ExportError("only Gaussian policies without squashing, with vectors as actions, can be exported")
    space = model.action_space
    bounded = bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())  # type: ignore[attr-defined]
    found = Deployable(
        _layers(policy),
        low=space.low.astype(np.float32) if bounded else None,  # type: ignore[attr-defined]
        high=space.high.astype(np.float32) if bounded else None,  # type: ignore[attr-defined]
    )
    vec_normalize = _normaliser(model, vec_normalize)
    if vec_normalize is None or not vec_normalize.norm_obs:
        return found, lambda observations: model.predict(observations, deterministic=True)[0]
    statistics = vec_normalize.obs_rms
    found = found._replace(
        shift=np.asarray(statistics.mean, np.float64),  # type: ignore[union-attr]
        scale=np.sqrt(statistics.var + vec_normalize.epsilon),  # type: ignore[union-attr]
        clip=float(vec_normalize.clip_obs),
    )
    return found, lambda observations: model.predict(vec_normalize.normalize_obs(observations), deterministic=True)[0]


def _normaliser(model: OnPolicyAlgorithm, given: VecNormalize | bool | None) -> VecNormalize | None:
    """Find the normaliser: the one given, or that of the model's environment; refuse where it cannot be known."""
    if given is False:
        return None
    if given is not None and not isinstance(given, bool):
        return given
    if model.get_env() is None:
        raise ExportError(
            "the model has no environment, so it cannot be known whether its observations were normalised: give"
            " vec_normalize=VecNormalize.load(...), or vec_normalize=False where there was none"
        )
    return model.get_vec_normalize_env()


def _layers(policy: ActorCriticPolicy) -> tuple[Layer, ...]:
    """Linear layers with the activation after each."""
    hidden = getattr(policy.mlp_extractor, "policy_net", None)
    if not isinstance(hidden, nn.Sequential):
        raise ExportError("only a policy_net that is an nn.Sequential can be exported")
    layers: list[Layer] = []
    for module in [*hidden, policy.action_net]:
        if isinstance(module, nn.Linear):
            weight, bias = (x.detach().cpu().float().numpy().copy() for x in (module.weight.T, module.bias))
            layers.append(Layer(weight, bias, "identity"))
        elif type(module) in ACTIVATIONS and layers and layers[-1].activation == "identity":
            layers[-1] = layers[-1]._replace(activation=ACTIVATIONS[type(module)])
        else:
            known = ", ".join(kind.__name__ for kind in ACTIVATIONS)
            raise ExportError(f"{type(module).__name__} in policy_net cannot be exported; known are Linear, {known}")
    return tuple(layers)
