"""The joint KL projection of families that interpolate natural parameters: methods that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple

from trpl.families.checks import check_arrays
from trpl.families.protocol import P
from trpl.gaussians.values import Parts
from trpl.natural import projection
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.families.protocol import Family, Held, Policy
    from trpl.implicit import Like, Saved, Solved
    from trpl.natural.path import Path
    from trpl.types import Array, PerState


class Interpolated:
    """The methods of a family with a path between its policies, and without a covariance to bound by itself."""

    if TYPE_CHECKING:

        @property
        def cores(self) -> tuple[int, ...]: ...
        def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> Path: ...

    def kl_parts(self, e: Engine, p: Policy, q: Policy) -> Parts:
        """Compute KL(p‖q), all of it in the mean part."""
        whole = cast("Family", self).kl(e, p, q)
        return Parts(whole, e.xp.zeros_like(whole))

    def residuals(self, held: Held) -> tuple[Like, ...]:
        """Return the shapes of s and, with an entropy, of τ and the active constraints."""
        return self._projection(held).residuals()

    def _projection(self, held: Held) -> projection.Projection:
        return projection.Projection(self.between, self.cores, held)

    def solve(self, e: Engine, inputs: Sequence[Array], held: Held, *, whole: bool) -> Solved | None:
        """See `trpl.families.protocol.Family.solve`."""
        return self._projection(held).solve(e, inputs, whole=whole)

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool], held: Held
    ) -> Sequence[Array | None]:
        """See `trpl.families.protocol.Family.pullback`."""
        return self._projection(held).pullback(e, saved, cotangents, needed)

    def multipliers(self, e: Engine, inputs: Sequence[Array], held: Held) -> tuple[PerState, PerState]:
        """Compute η of the KL and ω of the entropy; 0 where a constraint is inactive."""
        return self._projection(held).multipliers(e, inputs)

    def entropy_range(self, e: Engine, q: Policy, bound: PerState) -> tuple[PerState, PerState]:
        """Return the least and the greatest H − H(q) of any policy within the bound of q."""
        here = cast("Family", self).entropy(e, q)
        least, greatest = projection.entropy_range(e, self.between, self.cores, q.arrays, bound)
        return least - here, greatest - here


class Vectors(Interpolated, Generic[P]):
    """A family whose arrays are vectors of one length; it defines its value type and the meaning of the last axis."""

    policy: ClassVar[type[NamedTuple]]
    entries: ClassVar[str]

    @property
    def words(self) -> str:
        """The name of the value type in messages."""
        return self.policy.__name__

    @property
    def cores(self) -> tuple[int, ...]:
        """The number of trailing non-batch axes of each array: 1."""
        return (1,) * len(self.policy._fields)

    def make(self, arrays: Sequence[Array], like: Policy | None = None) -> P:
        """Return the policy with these arrays."""
        return cast("P", self.policy._make(arrays))

    def penalty(self, e: Engine, p: P, q: P) -> PerState:
        """Compute KL(p‖q)."""
        return cast("Family", self).kl(e, p, q)

    def split_action(self, p: P, x: Array) -> tuple[Array, Array]:
        """Split off a number per component from the last axis of a product's action."""
        dim = p.arrays[0].shape[-1]
        return x[..., :dim], x[..., dim:]

    def check_one(self, name: str, p: Policy) -> None:
        """See `trpl.families.protocol.Family.check_one`."""
        fields = list(zip(self.policy._fields, p.arrays, strict=True))
        check_arrays(name, fields)
        (first, x), shape = fields[0], tuple(fields[0][1].shape)
        for field, other in fields[1:]:
            if tuple(other.shape) != shape:
                raise ValueError(
                    f"{name}.{first} and {name}.{field} must have one shape; got {shape} and {tuple(other.shape)}"
                )
        if x.ndim < 1 or shape[-1] == 0:
            raise ValueError(f"{name}.{first} needs a last axis with the {self.entries}; got shape {shape}")

    def check_pair(self, name: str, p: Policy, q: Policy, *, other: str = "old") -> None:
        """See `trpl.families.protocol.Family.check_pair`."""
        size, other_size = p.arrays[0].shape[-1], q.arrays[0].shape[-1]
        if size != other_size:
            raise ValueError(f"{other} policy has {other_size} {self.entries}, {name} has {size}")
