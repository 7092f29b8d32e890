"""What every PyTorch host needs of a layer: the terms of its loss, an entropy to hold, a standard deviation to set.

The adapters of rsl_rl, skrl and rl_games share these settings and this loss; each adds only how its host keeps
policies and minibatches.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import trpl.torch
from trpl.entropy_schedule import SCHEDULES, scheduled
from trpl.gaussians import DiagGaussian, Gaussian, entropy, log_prob
from trpl.losses import surrogate
from trpl.methods.registry import layers

SMALLEST_SHARE = 0.01
"""A standard deviation that an optimiser moves by itself may fall to this share of the old one within an update."""


class Terms(NamedTuple):
    """The terms of the loss on one minibatch, as means over its states, and the policy that they are of."""

    surrogate: Tensor
    penalty: Tensor
    entropy: Tensor
    projected: Gaussian


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrustRegion:
    """The settings that a host's configuration adds, and the parts of an update that they decide.

    Args:
        projection: "kl", "w2", "frobenius", or "kl-joint" with one bound, the sum of the two.
        mean_bound: Bound on the distance of the means, in every state.
        cov_bound: Bound on the distance of the covariances, in every state.
        projection_kwargs: Further words for the layer, such as `form`, `whitened` or `entropy_first`.
        regression_weight: Weight α of the penalty that pulls the network to its projection.
        entropy_schedule: "none", "exponential" or "linear": from the entropy of the first policy to the target.
        target_entropy: The last entropy, per action dimension.
        temperature: How fast the exponential schedule falls.
        entropy_equality: Hold the entropy at the schedule, not only above it.

    Raises:
        ValueError: If a setting is not one of its choices, or a bound or the weight is out of range.
    """

    projection: str = "kl"
    mean_bound: float = 0.03
    cov_bound: float = 1e-3
    projection_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    regression_weight: float = 8.0
    entropy_schedule: str = "none"
    target_entropy: float = 0.0
    temperature: float = 0.5
    entropy_equality: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("projection", layers()), ("entropy_schedule", SCHEDULES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name in ("mean_bound", "cov_bound"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)!r}")
        if not self.regression_weight >= 0:
            raise ValueError(f"regression_weight must not be negative, not {self.regression_weight!r}")

    @classmethod
    def take(cls, settings: dict) -> TrustRegion:
        """Make one from a host's settings; what belongs to it is removed from them."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: settings.pop(name) for name in names if name in settings})

    @cached_property
    def layer(self) -> nn.Module:
        """The layer of these settings; it does not look at values."""
        bounds = {"mean_bound": self.mean_bound, "cov_bound": self.cov_bound, "bound": self.total_bound}
        return layers()[self.projection].build(trpl.torch, bounds, **self.projection_kwargs)

    @property
    def total_bound(self) -> float:
        """The bound on the whole KL; of meaning for the two KL projections."""
        return self.mean_bound + self.cov_bound

    @property
    def bounds_kl(self) -> bool:
        """Whether the bounds are bounds of a KL divergence."""
        return layers()[self.projection].bounds_kl

    @property
    def joint(self) -> bool:
        """Whether one bound is on mean and covariance together; the covariance then depends on the state."""
        return "bound" in layers()[self.projection].arguments

    @property
    def controls_entropy(self) -> bool:
        """Whether there is a schedule for the entropy."""
        return self.entropy_schedule != "none"

    def constraint(self, *, initial: float, progress: float, dim: int) -> dict[str, float]:
        """The entropy that this update is held to, as the layer's own keyword; empty without a schedule.

        Args:
            initial: Entropy of the policy before its first update.
            progress: Share of training done, 0 to 1.
            dim: Number of action dimensions.

        Returns:
            Keywords for the layer's call.
        """
        if not self.controls_entropy:
            return {}
        value = scheduled(
            self.entropy_schedule,
            initial=initial,
            target=self.target_entropy,
            temperature=self.temperature,
            progress=min(progress, 1.0),
            dim=dim,
        )
        return {"entropy" if self.entropy_equality else "min_entropy": value}

    def terms(
        self,
        predicted: Gaussian,
        old: Gaussian,
        *,
        actions: Tensor,
        old_log_prob: Tensor,
        advantages: Tensor,
        constraint: dict[str, float],
    ) -> Terms:
        """The surrogate of the projected policy, and the penalty that pulls the network to it (eq. 12).

        Args:
            predicted: What the network says now.
            old: The policy that collected the data, a constant.
            actions: The actions taken, `[*batch, dim]`.
            old_log_prob: Their log-density as of collection, `[*batch]`.
            advantages: Their advantages, `[*batch]`.
            constraint: Keywords for the layer's call, from `constraint`.

        Returns:
            The terms; a loss is `regression_weight · penalty − surrogate`.
        """
        projected = self.layer(predicted, old, **constraint)
        return Terms(
            surrogate=-surrogate(log_prob(projected, actions) - old_log_prob, advantages),
            penalty=self.layer.penalty(predicted, projected).mean(),  # type: ignore[operator]
            entropy=entropy(projected).mean(),
            projected=projected,
        )

    @torch.no_grad()
    def projected_std(self, std: Tensor, old_std: Tensor, constraint: dict[str, float]) -> Tensor:
        """The projection of a standard deviation that all states share: what it is set to after the epochs."""
        mean = torch.zeros_like(std)[None]
        return self.layer(DiagGaussian(mean, std), DiagGaussian(mean, old_std), **constraint).std


class SharedDeviation:
    """A standard deviation that is a parameter of the network, the same for all states."""

    def __init__(self, parameter: nn.Parameter, *, is_log: bool) -> None:
        self.parameter, self.is_log = parameter, is_log

    @property
    def learns(self) -> bool:
        """Whether it is trained at all."""
        return self.parameter.requires_grad

    @torch.no_grad()
    def set_(self, std: Tensor) -> None:
        """Set it: to the projected one, after the policy epochs."""
        self.parameter.copy_(std.log() if self.is_log else std)

    @torch.no_grad()
    def keep_positive(self, old_std: Tensor) -> None:
        """Hold it above a small share of the old one: an optimiser's step may turn a plain parameter negative."""
        least = SMALLEST_SHARE * old_std
        self.parameter.copy_(torch.maximum(self.parameter, least.log() if self.is_log else least))
