"""The functions of the authors' `utils.projection_utils`, and the conversion between their policies and Gaussians.

A policy is a mean `[batch, dim]` and a lower Cholesky factor `[batch, dim, dim]`, also for diagonal covariances, or the
symmetric root of the covariance if the policy object says `is_root`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from trpl import entropy_schedule as schedules
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian, entropy, frobenius_parts, kl_parts, wasserstein_parts
from trpl.gaussians.values import Parts
from trpl.matrix_roots import symmetric_root
from trpl.messages import needs

with needs("torch"):
    import torch
    from torch import Tensor

NO_SCHEDULE = (None, False, "", "None", "none")
MeanAndChol = tuple[Tensor, Tensor]


def get_entropy_schedule(schedule_type: str | bool | None, total_train_steps: int, dim: int) -> Callable[..., Any]:
    """Make a schedule of the entropy target.

    Args:
        schedule_type: "linear", "exp", or None.
        total_train_steps: The number of steps that the schedule spans.
        dim: The number of action dimensions.

    Returns:
        β(initial_entropy, target_entropy, temperature, step), which is None without a schedule.

    Raises:
        ValueError: If the schedule is unknown, or the number of steps is missing.
    """
    if schedule_type in NO_SCHEDULE:
        return lambda initial_entropy, target_entropy, temperature, step: None
    if schedule_type not in ("linear", "exp"):
        raise ValueError(f"entropy_schedule must be 'linear', 'exp' or None, not {schedule_type!r}")
    if not total_train_steps:
        raise ValueError("an entropy_schedule needs total_train_steps, the number of steps it runs over")

    def value(initial_entropy: Any, target_entropy: float, temperature: float, step: int) -> Any:
        share = step / total_train_steps
        course = {"initial": initial_entropy, "target": target_entropy, "progress": share}
        if schedule_type == "linear":
            return schedules.linear(**course, dim=1)  # as in the authors' package: the target is the entropy itself
        return schedules.exponential(**course, dim=dim, temperature=temperature)

    return value


def gaussian_kl(policy: Any, p: MeanAndChol, q: MeanAndChol) -> tuple[Tensor, Tensor]:
    """Compute mean and covariance part of KL(p ‖ q), state by state."""
    return by_parts(kl_parts(as_gaussian(policy, p), as_gaussian(policy, q)))


def gaussian_kl_details(policy: Any, p: MeanAndChol, q: MeanAndChol) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute KL(p ‖ q) by parts: means, covariances, and the latter's shape and volume.

    volume = ½ (log det Σ_q − log det Σ_p), shape = ½ (tr(Σ_q⁻¹ Σ_p) − d); the two add up to the covariance part.
    """
    mean, cov = gaussian_kl(policy, p, q)
    first, second = (entropy(as_gaussian(policy, each)).expand(mean.shape) for each in (p, q))
    volume = second - first  # entropies differ by half the log-determinants
    return mean, cov, cov - volume, volume


def gaussian_wasserstein_commutative(policy: Any, p: MeanAndChol, q: MeanAndChol) -> tuple[Tensor, Tensor]:
    """Compute mean and covariance part of the scaled Wasserstein-2 distance in its commuting form."""
    return by_parts(wasserstein_parts(as_gaussian(policy, p), as_gaussian(policy, q)))


def gaussian_frobenius(policy: Any, p: MeanAndChol, q: MeanAndChol) -> tuple[Tensor, Tensor]:
    """Compute the squared Mahalanobis distance of the means, and the squared norm of the change of covariance."""
    return by_parts(frobenius_parts(as_gaussian(policy, p), as_gaussian(policy, q)))


def by_parts(parts: Parts[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and covariance part, each with one number per state."""
    return parts.mean, parts.cov.expand(parts.mean.shape)


def is_contextual(policy: Any) -> bool:
    """Return whether the policy has a covariance for each state."""
    return getattr(policy, "contextual_std", getattr(policy, "contextual_cov", True))


def as_gaussian(policy: Any, p: MeanAndChol) -> Gaussian[Tensor]:
    """Convert a mean and a Cholesky factor to a Gaussian of the policy's structure."""
    mean, chol = p
    if chol.shape[-2:] != (mean.shape[-1],) * 2:
        raise ValueError(
            f"a policy is a mean [batch, dim] and a Cholesky factor [batch, dim, dim]; their shapes are "
            f"{tuple(mean.shape)} and {tuple(chol.shape)}"
        )
    if not is_contextual(policy) and chol.ndim > 2:
        chol = chol.reshape(-1, *chol.shape[-2:])[0]
    if getattr(policy, "is_diag", False):
        return DiagGaussian(mean, chol.diagonal(dim1=-2, dim2=-1))
    if getattr(policy, "is_root", False):
        chol = torch.linalg.cholesky(chol @ chol.mT)
    return FullGaussian(mean, chol)


def as_matrix(policy: Any, p: Gaussian[Tensor], like: Tensor) -> Tensor:
    """Return the Cholesky factor, or the symmetric root if that is what the policy has, with one per state."""
    chol = torch.diag_embed(p.std) if isinstance(p, DiagGaussian) else p.chol
    if getattr(policy, "is_root", False) and not isinstance(p, DiagGaussian):
        chol = cast("Tensor", symmetric_root(chol))
    return chol.expand(like.shape)
