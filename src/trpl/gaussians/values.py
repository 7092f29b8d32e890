"""Gaussians as immutable values that say their structure in their type."""

from __future__ import annotations

from typing import Any, NamedTuple

from trpl.backend import numbers, stop_gradient

Array = Any


class DiagGaussian(NamedTuple):
    """A batch of Gaussians with covariance diag(std²).

    `mean` is `[*batch, dim]`. `std` is `[*batch, dim]`, or `[dim]` for one covariance shared by the whole batch.
    """

    mean: Array
    std: Array

    @property
    def dim(self) -> int:
        """Number of action dimensions."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the action dimension."""
        return tuple(self.mean.shape[:-1])

    @property
    def scale(self) -> Array:
        """What stands for the covariance: the standard deviations."""
        return self.std

    @property
    def shares_covariance(self) -> bool:
        """Whether one covariance serves the whole batch."""
        return self.std.ndim < self.mean.ndim

    def with_scale(self, std: Array) -> DiagGaussian:
        """The same mean with other standard deviations."""
        return DiagGaussian(self.mean, std)

    def detached(self) -> DiagGaussian:
        """The same Gaussian, a constant for differentiation."""
        return DiagGaussian(stop_gradient(self.mean), stop_gradient(self.std))


class FullGaussian(NamedTuple):
    """A batch of Gaussians with covariance chol·cholᵀ.

    `mean` is `[*batch, dim]`. `chol`, lower triangular with a positive diagonal, is `[*batch, dim, dim]`, or
    `[dim, dim]` for one covariance shared by the whole batch.
    """

    mean: Array
    chol: Array

    @property
    def dim(self) -> int:
        """Number of action dimensions."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the action dimension."""
        return tuple(self.mean.shape[:-1])

    @property
    def scale(self) -> Array:
        """What stands for the covariance: the Cholesky factor."""
        return self.chol

    @property
    def shares_covariance(self) -> bool:
        """Whether one covariance serves the whole batch."""
        return self.chol.ndim <= self.mean.ndim

    def with_scale(self, chol: Array) -> FullGaussian:
        """The same mean with another Cholesky factor."""
        return FullGaussian(self.mean, chol)

    def detached(self) -> FullGaussian:
        """The same Gaussian, a constant for differentiation."""
        return FullGaussian(stop_gradient(self.mean), stop_gradient(self.chol))


Gaussian = DiagGaussian | FullGaussian


class Pair(NamedTuple):
    """A predicted and an old policy, and both again as constants to compute with."""

    predicted: Gaussian
    old: Gaussian
    p: Gaussian
    q: Gaussian

    @classmethod
    def of(cls, predicted: Gaussian, old: Gaussian, *, by_hand: bool = False) -> Pair:
        """The pair of these two; where all derivatives are written by hand, in the form that is fastest."""
        if not by_hand:
            return cls(predicted, old, predicted.detached(), old.detached())
        arrays = numbers(*predicted, *old)
        return cls(predicted, old, type(predicted)(*arrays[:2]), type(old)(*arrays[2:]))


class Parts(NamedTuple):
    """A distance between two Gaussians by parts, each of the batch shape: of the means, and of the covariances."""

    mean: Array
    cov: Array
