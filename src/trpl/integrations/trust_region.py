"""A trust region for PyTorch hosts: the terms of its loss, the entropy constraint, and a shared standard deviation.

The adapters of rsl_rl, skrl and rl_games share these settings and this loss; each adds only the access to its host's
policies and minibatches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, SupportsFloat, TypeVar

from trpl.entropy_schedule import SCHEDULES, scheduled, within_reach
from trpl.errors import ConvergenceError
from trpl.families import Policy, entropy, kl, log_prob
from trpl.gaussians import DiagGaussian, FullGaussian
from trpl.losses import weighted_advantages
from trpl.messages import needs
from trpl.methods.method import LayerSpec
from trpl.methods.registry import layers
from trpl.types import cast

with needs("torch"):
    import torch
    from torch import Tensor, nn

    import trpl.torch

SMALLEST_SHARE = 0.01
"""The share of its old value to which an optimiser may reduce a standard deviation within an update."""

P = TypeVar("P", bound=Policy[Tensor])


class Terms(NamedTuple):
    """The terms of the loss in each state, or their means, and the projected policy."""

    surrogate: Tensor
    penalty: Tensor
    entropy: Tensor
    projected: Policy[Tensor]
    regression_weight: float

    def mean(self) -> Terms:
        """Average the terms over the states.

        Returns:
            The means, with the same policy.
        """
        return self._replace(surrogate=self.surrogate.mean(), penalty=self.penalty.mean(), entropy=self.entropy.mean())

    @property
    def loss(self) -> Tensor:
        """The policy's loss, regression_weight · penalty − surrogate, without an entropy bonus."""
        return self.regression_weight * self.penalty - self.surrogate


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrustRegion:
    """The settings that a host's configuration adds, and the parts of an update that depend on them.

    Args:
        projection: "kl", "w2", "frobenius", or "kl-joint" with one bound, the sum of the two.
        mean_bound: Bound on the distance of the means, in every state.
        cov_bound: Bound on the distance of the covariances, in every state.
        projection_kwargs: Further arguments of the layer, such as `form`, `whitened` or `entropy_first`.
        regression_weight: Weight α of the penalty that pulls the network to its projection.
        entropy_schedule: "none", "exponential" or "linear": from the entropy of the first policy to the target.
        target_entropy: The final entropy, per action dimension.
        temperature: τ of the exponential schedule.
        entropy_equality: Whether to keep the entropy at the schedule, not only above it.

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
        for name in ("mean_bound", "cov_bound", "regression_weight", "target_entropy", "temperature"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, SupportsFloat) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value!r}")
        for name in ("mean_bound", "cov_bound", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)!r}")
        if not self.regression_weight >= 0:
            raise ValueError(f"regression_weight must not be negative, not {self.regression_weight!r}")
        try:
            _ = self.layer
        except TypeError as error:
            raise ValueError(f"projection_kwargs do not fit projection {self.projection!r}: {error}") from None

    @classmethod
    def take(cls, settings: dict) -> TrustRegion:
        """Make a trust region from a host's settings.

        Args:
            settings: The host's settings; those of the trust region are removed.

        Returns:
            The trust region.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: settings.pop(name) for name in names if name in settings})

    @property
    def _spec(self) -> LayerSpec:
        return layers()[self.projection]

    @cached_property
    def layer(self) -> nn.Module:
        """The layer of these settings, without checks of values."""
        bounds = {"mean_bound": self.mean_bound, "cov_bound": self.cov_bound, "bound": self.total_bound}
        return self._spec.build(trpl.torch, bounds, **self.projection_kwargs)

    @cached_property
    def _joint_layer(self) -> nn.Module:
        """The layer with one bound on the whole KL, for non-Gaussian policies; `check_serves` comes first."""
        return (self._spec.otherwise or self._spec).build(trpl.torch, {"bound": self.total_bound})

    def check_serves(self, *, gaussian: bool, words: str) -> None:
        """Refuse a projection for Gaussians if the policy is not a Gaussian.

        Args:
            gaussian: Whether the policy is a Gaussian.
            words: Its description, for the message.

        Raises:
            ValueError: The projection does not support it.
        """
        if not gaussian and not self.bounds_kl:
            others = " or ".join(repr(name) for name, layer in layers().items() if layer.bounds_kl)
            raise ValueError(
                f"projection {self.projection!r} is for Gaussian policies, and this is {words}: use {others}"
            )

    def check_shared(self, shared: SharedDeviation | None, *, instead: str) -> None:
        """Refuse a shared standard deviation if the projection makes covariances contextual.

        Args:
            shared: The network's shared standard deviation, or None.
            instead: What the user may change in the host to have one per state, for the message.

        Raises:
            ValueError: The projection does not support it.
        """
        if self.joint and shared is not None:
            *others, last = (name for name, layer in layers().items() if "bound" not in layer.arguments)
            raise ValueError(
                f"{self.projection} gives every state its own covariance: {instead}, or use the projection "
                f"{', '.join(others)} or {last}"
            )

    def layer_of(self, policy: Policy[Tensor]) -> Any:
        """Return the layer for a policy: two bounds on the KL of Gaussians, their sum for every other.

        Args:
            policy: A value of any family.

        Returns:
            The layer.

        Raises:
            ValueError: The projection is for Gaussians alone, and the policy is another.
        """
        gaussian = isinstance(policy, DiagGaussian | FullGaussian)
        self.check_serves(gaussian=gaussian, words=f"a {type(policy).__name__}")
        return self.layer if self.joint or gaussian else self._joint_layer

    def project(self, predicted: P, old: Policy[Tensor], constraint: dict[str, float]) -> P:
        """Project the predicted policy, with the entropy of the constraint or the nearest feasible one.

        Args:
            predicted: The network's policy.
            old: The policy that collected the data, of the same kind.
            constraint: Arguments of the layer's call, from `constraint`.

        Returns:
            The projected policy.
        """
        layer = self.layer_of(predicted)
        if constraint and hasattr(layer, "bound"):
            held = {name: within_reach(value, old, self.total_bound) for name, value in constraint.items()}
            return layer(predicted, old, **held)
        return layer(predicted, old, **constraint)

    @property
    def total_bound(self) -> float:
        """The bound on the whole KL; meaningful for the two KL projections."""
        return self.mean_bound + self.cov_bound

    @property
    def bounds_kl(self) -> bool:
        """Whether the bounds are on a KL divergence."""
        return self._spec.bounds_kl

    @property
    def joint(self) -> bool:
        """Whether one bound is on mean and covariance together, which makes the covariance contextual."""
        return "bound" in self._spec.arguments

    @property
    def controls_entropy(self) -> bool:
        """Whether the entropy follows a schedule."""
        return self.entropy_schedule != "none"

    def constraint(self, *, initial: float, progress: float, dim: int) -> dict[str, float]:
        """Return the entropy constraint of this update as the layer's argument; empty without a schedule.

        Args:
            initial: The entropy of the policy before its first update.
            progress: The share of training done, 0 to 1.
            dim: The number of action dimensions.

        Returns:
            Arguments of the layer's call.
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
        return {"entropy" if self.entropy_equality else "min_entropy": cast("float", value)}

    def terms(
        self,
        predicted: Policy[Tensor],
        old: Policy[Tensor],
        *,
        actions: Tensor,
        old_log_prob: Tensor,
        advantages: Tensor,
        constraint: dict[str, float],
    ) -> Terms:
        """Compute the surrogate of the projected policy, and the penalty that pulls the network to it (eq. 12).

        Args:
            predicted: The network's policy.
            old: The policy that collected the data, a constant.
            actions: The actions taken, `[*batch, dim]`.
            old_log_prob: Their log-density at collection, `[*batch]`.
            advantages: Their advantages, `[*batch]`.
            constraint: Arguments of the layer's call, from `constraint`.

        Returns:
            The terms of each state.
        """
        projected = self.project(predicted, old, constraint)
        log_ratio = log_prob(projected, actions) - old_log_prob
        return Terms(
            surrogate=weighted_advantages(log_ratio, advantages),
            penalty=self.layer_of(predicted).penalty(predicted, projected),
            entropy=entropy(projected).expand(log_ratio.shape),
            projected=projected,
            regression_weight=self.regression_weight,
        )

    @torch.no_grad()
    def measured(
        self, pairs: Iterable[tuple[Policy[Tensor], Policy[Tensor]]], constraint: dict[str, float]
    ) -> dict[str, float]:
        """Compare the new policy with the old one, exactly, in every state of a rollout.

        Args:
            pairs: The policy after the update and the one that collected the data, minibatch by minibatch.
            constraint: Arguments of the layer's call, from `constraint`.

        Returns:
            By name: `entropy`; `kl` and `kl_max`, mean and maximum over the states; for bounds on a KL `kl_above`, the
            share of states above their sum; and `entropy_target` or `min_entropy_target`, if there is one.

        Raises:
            ConvergenceError: If the policy is not finite.
        """
        divergences, entropies = [], []
        for new, old in pairs:
            divergences.append(kl(new, old).flatten())
            entropies.append(entropy(new).mean())
        states = torch.cat(divergences)
        if not torch.isfinite(states.sum()):
            raise ConvergenceError(
                "the policy is not finite after this update: try a smaller learning rate or smaller bounds, or "
                "parametrise the standard deviation by its logarithm"
            )
        found = {"entropy": torch.stack(entropies).mean(), "kl": states.mean(), "kl_max": states.max()}
        if self.bounds_kl:
            found["kl_above"] = (states > self.total_bound).float().mean()
        targets = {f"{name}_target": value for name, value in constraint.items()}
        return {name: float(value) for name, value in found.items()} | targets


class SharedDeviation:
    """A shared standard deviation that is a parameter of the network; one that is not trained is left unchanged.

    Args:
        parameter: The parameter.
        is_log: Whether it holds the logarithm of the standard deviation.
    """

    def __init__(self, parameter: nn.Parameter, *, is_log: bool) -> None:
        self.parameter, self.is_log = parameter, is_log

    @property
    def learns(self) -> bool:
        """Whether it is trained."""
        return self.parameter.requires_grad

    @torch.no_grad()
    def keep_positive(self, old_std: Tensor) -> None:
        """Clamp it above a small share of its old value: an optimiser's step may make a plain parameter negative.

        Args:
            old_std: The standard deviation of the policy that collected the data.
        """
        if self.learns:
            least = SMALLEST_SHARE * old_std
            self.parameter.copy_(torch.maximum(self.parameter, least.log() if self.is_log else least))

    @torch.no_grad()
    def project_(self, region: TrustRegion, old_std: Tensor, constraint: dict[str, float]) -> None:
        """Set it to its projection, after the policy epochs.

        Args:
            region: The trust region.
            old_std: The standard deviation of the policy that collected the data.
            constraint: Arguments of the layer's call, from `TrustRegion.constraint`.
        """
        if self.learns:
            mean = torch.zeros_like(old_std)[None]
            std = self.parameter.exp() if self.is_log else self.parameter
            projected = region.project(DiagGaussian(mean, std), DiagGaussian(mean, old_std), constraint).std
            self.parameter.copy_(projected.log() if self.is_log else projected)
