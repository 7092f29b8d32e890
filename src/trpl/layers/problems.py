"""The problems that layers solve and differentiate, as values for `trpl.implicit.attach`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trpl.families import Family, Held
from trpl.families.checks import num_states
from trpl.families.gaussian import GaussianFamily
from trpl.implicit import Like, Saved, Signature, Solved
from trpl.implicit.problems import Recover, sum_to
from trpl.projections import mean
from trpl.projections.regions import MATRIX, VECTOR, Region

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState, Scale, Vector


NUM_MEAN = len(mean.residuals())
"""The number of the mean projection's residuals, which come first."""


@dataclass(frozen=True)
class Separate:
    """Mean and covariance, each projected onto its own bound (Algorithm 1 of the paper without entropy).

    Inputs are mean, scale, old mean, old scale, mean bound and covariance bound.
    """

    region: Region
    family: GaussianFamily
    check: bool
    signature: Signature

    def __repr__(self) -> str:
        return f"Separate({self.region}, full={self.family.full}, check={self.check})"

    def admit(self, e: Engine, *inputs: Array) -> None:
        self.family.admit(e, self.family.make(inputs[:2]), self.family.make(inputs[2:4]))

    def accept(self, e: Engine, *outputs: Array | None) -> None:
        self.family.accept(e, outputs)

    def _split(
        self, e: Engine, inputs: Sequence[Array]
    ) -> tuple[tuple[Vector, Vector, Scale, PerState], tuple[Scale, Scale, PerState]]:
        """Split the inputs between the mean's and the covariance's projection."""
        new, scale, old, old_scale, mean_bound, cov_bound = inputs
        if self.region.mean_weight != 1.0:
            mean_bound = e.asarray(mean_bound / self.region.mean_weight, new)  # NumPy 1 makes a bare number float64
        return (new, old, old_scale, mean_bound), (scale, old_scale, cov_bound)

    def solve(self, e: Engine, *inputs: Array, whole: bool = False) -> Solved | None:
        of_mean, of_cov = self._split(e, inputs)
        full = self.family.full
        moved_mean = mean.solve(e, *of_mean, full=full, whole=whole)
        moved_cov = self.region.solve_cov(e, *of_cov, full=full, whole=whole)
        if moved_mean is None and moved_cov is None:
            return None
        if moved_mean is None:
            moved_mean = Solved((None,), (None,) * NUM_MEAN)
        if moved_cov is None:
            moved_cov = Solved((None,), (None,) * (len(self.signature.residuals) - NUM_MEAN))
        return Solved(moved_mean.outputs + moved_cov.outputs, moved_mean.residuals + moved_cov.residuals)

    @property
    def recover(self) -> Recover | None:
        return self._recover if self.region.fusible(full=self.family.full) else None

    def _recover(self, e: Engine, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Array, ...]:
        of_mean, of_cov = self._split(e, inputs)
        return mean.recover(e, *of_mean) + self.region.recover_cov(e, *of_cov, outputs[1])

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool]
    ) -> Sequence[Array | None]:
        of_mean, of_cov = self._split(e, saved.inputs)
        full, (mean_bar, scale_bar) = self.family.full, cotangents
        found: list[Array | None] = [None] * 6
        if mean_bar is not None:
            old_too = needed[2] or needed[3] or needed[4]
            found[0], found[2], found[3], bound_bar = mean.pullback(
                e, of_mean, saved.residuals[:NUM_MEAN], mean_bar, full=full, old_too=old_too
            )
            found[4] = None if bound_bar is None else bound_bar / self.region.mean_weight
        if scale_bar is not None:
            of_cov = Saved(of_cov, saved.outputs[1:], saved.residuals[NUM_MEAN:])
            old_too = needed[3] or needed[5]
            found[1], old_bar, found[5] = self.region.pullback_cov(e, of_cov, scale_bar, full=full, old_too=old_too)
            found[3] = _total(e, saved.inputs[3], found[3], old_bar)
        return found


def _total(e: Engine, like: Array, one: Array | None, other: Array | None) -> Array | None:
    """Add two cotangents of one input, whose batch shapes may differ."""
    if one is None:
        return other
    if other is None:
        return one
    if tuple(one.shape) == tuple(other.shape):
        return one + other
    return sum_to(e, one, like.shape) + sum_to(e, other, like.shape)


@functools.cache
def separate(region: Region, family: GaussianFamily, check: bool) -> Separate:
    """Return the problem of a layer with separate bounds; cached per setting."""
    full = family.full
    signature = Signature(
        cores=(*family.cores, *family.cores, 0, 0),
        outputs=(Like((0, 2, 3, 4), ((0, -1),)), MATRIX if full else VECTOR),
        residuals=mean.residuals() + region.residuals(full=full),
    )
    return Separate(region, family, check, signature)


@dataclass(frozen=True)
class Joint:
    """One KL bound for the whole distribution, and its entropy.

    Inputs are the arrays of the predicted and of the old policy, the bound and, if constrained, the entropy.
    """

    family: Family
    held: Held
    check: bool
    signature: Signature
    recover: None = None

    def __repr__(self) -> str:
        return f"Joint({self.family}, {self.held}, check={self.check})"

    def admit(self, e: Engine, *inputs: Array) -> None:
        num = len(self.family.cores)
        predicted, old = self.family.make(inputs[:num]), self.family.make(inputs[num : 2 * num])
        self.family.admit(e, predicted, old)
        if self.held != "free":
            bound, entropy = inputs[2 * num :]
            least, greatest = self.family.entropy_range(e, old, bound)
            here = self.family.entropy(e, old)
            _check_reachable(e, entropy, here + least, here + greatest, equality=self.held == "equal")

    def accept(self, e: Engine, *outputs: Array | None) -> None:
        self.family.accept(e, outputs)

    def solve(self, e: Engine, *inputs: Array, whole: bool = False) -> Solved | None:
        return self.family.solve(e, inputs, self.held, whole=whole)

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool]
    ) -> Sequence[Array | None]:
        return self.family.pullback(e, saved, cotangents, needed, self.held)

    def multipliers(self, e: Engine, inputs: Sequence[Array]) -> tuple[PerState, PerState]:
        return self.family.multipliers(e, inputs, self.held)


@functools.cache
def joint(family: Family, held: Held, check: bool) -> Joint:
    """Return the problem of a joint layer; cached per setting."""
    cores = family.cores
    every = tuple(range(2 * len(cores) + (1 if held == "free" else 2)))
    signature = Signature(
        cores=(*cores, *cores, *(0,) * (len(every) - 2 * len(cores))),
        outputs=tuple(Like(every, tuple((i, axis) for axis in range(-core, 0))) for i, core in enumerate(cores)),
        residuals=family.residuals(held),
    )
    return Joint(family, held, check, signature)


def _check_reachable(e: Engine, target: Array, least: Array, greatest: Array, *, equality: bool) -> None:
    """Refuse an entropy that no policy within the bound has."""
    xp = e.xp
    for wrong, limit, strictest, elsewhere, word in (
        (target > greatest, greatest, xp.min, math.inf, "at most"),
        ((target < least) & equality, least, xp.max, -math.inf, "at least"),
    ):
        if e.any(wrong):
            count = int(xp.sum(wrong))
            shown = float(strictest(xp.where(wrong, limit, elsewhere)))
            raise ValueError(
                f"no policy within the bound of the old policy meets the entropy target in {num_states(count)}: "
                f"the entropy there can be {word} {shown:.6g}"
            )
