"""Gaussians as immutable values whose type gives their structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trpl.engines import engine_of

if TYPE_CHECKING:
    from trpl.types import Matrix, PerState, Scale, Vector


class DiagGaussian(NamedTuple):
    """A batch of Gaussians with covariance diag(std²).

    Args:
        mean: `[*batch, dim]`.
        std: `[*batch, dim]`, or `[dim]` for one covariance shared by the whole batch; positive.

    Example:
        >>> import numpy as np
        >>> DiagGaussian(np.zeros((32, 3)), np.ones((32, 3))).dim
        3
    """

    mean: Vector
    std: Vector

    @property
    def dim(self) -> int:
        """Number of action dimensions."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape in front of the action dimension."""
        return tuple(self.mean.shape[:-1])

    @property
    def scale(self) -> Vector:
        """The standard deviations, which represent the covariance."""
        return self.std

    @property
    def shares_covariance(self) -> bool:
        """Whether the batch shares one covariance."""
        return self.std.ndim < self.mean.ndim

    def with_scale(self, std: Vector) -> DiagGaussian:
        """Return the same mean with other standard deviations.

        Args:
            std: The standard deviations.

        Returns:
            The new Gaussian.
        """
        return DiagGaussian(self.mean, std)

    def detached(self) -> DiagGaussian:
        """Detach the Gaussian from autodiff.

        Returns:
            The Gaussian as a constant.
        """
        e = engine_of(*self)
        return DiagGaussian(e.constant(self.mean), e.constant(self.std))


class FullGaussian(NamedTuple):
    """A batch of Gaussians with covariance chol·cholᵀ.

    Args:
        mean: `[*batch, dim]`.
        chol: Lower triangular with a positive diagonal, `[*batch, dim, dim]`, or `[dim, dim]` for one covariance shared
            by the whole batch.

    Example:
        >>> import numpy as np
        >>> FullGaussian(np.zeros((32, 3)), np.eye(3)).shares_covariance
        True
    """

    mean: Vector
    chol: Matrix

    @property
    def dim(self) -> int:
        """Number of action dimensions."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape in front of the action dimension."""
        return tuple(self.mean.shape[:-1])

    @property
    def scale(self) -> Matrix:
        """The Cholesky factor, which represents the covariance."""
        return self.chol

    @property
    def shares_covariance(self) -> bool:
        """Whether the batch shares one covariance."""
        return self.chol.ndim <= self.mean.ndim

    def with_scale(self, chol: Matrix) -> FullGaussian:
        """Return the same mean with another Cholesky factor.

        Args:
            chol: The lower Cholesky factor of the covariance.

        Returns:
            The new Gaussian.
        """
        return FullGaussian(self.mean, chol)

    def detached(self) -> FullGaussian:
        """Detach the Gaussian from autodiff.

        Returns:
            The Gaussian as a constant.
        """
        e = engine_of(*self)
        return FullGaussian(e.constant(self.mean), e.constant(self.chol))


Gaussian = DiagGaussian | FullGaussian


class Parts(NamedTuple):
    """A distance between two Gaussians by parts.

    Args:
        mean: The part of the means, one number per state.
        cov: The part of the covariances.
    """

    mean: PerState
    cov: PerState


def gaussian(mean: Vector, scale: Scale, *, full: bool) -> Gaussian:
    """Return the Gaussian with this mean and Cholesky factor, or standard deviations."""
    return FullGaussian(mean, scale) if full else DiagGaussian(mean, scale)
