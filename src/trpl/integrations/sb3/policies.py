"""Actor-critic policies for Stable-Baselines3 with the covariances it lacks: full ones, and one per state.

Policy and value function share nothing, not even a features extractor, and have an optimiser each (paper, appendix).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor, nn

from trpl.gaussians import DiagGaussian, Gaussian, entropy, log_prob
from trpl.policies import heads
from trpl.policies.weights import SPREADS

SPREAD_GAIN = 0.01


class GaussianDistribution(Distribution):
    """A Gaussian value as Stable-Baselines3 expects a distribution."""

    def __init__(self, gaussian: Gaussian) -> None:
        super().__init__()
        self.gaussian = gaussian

    def proba_distribution_net(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a GaussianDistribution has no networks: the policy builds them, and hands over a Gaussian")

    def proba_distribution(self, gaussian: Gaussian) -> GaussianDistribution:
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

    def actions_from_params(self, gaussian: Gaussian, deterministic: bool = False) -> Tensor:
        return GaussianDistribution(gaussian).get_actions(deterministic)

    def log_prob_from_params(self, gaussian: Gaussian) -> tuple[Tensor, Tensor]:
        actions = self.actions_from_params(gaussian)
        return actions, log_prob(gaussian, actions)


class MlpPolicy(ActorCriticPolicy):
    """A Gaussian policy with a diagonal or full covariance, one for all states or one per state (`contextual`).

    The covariance is parametrised as in `trpl.policies.heads`; standard deviations are exp(log_std_init) at first.
    Everything else is as in `ActorCriticPolicy`.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
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
        if share_features_extractor:
            raise ValueError("share_features_extractor must be False: fitting the value function would move the policy")
        if optimizer_kwargs is None and optimizer_class is torch.optim.Adam:
            optimizer_kwargs = {"eps": 1e-5, "fused": True}
        self.covariance, self.contextual = covariance, contextual
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            *args,
            share_features_extractor=False,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            **kwargs,
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"covariance": self.covariance, "contextual": self.contextual}

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        del self.log_std
        dim = self.action_dim
        initial = torch.zeros(heads.spread_size(self.covariance, dim))
        initial[:dim] = heads.raw_from_positive(torch.tensor(math.exp(self.log_std_init)))
        if self.contextual:
            self.spread_net = nn.Linear(self.mlp_extractor.latent_dim_pi, len(initial))
            if self.ortho_init:
                self.init_weights(self.spread_net, gain=SPREAD_GAIN)
            self.spread_net.bias.data.copy_(initial)
        else:
            self.spread = nn.Parameter(initial)
        rate = lr_schedule(1)
        self.optimizer = self.optimizer_class(self.policy_parameters(), lr=rate, **self.optimizer_kwargs)  # type: ignore[call-arg]
        self.value_optimizer = self.optimizer_class(self.value_parameters(), lr=rate, **self.optimizer_kwargs)  # type: ignore[call-arg]

    @property
    def action_dim(self) -> int:
        return math.prod(self.action_space.shape)  # type: ignore[arg-type]

    def value_parameters(self) -> list[nn.Parameter]:
        """List the parameters of the value function alone.

        Returns:
            The parameters.
        """
        hidden = getattr(self.mlp_extractor, "value_net", None)
        parts = [self.vf_features_extractor, self.value_net, *([hidden] if isinstance(hidden, nn.Module) else [])]
        return [parameter for part in parts for parameter in part.parameters()]

    def policy_parameters(self) -> list[nn.Parameter]:
        """List the parameters of the policy alone.

        Returns:
            The parameters.

        Raises:
            ValueError: If a custom `mlp_extractor` does not keep the policy's layers apart.
        """
        hidden = getattr(self.mlp_extractor, "policy_net", None)
        heads = [self.action_net, *([self.spread_net] if self.contextual else [])]
        parts = [self.pi_features_extractor, *heads, *([hidden] if isinstance(hidden, nn.Module) else [])]
        found = [parameter for part in parts for parameter in part.parameters()]
        if not self.contextual:
            found.append(self.spread)
        if {*map(id, self.parameters())} != {*map(id, found), *map(id, self.value_parameters())}:
            raise ValueError(
                "a custom mlp_extractor must keep its layers in `policy_net` and `value_net`: each has its optimiser"
            )
        return found

    def gaussian(self, obs: PyTorchObs) -> Gaussian:
        """Predict the Gaussian for each observation.

        Args:
            obs: A batch of observations.

        Returns:
            The Gaussians; the covariance has no batch axis when it is shared.
        """
        features = super(ActorCriticPolicy, self).extract_features(obs, self.pi_features_extractor)
        return self._gaussian_from_latent(self.mlp_extractor.forward_actor(features))

    def _gaussian_from_latent(self, latent: Tensor) -> Gaussian:
        mean = self.action_net(latent)
        raw = self.spread_net(latent) if self.contextual else self.spread
        return heads.gaussian(mean, raw, self.covariance)

    @torch.no_grad()
    def set_spread(self, gaussian: Gaussian) -> None:
        """Set the shared covariance.

        Args:
            gaussian: Where the covariance is taken from.
        """
        self.spread.copy_(heads.raw_from(gaussian))

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Distribution:
        return GaussianDistribution(self._gaussian_from_latent(latent_pi))


class CnnPolicy(MlpPolicy):
    """The same with a convolutional features extractor, for images."""

    def __init__(self, *args: Any, features_extractor_class: Any = NatureCNN, **kwargs: Any) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


class MultiInputPolicy(MlpPolicy):
    """The same for dictionaries of observations."""

    def __init__(self, *args: Any, features_extractor_class: Any = CombinedExtractor, **kwargs: Any) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)
