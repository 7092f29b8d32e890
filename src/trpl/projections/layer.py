"""What a trust-region layer does, once for every framework: check, project, control the entropy, measure.

`trpl.torch` and `trpl.jax` wrap these functions as their users expect.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trpl.backend import has_values, namespace, reading
from trpl.gaussians.density import entropy as entropy_of
from trpl.gaussians.distances import kl_parts
from trpl.gaussians.values import Gaussian, Pair, Parts
from trpl.projections import joint_kl
from trpl.projections.door import as_bound, as_entropy, check_result, check_structure, check_values, known_limit
from trpl.projections.entropy import control_entropy
from trpl.projections.mean import shrinkage
from trpl.projections.regions import KL, SeparateRegion, mean_distance, parts, project_separately

Array = Any


class Audit(NamedTuple):
    """What a projection did, state by state.

    `before` and `after` are the distances of the predicted and the projected policy from the old one; a multiplier is
    0, and a mask False, where the bound did not bind. `entropy_multiplier` is that of the joint projection, else None.
    """

    before: Parts
    after: Parts
    mean_multiplier: Array
    cov_multiplier: Array
    mean_projected: Array
    cov_projected: Array
    entropy_multiplier: Array | None = None

    @property
    def num_mean_projected(self) -> Array:
        """How many means were projected."""
        return namespace(self.mean_projected).sum(self.mean_projected)

    @property
    def num_cov_projected(self) -> Array:
        """How many covariances were projected."""
        return namespace(self.cov_projected).sum(self.cov_projected)


def _enter(
    predicted: Gaussian, old: Gaussian, min_entropy: Array, entropy: Array, *, check: bool, by_hand: bool = False
) -> tuple:
    check_structure(predicted, old)
    pair = Pair.of(predicted, old, by_hand=by_hand)
    if check:
        check_values(pair)
    if min_entropy is not None and entropy is not None:
        raise ValueError("give min_entropy (an inequality) or entropy (an equality), not both")
    return (
        pair,
        as_entropy("min_entropy", min_entropy, predicted, check=check),
        as_entropy("entropy", entropy, predicted, check=check),
    )


def project(
    region: SeparateRegion,
    predicted: Gaussian,
    old: Gaussian,
    *,
    mean_bound: Array,
    cov_bound: Array,
    min_entropy: Array | None,
    entropy: Array | None,
    entropy_first: bool,
    check: bool,
) -> Gaussian:
    """Algorithm 1 of the paper: the predicted policy inside its trust region, with the entropy it is held to."""
    pair, min_entropy, entropy = _enter(predicted, old, min_entropy, entropy, check=check, by_hand=region.by_hand)
    mean_bound = as_bound("mean_bound", mean_bound, predicted, check=check)
    largest = known_limit(cov_bound)
    cov_bound = as_bound("cov_bound", cov_bound, predicted, check=check)
    if entropy_first:
        start = control_entropy(predicted, minimum=min_entropy, equal=entropy)
        pair = Pair.of(start, old, by_hand=region.by_hand)
    projected = project_separately(region, pair, mean_bound=mean_bound, cov_bound=cov_bound, largest_cov_bound=largest)
    if not entropy_first:
        projected = control_entropy(projected, minimum=min_entropy, equal=entropy)
    if check and not (projected.mean is predicted.mean and projected.scale is predicted.scale):
        check_result(projected, pair)
    return projected


def project_jointly(
    predicted: Gaussian,
    old: Gaussian,
    *,
    bound: Array,
    min_entropy: Array | None,
    entropy: Array | None,
    check: bool,
) -> joint_kl.Solution:
    """The joint KL projection, with the entropy as inequality, equality or absent."""
    pair, min_entropy, entropy = _enter(predicted, old, min_entropy, entropy, check=check)
    bound = as_bound("bound", bound, predicted, check=check)
    target = min_entropy if entropy is None else entropy
    if check and target is not None and has_values(old.scale, bound, target):
        with reading(target):
            _check_reachable(target, old, bound, equality=entropy is not None)
    solution = joint_kl.project(predicted, old, bound=bound, entropy=target, equality=entropy is not None)
    if check:
        check_result(solution.projected, pair)
    return solution


def entropy_targets(
    held: Array | None, equality: bool, *, min_entropy: Array | None, entropy: Array | None
) -> dict[str, Array | None]:
    """The call's entropy target if it has one, else the one the joint layer holds."""
    if min_entropy is not None or entropy is not None:
        return {"min_entropy": min_entropy, "entropy": entropy}
    return {"min_entropy": None if equality else held, "entropy": held if equality else None}


def _check_reachable(target: Array, old: Gaussian, bound: Array, *, equality: bool) -> None:
    """Refuse an entropy that no Gaussian within the bound has."""
    xp = namespace(old.scale)
    present = entropy_of(old)
    least, greatest = joint_kl.entropy_range(bound, old.dim)
    for wrong, limit, word in (
        (target > present + greatest, present + greatest, "at most"),
        ((target < present + least) & equality, present + least, "at least"),
    ):
        if bool(xp.any(wrong)):
            count = int(xp.sum(wrong))
            shown = float(xp.min(limit) if word == "at most" else xp.max(limit))
            raise ValueError(
                f"no covariance within the bound of the old policy meets the entropy target in {count} states: "
                f"the entropy there can be {word} {shown:.6g}"
            )


def penalty(region: SeparateRegion, predicted: Gaussian, projected: Gaussian) -> Array:
    """The regression penalty d(π_θ, π̃), state by state; π̃ is a constant, also as the metric's scale.

    With one covariance for all states the mean part alone: there the standard deviation is set, not regressed.
    """
    check_structure(predicted, projected)
    target = projected.detached()
    mean = mean_distance(region, predicted, target)
    return mean if predicted.shares_covariance else mean + region.cov_distance(predicted, target)


def audit(
    region: SeparateRegion,
    predicted: Gaussian,
    projected: Gaussian,
    old: Gaussian,
    *,
    mean_bound: Array,
    cov_bound: Array,
    check: bool,
) -> Audit:
    """Distances before and after, multipliers, and which samples were projected."""
    check_structure(predicted, old)
    check_structure(projected, old)
    mean_bound = as_bound("mean_bound", mean_bound, predicted, check=check)
    cov_bound = as_bound("cov_bound", cov_bound, predicted, check=check)
    before = parts(region, predicted, old)
    return Audit(
        before=before,
        after=parts(region, projected, old),
        mean_multiplier=1.0 / shrinkage(before.mean, mean_bound) - 1.0,
        cov_multiplier=region.cov_multiplier(predicted, old, cov_bound),
        mean_projected=before.mean > mean_bound,
        cov_projected=before.cov > cov_bound,
    )


def audit_jointly(
    predicted: Gaussian,
    projected: Gaussian,
    old: Gaussian,
    *,
    bound: Array,
    min_entropy: Array | None,
    entropy: Array | None,
    check: bool,
) -> Audit:
    """The same for the joint projection: one bound, so one multiplier, for mean and covariance together."""
    check_structure(projected, old)
    solution = project_jointly(predicted, old, bound=bound, min_entropy=min_entropy, entropy=entropy, check=check)
    binding = solution.kl_multiplier > 0.0
    return Audit(
        before=kl_parts(predicted, old),
        after=kl_parts(projected, old),
        mean_multiplier=solution.kl_multiplier,
        cov_multiplier=solution.kl_multiplier,
        mean_projected=binding,
        cov_projected=binding,
        entropy_multiplier=solution.entropy_multiplier,
    )


JOINT_REGION = KL()
"""The metric of the joint projection's penalty."""
