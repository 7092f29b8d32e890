"""The projections as JAX pytrees.

A layer is a frozen dataclass. Its bounds are leaves (traced, differentiated, mapped over); the rest is static.
`check=False` leaves out the look at values at the door; inside `jit` there is none anyway, because there are no values
yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax

from trpl.gaussians.distances import Form
from trpl.gaussians.values import Gaussian
from trpl.layers import layer as core
from trpl.layers.layer import Audit
from trpl.projections.regions import KL, Frobenius, Region, Wasserstein

Array = Any


def _static(default: Any) -> Any:
    return field(default=default, metadata={"static": True})


class _Separate:
    """Call, penalty and audit of a layer with a bound for the mean and one for the covariance."""

    mean_bound: Array
    cov_bound: Array
    entropy_first: bool
    check: bool

    def _region(self) -> Region:
        raise AssertionError("every layer names its region")

    def __call__(
        self,
        predicted: Gaussian,
        old: Gaussian,
        *,
        mean_bound: Array | None = None,
        cov_bound: Array | None = None,
        min_entropy: Array | None = None,
        entropy: Array | None = None,
    ) -> Gaussian:
        """The predicted policy inside the trust region around the old one; bounds given here replace the layer's."""
        return core.project(
            self._region(),
            predicted,
            old,
            mean_bound=self.mean_bound if mean_bound is None else mean_bound,
            cov_bound=self.cov_bound if cov_bound is None else cov_bound,
            min_entropy=min_entropy,
            entropy=entropy,
            entropy_first=self.entropy_first,
            check=self.check,
        )

    def penalty(self, predicted: Gaussian, projected: Gaussian) -> Array:
        """The regression penalty, state by state; its gradient goes into `predicted` only."""
        return core.penalty(self._region(), predicted, projected)

    def audit(
        self,
        predicted: Gaussian,
        projected: Gaussian,
        old: Gaussian,
        *,
        mean_bound: Array | None = None,
        cov_bound: Array | None = None,
    ) -> Audit:
        """Distances before and after, multipliers, and which states were projected."""
        return core.audit(
            self._region(),
            predicted,
            projected,
            old,
            mean_bound=self.mean_bound if mean_bound is None else mean_bound,
            cov_bound=self.cov_bound if cov_bound is None else cov_bound,
            check=self.check,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KLProjection(_Separate):
    """Reverse KL: ½ Mahalanobis² of the mean within `mean_bound`, the covariance part of the KL within `cov_bound`."""

    mean_bound: Array
    cov_bound: Array
    entropy_first: bool = _static(False)
    check: bool = _static(True)

    def _region(self) -> Region:
        return KL()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WassersteinProjection(_Separate):
    """Wasserstein-2 scaled by the old covariance, in the paper's commuting form or exact."""

    mean_bound: Array
    cov_bound: Array
    form: Form = field(default="commuting", metadata={"static": True})
    entropy_first: bool = _static(False)
    check: bool = _static(True)

    def _region(self) -> Region:
        return Wasserstein(self.form)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FrobeniusProjection(_Separate):
    """Frobenius norm of the change of covariance, plain or whitened by the old one."""

    mean_bound: Array
    cov_bound: Array
    whitened: bool = _static(False)
    entropy_first: bool = _static(False)
    check: bool = _static(True)

    def _region(self) -> Region:
        return Frobenius(self.whitened)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class JointKLProjection:
    """Mean, covariance and entropy at once under one KL bound; the entropy target is part of the optimisation.

    Covariances are per state afterwards, also where they were shared before.
    """

    bound: Array
    min_entropy: Array | None = None
    entropy_equality: bool = _static(False)
    check: bool = _static(True)

    def __call__(
        self,
        predicted: Gaussian,
        old: Gaussian,
        *,
        bound: Array | None = None,
        min_entropy: Array | None = None,
        entropy: Array | None = None,
    ) -> Gaussian:
        """The nearest policy within the bound that meets the entropy; arguments replace the layer's."""
        return core.project_jointly(
            predicted,
            old,
            bound=self.bound if bound is None else bound,
            check=self.check,
            **core.entropy_targets(self.min_entropy, self.entropy_equality, min_entropy=min_entropy, entropy=entropy),
        )

    def penalty(self, predicted: Gaussian, projected: Gaussian) -> Array:
        """The regression penalty, state by state; its gradient goes into `predicted` only."""
        return core.penalty_jointly(predicted, projected)

    def audit(
        self,
        predicted: Gaussian,
        projected: Gaussian,
        old: Gaussian,
        *,
        bound: Array | None = None,
        min_entropy: Array | None = None,
        entropy: Array | None = None,
    ) -> Audit:
        """Distances before and after, multipliers, and which states were projected."""
        return core.audit_jointly(
            predicted,
            projected,
            old,
            bound=self.bound if bound is None else bound,
            check=self.check,
            **core.entropy_targets(self.min_entropy, self.entropy_equality, min_entropy=min_entropy, entropy=entropy),
        )
