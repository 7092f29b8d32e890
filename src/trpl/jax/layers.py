"""The projections as JAX pytrees.

A layer is a frozen dataclass. Its bounds are leaves (traced, differentiated, mapped over); the rest is static. Layers
are equal, and have the same hash, if their types, settings and the values of their bounds are; a traced bound is equal
only to itself. `check=False` skips checks of values; `jit` skips them anyway, because values are not concrete.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax
import numpy as np

from trpl.engines import values_of
from trpl.gaussians.distances import Form
from trpl.layers.layer import Bound
from trpl.layers.surface import JointLayer, SeparateLayer
from trpl.projections.frobenius import Frobenius
from trpl.projections.kl.region import KL
from trpl.projections.regions import Region
from trpl.projections.wasserstein import Wasserstein

__all__ = ["FrobeniusProjection", "JointKLProjection", "KLProjection", "WassersteinProjection"]

Layer = TypeVar("Layer")


def _static(default: Any) -> Any:
    return field(default=default, metadata={"static": True})


def _pytree(layer: type[Layer]) -> type[Layer]:
    """Register a layer's bounds as leaves and the rest as static.

    Rebuilding a layer checks nothing, because JAX puts anything in the place of leaves: axes, tracers, cotangents.
    """
    named = fields(cast("Any", layer))
    leaves = [item.name for item in named if not item.metadata.get("static")]
    static = [item.name for item in named if item.metadata.get("static")]

    def flatten(made: Any) -> tuple[Any, Any]:
        return [getattr(made, name) for name in leaves], tuple(getattr(made, name) for name in static)

    def flatten_with_keys(made: Any) -> tuple[Any, Any]:
        found, rest = flatten(made)
        return [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(leaves, found, strict=True)], rest

    def unflatten(rest: Any, found: Any) -> Any:
        made = object.__new__(layer)
        for name, value in zip((*leaves, *static), (*found, *rest), strict=True):
            object.__setattr__(made, name, value)
        return made

    jax.tree_util.register_pytree_with_keys(layer, flatten_with_keys, unflatten, flatten)
    return layer


def _comparable(value: Any) -> Any:
    """Convert a bound to a hashable value: an array by its values, a traced one by its identity."""
    if isinstance(value, tuple | list):
        return tuple(map(_comparable, value))
    if not isinstance(value, np.ndarray | jax.Array):
        return value
    values = values_of(value)
    return id(value) if values is None else (values.shape, values.dtype.str, values.tobytes())


class _ByContent:
    """A dataclass with bounds among its fields: checked when it is made, equal and hashed by content."""

    if TYPE_CHECKING:

        def check_bounds(self) -> None: ...

    def _content(self) -> tuple[Any, ...]:
        named = fields(cast("Any", self))
        return type(self), *(_comparable(getattr(self, item.name)) for item in named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByContent) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __post_init__(self) -> None:
        self.check_bounds()


@_pytree
@dataclass(frozen=True, eq=False)
class KLProjection(_ByContent, SeparateLayer[jax.Array]):
    """Project Gaussians into a KL trust region with one bound for the mean and one for the covariance.

    KL(projected‖old) is a mean part plus a covariance part (`trpl.kl_parts`). In every state, each part is at most its
    bound.

    Args:
        mean_bound: Largest mean part: ½ of the squared Mahalanobis distance between the projected and the old mean.
        cov_bound: Largest covariance part.
        entropy_first: Whether to meet an entropy target before the projection, so that the bounds take precedence.
        check: Whether to check values of inputs and results, such as NaN; types and shapes are always checked.

    Raises:
        ValueError: If a bound is a number that is not positive and finite.

    Examples:
        >>> import jax.numpy as jnp
        >>> from trpl import DiagGaussian
        >>> layer = KLProjection(mean_bound=0.03, cov_bound=1e-3)
        >>> old = DiagGaussian(jnp.zeros((5, 2)), jnp.ones((5, 2)))
        >>> layer(DiagGaussian(old.mean + 1.0, old.std), old).mean[0]
        Array([0.17320508, 0.17320508], dtype=float32)
    """

    mean_bound: Bound
    cov_bound: Bound
    entropy_first: bool = _static(False)
    check: bool = _static(True)
    __call__ = SeparateLayer[jax.Array].forward

    def trust_region(self) -> Region:
        """Return the region. See `SeparateLayer`."""
        return KL()


@_pytree
@dataclass(frozen=True, eq=False)
class WassersteinProjection(_ByContent, SeparateLayer[jax.Array]):
    """Project Gaussians into a Wasserstein-2 trust region, measured in units of the old covariance.

    The squared distance is a mean part plus a covariance part (`trpl.wasserstein_parts`). In every state, each part is
    at most its bound.

    Args:
        mean_bound: Largest mean part: the squared Mahalanobis distance between the projected and the old mean.
        cov_bound: Largest covariance part.
        form: "commuting", as in the paper: the distance if old and predicted covariance commute, as diagonal ones do.
            "exact": the distance for any two covariances.
        entropy_first: Whether to meet an entropy target before the projection, so that the bounds take precedence.
        check: Whether to check values of inputs and results, such as NaN; types and shapes are always checked.

    Raises:
        ValueError: If a bound is a number that is not positive and finite, or the form does not exist.
    """

    mean_bound: Bound
    cov_bound: Bound
    form: Form = field(default="commuting", metadata={"static": True})
    entropy_first: bool = _static(False)
    check: bool = _static(True)
    __call__ = SeparateLayer[jax.Array].forward

    def __post_init__(self) -> None:
        Wasserstein(self.form)  # refuses a form that does not exist
        super().__post_init__()

    def trust_region(self) -> Region:
        """Return the region. See `SeparateLayer`."""
        return Wasserstein(self.form)


@_pytree
@dataclass(frozen=True, eq=False)
class FrobeniusProjection(_ByContent, SeparateLayer[jax.Array]):
    """Project Gaussians into a trust region that bounds the Frobenius norm of the change of covariance.

    In every state, the mean part and the covariance part (`trpl.frobenius_parts`) are each at most their bound.

    Args:
        mean_bound: Largest mean part: the squared Mahalanobis distance between the projected and the old mean.
        cov_bound: Largest covariance part: the squared Frobenius norm of the change of covariance.
        whitened: Whether to whiten the change by the old covariance, which makes it independent of the actions' units.
        entropy_first: Whether to meet an entropy target before the projection, so that the bounds take precedence.
        check: Whether to check values of inputs and results, such as NaN; types and shapes are always checked.

    Raises:
        ValueError: If a bound is a number that is not positive and finite.
    """

    mean_bound: Bound
    cov_bound: Bound
    whitened: bool = _static(False)
    entropy_first: bool = _static(False)
    check: bool = _static(True)
    __call__ = SeparateLayer[jax.Array].forward

    def trust_region(self) -> Region:
        """Return the region. See `SeparateLayer`."""
        return Frobenius(self.whitened)


@_pytree
@dataclass(frozen=True, eq=False)
class JointKLProjection(_ByContent, JointLayer[jax.Array]):
    """Project policies of any family into a KL trust region with one bound on KL(projected‖old).

    The policy returned is the nearest one that keeps the bound and meets the entropy target, if there is one. A
    projected Gaussian has a covariance per state, even if all states shared one before.

    Args:
        bound: Largest KL(projected‖old); for a `Product` also a tuple with one bound per part.
        min_entropy: A lower bound on each state's entropy; None for no target. With a tuple of bounds, a tuple too.
        entropy_equality: Whether each state gets that entropy exactly, instead of at least.
        check: Whether to check values of inputs and results, such as NaN; types and shapes are always checked.

    Raises:
        ValueError: If the bound is a number that is not positive and finite.

    Examples:
        >>> import jax.numpy as jnp
        >>> from trpl import DiagGaussian
        >>> old = DiagGaussian(jnp.zeros((5, 2)), jnp.ones((5, 2)))
        >>> JointKLProjection(0.5)(DiagGaussian(old.mean + 2.0, old.std), old).mean[0].round(4)
        Array([0.7071, 0.7071], dtype=float32)
    """

    bound: Bound
    min_entropy: Bound | None = None
    entropy_equality: bool = _static(False)
    check: bool = _static(True)
    __call__ = JointLayer[jax.Array].forward
