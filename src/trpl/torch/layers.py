"""The projections as PyTorch modules.

Bounds given as numbers are plain attributes; bounds given as tensors are buffers, and as `nn.Parameter` parameters:
they move with the module and are part of its state, also those of the parts of a product (`bound_0`, …). `check=False`
skips checks of values, for hot loops; `torch.compile` skips them anyway, because values are not concrete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from trpl.families import is_policy
from trpl.gaussians.distances import Form
from trpl.layers import layer as core
from trpl.layers.layer import Bound
from trpl.layers.surface import Host, JointLayer, SeparateLayer
from trpl.projections.frobenius import Frobenius
from trpl.projections.kl.region import KL
from trpl.projections.regions import Region
from trpl.projections.wasserstein import Wasserstein
from trpl.torch.distributions import from_distribution, open_distribution

__all__ = ["FrobeniusProjection", "JointKLProjection", "KLProjection", "WassersteinProjection"]


def _full_precision() -> contextlib.AbstractContextManager[Any]:
    """Disable autocast, which would compute products in bfloat16."""
    if torch.compiler.is_compiling() or not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


@contextlib.contextmanager
def _constant() -> Iterator[None]:
    """Disable autocast and gradients."""
    with torch.no_grad(), _full_precision():
        yield


HOST = Host(
    enter=from_distribution,
    leave=lambda projected, given: (
        projected if is_policy(given) else open_distribution(given, "predicted").close(projected)
    ),
    # Dynamo need not trace into them: a compiled layer then guards 27 objects per call instead of 261. They are traced
    # with the rest of the graph by AOTAutograd. (Every PyTorch optimiser imports what `allow_in_graph` imports.)
    project=torch.compiler.allow_in_graph(core.project),  # pyright: ignore[reportArgumentType]
    project_jointly=torch.compiler.allow_in_graph(core.project_jointly),  # pyright: ignore[reportArgumentType]
    audit_jointly=torch.compiler.allow_in_graph(core.audit_jointly),  # pyright: ignore[reportArgumentType]
    measuring=_full_precision,
    auditing=_constant,
)


class _Bounded(nn.Module):
    """A module whose bounds can be set at any time: numbers are attributes, tensors buffers, parameters parameters."""

    bound_names: ClassVar[tuple[str, ...]]

    def __setattr__(self, name: str, value: Any) -> None:
        """Store a bound; a tuple's entries by number too. A parameter can only be followed by another."""
        if name not in self.bound_names:
            return super().__setattr__(name, value)
        before = self.__dict__.get(name)
        own = tuple(value) if isinstance(value, tuple | list) else ()
        self._store(name, own or value)
        for i in range(len(before) if isinstance(before, tuple) else 0):
            delattr(self, f"{name}_{i}")
        for i, part in enumerate(own):
            self._store(f"{name}_{i}", part)

    def _store(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and name not in self._parameters:
            self.__dict__.pop(name, None)
            return self.register_buffer(name, value)
        if not isinstance(value, Tensor):
            self._buffers.pop(name, None)
        super().__setattr__(name, value)


class _Separate(SeparateLayer[Tensor], _Bounded):
    """A layer with separate bounds as a module: stores the region and the bounds."""

    host = HOST
    bound_names = ("mean_bound", "cov_bound")
    region_options: ClassVar[tuple[str, ...]] = ()  # what the layer shows of its region
    if TYPE_CHECKING:

        @property
        def __call__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            """Return `forward`, so that a checker sees its signature: `nn.Module.__call__` accepts anything."""
            return self.forward

    def __init__(
        self, region: Region, *, mean_bound: Bound, cov_bound: Bound, entropy_first: bool, check: bool
    ) -> None:
        nn.Module.__init__(self)
        self.mean_bound, self.cov_bound = mean_bound, cov_bound
        self.region, self.entropy_first, self.check = region, entropy_first, check
        self.check_bounds()

    def trust_region(self) -> Region:
        """Return the region. See `SeparateLayer`."""
        return self.region

    def extra_repr(self) -> str:
        of_region = {name: getattr(self.region, name) for name in self.region_options}
        given = {"mean_bound": self.mean_bound, "cov_bound": self.cov_bound, **of_region}
        return ", ".join(f"{name}={value!r}" for name, value in given.items())


class KLProjection(_Separate):
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
        >>> import torch
        >>> from trpl import DiagGaussian
        >>> layer = KLProjection(mean_bound=0.03, cov_bound=1e-3)
        >>> old = DiagGaussian(torch.zeros(5, 2), torch.ones(5, 2))
        >>> layer(DiagGaussian(old.mean + 1.0, old.std), old).mean[0]
        tensor([0.1732, 0.1732])
    """

    def __init__(self, mean_bound: Bound, cov_bound: Bound, *, entropy_first: bool = False, check: bool = True) -> None:
        super().__init__(KL(), mean_bound=mean_bound, cov_bound=cov_bound, entropy_first=entropy_first, check=check)


class WassersteinProjection(_Separate):
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

    Examples:
        >>> import torch
        >>> from trpl import DiagGaussian
        >>> old = DiagGaussian(torch.zeros(5, 2), torch.ones(5, 2))
        >>> WassersteinProjection(0.02, 1e-3)(DiagGaussian(old.mean + 1.0, old.std), old).mean[0]
        tensor([0.1000, 0.1000])
    """

    region_options = ("form",)

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

    Examples:
        >>> import torch
        >>> from trpl import DiagGaussian
        >>> old = DiagGaussian(torch.zeros(5, 2), torch.ones(5, 2))
        >>> FrobeniusProjection(0.02, 1e-3)(DiagGaussian(old.mean + 1.0, old.std), old).mean[0]
        tensor([0.1000, 0.1000])
    """

    region_options = ("whitened",)

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


class JointKLProjection(JointLayer[Tensor], _Bounded):
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
        >>> import torch
        >>> from trpl import DiagGaussian
        >>> old = DiagGaussian(torch.zeros(5, 2), torch.ones(5, 2))
        >>> JointKLProjection(0.5)(DiagGaussian(old.mean + 2.0, old.std), old).mean[0]
        tensor([0.7071, 0.7071])
    """

    host = HOST
    bound_names = ("bound", "min_entropy")
    if TYPE_CHECKING:

        @property
        def __call__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            """Return `forward`, so that a checker sees its signature: `nn.Module.__call__` accepts anything."""
            return self.forward

    def __init__(
        self,
        bound: Bound,
        *,
        min_entropy: Bound | None = None,
        entropy_equality: bool = False,
        check: bool = True,
    ) -> None:
        nn.Module.__init__(self)
        self.bound, self.min_entropy = bound, min_entropy
        self.entropy_equality, self.check = entropy_equality, check
        self.check_bounds()

    def _own(self, name: str) -> Any:
        """Return `bound` or `min_entropy`; with one for each part, as the module holds them now."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return tuple([getattr(self, f"{name}_{i}") for i in range(len(value))])
        return value

    def extra_repr(self) -> str:
        bounds = ", ".join(f"{name}={self._own(name)}" for name in ("bound", "min_entropy"))
        return f"{bounds}, entropy_equality={self.entropy_equality}"
