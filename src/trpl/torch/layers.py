"""The projections as PyTorch modules.

Bounds given as numbers are plain attributes; bounds given as tensors are buffers, and as `nn.Parameter` parameters:
they move with the module and are part of its state. `check=False` leaves out the look at values at the door, for hot
loops; under `torch.compile` and `torch.func.vmap` there is none anyway, because there are no values to look at.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from trpl.gaussians.distances import Form
from trpl.gaussians.values import Gaussian
from trpl.layers import layer as core
from trpl.layers.layer import Audit
from trpl.projections.regions import KL, Frobenius, Region, Wasserstein
from trpl.torch.distributions import from_distribution, to_distribution

Bound = float | Tensor
Policy = Gaussian | Distribution


def _hold(module: nn.Module, name: str, value: Bound | None) -> None:
    """Keep a number as an attribute, a tensor as a buffer, a parameter as a parameter."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


# Dynamo need not follow them: a compiled layer then guards 27 objects at each call instead of 261. They are traced with
# the rest of the graph below. (What `allow_in_graph` imports, every optimiser of PyTorch imports too.)
_project: Any = torch.compiler.allow_in_graph(core.project)
_project_jointly: Any = torch.compiler.allow_in_graph(core.project_jointly)


class _Separate(nn.Module):
    """Forward, penalty and audit of a layer with a bound for the mean and one for the covariance."""

    def __init__(
        self, region: Region, *, mean_bound: Bound, cov_bound: Bound, entropy_first: bool, check: bool
    ) -> None:
        super().__init__()
        _hold(self, "mean_bound", mean_bound)
        _hold(self, "cov_bound", cov_bound)
        self.region, self.entropy_first, self.check = region, entropy_first, check

    def extra_repr(self) -> str:
        return f"mean_bound={self.mean_bound}, cov_bound={self.cov_bound}, {self.region}"

    def forward(
        self,
        predicted: Policy,
        old: Policy,
        *,
        mean_bound: Bound | None = None,
        cov_bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> Any:
        """The predicted policy inside the trust region around the old one; bounds given here replace the layer's."""
        gaussian = from_distribution(predicted, "predicted")
        projected = _project(
            self.region,
            gaussian,
            from_distribution(old, "old"),
            mean_bound=self.mean_bound if mean_bound is None else mean_bound,
            cov_bound=self.cov_bound if cov_bound is None else cov_bound,
            min_entropy=min_entropy,
            entropy=entropy,
            entropy_first=self.entropy_first,
            check=self.check,
        )
        return projected if gaussian is predicted else to_distribution(projected)

    def penalty(self, predicted: Policy, projected: Policy) -> Tensor:
        """The regression penalty, state by state; its gradient goes into `predicted` only."""
        return core.penalty(  # pyright: ignore[reportReturnType]
            self.region, from_distribution(predicted, "predicted"), from_distribution(projected, "projected")
        )

    @torch.no_grad()
    def audit(
        self,
        predicted: Policy,
        projected: Policy,
        old: Policy,
        *,
        mean_bound: Bound | None = None,
        cov_bound: Bound | None = None,
    ) -> Audit:
        """Distances before and after, multipliers, and which states were projected."""
        return core.audit(
            self.region,
            from_distribution(predicted, "predicted"),
            from_distribution(projected, "projected"),
            from_distribution(old, "old"),
            mean_bound=self.mean_bound if mean_bound is None else mean_bound,
            cov_bound=self.cov_bound if cov_bound is None else cov_bound,
            check=self.check,
        )


class KLProjection(_Separate):
    """Reverse KL: ½ Mahalanobis² of the mean within `mean_bound`, the covariance part of the KL within `cov_bound`."""

    def __init__(self, mean_bound: Bound, cov_bound: Bound, *, entropy_first: bool = False, check: bool = True) -> None:
        super().__init__(KL(), mean_bound=mean_bound, cov_bound=cov_bound, entropy_first=entropy_first, check=check)


class WassersteinProjection(_Separate):
    """Wasserstein-2 scaled by the old covariance, in the paper's commuting form or exact."""

    def __init__(
        self,
        mean_bound: Bound,
        cov_bound: Bound,
        *,
        form: Form = "commuting",
        entropy_first: bool = False,
        check: bool = True,
    ) -> None:
        region = Wasserstein(form)
        super().__init__(region, mean_bound=mean_bound, cov_bound=cov_bound, entropy_first=entropy_first, check=check)


class FrobeniusProjection(_Separate):
    """Frobenius norm of the change of covariance, plain or whitened by the old one."""

    def __init__(
        self,
        mean_bound: Bound,
        cov_bound: Bound,
        *,
        whitened: bool = False,
        entropy_first: bool = False,
        check: bool = True,
    ) -> None:
        region = Frobenius(whitened)
        super().__init__(region, mean_bound=mean_bound, cov_bound=cov_bound, entropy_first=entropy_first, check=check)


class JointKLProjection(nn.Module):
    """Mean, covariance and entropy at once under one KL bound; the entropy target is part of the optimisation.

    Covariances are per state afterwards, also where they were shared before.
    """

    def __init__(
        self,
        bound: Bound,
        *,
        min_entropy: Bound | None = None,
        entropy_equality: bool = False,
        check: bool = True,
    ) -> None:
        super().__init__()
        _hold(self, "bound", bound)
        _hold(self, "min_entropy", min_entropy)
        self.entropy_equality, self.check = entropy_equality, check

    def extra_repr(self) -> str:
        return f"bound={self.bound}, min_entropy={self.min_entropy}, entropy_equality={self.entropy_equality}"

    def forward(
        self,
        predicted: Policy,
        old: Policy,
        *,
        bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> Any:
        """The nearest policy within the bound that meets the entropy; arguments replace the layer's."""
        gaussian = from_distribution(predicted, "predicted")
        projected = _project_jointly(
            gaussian,
            from_distribution(old, "old"),
            bound=self.bound if bound is None else bound,
            check=self.check,
            **core.entropy_targets(self.min_entropy, self.entropy_equality, min_entropy=min_entropy, entropy=entropy),
        )
        return projected if gaussian is predicted else to_distribution(projected)

    def penalty(self, predicted: Policy, projected: Policy) -> Tensor:
        """The regression penalty, state by state; its gradient goes into `predicted` only."""
        return core.penalty_jointly(  # pyright: ignore[reportReturnType]
            from_distribution(predicted, "predicted"), from_distribution(projected, "projected")
        )

    @torch.no_grad()
    def audit(
        self,
        predicted: Policy,
        projected: Policy,
        old: Policy,
        *,
        bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> Audit:
        """Distances before and after, multipliers, and which states were projected."""
        return core.audit_jointly(
            from_distribution(predicted, "predicted"),
            from_distribution(projected, "projected"),
            from_distribution(old, "old"),
            bound=self.bound if bound is None else bound,
            check=self.check,
            **core.entropy_targets(self.min_entropy, self.entropy_equality, min_entropy=min_entropy, entropy=entropy),
        )
