"""Actor-critic policies for Stable-Baselines3 with the covariances it lacks: full and contextual ones.

By default policy and value function share nothing, not even a features extractor.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor, nn

from trpl.families import Policy
from trpl.gaussians import DiagGaussian, Gaussian, entropy, log_prob
from trpl.policies import covariances
from trpl.policies.weights import SPREADS
from trpl.types import cast

SPREAD_GAIN = 0.01


class GaussianDistribution(Distribution):
    """A Gaussian value behind Stable-Baselines3's interface of a distribution."""

    def __init__(self, gaussian: Gaussian[Tensor]) -> None:
        super().__init__()
        self.gaussian = gaussian

    def proba_distribution_net(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a GaussianDistribution has no networks: the policy builds them, and passes a Gaussian")

    def proba_distribution(self, gaussian: Gaussian[Tensor]) -> GaussianDistribution:
        return GaussianDistribution(gaussian)

    def log_prob(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return log_prob(self.gaussian, x)

    def entropy(self) -> Tensor:
        return entropy(self.gaussian).expand(self.gaussian.batch_shape)

    def sample(self) -> Tensor:
        mean, scale = self.gaussian
        noise = torch.randn_like(mean)
        if isinstance(self.gaussian, DiagGaussian):
            return mean + scale * noise
        return mean + (scale @ noise[..., None])[..., 0]

    def mode(self) -> Tensor:
        return self.gaussian.mean

    def actions_from_params(self, gaussian: Gaussian[Tensor], deterministic: bool = False) -> Tensor:
        return GaussianDistribution(gaussian).get_actions(deterministic)

    def log_prob_from_params(self, gaussian: Gaussian[Tensor]) -> tuple[Tensor, Tensor]:
        actions = self.actions_from_params(gaussian)
        return actions, log_prob(gaussian, actions)


class MlpPolicy(ActorCriticPolicy):
    """A Gaussian for `Box` actions with a diagonal or full covariance, shared or `contextual`.

    The covariance is parametrised as in `trpl.policies.covariances`; initial standard deviations are exp(log_std_init).
    For other actions, and with `use_sde`, the distribution is that of `ActorCriticPolicy`.

    Args:
        observation_space: See `ActorCriticPolicy`.
        action_space: See `ActorCriticPolicy`.
        lr_schedule: See `ActorCriticPolicy`.
        *args: See `ActorCriticPolicy`.
        covariance: "diagonal" or "full".
        contextual: Whether each state has its own covariance; otherwise all share one.
        share_features_extractor: Whether policy and value function share a features extractor.
        optimizer_class: The class of both optimisers.
        optimizer_kwargs: Their arguments; for Adam by default `eps=1e-5` and `fused=True`.
        **kwargs: See `ActorCriticPolicy`.

    Raises:
        ValueError: If the covariance is unknown or does not fit the actions, or actions are squashed.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *args: Any,
        covariance: str = "diagonal",
        contextual: bool = False,
        share_features_extractor: bool = False,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if covariance not in SPREADS:
            raise ValueError(f"covariance must be one of {', '.join(SPREADS)}, not {covariance!r}")
        if not isinstance(action_space, spaces.Box) and (contextual or covariance != "diagonal"):
            raise ValueError(f"covariance and contextual are for Box actions, and these are {action_space}")
        if kwargs.get("use_sde") and (contextual or covariance != "diagonal"):
            raise ValueError(
                "use_sde has a covariance of its own, diagonal per state: leave out covariance and contextual"
            )
        if kwargs.get("squash_output"):
            raise ValueError("squash_output: the buffer has no actions before squashing, which a ratio needs")
        if optimizer_kwargs is None and optimizer_class is torch.optim.Adam:
            optimizer_kwargs = {"eps": 1e-5, "fused": True}
        self.covariance, self.contextual = covariance, contextual
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            *args,
            share_features_extractor=share_features_extractor,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            **kwargs,
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"covariance": self.covariance, "contextual": self.contextual}

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        if not self._own_covariance:
            return
        del self.log_std
        dim = get_action_dim(self.action_space)
        initial = torch.zeros(covariances.spread_size(self.covariance, dim))
        initial[:dim] = covariances.raw_from_positive(torch.tensor(math.exp(self.log_std_init)))
        if self.contextual:
            self.spread_net = nn.Linear(self.mlp_extractor.latent_dim_pi, len(initial))
            if self.ortho_init:
                self.init_weights(self.spread_net, gain=SPREAD_GAIN)
            self.spread_net.bias.data.copy_(initial)
        else:
            self.spread = nn.Parameter(initial)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    @property
    def _own_covariance(self) -> bool:
        """Whether the covariance is one of this module, and not Stable-Baselines3's noise that depends on the state."""
        return isinstance(self.action_space, spaces.Box) and not self.use_sde

    def gaussian(self, obs: PyTorchObs) -> Gaussian[Tensor]:
        """Predict the Gaussian of each observation, for `Box` actions without `use_sde`.

        Args:
            obs: A batch of observations.

        Returns:
            The Gaussians; a shared covariance has no batch axis.
        """
        found = self.get_distribution(obs)
        assert isinstance(found, GaussianDistribution)
        return found.gaussian

    @torch.no_grad()
    def set_shared(self, projected: Policy[Tensor]) -> None:
        """Set a shared covariance that is trained to that of a projection; others are left unchanged.

        Args:
            projected: The projected policy.
        """
        if self._own_covariance and not self.contextual and self.spread.requires_grad:
            shared = covariances.share_covariance(cast("Gaussian[Tensor]", projected))
            self.spread.copy_(covariances.raw_from(shared))

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Distribution:
        if not self._own_covariance:
            return super()._get_action_dist_from_latent(latent_pi)
        raw = self.spread_net(latent_pi) if self.contextual else self.spread
        return GaussianDistribution(covariances.gaussian(self.action_net(latent_pi), raw, self.covariance))


class CnnPolicy(MlpPolicy):
    """An `MlpPolicy` with a convolutional features extractor, for images."""

    def __init__(self, *args: Any, features_extractor_class: Any = NatureCNN, **kwargs: Any) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


class MultiInputPolicy(MlpPolicy):
    """An `MlpPolicy` for dictionaries of observations."""

    def __init__(self, *args: Any, features_extractor_class: Any = CombinedExtractor, **kwargs: Any) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)
