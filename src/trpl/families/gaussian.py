"""The Gaussian families, with diagonal and with full covariances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trpl.errors import ConvergenceError
from trpl.families.checks import check_actions, check_arrays, check_finite, dtype_name
from trpl.families.protocol import Held, Policy, register
from trpl.gaussians import density, distances
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian, check_same_dim
from trpl.implicit import Like, Saved, Solved
from trpl.natural.gaussian import DiagPath, FullPath
from trpl.projections.joint_kl import gradient, solution

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState, Vector

TINY = 1e-12
"""Standard deviations above this are not compared with the old policy's at the door."""
NARROWEST = {"float32": 1e-18, "float64": 1e-30}
"""A prediction narrower than this share of the old policy is not projected: precisions overflow, searches end early."""


@dataclass(frozen=True)
class GaussianFamily:
    """Gaussians with diagonal or full covariances."""

    full: bool
    entropy = staticmethod(density.entropy)
    kl_parts = staticmethod(distances.kl_parts)
    check_pair = staticmethod(check_same_dim)

    @property
    def words(self) -> str:
        return "FullGaussian" if self.full else "DiagGaussian"

    @property
    def cores(self) -> tuple[int, ...]:
        return (1, 2) if self.full else (1, 1)

    @property
    def _field(self) -> str:
        return "chol" if self.full else "std"

    def make(self, arrays: Sequence[Array], like: Policy | None = None) -> Gaussian:
        return FullGaussian(*arrays) if self.full else DiagGaussian(*arrays)

    def check_one(self, name: str, p: Gaussian) -> None:
        field, core = self._field, 2 if self.full else 1
        mean, scale = p
        check_arrays(name, [("mean", mean), (field, scale)])
        shape, scale_shape = tuple(mean.shape), tuple(scale.shape)
        if len(shape) < 1 or len(scale_shape) < core:
            raise ValueError(
                f"{name}.mean needs 1 axis or more and {name}.{field} {core} or more; "
                f"got shapes {shape} and {scale_shape}"
            )
        if scale_shape[-core:] != shape[-1:] * core:
            raise ValueError(
                f"{name}.{field} must end in {shape[-1:] * core} for a mean of {shape[-1]} dimensions; "
                f"got {scale_shape}"
            )
        if shape[-1] == 0:
            raise ValueError(f"{name} has no action dimensions: its mean has shape {shape}")
        if scale_shape[:-core] not in ((), shape[:-1]):
            raise ValueError(
                f"{name}.{field} must have the mean's batch shape {shape[:-1]}, or none (one covariance for all); "
                f"got {scale_shape[:-core]}"
            )

    def admit(self, e: Engine, predicted: Gaussian, old: Gaussian) -> None:
        """Check for finite parameters, positive standard deviations, and lower triangular factors with a positive
        diagonal.

        One sum of squares shows whether everything is finite, one minimum whether all scales are positive and none is
        tiny; only if they fail, each array is checked by itself.
        """
        (mean, scale), (old_mean, old_scale) = predicted, old
        if not self.full and 0 not in mean.shape:
            if e.finite(mean, scale, old_mean, old_scale) and e.xp.min(e.xp.minimum(scale, old_scale)) > TINY:
                return
        elif e.finite(mean, scale, old_mean, old_scale):
            lowest = self._check_scale(e, "predicted", scale)
            self._check_scale(e, "old", old_scale)
            if lowest > TINY:
                return
        for name, p in (("predicted", predicted), ("old", old)):
            check_finite(e, name, [("mean", p.mean), (self._field, p.scale)])
            self._check_scale(e, name, p.scale)
        self._check_apart(e, scale, old_scale)

    def _check_apart(self, e: Engine, scale: Array, old_scale: Array) -> None:
        """Refuse a prediction so much narrower than the old policy that the search for its projection fails."""
        if 0 in scale.shape:
            return
        new, old = (e.diagonal(x) if self.full else x for x in (scale, old_scale))
        smallest, least = float(e.xp.min(new / old)), NARROWEST[dtype_name(scale)]
        if smallest < least:
            raise ValueError(
                f"predicted.{self._field} is {smallest:.1g} of the old policy's: "
                f"{dtype_name(scale)} has room for {least:g}; put a floor under the standard deviation"
            )

    def _check_scale(self, e: Engine, name: str, scale: Array) -> float:
        if 0 in scale.shape:
            return 1.0
        lowest = float(e.xp.min(e.diagonal(scale) if self.full else scale))
        if not lowest > 0.0:
            what = "chol is singular: its diagonal must be positive" if self.full else "std must be positive"
            raise ValueError(f"{name}.{what}; the smallest entry is {lowest:g}")
        if self.full and not e.is_lower(scale):
            raise ValueError(f"{name}.chol must be lower triangular; it has entries above the diagonal")
        return lowest

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        _, scale = projected
        sound = e.finite(*[x for x in projected if x is not None])
        if scale is not None and 0 not in scale.shape:
            sound = sound and bool(e.xp.min(e.diagonal(scale) if self.full else scale) > 0.0)
        if not sound:
            kind = next(dtype_name(x) for x in projected if x is not None)
            raise ConvergenceError(
                "the projection is not finite, or its covariance singular: the covariances are too ill-conditioned, or "
                f"the entropy target too far, for {kind}; use float64, a smaller bound, or better conditioned "
                "covariances"
            )

    def kl(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        mean, cov = distances.kl_parts(e, p, q)
        return mean + cov

    def log_prob(self, e: Engine, p: Gaussian, x: Vector) -> PerState:
        check_actions(p, x)
        return density.log_prob(e, p, x)

    def penalty(self, e: Engine, p: Gaussian, q: Gaussian) -> PerState:
        """Compute KL(p‖q), of a shared covariance only the mean part: it is set to its projection, not regressed."""
        return 0.5 * distances.mahalanobis(e, p, q) if p.shares_covariance else self.kl(e, p, q)

    def split_action(self, p: Gaussian, x: Array) -> tuple[Array, Array]:
        return x[..., : p.dim], x[..., p.dim :]

    def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> DiagPath | FullPath:
        """Make the path for a product; on its own a Gaussian has a faster projection."""
        return (FullPath if self.full else DiagPath).between(e, predicted, old)

    def residuals(self, held: Held) -> tuple[Like, ...]:
        batch = tuple(range(5 if held == "free" else 6))
        vector = Like(batch, ((0, -1),))
        matrix = Like(batch, ((1, -2), (1, -1))) if self.full else vector
        number = Like(batch)
        found = (vector, vector, matrix, number, number)
        return (*found, matrix) if self.full else found

    def _found(self, e: Engine, inputs: Sequence[Array], held: Held, *, whole: bool) -> solution.Found | None:
        p, q, bound = self.make(inputs[:2]), self.make(inputs[2:4]), inputs[4]
        entropy = None if held == "free" else inputs[5]
        return solution.solve(e, p, q, bound, entropy, equality=held == "equal", whole=whole)

    def solve(self, e: Engine, inputs: Sequence[Array], held: Held, *, whole: bool) -> Solved | None:
        found = self._found(e, inputs, held, whole=whole)
        return None if found is None else Solved(found[:2], found[4:] if self.full else found[4:-1])

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool], held: Held
    ) -> Sequence[Array | None]:
        inputs = saved.inputs
        p, q = self.make(inputs[:2]), self.make(inputs[2:4])
        found = gradient.pullback(e, p, q, saved.outputs, saved.residuals, cotangents, old_too=any(needed[2:]))
        return found[: len(inputs)]

    def multipliers(self, e: Engine, inputs: Sequence[Array], held: Held) -> tuple[PerState, PerState]:
        found = self._found(e, inputs, held, whole=True)
        assert found is not None
        return found.kl_multiplier, found.entropy_multiplier

    def entropy_range(self, e: Engine, q: Gaussian, bound: PerState) -> tuple[PerState, PerState]:
        return solution.entropy_range(e, bound, q.dim)


DIAGONAL, FULL = GaussianFamily(full=False), GaussianFamily(full=True)
register(DiagGaussian, lambda p: DIAGONAL)
register(FullGaussian, lambda p: FULL)
