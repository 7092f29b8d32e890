"""Products: independent parts of any family, with one bound for the whole or one per part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trpl.engines import framework_of
from trpl.families.checks import dtype_name
from trpl.families.interpolated import Interpolated
from trpl.families.protocol import Part, Policy, family_of, is_policy, register
from trpl.implicit.problems import broadcast_shapes
from trpl.linalg import total
from trpl.natural.path import ProductPath
from trpl.types import A_co, Generic, cast

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState

X = TypeVar("X")


class Product(NamedTuple, Generic[A_co]):
    """Independent parts, each a policy value: a Gaussian beside a categorical, for example.

    Args:
        parts: The policies, all of the same batch of states.
    """

    parts: tuple[Policy[A_co], ...]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the batch of states."""
        return broadcast_shapes(*(p.batch_shape for p in self.parts))

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes: those of all parts, one after another."""
        return tuple(x for p in self.parts for x in p.arrays)

    def detached(self) -> Product[A_co]:
        """Detach the distribution from autodiff.

        Returns:
            The distribution as a constant.
        """
        return Product(tuple(p.detached() for p in self.parts))


@dataclass(frozen=True)
class ProductFamily(Interpolated):
    """Products of these families; KL and entropy add up, and all parts share one position on the path."""

    families: tuple[Part, ...]

    @property
    def words(self) -> str:
        return f"Product of {', '.join(f.words for f in self.families)}"

    @property
    def cores(self) -> tuple[int, ...]:
        return tuple(core for family in self.families for core in family.cores)

    def _split(self, arrays: Sequence[X]) -> list[Sequence[X]]:
        found, start = [], 0
        for family in self.families:
            found.append(arrays[start : start + len(family.cores)])
            start += len(family.cores)
        return found

    def make(self, arrays: Sequence[Array], like: Policy | None = None) -> Product:
        split = zip(self.families, self._split(arrays), strict=True)
        return Product(tuple(family.make(own) for family, own in split))

    def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> ProductPath:
        every = zip(self.families, self._split(predicted), self._split(old), strict=True)
        paths = [family.between(e, p, q) for family, p, q in every]
        return ProductPath(paths, [len(family.cores) for family in self.families])

    def check_one(self, name: str, p: Product) -> None:
        if not isinstance(p.parts, tuple) or not p.parts:
            raise ValueError(f"{name}.parts must be a tuple of policies")
        for i, (family, part) in enumerate(zip(self.families, p.parts, strict=True)):
            family.check_one(f"{name}.parts[{i}]", part)
        first = p.arrays[0]
        for i, part in enumerate(p.parts):
            other = part.arrays[0]
            if framework_of(other) != framework_of(first) or other.dtype != first.dtype:
                raise ValueError(
                    f"{name}.parts[0] has {framework_of(first)} arrays of {dtype_name(first)} and {name}.parts[{i}] "
                    f"{framework_of(other)} arrays of {dtype_name(other)}; convert them to one"
                )
            shapes = p.parts[0].batch_shape, part.batch_shape
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{name}.parts[0] has the batch shape {shapes[0]} and {name}.parts[{i}] {shapes[1]}; "
                    "all parts need the same"
                )

    def check_pair(self, name: str, p: Product, q: Product, *, other: str = "old") -> None:
        if len(p.parts) != len(q.parts) or [type(x) for x in p.parts] != [type(x) for x in q.parts]:
            kinds = [", ".join(type(x).__name__ for x in policy.parts) for policy in (p, q)]
            raise ValueError(f"{name} has the parts {kinds[0]} and {other} {kinds[1]}; they must be the same")
        for i, (family, *pair) in enumerate(zip(self.families, p.parts, q.parts, strict=True)):
            family.check_pair(f"{name}.parts[{i}]", *pair, other=other)

    def admit(self, e: Engine, predicted: Product, old: Product) -> None:
        for i, (family, p, q) in enumerate(zip(self.families, predicted.parts, old.parts, strict=True)):
            try:
                family.admit(e, p, q)
            except ValueError as error:
                raise ValueError(f"part {i}: {error}") from None

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        for family, own in zip(self.families, self._split(projected), strict=True):
            family.accept(e, own)

    def kl(self, e: Engine, p: Product, q: Product) -> PerState:
        both = zip(self.families, p.parts, q.parts, strict=True)
        return total(family.kl(e, own, other) for family, own, other in both)

    def penalty(self, e: Engine, p: Product, q: Product) -> PerState:
        """Compute the sum of the parts' penalties."""
        both = zip(self.families, p.parts, q.parts, strict=True)
        return total(family.penalty(e, own, other) for family, own, other in both)

    def entropy(self, e: Engine, p: Product) -> PerState:
        """Compute the sum of the parts' entropies, differential and discrete alike."""
        own = zip(self.families, p.parts, strict=True)
        return total(family.entropy(e, part) for family, part in own)

    def log_prob(self, e: Engine, p: Product, x: Array | Sequence[Array]) -> PerState:
        """Compute the sum over parts; x is one action per part, or all of them side by side in its last axis."""
        every = zip(self.families, p.parts, self.actions(p, x), strict=True)
        return total(family.log_prob(e, part, own) for family, part, own in every)

    def actions(self, p: Product, x: Array | Sequence[Array]) -> tuple[Array, ...]:
        """Return an action per part.

        Raises:
            ValueError: If the number of actions, or of their entries, does not match the parts.
        """
        if isinstance(x, tuple | list):
            if len(x) != len(p.parts):
                raise ValueError(f"{len(x)} actions for {len(p.parts)} parts")
            return tuple(x)
        found: list[Array] = []
        rest = whole = cast("Array", x)
        for family, part in zip(self.families, p.parts, strict=True):
            if rest.shape[-1] == 0:
                raise ValueError(f"an action has {whole.shape[-1]} numbers, fewer than the parts need")
            own, rest = family.split_action(part, rest)
            found.append(own)
        if rest.shape[-1] != 0:
            raise ValueError(f"an action has {whole.shape[-1]} numbers, {rest.shape[-1]} more than the parts need")
        return tuple(found)


def _family(p: Product) -> ProductFamily:
    families = tuple(family_of(part) for part in p.parts if is_policy(part))
    if len(families) != len(p.parts) or not all(hasattr(family, "split_action") for family in families):
        kinds = ", ".join(type(part).__name__ for part in p.parts)
        raise ValueError(f"parts of a Product are Gaussians, Categoricals, Bernoullis and Betas; got {kinds}")
    return ProductFamily(cast("tuple[Part, ...]", families))


register(Product, _family)


def parts_of(p: Policy) -> tuple[Policy, ...]:
    """Return the parts of a product, each of which has a bound of its own.

    Raises:
        ValueError: If the policy is of another family.
    """
    if not isinstance(p, Product):
        raise ValueError(f"several bounds are for the parts of a Product, not for a {type(p).__name__}")
    return p.parts
