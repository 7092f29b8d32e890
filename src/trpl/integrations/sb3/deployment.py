"""The acting part of a Stable-Baselines3 model, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from trpl.errors import ExportError
from trpl.integrations.export import Deployable, Layer
from trpl.rollouts.spaces import head_of
from trpl.rollouts.task_spec import Task

ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.ELU: "elu"}


def from_model(
    model: Any, vec_normalize: VecNormalize | bool | None
) -> tuple[Deployable, Callable[[np.ndarray], np.ndarray]]:
    """Read the policy of an on-policy model and its normaliser; return the model's own prediction function too.

    The normaliser is that of the model's environment unless another is given; False means that there is none. Actions
    are those of `model.predict`: clipped to a Box, a whole number for `Discrete`, arrays of them for `MultiDiscrete`
    and `MultiBinary`.
    """
    if not isinstance(model, OnPolicyAlgorithm) or not isinstance(model.policy, ActorCriticPolicy):
        raise ExportError(
            f"cannot export a {type(model).__name__}: it must be a run folder or an on-policy model (TRPL, PPO, A2C)"
        )
    policy, shape = model.policy, model.observation_space.shape
    found = _acting(model.action_space, policy) if type(policy.pi_features_extractor) is FlattenExtractor else None
    if found is None or shape != (found.obs_size,):  # another size: classes as one-hot vectors, or a memory
        raise ExportError("only policies on vectors without a features extractor of their own can be exported")

    def own(observations: np.ndarray) -> np.ndarray:
        actions = model.predict(observations, deterministic=True)[0]
        return actions if found.head is None else actions.astype(model.action_space.dtype)  # bits arrive as floats

    vec_normalize = _normaliser(model, vec_normalize)
    if vec_normalize is None or not vec_normalize.norm_obs:
        return found, own
    statistics = vec_normalize.obs_rms
    if statistics.mean.shape != shape:  # type: ignore[union-attr]
        raise ExportError(
            f"VecNormalize is for observations of shape {statistics.mean.shape}, the policy for {shape}: wrappers that"  # type: ignore[union-attr]
            " change observations, such as VecFrameStack, must be inside of it"
        )
    normalising = found._replace(
        shift=np.asarray(statistics.mean, np.float64),  # type: ignore[union-attr]
        scale=np.sqrt(statistics.var + vec_normalize.epsilon),  # type: ignore[union-attr]
        clip=float(vec_normalize.clip_obs),
    )
    return normalising, lambda observations: own(vec_normalize.normalize_obs(observations))  # type: ignore[arg-type]


def _acting(space: spaces.Space, policy: ActorCriticPolicy) -> Deployable:
    """Read the layers, and the conversion of their outputs to actions of the space."""
    if not isinstance(space, spaces.Box):  # the outputs are logits, in the order of the trainer's own heads
        return Deployable(_layers(policy), head=head_of(space, Task("the model's environment")))
    if policy.squash_output or len(space.shape) != 1:
        raise ExportError("of policies on a Box only Gaussians without squashing, with vectors, can be exported")
    if not (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        return Deployable(_layers(policy))
    return Deployable(_layers(policy), low=space.low.astype(np.float32), high=space.high.astype(np.float32))


def _normaliser(model: OnPolicyAlgorithm, given: VecNormalize | bool | None) -> VecNormalize | None:
    """Find the normaliser: the given one, or that of the model's environment; refuse if it is unknown."""
    if given is False:
        return None
    if isinstance(given, VecNormalize):
        return given
    if given not in (None, True):
        raise ExportError(
            f"vec_normalize must be a VecNormalize or False, not {given!r}; VecNormalize.load(FILE, environment) reads"
            " a saved one"
        )
    if model.get_env() is None:
        raise ExportError(
            "the model has no environment, so it is unknown whether its observations were normalised: give"
            " vec_normalize=VecNormalize.load(...), or vec_normalize=False if they were not"
        )
    return model.get_vec_normalize_env()


def _layers(policy: ActorCriticPolicy) -> tuple[Layer, ...]:
    """Return the linear layers, each with its activation."""
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
