"""The work of a trust-region layer, independent of the framework: check, project, control the entropy, measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from trpl.engines import NUMPY, engine_of, values_of
from trpl.families import Family, Held, Policy, Product
from trpl.families.gaussian import GaussianFamily
from trpl.families.product import parts_of
from trpl.families.protocol import P
from trpl.gaussians.values import Gaussian, Parts
from trpl.implicit import attach, multipliers
from trpl.implicit.problems import broadcast_shapes
from trpl.layers.door import as_bound, check_structure
from trpl.layers.problems import joint, separate
from trpl.projections.entropy import control_entropy
from trpl.projections.mean import shrinkage
from trpl.projections.regions import Region, mean_distance, parts
from trpl.types import A_co, Generic, cast

if TYPE_CHECKING:
    from trpl.types import Array, PerState

Number: TypeAlias = "float | Array"
"""A number, or an array with one for each state."""
Bound: TypeAlias = "Number | tuple[Number, ...]"
"""A bound or an entropy target; a tuple has one for each part of a product."""


class Audit(NamedTuple, Generic[A_co]):
    """The effect of a projection, state by state.

    Args:
        before: The distances of the predicted policy from the old one.
        after: The distances of the projected policy from the old one.
        mean_multiplier: The Lagrange multiplier of the mean's bound; 0 where it is inactive.
        cov_multiplier: The Lagrange multiplier of the covariance's bound.
        mean_projected: Which means were outside.
        cov_projected: Which covariances were outside.
        entropy_multiplier: The Lagrange multiplier of the joint projection's entropy, else None.
    """

    before: Parts[A_co]
    after: Parts[A_co]
    mean_multiplier: A_co
    cov_multiplier: A_co
    mean_projected: A_co
    cov_projected: A_co
    entropy_multiplier: A_co | None = None

    @property
    def num_mean_projected(self) -> A_co:
        """The number of projected means."""
        return cast("A_co", engine_of(self.mean_projected).xp.sum(self.mean_projected))

    @property
    def num_cov_projected(self) -> A_co:
        """The number of projected covariances."""
        return cast("A_co", engine_of(self.cov_projected).xp.sum(self.cov_projected))


class Bounds(NamedTuple):
    """The bounds of a region with one for the mean and another for the covariance."""

    mean_bound: Bound
    cov_bound: Bound


class Target(NamedTuple):
    """What is asked of the entropy: nothing, at least this value, or exactly this value."""

    held: Held
    value: Bound | None

    @property
    def name(self) -> str:
        """The caller's name for the value."""
        return "entropy" if self.held == "equal" else "min_entropy"


FREE = Target("free", None)


def target_of(min_entropy: Bound | None, entropy: Bound | None) -> Target:
    """Return the target of the two arguments of a layer's call.

    Raises:
        ValueError: If both are given.
    """
    if min_entropy is not None and entropy is not None:
        raise ValueError("give min_entropy (an inequality) or entropy (an equality), not both")
    if entropy is not None:
        return Target("equal", entropy)
    return FREE if min_entropy is None else Target("minimum", min_entropy)


def _as_bounds(bounds: Bounds, like: Array, batch: tuple[int, ...], *, check: bool) -> list[Number]:
    return [as_bound(name, x, like, batch, check=check) for name, x in zip(Bounds._fields, bounds, strict=True)]


def _as_entropy(target: Target, like: Array, batch: tuple[int, ...], *, check: bool) -> list[Number]:
    """Return the target's value as the last input of a projection; without one there is none."""
    if target.value is None:
        return []
    return [as_bound(target.name, target.value, like, batch, check=check, positive=False)]


def _gaussian_family(family: Family) -> GaussianFamily:
    if not isinstance(family, GaussianFamily):
        raise ValueError(
            f"separate bounds for mean and covariance need Gaussians, not a {family.words}; use JointKLProjection"
        )
    return family


def project(
    region: Region,
    predicted: Gaussian,
    old: Gaussian,
    bounds: Bounds,
    target: Target,
    *,
    entropy_first: bool,
    check: bool,
) -> Gaussian:
    """Project the predicted policy into its trust region and control its entropy (paper, Algorithm 1)."""
    family = _gaussian_family(check_structure(predicted, old))
    like, batch = predicted.mean, predicted.batch_shape
    entropy, equality = _as_entropy(target, like, batch, check=check), target.held == "equal"
    limits = _as_bounds(bounds, like, batch, check=check)
    problem = separate(region.for_bound(bounds.cov_bound), family, check)
    start = predicted
    if entropy and entropy_first:
        if check:
            _admit(family, predicted, old)
        start = control_entropy(predicted, *entropy, equality=equality)
    projected = family.make(attach(problem, (*start, *old, *limits)))
    if entropy and not entropy_first:
        projected = control_entropy(projected, *entropy, equality=equality)
        if check:
            _accept(family, projected)
    if old.batch_shape != batch:
        projected = _in_batch(broadcast_shapes(batch, old.batch_shape), family, projected)
    return projected


def _in_batch(batch: tuple[int, ...], family: GaussianFamily, p: Gaussian) -> Gaussian:
    """Broadcast mean and covariance to both policies' batch: a part with nothing outside is still the predicted one.

    A covariance without batch axes remains shared.
    """
    xp, shared = engine_of(*p).xp, p.scale.ndim == family.cores[1]
    return family.make(
        [
            x if tuple(x.shape[: x.ndim - n]) == front else xp.broadcast_to(x, (*front, *x.shape[x.ndim - n :]))
            for x, n, front in zip(p, family.cores, (batch, () if shared else batch), strict=True)
        ]
    )


def _values(arrays: tuple[Array, ...]) -> list[np.ndarray] | None:
    found = [x for x in map(values_of, arrays) if x is not None]
    return found if len(found) == len(arrays) else None


def _admit(family: Family[P], predicted: P, old: P) -> None:
    """Check the policies' values, if they are concrete."""
    num = len(family.cores)
    found = _values(predicted.arrays + old.arrays)
    if found is not None:
        family.admit(NUMPY, family.make(found[:num]), family.make(found[num:]))


def _accept(family: Family[P], projected: P) -> None:
    """Check a result that was changed after its projection."""
    found = _values(projected.arrays)
    if found is not None:
        with np.errstate(all="ignore"):
            family.accept(NUMPY, found)


def _joint_inputs(
    predicted: Policy, old: Policy, bound: Bound, target: Target, *, check: bool
) -> tuple[Family, tuple[Number, ...]]:
    """Check the arguments; return the family, and the inputs of its projection."""
    family = check_structure(predicted, old)
    like, batch = predicted.arrays[0], predicted.batch_shape
    entropy = _as_entropy(target, like, batch, check=check)
    return family, (*predicted.arrays, *old.arrays, as_bound("bound", bound, like, batch, check=check), *entropy)


def project_jointly(predicted: Policy, old: Policy, bound: Bound, target: Target, *, check: bool) -> Policy:
    """Compute the joint KL projection, with the entropy as inequality, equality or free.

    A product takes one bound for the whole, or a tuple with one per part: then each part is projected by itself.
    """
    if isinstance(bound, tuple | list):
        check_structure(predicted, old)
        every = _split_parts(predicted, old, bound=bound, target=target)
        return Product(tuple(project_jointly(*pair, bound=own, target=goal, check=check) for pair, own, goal in every))
    family, inputs = _joint_inputs(predicted, old, bound, target, check=check)
    return family.make(attach(joint(family, target.held, check), inputs), predicted)


def _split_parts(
    *policies: Policy, bound: Sequence[Bound], target: Target
) -> list[tuple[tuple[Policy, ...], Bound, Target]]:
    """List the parts of products, those of each place together, with their bound and entropy target."""
    places = list(zip(*map(parts_of, policies), strict=True))
    values = (None,) * len(places) if target.value is None else target.value
    if not isinstance(values, tuple | list):
        raise ValueError(
            f"with a bound for each part, {target.name} must be a tuple with one for each part too, or None"
        )
    for name, given in (("bound", bound), (target.name, values)):
        if len(given) != len(places):
            raise ValueError(f"{name} has {len(given)} entries for the {len(places)} parts of predicted")
    targets = [FREE if value is None else Target(target.held, value) for value in values]
    return list(zip(places, bound, targets, strict=True))


def penalty(region: Region, predicted: Gaussian, projected: Gaussian) -> PerState:
    """Compute the regression penalty d(π_θ, π̃), state by state; π̃ is a constant, also as the metric's scale.

    For a shared covariance only the mean part: the standard deviation is then set, not regressed.
    """
    _gaussian_family(check_structure(predicted, projected, other="projected"))
    e, target = engine_of(*predicted, *projected), projected.detached()
    mean = mean_distance(e, region, predicted, target)
    return mean if predicted.shares_covariance else mean + region.cov_distance(e, predicted, target)


def penalty_jointly(predicted: Policy, projected: Policy) -> PerState:
    """Compute the regression penalty of the family, state by state; π̃ is a constant."""
    family = check_structure(predicted, projected, other="projected")
    return family.penalty(engine_of(*predicted.arrays, *projected.arrays), predicted, projected.detached())


def audit(
    region: Region, predicted: Gaussian, projected: Gaussian, old: Gaussian, bounds: Bounds, *, check: bool
) -> Audit:
    """Measure distances before and after, multipliers, and which states were projected."""
    _gaussian_family(check_structure(predicted, old))
    check_structure(projected, old, "projected")
    e, like = engine_of(*predicted, *projected, *old), predicted.mean
    limits = _as_bounds(bounds, like, predicted.batch_shape, check=check)
    mean_limit, cov_limit = (e.asarray(x, like) for x in limits)
    before = parts(e, region, predicted, old)
    return Audit(
        before=before,
        after=parts(e, region, projected, old),
        mean_multiplier=1.0 / shrinkage(e, before.mean, mean_limit) - 1.0,
        cov_multiplier=region.cov_multiplier(e, predicted, old, cov_limit),
        mean_projected=cast("Array", before.mean > mean_limit),
        cov_projected=cast("Array", before.cov > cov_limit),
    )


def audit_jointly(
    predicted: Policy, projected: Policy, old: Policy, bound: Bound, target: Target, *, check: bool
) -> Audit | tuple[Audit, ...]:
    """Audit the joint projection: a single bound, so a single multiplier for mean and covariance.

    For policies without a covariance the KL is all in the mean part. With a bound per part of a product there is
    an audit per part.
    """
    check_structure(projected, old, "projected")
    if isinstance(bound, tuple | list):
        check_structure(predicted, old)
        every = _split_parts(predicted, projected, old, bound=bound, target=target)
        found = [audit_jointly(*three, bound=own, target=goal, check=check) for three, own, goal in every]
        return tuple(cast("list[Audit]", found))
    family, inputs = _joint_inputs(predicted, old, bound, target, check=check)
    e, like = engine_of(*inputs, *projected.arrays), predicted.arrays[0]
    eta, omega = multipliers(joint(family, target.held, check), e, [e.asarray(x, like) for x in inputs])
    return Audit(
        before=family.kl_parts(e, predicted, old),
        after=family.kl_parts(e, projected, old),
        mean_multiplier=eta,
        cov_multiplier=eta,
        mean_projected=cast("Array", eta > 0.0),
        cov_projected=cast("Array", eta > 0.0),
        entropy_multiplier=omega,
    )
