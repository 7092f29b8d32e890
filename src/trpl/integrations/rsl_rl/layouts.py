"""Access to rsl_rl's networks and minibatches: an actor and a critic (5.x), or one module for both (3.1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from importlib import metadata, util
from typing import Any, NamedTuple, final

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from trpl.families import Beta, Policy
from trpl.gaussians import DiagGaussian
from trpl.integrations.trust_region import SharedDeviation

EDGE = 1e-6
"""The distance from the ends of its interval to which rsl_rl clips actions of a Beta distribution for their density."""
HAS_MODELS = util.find_spec("rsl_rl.models") is not None


@dataclasses.dataclass
class Minibatch:
    """A minibatch by the names of rsl_rl 5; symmetry replaces some of its tensors by longer ones."""

    observations: TensorDict
    actions: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    old_actions_log_prob: Tensor
    old_distribution_params: tuple[Tensor, ...]
    hidden_states: tuple[Any, Any]
    masks: Tensor | None

    def __post_init__(self) -> None:
        """Copy views of the storage, which rsl_rl fills in inference mode, so that gradients can be computed."""
        for name in ("actions", "values", "advantages", "returns", "old_actions_log_prob"):
            setattr(self, name, _outside_inference(getattr(self, name)))
        self.old_distribution_params = tuple(_outside_inference(x) for x in self.old_distribution_params)


class Mirror(NamedTuple):
    """The symmetry of a configuration: a function that appends mirrored samples, and its uses."""

    function: Any
    env: Any
    augments: bool
    loss_weight: float | None

    def actions(self, actions: Tensor) -> Tensor:
        """Return the actions, followed by their mirror images."""
        return self.function(env=self.env, obs=None, actions=actions)[1]

    def observations(self, observations: TensorDict) -> TensorDict:
        """Return the observations, followed by their mirror images."""
        return self.function(env=self.env, obs=observations, actions=None)[0]


@final
class Models:
    """rsl_rl 5: `actor` and `critic`, each a model."""

    value_loss_name = "value"

    def __init__(self, algorithm: Any) -> None:
        from rsl_rl.modules import distribution as kinds

        self.algorithm = algorithm
        distribution = algorithm.actor.distribution
        self.is_beta = isinstance(distribution, getattr(kinds, "BetaDistribution", ()))  # since 5.4
        if not self.is_beta and not isinstance(distribution, kinds.GaussianDistribution):
            raise ValueError(
                f"the actor's distribution is {type(distribution).__name__}; TRPL projects GaussianDistribution, "
                "HeteroscedasticGaussianDistribution and BetaDistribution"
            )
        self.shared = None
        if not self.is_beta and not isinstance(distribution, kinds.HeteroscedasticGaussianDistribution):
            is_log = distribution.std_type == "log"
            parameter = distribution.log_std_param if is_log else distribution.std_param
            self.shared = SharedDeviation(parameter, is_log=is_log)

    @property
    def mirror(self) -> Mirror | None:
        """The symmetry of the configuration."""
        found = self.algorithm.symmetry
        if not found:
            return None
        weight = found.mirror_loss_coeff if found.use_mirror_loss else None
        return Mirror(found.data_augmentation_func, found.env, found.use_data_augmentation, weight)

    @property
    def networks(self) -> list[nn.Module]:
        """The networks whose gradients are clipped separately."""
        return [self.algorithm.actor, self.algorithm.critic]

    @property
    def rnd_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of random network distillation."""
        return self.algorithm.rnd.optimizer

    def minibatches(self, num_epochs: int) -> Iterator[Minibatch]:
        """Yield the rollout in rsl_rl's minibatches."""
        recurrent = self.algorithm.actor.is_recurrent or self.algorithm.critic.is_recurrent
        names = [field.name for field in dataclasses.fields(Minibatch)]
        for batch in _minibatches(self.algorithm, num_epochs, recurrent=recurrent):
            yield Minibatch(**{name: getattr(batch, name) for name in names})

    def policy(self, batch: Minibatch) -> Policy[Tensor]:
        """Predict the policy; a shared standard deviation has no batch axis."""
        actor = self.algorithm.actor
        actor(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[0], stochastic_output=True)
        return self.policy_value(actor.output_distribution_params)

    def policy_value(self, params: tuple[Tensor, ...]) -> Policy[Tensor]:
        """Convert the parameters of a distribution, as rsl_rl stores them, to a policy value."""
        return Beta(*_single(params)) if self.is_beta else _gaussian(params, shared=self.shared is not None)

    def taken(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Return the actions and their log-density at collection; for a Beta distribution, on (0, 1)."""
        actions, log_prob = batch.actions, batch.old_actions_log_prob.squeeze(-1)
        if not self.is_beta:
            return actions, log_prob
        low, high = self.algorithm.actor.distribution.action_range
        unit = ((actions - low) / (high - low)).clamp(EDGE, 1.0 - EDGE)
        return unit, log_prob + actions.shape[-1] * math.log(high - low)

    def values(self, batch: Minibatch) -> Tensor:
        """Predict the values."""
        return self.algorithm.critic(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[1])

    def mean_action(self, observations: TensorDict) -> Tensor:
        """Return the noise-free action."""
        return self.algorithm.actor(observations)

    def finish(self) -> None:
        """Update the normalisers, if rsl_rl does so after the epochs (since 5.5)."""
        alg = self.algorithm
        if not _normalises_after_the_epochs():
            return
        observations = alg.storage.observations.flatten(0, 1)
        for part in (alg.actor, alg.critic, *([alg.rnd] if alg.rnd else [])):
            part.update_normalization(observations)


@final
class ActorCritic:
    """rsl_rl 3.1: one module `policy` for both, and minibatches as tuples."""

    value_loss_name = "value_function"
    is_beta = False

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        policy = algorithm.policy
        self.shared = None
        if not policy.state_dependent_std:
            is_log = policy.noise_std_type == "log"
            self.shared = SharedDeviation(policy.log_std if is_log else policy.std, is_log=is_log)

    @property
    def mirror(self) -> Mirror | None:
        """The symmetry of the configuration."""
        found = self.algorithm.symmetry
        if not found:
            return None
        weight = found["mirror_loss_coeff"] if found["use_mirror_loss"] else None
        return Mirror(found["data_augmentation_func"], found["_env"], found["use_data_augmentation"], weight)

    @property
    def networks(self) -> list[nn.Module]:
        """The network whose gradients are clipped."""
        return [self.algorithm.policy]

    @property
    def rnd_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of random network distillation."""
        return self.algorithm.rnd_optimizer

    def minibatches(self, num_epochs: int) -> Iterator[Minibatch]:
        """Yield the rollout in rsl_rl's minibatches."""
        for batch in _minibatches(self.algorithm, num_epochs, recurrent=self.algorithm.policy.is_recurrent):
            observations, actions, values, advantages, returns, log_prob, mean, std, hidden_states, masks = batch
            yield Minibatch(
                observations, actions, values, advantages, returns, log_prob, (mean, std), hidden_states, masks
            )

    def policy(self, batch: Minibatch) -> DiagGaussian[Tensor]:
        """Predict the policy; a shared standard deviation has no batch axis."""
        policy = self.algorithm.policy
        policy.act(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[0])
        return self.policy_value((policy.action_mean, policy.action_std))

    def policy_value(self, params: tuple[Tensor, ...]) -> DiagGaussian[Tensor]:
        """Convert mean and standard deviation, as rsl_rl stores them, to a Gaussian."""
        return _gaussian(params, shared=self.shared is not None)

    def taken(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Return the actions and their log-density at collection."""
        return batch.actions, batch.old_actions_log_prob.squeeze(-1)

    def values(self, batch: Minibatch) -> Tensor:
        """Predict the values."""
        policy = self.algorithm.policy
        return policy.evaluate(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[1])

    def mean_action(self, observations: TensorDict) -> Tensor:
        """Return the noise-free action."""
        return self.algorithm.policy.act_inference(observations)

    def finish(self) -> None:
        """Do nothing: the normalisers are updated at each step."""


def _minibatches(algorithm: Any, num_epochs: int, *, recurrent: bool) -> Iterator[Any]:
    """Return rsl_rl's own generator of minibatches."""
    storage = algorithm.storage
    generator = storage.recurrent_mini_batch_generator if recurrent else storage.mini_batch_generator
    return generator(algorithm.num_mini_batches, num_epochs)


def _outside_inference(x: Tensor) -> Tensor:
    return x.clone() if x.is_inference() else x


def _single(params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Convert half precision to single precision."""
    return tuple(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x for x in params)


def _gaussian(params: tuple[Tensor, ...], *, shared: bool) -> DiagGaussian[Tensor]:
    """Make a Gaussian; if `shared`, take the standard deviation of the first state."""
    mean, std = _single(params)
    return DiagGaussian(mean, std.reshape(-1, std.shape[-1])[0] if shared else std)


def layout_of(algorithm: Any) -> Models | ActorCritic:
    """Return the layout of the installed rsl_rl."""
    return Models(algorithm) if HAS_MODELS else ActorCritic(algorithm)


def _normalises_after_the_epochs() -> bool:
    major, minor = (int(part) for part in metadata.version("rsl-rl-lib").split(".")[:2])
    return (major, minor) >= (5, 5)
