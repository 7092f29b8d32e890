"""Gaussian values, and functions of them: entropy, log-density, distances by parts.

These functions take arrays of NumPy, PyTorch or JAX and are differentiable by their framework. `density` and
`distances` have the formulas, on the arrays of an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import engine_of
from trpl.gaussians import density, distances
from trpl.gaussians.distances import Form
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian, Parts, check_gaussians
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.types import A

__all__ = [
    "DiagGaussian",
    "FullGaussian",
    "Gaussian",
    "Parts",
    "entropy",
    "frobenius_parts",
    "kl_cov",
    "kl_parts",
    "log_prob",
    "mahalanobis",
    "wasserstein_parts",
    "whiten",
]


def entropy(p: Gaussian[A]) -> A:
    """Compute the entropy H(p) = ½ log|2πe Σ|.

    Args:
        p: The Gaussians.

    Returns:
        One number per covariance (a single number if the batch shares it).
    """
    return cast("A", density.entropy(engine_of(*p), p))


def whiten(q: Gaussian[A], v: A) -> A:
    """Whiten a vector: L⁻¹v with Σ_q = LLᵀ.

    Args:
        q: The Gaussians.
        v: A vector per state.

    Returns:
        A vector per state.
    """
    return cast("A", density.whiten(engine_of(*q, v), q, v))


def log_prob(p: Gaussian[A], x: A) -> A:
    """Compute log N(x | μ, Σ) = −½‖L⁻¹(x − μ)‖² − ½ log|Σ| − (d/2) log 2π.

    Args:
        p: The Gaussians.
        x: A vector per state.

    Returns:
        One number per state.
    """
    return cast("A", density.log_prob(engine_of(*p, x), p, x))


def mahalanobis(p: Gaussian[A], q: Gaussian[A]) -> A:
    """Compute the squared Mahalanobis distance (μ_p − μ_q)ᵀ Σ_q⁻¹ (μ_p − μ_q).

    Args:
        p: The Gaussians with the first mean.
        q: The Gaussians with the second mean and the covariance.

    Returns:
        One number per state.
    """
    return cast("A", distances.mahalanobis(engine_of(*p, *q), p, q))


def kl_parts(p: Gaussian[A], q: Gaussian[A]) -> Parts[A]:
    """Compute KL(p‖q) by parts (paper, section 3): their sum is the KL.

    Args:
        p: The new policy.
        q: The old policy, of the same type.

    Returns:
        mean = ½ (μ_p − μ_q)ᵀ Σ_q⁻¹ (μ_p − μ_q) and cov = ½ (tr Σ_q⁻¹Σ_p − d + log|Σ_q|/|Σ_p|).

    Raises:
        ValueError: If the two are not Gaussians of one type and dimension.

    Examples:
        >>> import numpy as np
        >>> from trpl import DiagGaussian, kl_parts
        >>> parts = kl_parts(DiagGaussian(np.ones((2, 3)), np.full(3, 0.5)), DiagGaussian(np.zeros((2, 3)), np.ones(3)))
        >>> parts.mean, parts.cov.round(4)
        (array([1.5, 1.5]), ...0.9544...)
    """
    check_gaussians(p, q)
    return cast("Parts[A]", distances.kl_parts(engine_of(*p, *q), p, q))


def kl_cov(p: Gaussian[A], q: Gaussian[A]) -> A:
    """Compute the covariance part of KL(p‖q): ½ (tr Σ_q⁻¹Σ_p − d + log|Σ_q|/|Σ_p|).

    Args:
        p: The first Gaussians.
        q: The second Gaussians, of the same type.

    Returns:
        One number per state.

    Raises:
        ValueError: If the two are not Gaussians of one type and dimension.
    """
    check_gaussians(p, q)
    return cast("A", distances.kl_cov(engine_of(*p, *q), p, q))


def wasserstein_parts(p: Gaussian[A], q: Gaussian[A], *, scaled: bool = True, form: Form = "commuting") -> Parts[A]:
    """Compute the squared Wasserstein-2 distance by parts (paper, section 3).

    Args:
        p: The new policy.
        q: The old policy, of the same type.
        scaled: Whether both parts are in units of Σ_q, as in the projections.
        form: "commuting", as in the paper: the distance if the covariances commute, as diagonal ones do. "exact": the
            distance for any two covariances.

    Returns:
        The mean part, the squared Mahalanobis distance (|μ_p − μ_q|² unless scaled), and the covariance part.

    Raises:
        ValueError: If the two are not Gaussians of one type and dimension.

    Examples:
        >>> import numpy as np
        >>> from trpl import DiagGaussian, wasserstein_parts
        >>> wasserstein_parts(DiagGaussian(np.ones(2), np.full(2, 0.5)), DiagGaussian(np.zeros(2), np.ones(2)))
        Parts(mean=...2.0..., cov=...0.5...)
    """
    check_gaussians(p, q)
    return cast("Parts[A]", distances.wasserstein_parts(engine_of(*p, *q), p, q, scaled=scaled, form=form))


def frobenius_parts(p: Gaussian[A], q: Gaussian[A], *, whitened: bool = False) -> Parts[A]:
    """Compute the Frobenius distance by parts (paper, section 3).

    Args:
        p: The new policy.
        q: The old policy, of the same type.
        whitened: Whether the difference of covariances is whitened by q.

    Returns:
        The squared Mahalanobis distance of the means, and ‖Σ_p − Σ_q‖²_F or ‖L_q⁻¹(Σ_p − Σ_q)L_q⁻ᵀ‖²_F.

    Raises:
        ValueError: If the two are not Gaussians of one type and dimension.

    Examples:
        >>> import numpy as np
        >>> from trpl import DiagGaussian, frobenius_parts
        >>> frobenius_parts(DiagGaussian(np.ones(2), np.full(2, 0.5)), DiagGaussian(np.zeros(2), np.ones(2)))
        Parts(mean=...2.0..., cov=...1.125...)
    """
    check_gaussians(p, q)
    return cast("Parts[A]", distances.frobenius_parts(engine_of(*p, *q), p, q, whitened=whitened))
