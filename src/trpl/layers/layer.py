"""The work of a trust-region layer, independent of the framework: check, project, control the entropy, measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from trpl.engines import NUMPY, engine_of, values_of
from trpl.families import Family, Held, Policy, Product
from trpl.families.gaussian import GaussianFamily
from trpl.families.protocol import P
from trpl.gaussians.values import Gaussian, Parts
from trpl.implicit import attach
from trpl.layers.door import as_bound, as_entropy, check_structure
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


def _entropy_targets(
    like: Array, batch: tuple[int, ...], min_entropy: Bound | None, entropy: Bound | None, *, check: bool
) -> tuple[Number | None, Number | None]:
    if min_entropy is None and entropy is None:
        return None, None
    if min_entropy is not None and entropy is not None:
        raise ValueError("give min_entropy (an inequality) or entropy (an equality), not both")
    return (
        as_entropy("min_entropy", min_entropy, like, batch, check=check),
        as_entropy("entropy", entropy, like, batch, check=check),
    )


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
    *,
    mean_bound: Bound,
    cov_bound: Bound,
    min_entropy: Bound | None,
    entropy: Bound | None,
    entropy_first: bool,
    check: bool,
) -> Gaussian:
    """Project the predicted policy into its trust region and control its entropy (paper, Algorithm 1)."""
    family = _gaussian_family(check_structure(predicted, old))
    like, batch = predicted.mean, predicted.batch_shape
    minimum, equal = _entropy_targets(like, batch, min_entropy, entropy, check=check)
    bounds = (
        as_bound("mean_bound", mean_bound, like, batch, check=check),
        as_bound("cov_bound", cov_bound, like, batch, check=check),
    )
    problem = separate(region.for_bound(cov_bound), family, check)
    target = minimum is not None or equal is not None
    start = predicted
    if target and entropy_first:
        if check:
            _admit(family, predicted, old)
        start = control_entropy(predicted, minimum=minimum, equal=equal)
    projected = family.make(attach(problem, (*start, *old, *bounds)))
    if target and not entropy_first:
        projected = control_entropy(projected, minimum=minimum, equal=equal)
        if check:
            _accept(family, projected)
    return projected


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


def _joint_arguments(
    predicted: Policy, old: Policy, bound: Bound, min_entropy: Bound | None, entropy: Bound | None, *, check: bool
) -> tuple[Family, Held, Number, Number | None]:
    family = check_structure(predicted, old)
    arrays = predicted.arrays
    like, batch = arrays[0], predicted.batch_shape
    minimum, equal = _entropy_targets(like, batch, min_entropy, entropy, check=check)
    target = minimum if equal is None else equal
    held = "free" if target is None else "minimum" if equal is None else "equal"
    return family, held, as_bound("bound", bound, like, batch, check=check), target


def project_jointly(
    predicted: Policy, old: Policy, *, bound: Bound, min_entropy: Bound | None, entropy: Bound | None, check: bool
) -> Policy:
    """Compute the joint KL projection, with the entropy as inequality, equality or free.

    A product takes one bound for the whole, or a tuple with one per part: then each part is projected by itself.
    """
    if isinstance(bound, tuple | list):
        check_structure(predicted, old)
        every = _split_parts(predicted, old, bound=bound, min_entropy=min_entropy, entropy=entropy)
        return Product(tuple(project_jointly(*parts, **own, check=check) for parts, own in every))
    family, held, limit, target = _joint_arguments(predicted, old, bound, min_entropy, entropy, check=check)
    inputs = (*predicted.arrays, *old.arrays, limit, *(() if target is None else (target,)))
    return family.make(attach(joint(family, held, check), inputs), predicted)


def _split_parts(
    *policies: Policy, bound: Sequence[Bound], min_entropy: Bound | None, entropy: Bound | None
) -> list[tuple[tuple[Policy, ...], dict[str, Any]]]:
    """List the parts of products, those of each place together, with their bound and entropy target."""
    products = [p for p in policies if isinstance(p, Product)]
    if len(products) < len(policies):
        raise ValueError(f"several bounds are for the parts of a Product, not for a {type(policies[0]).__name__}")
    num = len(products[0].parts)
    targets = {}
    for name, target in (("min_entropy", min_entropy), ("entropy", entropy)):
        if target is not None and not isinstance(target, tuple | list):
            raise ValueError(f"with a bound for each part, {name} must be a tuple with one for each part too, or None")
        targets[name] = (None,) * num if target is None else tuple(target)
    for name, given in (("bound", bound), *targets.items()):
        if len(given) != num:
            raise ValueError(f"{name} has {len(given)} entries for the {num} parts of predicted")
    return [
        (parts, {"bound": bound[i], "min_entropy": targets["min_entropy"][i], "entropy": targets["entropy"][i]})
        for i, parts in enumerate(zip(*(p.parts for p in products), strict=True))
    ]


def penalty(region: Region, predicted: Gaussian, projected: Gaussian) -> PerState:
    """Compute the regression penalty d(π_θ, π̃), state by state; π̃ is a constant, also as the metric's scale.

    For a shared covariance only the mean part: the standard deviation is then set, not regressed.
    """
    _gaussian_family(check_structure(predicted, projected))
    e, target = engine_of(*predicted, *projected), projected.detached()
    mean = mean_distance(e, region, predicted, target)
    return mean if predicted.shares_covariance else mean + region.cov_distance(e, predicted, target)


def penalty_jointly(predicted: Policy, projected: Policy) -> PerState:
    """Compute the regression penalty of the family, state by state; π̃ is a constant."""
    family = check_structure(predicted, projected)
    return family.penalty(engine_of(*predicted.arrays, *projected.arrays), predicted, projected.detached())


def audit(
    region: Region,
    predicted: Gaussian,
    projected: Gaussian,
    old: Gaussian,
    *,
    mean_bound: Bound,
    cov_bound: Bound,
    check: bool,
) -> Audit:
    """Measure distances before and after, multipliers, and which states were projected."""
    _gaussian_family(check_structure(predicted, old))
    check_structure(projected, old, "projected")
    e, like, batch = engine_of(*predicted, *projected, *old), predicted.mean, predicted.batch_shape
    mean_limit = e.asarray(as_bound("mean_bound", mean_bound, like, batch, check=check), like)
    cov_limit = e.asarray(as_bound("cov_bound", cov_bound, like, batch, check=check), like)
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
    predicted: Policy,
    projected: Policy,
    old: Policy,
    *,
    bound: Bound,
    min_entropy: Bound | None,
    entropy: Bound | None,
    check: bool,
) -> Audit | tuple[Audit, ...]:
    """Audit the joint projection: a single bound, so a single multiplier for mean and covariance.

    For policies without a covariance the KL is all in the mean part. With a bound per part of a product there is
    an audit per part.
    """
    if isinstance(bound, tuple | list):
        check_structure(predicted, old)
        check_structure(projected, old, "projected")
        every = _split_parts(predicted, projected, old, bound=bound, min_entropy=min_entropy, entropy=entropy)
        return tuple(cast("Audit", audit_jointly(*parts, **own, check=check)) for parts, own in every)
    check_structure(projected, old, "projected")
    family, held, size, target = _joint_arguments(predicted, old, bound, min_entropy, entropy, check=check)
    arrays = (*predicted.arrays, *projected.arrays, *old.arrays)
    e, like = engine_of(*arrays), arrays[0]
    numbers = [e.asarray(x, like) for x in (size, target) if x is not None]
    eta, omega = family.multipliers(e, (*predicted.arrays, *old.arrays, *numbers), held)
    return Audit(
        before=family.kl_parts(e, predicted, old),
        after=family.kl_parts(e, projected, old),
        mean_multiplier=eta,
        cov_multiplier=eta,
        mean_projected=cast("Array", eta > 0.0),
        cov_projected=cast("Array", eta > 0.0),
        entropy_multiplier=omega,
    )
