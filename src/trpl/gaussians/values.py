"""Gaussians as immutable values whose type gives their structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from trpl.engines import constants
from trpl.types import A, A_co, Generic

if TYPE_CHECKING:
    from trpl.types import Float


class DiagGaussian(NamedTuple, Generic[A_co]):
    """A batch of Gaussians with covariance diag(std²).

    Args:
        mean: `[*batch, dim]`.
        std: `[*batch, dim]`, or `[dim]` for one covariance shared by the whole batch; positive.

    Examples:
        >>> import numpy as np
        >>> DiagGaussian(np.zeros((32, 3)), np.ones((32, 3))).dim
        3
    """

    mean: A_co
    std: A_co

    @property
    def dim(self) -> int:
        """Number of action dimensions."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape in front of the action dimension."""
        return tuple(self.mean.shape[:-1])

    @property
    def scale(self) -> A_co:
        """The standard deviations, which represent the covariance."""
        return self.std

    @property
    def shares_covariance(self) -> bool:
        """Whether the batch shares one covariance."""
        return self.std.ndim < self.mean.ndim

    def with_scale(self: DiagGaussian[A], std: A) -> DiagGaussian[A]:
        """Return the same mean with other standard deviations.

        Args:
            std: The standard deviations.

        Returns:
            The new Gaussian.
        """
        return DiagGaussian(self.mean, std)

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes: mean and standard deviations."""
        return tuple(self)

    def detached(self) -> DiagGaussian[A_co]:
        """Detach the Gaussian from autodiff.

        Returns:
            The Gaussian as a constant.
        """
        return DiagGaussian(*constants(*self))


class FullGaussian(NamedTuple, Generic[A_co]):
    """A batch of Gaussians with covariance chol·cholᵀ.

    Args:
        mean: `[*batch, dim]`.
        chol: Lower triangular with a positive diagonal, `[*batch, dim, dim]`, or `[dim, dim]` for one covariance shared
            by the whole batch.

    Examples:
        >>> import numpy as np
        >>> FullGaussian(np.zeros((32, 3)), np.eye(3)).shares_covariance
        True
    """

    mean: A_co
    chol: A_co

    @property
    def dim(self) -> int:
        """Number of action dimensions."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape in front of the action dimension."""
        return tuple(self.mean.shape[:-1])

    @property
    def scale(self) -> A_co:
        """The Cholesky factor, which represents the covariance."""
        return self.chol

    @property
    def shares_covariance(self) -> bool:
        """Whether the batch shares one covariance."""
        return self.chol.ndim <= self.mean.ndim

    def with_scale(self: FullGaussian[A], chol: A) -> FullGaussian[A]:
        """Return the same mean with another Cholesky factor.

        Args:
            chol: The lower Cholesky factor of the covariance.

        Returns:
            The new Gaussian.
        """
        return FullGaussian(self.mean, chol)

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes: mean and Cholesky factor."""
        return tuple(self)

    def detached(self) -> FullGaussian[A_co]:
        """Detach the Gaussian from autodiff.

        Returns:
            The Gaussian as a constant.
        """
        return FullGaussian(*constants(*self))


Gaussian: TypeAlias = DiagGaussian[A] | FullGaussian[A]
"""A Gaussian of either structure."""


class Parts(NamedTuple, Generic[A_co]):
    """A distance between two Gaussians by parts.

    Args:
        mean: The part of the means, one number per state.
        cov: The part of the covariances.
    """

    mean: Float[A_co, ...]
    cov: Float[A_co, ...]


def check_same_type(p: object, q: object) -> None:
    """Refuse two policies of different types: their arrays may broadcast, and a distance of them means nothing.

    Args:
        p: The new policy.
        q: The old policy.

    Raises:
        ValueError: If the types differ.
    """
    if type(p) is not type(q):
        raise ValueError(f"the new policy is a {type(p).__name__} and the old one a {type(q).__name__}; use one type")


def check_same_dim(name: str, p: Gaussian, q: Gaussian, *, other: str = "old") -> None:
    """Refuse two Gaussians of different dimensions.

    Args:
        name: The caller's name for the first one.
        p: The first Gaussians.
        q: The other Gaussians.
        other: The caller's name for these.

    Raises:
        ValueError: If the dimensions differ.
    """
    if p.dim != q.dim:
        raise ValueError(f"{other} policy has {q.dim} action dimensions, {name} has {p.dim}")


def check_gaussians(p: Gaussian, q: Gaussian) -> None:
    """Refuse two policies that are not Gaussians of one type and dimension.

    Args:
        p: The new policy.
        q: The old policy.

    Raises:
        ValueError: If they are not.
    """
    check_same_type(p, q)
    if not isinstance(p, DiagGaussian | FullGaussian):
        raise ValueError(f"distances by parts are of Gaussians, not of a {type(p).__name__}; trpl.kl takes any policy")
    check_same_dim("new policy", p, q)
