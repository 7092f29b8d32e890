"""TRPL's access to any actor-critic policy of Stable-Baselines3: its distribution, and its two sets of parameters.

The policy's optimiser has all parameters except those of the value function alone; a shared features extractor learns
with the policy, since fitting the value function would change the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array
from stable_baselines3.common import distributions as d
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor, nn

from trpl import families
from trpl.families import Bernoulli, Categorical, Policy, Product
from trpl.gaussians import DiagGaussian
from trpl.integrations.sb3.policies import GaussianDistribution
from trpl.policies.covariances import share_covariance
from trpl.types import cast

KNOWN = "a Gaussian, a Categorical, several Categoricals, or a Bernoulli"


def predicted(policy: ActorCriticPolicy, observations: PyTorchObs) -> Policy[Tensor]:
    """Return the policy's distribution of each observation as a value; a shared covariance has no batch axis."""
    found = value_of(policy.get_distribution(observations))
    if isinstance(found, DiagGaussian) and _shares_log_std(policy):
        return DiagGaussian(found.mean, policy.log_std.exp())
    return found


def value_of(distribution: d.Distribution) -> Policy[Tensor]:
    """Extract the value from a distribution of Stable-Baselines3.

    Raises:
        ValueError: It is of no family with a trust region.
    """
    inner: Any = getattr(distribution, "distribution", None)
    if isinstance(distribution, GaussianDistribution):
        return distribution.gaussian
    noise = isinstance(distribution, d.StateDependentNoiseDistribution)
    if isinstance(distribution, d.SquashedDiagGaussianDistribution) or (noise and distribution.bijector is not None):
        raise ValueError("a squashed Gaussian does not store actions before squashing, which a ratio needs")
    if isinstance(distribution, d.DiagGaussianDistribution) or noise:  # the noise of one state is a Gaussian
        return DiagGaussian(inner.mean, inner.stddev)
    if isinstance(distribution, d.CategoricalDistribution):
        return Categorical(inner.logits)
    if isinstance(distribution, d.MultiCategoricalDistribution):
        return Product(tuple(Categorical(part.logits) for part in inner))
    if isinstance(distribution, d.BernoulliDistribution):
        return Bernoulli(inner.logits)
    raise ValueError(f"the policy gives a {type(distribution).__name__}; TRPL can use {KNOWN}")


def log_prob(value: Policy[Tensor], actions: Tensor) -> Tensor:
    """Compute the log-density of a buffer's actions [n, size]."""
    return families.log_prob(value, actions[:, 0] if isinstance(value, Categorical) else actions)


def set_shared(policy: ActorCriticPolicy, projected: Policy[Tensor]) -> bool:
    """Set a shared covariance that is trained to that of a projection; return whether the policy may have changed."""
    own = getattr(policy, "set_shared", None)
    if own is not None:
        own(projected)
    elif _shares_log_std(policy) and policy.log_std.requires_grad:
        with torch.no_grad():
            policy.log_std.copy_(share_covariance(cast("DiagGaussian[Tensor]", projected)).scale.log())
    else:
        return False
    return True


def _shares_log_std(policy: ActorCriticPolicy) -> bool:
    """Tell whether the deviation is the parameter that Stable-Baselines3 itself makes."""
    plain = type(policy)._get_action_dist_from_latent is ActorCriticPolicy._get_action_dist_from_latent
    return plain and not policy.use_sde and isinstance(getattr(policy, "log_std", None), nn.Parameter)


def add_optimisers(policy: ActorCriticPolicy, lr_schedule: Schedule) -> None:
    """Give policy and value function an optimiser each, of the policy's class: `optimizer`, `value_optimizer`."""
    own = value_parameters(policy)
    of_value = {id(parameter) for parameter in own}
    rest = [parameter for parameter in policy.parameters() if id(parameter) not in of_value]
    make, rate = policy.optimizer_class, lr_schedule(1)
    policy.optimizer = make(rest, lr=rate, **policy.optimizer_kwargs)  # type: ignore[call-arg]
    policy.value_optimizer = make(own, lr=rate, **policy.optimizer_kwargs)  # type: ignore[call-arg, assignment]


def value_optimizer(policy: ActorCriticPolicy) -> torch.optim.Optimizer:
    """Return the optimiser that `add_optimisers` made for the value function."""
    return policy.value_optimizer  # type: ignore[return-value]


def value_parameters(policy: ActorCriticPolicy) -> list[nn.Parameter]:
    """List the parameters of the value function alone: those of its usual modules, and others that only it reaches."""
    hidden = getattr(policy.mlp_extractor, "value_net", None)
    parts = [policy.value_net, *([hidden] if isinstance(hidden, nn.Module) else [])]
    if not policy.share_features_extractor:
        parts.append(policy.vf_features_extractor)
    own = [parameter for part in parts for parameter in part.parameters()]
    known = {id(parameter) for parameter in own}
    return own + [parameter for parameter in _reached_by_value_alone(policy) if id(parameter) not in known]


def _reached_by_value_alone(policy: ActorCriticPolicy) -> list[nn.Parameter]:
    """List the parameters that values depend on, and the distribution does not; networks may have any structure."""
    policy.set_training_mode(False)
    nothing: Any = create_empty_array(policy.observation_space, n=1, fn=np.zeros)
    seen, _ = policy.obs_to_tensor(nothing)
    values, outputs = policy.predict_values(seen), value_of(policy.get_distribution(seen)).arrays
    policy.set_training_mode(True)
    learned = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    by_value, by_policy = _reached((values,), learned), _reached(outputs, learned)
    return [parameter for parameter in learned if id(parameter) in by_value - by_policy]


def _reached(outputs: Sequence[Tensor], parameters: list[nn.Parameter]) -> set[int]:
    """Return the identities of the parameters that the outputs depend on."""
    depending = [x.sum() for x in outputs if x.requires_grad]
    if not depending:
        return set()
    gradients = torch.autograd.grad(depending, parameters, allow_unused=True)
    return {id(x) for x, gradient in zip(parameters, gradients, strict=True) if gradient is not None}
