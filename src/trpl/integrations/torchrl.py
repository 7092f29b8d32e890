"""TorchRL: the update as a loss module, the layer as a tensordict module, and a standard deviation that can be set.

The old policy needs no copy of the network: the collector stores the parameters of the policy that acted in the
tensordict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from trpl.messages import needs

with needs("torchrl"):
    import torch
    from tensordict import TensorDict, TensorDictBase
    from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModuleBase, dispatch
    from tensordict.utils import NestedKey
    from torch import Tensor, nn
    from torch.nn import functional as F
    from torchrl.objectives.common import LossModule
    from torchrl.objectives.utils import ValueEstimators, default_value_kwargs
    from torchrl.objectives.value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator

from trpl.families import Categorical, Policy, Product, entropy, kl, log_prob
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian
from trpl.integrations.distributions import Split, split
from trpl.losses import normalised, surrogate
from trpl.types import cast

KEYS = ("loc", "scale", "old_loc", "old_scale")
ESTIMATORS = {
    ValueEstimators.GAE: GAE,
    ValueEstimators.TD0: TD0Estimator,
    ValueEstimators.TD1: TD1Estimator,
    ValueEstimators.TDLambda: TDLambdaEstimator,
}


class SharedScale(nn.Module):
    """Append a shared standard deviation, std = exp(raw), to a mean: the end of a policy network.

    Args:
        action_size: The number of action dimensions.
        initial: The initial standard deviation.
    """

    def __init__(self, action_size: int, *, initial: float = 1.0) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.full((action_size,), initial).log())

    def forward(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        return mean, self.raw.exp().expand_as(mean)

    @torch.no_grad()
    def set_(self, std: Tensor) -> None:
        """Set the standard deviation, to the projected one after the policy epochs.

        Args:
            std: The standard deviation.
        """
        self.raw.copy_(std.log())


class ProjectionModule(TensorDictModuleBase):
    """A layer on tensordict keys: loc, scale, old_loc, old_scale → projected_loc, projected_scale.

    Args:
        layer: A layer of `trpl.torch` for Gaussians.
        in_keys: The keys of predicted mean and scale, and of old mean and scale. A scale with one more axis than the
            mean is a Cholesky factor.
        out_keys: The keys of projected mean and scale.
        **overrides: Arguments of the layer's call, `mean_bound` for example.
    """

    def __init__(
        self,
        layer: nn.Module,
        *,
        in_keys: Sequence[NestedKey] = KEYS,
        out_keys: Sequence[NestedKey] = ("projected_loc", "projected_scale"),
        **overrides: Any,
    ) -> None:
        super().__init__()
        self.layer, self.overrides = layer, overrides
        self.in_keys, self.out_keys = list(in_keys), list(out_keys)  # type: ignore[assignment]

    @dispatch  # type: ignore[arg-type]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:  # type: ignore[override]
        loc, scale, old_loc, old_scale = (tensordict.get(key) for key in self.in_keys)
        kind = DiagGaussian if scale.ndim == loc.ndim else FullGaussian
        projected = self.layer(kind(loc, scale), kind(old_loc, old_scale), **self.overrides)
        for key, value in zip(self.out_keys, projected, strict=True):
            tensordict.set(key, value)
        return tensordict


class TRPLLoss(LossModule):
    """−E[ratio of the projected policy · A] + α · penalty, and the squared error of the value function.

    `entropy` and `min_entropy`, None by default, are attributes for a schedule to set.

    Args:
        actor_network: A `ProbabilisticActor` over an Independent Normal, a MultivariateNormal or one of these squashed,
            or, for a layer with one bound on the whole KL, over a Categorical (one-hot or masked or not), an
            Independent Categorical, Bernoulli or Beta, or a CompositeDistribution of any of these. The tensordict must
            contain the parameters of its distribution at collection, which the collector stores.
        critic_network: The value function.
        layer: A layer of `trpl.torch`.
        regression_weight: α, weight of the penalty.
        shared_covariance: Whether all states share the scale: it is then solved once, the penalty is on the mean alone,
            and after the policy epochs the scale must be set to that of `projected(tensordict)`.
        normalize_advantage: Whether to normalise advantages over the minibatch.
    """

    @dataclasses.dataclass
    class _AcceptedKeys:  # type: ignore[override]
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"
        sample_log_prob: NestedKey | list[NestedKey] = "action_log_prob"
        action: NestedKey | list[NestedKey] = "action"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys  # type: ignore[override]
    default_value_estimator = ValueEstimators.GAE
    actor_network: ProbabilisticTensorDictSequential
    critic_network: Any
    actor_network_params: Any
    critic_network_params: Any
    target_actor_network_params: Any
    target_critic_network_params: Any

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: Any,
        *,
        layer: nn.Module,
        regression_weight: float = 8.0,
        shared_covariance: bool = False,
        normalize_advantage: bool = True,
    ) -> None:
        super().__init__()
        self.convert_to_functional(actor_network, "actor_network")
        self.convert_to_functional(critic_network, "critic_network")
        self.layer = layer
        self.regression_weight, self.shared_covariance = regression_weight, shared_covariance
        self.normalize_advantage = normalize_advantage
        self.min_entropy: float | None = None
        self.entropy: float | None = None
        log_probs, actions = (
            keys[0] if len(keys) == 1 else list(keys)  # several for a composite distribution
            for keys in (actor_network.log_prob_keys, actor_network.dist_sample_keys)
        )
        self.set_keys(sample_log_prob=log_probs, action=actions)
        self.out_keys = ["loss_objective", "loss_penalty", "loss_critic", "kl", "entropy"]

    def _set_in_keys(self) -> None:
        """List the keys that `forward` reads; TorchRL calls this when keys change."""
        keys = self.tensor_keys
        actor, critic = self.actor_network, self.critic_network
        read = [*_listed(keys.action), *_listed(keys.sample_log_prob), keys.advantage, keys.value_target]
        self.in_keys = list(dict.fromkeys([*actor.in_keys, *actor[-1].in_keys, *critic.in_keys, *read]))  # type: ignore[assignment]

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        if getattr(self, "_value_estimator", None) is not None:
            names = ("advantage", "value_target", "value", "reward", "done", "terminated")
            self._value_estimator.set_keys(**{name: getattr(self.tensor_keys, name) for name in names})
        self._set_in_keys()

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> TRPLLoss:
        """Choose how `forward` computes advantages and value targets where a minibatch has none.

        Args:
            value_type: GAE (the default), TD0, TD1 or TDLambda of TorchRL's `ValueEstimators`, or an estimator.
            **hyperparams: Its settings, `gamma` and `lmbda` for example.

        Returns:
            This loss.
        """
        value_type = value_type or self.default_value_estimator
        if value_type not in ESTIMATORS:
            return super().make_value_estimator(value_type, **hyperparams)
        settings = {**default_value_kwargs(value_type), "differentiable": False, **hyperparams}
        self.value_type = value_type
        self._value_estimator = ESTIMATORS[value_type](value_network=self.critic_network, **settings)
        self._forward_value_estimator_keys()
        return self

    @dispatch  # type: ignore[arg-type]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the terms of the loss.

        Args:
            tensordict: A minibatch with the old policy's parameters, actions, advantages and value targets. Without
                advantages, the value estimator computes them, as in TorchRL's PPO.

        Returns:
            The terms, to be added up (`loss_*`), and the KL and the entropy of the network's policy.

        Raises:
            ValueError: If the minibatch lacks what the collector stores, shapes do not match, or the covariance is not
                shared although `shared_covariance` says so.
        """
        keys = self.tensor_keys
        for key in _listed(keys.sample_log_prob):
            if key not in tensordict.keys(include_nested=True):
                raise ValueError(f"the minibatch has no {key!r}: make the actor with return_log_prob=True")
        if keys.advantage not in tensordict.keys(include_nested=True):
            tensordict = tensordict.copy()
            critic = {"params": self.critic_network_params, "target_params": self.target_critic_network_params}
            with torch.no_grad():
                self.value_estimator(tensordict, **critic)
        predicted, old = self._policies(tensordict)
        projected = self._project(predicted.policy, old)
        before = sum(tensordict.get(key) for key in _listed(keys.sample_log_prob))
        log_ratio = _log_prob(predicted, projected, [tensordict.get(key) for key in _listed(keys.action)]) - before
        advantage = tensordict.get(keys.advantage).squeeze(-1)
        if log_ratio.shape != advantage.shape:
            shapes = f"{tuple(log_ratio.shape)} and {tuple(advantage.shape)}"
            raise ValueError(f"needs one ratio and one advantage [..., 1] per state; their shapes are {shapes}")
        advantage = normalised(advantage, unbiased=True) if self.normalize_advantage else advantage
        penalty = self.layer.penalty(predicted.policy, projected).mean()  # type: ignore[operator]
        here = predicted.policy.detached()
        return TensorDict(
            {
                "loss_objective": surrogate(log_ratio, advantage),
                "loss_penalty": self.regression_weight * penalty,
                "loss_critic": self.loss_critic(tensordict),
                "kl": kl(here, old).mean(),
                "entropy": entropy(here).mean(),
            }
        )

    def loss_critic(self, tensordict: TensorDictBase) -> Tensor:
        """Compute the squared error of the value function, for loops that fit it separately.

        Args:
            tensordict: A minibatch with value targets.

        Returns:
            The loss.

        Raises:
            ValueError: If values and value targets differ in shape.
        """
        with self.critic_network_params.to_module(self.critic_network):
            value = self.critic_network(tensordict.select(*self.critic_network.in_keys)).get(self.tensor_keys.value)
        target = tensordict.get(self.tensor_keys.value_target)
        if value.shape != target.shape:
            raise ValueError(f"values {tuple(value.shape)} and value targets {tuple(target.shape)} must have one shape")
        return F.mse_loss(value, target)

    @torch.no_grad()
    def projected(self, tensordict: TensorDictBase) -> Policy[Tensor]:
        """Project the network's policy.

        Args:
            tensordict: Observations and the old policy's parameters.

        Returns:
            The projected policy; a shared covariance must be set to this one's after the policy epochs.
        """
        predicted, old = self._policies(tensordict)
        return self._project(predicted.policy, old)

    def _policies(self, tensordict: TensorDictBase) -> tuple[Split[Tensor], Policy[Tensor]]:
        """Return the network's policy, and the one that collected the data."""
        for key in self.actor_network[-1].in_keys:
            if key not in tensordict.keys(include_nested=True):
                raise ValueError(f"the minibatch has no {key!r} of the policy that acted, which a collector stores")
        old = _split(self.actor_network.build_dist_from_params(tensordict))
        with self.actor_network_params.to_module(self.actor_network):
            seen = tensordict.select(*self.actor_network.in_keys).copy()  # the network writes its parameters there
            predicted = _split(self.actor_network.get_dist(seen))
        if not self.shared_covariance:
            return predicted, old.policy
        return predicted._replace(policy=_with_one_scale(predicted.gaussian)), _with_one_scale(old.gaussian)

    def _project(self, predicted: Policy[Tensor], old: Policy[Tensor]) -> Policy[Tensor]:
        return self.layer(predicted, old, min_entropy=self.min_entropy, entropy=self.entropy)


def _listed(keys: NestedKey | list[NestedKey]) -> list[NestedKey]:
    return keys if isinstance(keys, list) else [keys]


def _log_prob(predicted: Split[Tensor], projected: Policy[Tensor], actions: Sequence[Tensor]) -> Tensor:
    """Compute the log-density of actions, squashed or not; of classes as whole numbers or one-hot.

    A composite distribution has an action for each part, and the log-densities add up.
    """
    if predicted.parts:
        assert isinstance(projected, Product)
        every = zip(predicted.parts.values(), projected.parts, actions, strict=True)
        return torch.stack([_log_prob(part, own, [action]) for part, own, action in every]).sum(0)
    (action,) = actions
    if isinstance(projected, DiagGaussian | FullGaussian):
        return predicted.rebuild(projected).log_prob(action)
    if isinstance(projected, Categorical) and action.shape == projected.logits.shape:
        action = action.to(torch.int8).argmax(-1)
    return log_prob(projected, action)


def _split(distribution: Any) -> Split[Tensor]:
    return cast("Split[Tensor]", split(distribution))


def _with_one_scale(p: Gaussian[Tensor]) -> Gaussian[Tensor]:
    """Give all states the first one's covariance; refuse scales that differ by more than rounding."""
    num_event_axes = 1 if isinstance(p, DiagGaussian) else 2
    first = p.scale[(0,) * (p.scale.ndim - num_event_axes)]
    if not torch.compiler.is_compiling() and not torch.allclose(p.scale, first.expand_as(p.scale), rtol=1e-3):
        raise ValueError(
            "shared_covariance=True, but the scales of these states differ: the actor must have one scale for all "
            "states, and all states must be from one rollout"
        )
    return p.with_scale(first)
