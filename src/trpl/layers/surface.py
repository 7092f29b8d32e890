"""The interface of the layers, once for every framework: signatures, words, and which argument replaces which.

`trpl.torch` and `trpl.jax` add how a bound is held. What a framework does with policies on the way in and out, and how
it calls the projection, is a `Host`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trpl.families import Policy
from trpl.layers import layer as core
from trpl.layers.door import check_held
from trpl.layers.layer import Audit, Bound
from trpl.projections.regions import Region

if TYPE_CHECKING:
    from trpl.types import PerState


class Host(NamedTuple):
    """What a framework does around a projection."""

    enter: Callable[[Any, str], Policy] = lambda policy, name: policy
    """A policy value from what the caller gave, under the name that messages give it."""
    leave: Callable[[Policy, Any], Any] = lambda projected, given: projected
    """The projected policy in the form of the one that was given."""
    project: Callable[..., Any] = core.project
    project_jointly: Callable[..., Any] = core.project_jointly
    measuring: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Where a penalty is computed."""
    auditing: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Where an audit is made, of which no derivative is asked."""


def _either(given: Bound | None, held: Bound) -> Bound:
    """The argument of the call if there is one, else the layer's."""
    return held if given is None else given


class SeparateLayer:
    """A layer with a bound for the mean and one for the covariance."""

    host: ClassVar[Host] = Host()
    mean_bound: Bound
    cov_bound: Bound
    entropy_first: bool
    check: bool

    if TYPE_CHECKING:  # each layer says this of itself

        def trust_region(self) -> Region:
            """Return what is measured, and how it is held.

            Returns:
                The region, a value that can be hashed.
            """
            ...

    def check_bounds(self) -> None:
        """Refuse numbers that are no bounds."""
        check_held("mean_bound", self.mean_bound)
        check_held("cov_bound", self.cov_bound)

    def forward(
        self,
        predicted: Policy,
        old: Policy,
        *,
        mean_bound: Bound | None = None,
        cov_bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> Policy:
        """Project the predicted policy into the trust region around the old one.

        Args:
            predicted: The network's policy.
            old: The policy that collected the data, of the same kind.
            mean_bound: Replaces the layer's bound for the mean; a number, or an array with one for each state.
            cov_bound: Replaces the layer's bound for the covariance.
            min_entropy: The entropy that each state has at least; lower ones are raised by scaling the covariance.
            entropy: The entropy that each state has exactly; not together with `min_entropy`.

        Returns:
            The projected policy, in the form of the predicted one; a part with nothing outside is the same array.

        Raises:
            ValueError: If the arguments do not fit together, or are not policies, bounds or entropies.
            ConvergenceError: If the result is not finite.
        """
        host = type(self).host
        projected = host.project(
            self.trust_region(),
            host.enter(predicted, "predicted"),
            host.enter(old, "old"),
            mean_bound=_either(mean_bound, self.mean_bound),
            cov_bound=_either(cov_bound, self.cov_bound),
            min_entropy=min_entropy,
            entropy=entropy,
            entropy_first=self.entropy_first,
            check=self.check,
        )
        return host.leave(projected, predicted)

    def penalty(self, predicted: Policy, projected: Policy) -> PerState:
        """Measure how far the prediction is from its projection, state by state: the regression penalty.

        Args:
            predicted: The network's policy.
            projected: Its projection; a constant, into which no gradient goes.

        Returns:
            The region's distance, an array of the batch shape. With one covariance for all states its mean part alone:
            there the standard deviation is set, not regressed.
        """
        host = type(self).host
        with host.measuring():
            return core.penalty(
                self.trust_region(), host.enter(predicted, "predicted"), host.enter(projected, "projected")
            )

    def audit(
        self,
        predicted: Policy,
        projected: Policy,
        old: Policy,
        *,
        mean_bound: Bound | None = None,
        cov_bound: Bound | None = None,
    ) -> Audit:
        """Measure what the projection did: distances before and after, multipliers, and which states were projected.

        Args:
            predicted: The network's policy.
            projected: Its projection.
            old: The policy that collected the data.
            mean_bound: As it was given to the layer's call.
            cov_bound: As it was given to the layer's call.

        Returns:
            The measurements, state by state.
        """
        host = type(self).host
        with host.auditing():
            return core.audit(
                self.trust_region(),
                host.enter(predicted, "predicted"),
                host.enter(projected, "projected"),
                host.enter(old, "old"),
                mean_bound=_either(mean_bound, self.mean_bound),
                cov_bound=_either(cov_bound, self.cov_bound),
                check=self.check,
            )


class JointLayer:
    """A layer with one KL bound for the whole distribution, of any family."""

    host: ClassVar[Host] = Host()
    bound: Bound
    min_entropy: Bound | None
    entropy_equality: bool
    check: bool

    def check_bounds(self) -> None:
        """Refuse numbers that are no bound or entropy."""
        check_held("bound", self.bound)
        check_held("min_entropy", self.min_entropy, positive=False)

    def _targets(self, min_entropy: Bound | None, entropy: Bound | None) -> dict[str, Bound | None]:
        """The call's entropy target if it has one, else the one the layer holds."""
        if min_entropy is not None or entropy is not None:
            return {"min_entropy": min_entropy, "entropy": entropy}
        held = self.min_entropy
        return (
            {"min_entropy": None, "entropy": held} if self.entropy_equality else {"min_entropy": held, "entropy": None}
        )

    def forward(
        self,
        predicted: Policy,
        old: Policy,
        *,
        bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> Policy:
        """Find the policy nearest to the predicted one within the bound of the old one that meets the entropy.

        Args:
            predicted: The network's policy.
            old: The policy that collected the data, of the same kind.
            bound: Replaces the layer's bound; a number, or an array with one for each state. For a `Product`, also a
                tuple with one for each part: then each part is projected by itself, to its own entropy.
            min_entropy: Replaces the layer's entropy: what each state has at least.
            entropy: The entropy that each state has exactly; not together with `min_entropy`.

        Returns:
            The projected policy, in the form of the predicted one.

        Raises:
            ValueError: If the arguments do not fit together, are not policies, bounds or entropies, or no policy within
                the bound has the entropy.
            ConvergenceError: If the result is not finite.
        """
        host = type(self).host
        projected = host.project_jointly(
            host.enter(predicted, "predicted"),
            host.enter(old, "old"),
            bound=_either(bound, self.bound),
            check=self.check,
            **self._targets(min_entropy, entropy),
        )
        return host.leave(projected, predicted)

    def penalty(self, predicted: Policy, projected: Policy) -> PerState:
        """Measure how far the prediction is from its projection, state by state: the regression penalty.

        Args:
            predicted: The network's policy.
            projected: Its projection; a constant, into which no gradient goes.

        Returns:
            KL(predicted‖projected), an array of the batch shape; of Gaussians with one covariance for all states its
            mean part alone.
        """
        host = type(self).host
        with host.measuring():
            return core.penalty_jointly(host.enter(predicted, "predicted"), host.enter(projected, "projected"))

    def audit(
        self,
        predicted: Policy,
        projected: Policy,
        old: Policy,
        *,
        bound: Bound | None = None,
        min_entropy: Bound | None = None,
        entropy: Bound | None = None,
    ) -> Audit | tuple[Audit, ...]:
        """Measure what the projection did: distances before and after, multipliers, and which states were projected.

        Args:
            predicted: The network's policy.
            projected: Its projection.
            old: The policy that collected the data.
            bound: As it was given to the layer's call.
            min_entropy: As it was given to the layer's call.
            entropy: As it was given to the layer's call.

        Returns:
            The measurements; with a bound for each part of a `Product` those of each part.
        """
        host = type(self).host
        with host.auditing():
            return core.audit_jointly(
                host.enter(predicted, "predicted"),
                host.enter(projected, "projected"),
                host.enter(old, "old"),
                bound=_either(bound, self.bound),
                check=self.check,
                **self._targets(min_entropy, entropy),
            )
