"""The interface of the layers, shared by all frameworks: signatures, documentation, and which arguments override which.

`trpl.torch` and `trpl.jax` add the storage of bounds. A `Host` converts policies on the way in and out and calls the
projection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from trpl.families import Policy
from trpl.layers import layer as core
from trpl.layers.door import check_held
from trpl.layers.layer import Audit, Bound, Bounds, Target, target_of
from trpl.projections.regions import Region
from trpl.types import A, cast

if TYPE_CHECKING:
    from trpl.gaussians.values import Gaussian


class Given(Protocol):
    """What a caller may give for a policy: a policy value, or a distribution of the framework."""

    @property
    def batch_shape(self) -> tuple[int, ...]: ...


P = TypeVar("P", bound=Given)


class Host(NamedTuple):
    """A framework's conversions and contexts around a projection."""

    enter: Callable[[Given, str], Policy] = lambda policy, name: cast("Policy", policy)
    """Converts the caller's policy to a policy value; the second argument is its name in messages."""
    leave: Callable[[Policy, Given], Any] = lambda projected, given: projected
    """Converts the projected policy to the form of the given one."""
    project: Callable[..., Any] = core.project
    project_jointly: Callable[..., Any] = core.project_jointly
    audit_jointly: Callable[..., Any] = core.audit_jointly
    measuring: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The context of a penalty."""
    auditing: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The context of an audit, which needs no derivative."""


def _override(given: Bound | None, held: Bound) -> Bound:
    """Return the call's argument if given, else the layer's."""
    return held if given is None else given


class SeparateLayer(Generic[A]):
    """A layer with a bound for the mean and one for the covariance."""

    host: ClassVar[Host] = Host()
    mean_bound: Bound
    cov_bound: Bound
    entropy_first: bool
    check: bool

    if TYPE_CHECKING:  # defined by each layer

        def trust_region(self) -> Region:
            """Return the layer's region.

            Returns:
                The region, a hashable value.
            """
            ...

    def _bounds(self, mean_bound: Bound | None, cov_bound: Bound | None) -> Bounds:
        """Return the call's bounds if given, else the layer's."""
        return Bounds(_override(mean_bound, self.mean_bound), _override(cov_bound, self.cov_bound))

    def check_bounds(self) -> None:
        """Refuse invalid bounds."""
        check_held("mean_bound", self.mean_bound, check=self.check)
        check_held("cov_bound", self.cov_bound, check=self.check)

    def forward(
        self,
        predicted: P,
        old: Given,
        *,
        mean_bound: Bound | None = None,
        cov_bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> P:
        """Project the predicted policy into the trust region around the old one.

        Args:
            predicted: The network's policy.
            old: The policy that collected the data, of the same kind.
            mean_bound: Overrides the layer's bound on the mean; a number, or an array with one per state.
            cov_bound: Overrides the layer's bound on the covariance.
            min_entropy: A lower bound on each state's entropy, met by scaling the covariance.
            entropy: The entropy of each state; excludes `min_entropy`.

        Returns:
            The projected policy, in the form of the predicted one; a part with nothing outside is the same array,
            broadcast if the old policy has more batch axes or longer ones.

        Raises:
            ValueError: If the arguments are inconsistent, or are not policies, bounds or entropies.
            ConvergenceError: If the result is not finite.
        """
        host = type(self).host
        projected = host.project(
            self.trust_region(),
            host.enter(predicted, "predicted"),
            host.enter(old, "old"),
            self._bounds(mean_bound, cov_bound),
            target_of(min_entropy, entropy),
            entropy_first=self.entropy_first,
            check=self.check,
        )
        return host.leave(projected, predicted)

    def penalty(self, predicted: Given, projected: Given) -> A:
        """Measure how far the prediction is from its projection, state by state: the regression penalty.

        Args:
            predicted: The network's policy.
            projected: Its projection, treated as a constant.

        Returns:
            The region's distance, an array of the batch shape. For a shared covariance only its mean part: the standard
            deviation is then set, not regressed.
        """
        host = type(self).host
        with host.measuring():
            enter = cast("Callable[[Given, str], Gaussian]", host.enter)
            found = core.penalty(self.trust_region(), enter(predicted, "predicted"), enter(projected, "projected"))
            return cast("A", found)

    def audit(
        self,
        predicted: Given,
        projected: Given,
        old: Given,
        *,
        mean_bound: Bound | None = None,
        cov_bound: Bound | None = None,
    ) -> Audit[A]:
        """Measure what the projection did: distances before and after, multipliers, and which states were projected.

        Args:
            predicted: The network's policy.
            projected: Its projection.
            old: The policy that collected the data.
            mean_bound: The argument of the layer's call, if given.
            cov_bound: The argument of the layer's call, if given.

        Returns:
            The measurements, state by state.
        """
        host = type(self).host
        with host.auditing():
            enter = cast("Callable[[Given, str], Gaussian]", host.enter)
            found = core.audit(
                self.trust_region(),
                enter(predicted, "predicted"),
                enter(projected, "projected"),
                enter(old, "old"),
                self._bounds(mean_bound, cov_bound),
                check=self.check,
            )
            return cast("Audit[A]", found)


class JointLayer(Generic[A]):
    """A layer with one KL bound for the whole distribution, of any family."""

    host: ClassVar[Host] = Host()
    bound: Bound
    min_entropy: Bound | None
    entropy_equality: bool
    check: bool

    def _own(self, name: str) -> Any:
        """Return the layer's `bound` or `min_entropy`."""
        return getattr(self, name)

    def check_bounds(self) -> None:
        """Refuse an invalid bound or entropy."""
        check_held("bound", self.bound, parts=True, check=self.check)
        check_held("min_entropy", self.min_entropy, positive=False, parts=True, check=self.check)

    def _target(self, min_entropy: Bound | None, entropy: Bound | None) -> Target:
        """Return the call's entropy target if given, else the layer's."""
        if min_entropy is not None or entropy is not None:
            return target_of(min_entropy, entropy)
        own = self._own("min_entropy")
        return target_of(None, own) if self.entropy_equality else target_of(own, None)

    def forward(
        self,
        predicted: P,
        old: Given,
        *,
        bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> P:
        """Find the policy nearest to the predicted one within the bound that meets the entropy target.

        Args:
            predicted: The network's policy.
            old: The policy that collected the data, of the same kind.
            bound: Overrides the layer's bound; a number, or an array with one per state. For a `Product`, also a tuple
                with one per part: then each part is projected by itself, to its own entropy.
            min_entropy: Overrides the layer's entropy: a lower bound on each state's entropy.
            entropy: The entropy of each state; excludes `min_entropy`.

        Returns:
            The projected policy, in the form of the predicted one.

        Raises:
            ValueError: If the arguments are inconsistent, are not policies, bounds or entropies, or no policy within
                the bound has the entropy.
            ConvergenceError: If the result is not finite.
        """
        host = type(self).host
        projected = host.project_jointly(
            host.enter(predicted, "predicted"),
            host.enter(old, "old"),
            _override(bound, self._own("bound")),
            self._target(min_entropy, entropy),
            check=self.check,
        )
        return host.leave(projected, predicted)

    def penalty(self, predicted: Given, projected: Given) -> A:
        """Measure how far the prediction is from its projection, state by state: the regression penalty.

        Args:
            predicted: The network's policy.
            projected: Its projection, treated as a constant.

        Returns:
            KL(predicted‖projected), an array of the batch shape; for Gaussians with a shared covariance only its mean
            part.
        """
        host = type(self).host
        with host.measuring():
            p, target = host.enter(predicted, "predicted"), host.enter(projected, "projected")
            return cast("A", core.penalty_jointly(p, target))

    def audit(
        self,
        predicted: Given,
        projected: Given,
        old: Given,
        *,
        bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> Audit[A] | tuple[Audit[A], ...]:
        """Measure what the projection did: distances before and after, multipliers, and which states were projected.

        Args:
            predicted: The network's policy.
            projected: Its projection.
            old: The policy that collected the data.
            bound: The argument of the layer's call, if given.
            min_entropy: The argument of the layer's call, if given.
            entropy: The argument of the layer's call, if given.

        Returns:
            The measurements; with a bound per part of a `Product` those of each part.
        """
        host = type(self).host
        with host.auditing():
            found = host.audit_jointly(
                host.enter(predicted, "predicted"),
                host.enter(projected, "projected"),
                host.enter(old, "old"),
                _override(bound, self._own("bound")),
                self._target(min_entropy, entropy),
                check=self.check,
            )
            return cast("Audit[A] | tuple[Audit[A], ...]", found)
