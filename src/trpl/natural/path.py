"""The interface of a family to its joint KL projection: moments along the path, and derivatives there.

With Δ = θ − θ_old, w = θ_old + sΔ, θ̃ = τw, F = ∇²A(θ̃) the covariance of the sufficient statistics, and μ their means:

    V = ΔᵀFΔ,    X = ΔᵀFw,    W = wᵀFw,
    ∂KL/∂s = τ(sV + (τ − 1)X),  ∂KL/∂τ = (τ − 1)W + sX,  ∂H/∂s = −τ²X,  ∂H/∂τ = −τW.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from trpl.linalg import total
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask


class Moments(NamedTuple):
    """KL to the old policy and entropy of the policy at (s, τ), and the three products of its covariance F."""

    kl: Array
    entropy: Array
    change: Array  # V = ΔᵀFΔ
    cross: Array  # X = ΔᵀFw
    warmth: Array  # W = wᵀFw


Pulled: TypeAlias = "tuple[tuple[Array, ...], tuple[Array, ...] | None]"
"""Cotangents of the predicted policy's arrays and, if they are needed, of the old one's."""
Back: TypeAlias = "Callable[[Array, Array, bool], Pulled]"


class Linear(NamedTuple):
    """The linearisation at (s, τ): the products of F, those with a cotangent h of θ̃, and the pullback.

    `back(along_path, along_warmth, old)` returns cotangents of the predicted policy's arrays and, if `old`, of the old
    one's, for the cotangent k = h − c₁Fw − c₂FΔ of θ̃ and −(c₂/s)(μ_old − μ̃) of θ_old, with c₁ = `along_warmth` and
    c₂ = `along_path`.
    """

    change: Array
    cross: Array
    warmth: Array
    pull_change: Array  # ⟨h, Δ⟩
    pull_warmth: Array  # ⟨h, w⟩
    back: Back


class Guess(NamedTuple):
    """An estimate of s for a bound alone, 1 inside, and the mask of states where it is exact to rounding."""

    s: Array
    sure: Mask
    rows: Callable[[Mask], Path | None]
    """Returns the path of some of the states; None if they cannot be selected."""
    uncached: Callable[[], Path]
    """Returns the path with empty caches, for a branch of a traced function, whose values must not leak."""


class Path(Protocol):
    """The policies between an old and a predicted one, for a batch of states."""

    @property
    def floor(self) -> Array | float:
        """The limit of the KL for s → 0, due to the predicted policy's zeros; 0 if the supports agree."""
        ...

    @property
    def exceeds_support(self) -> Mask | None:
        """The states whose predicted policy has classes that the old one forbids; None if there are none."""
        ...

    def spread(self, e: Engine) -> Array:
        """Compute V at the old policy: KL ≈ ½ s² V for small s."""
        ...

    def guess(self, e: Engine, room: Array) -> Guess | None:
        """Estimate s at which the KL less its floor is `room`, if the family has a fast method."""
        ...

    def along(self, e: Engine, s: Array) -> tuple[Array, Array]:
        """Compute the KL less its floor, and V, at τ = 1."""
        ...

    def moments(self, e: Engine, s: Array, tau: Array) -> Moments:
        """Compute the KL, the entropy and the products of F."""
        ...

    def max_tau(self, e: Engine, s: Array) -> Array | float:
        """Return the largest τ for which θ̃ is in the family."""
        ...

    def at(self, e: Engine, s: Array, tau: Array | None) -> tuple[Array, ...]:
        """Compute the arrays of the policy at (s, τ); τ = 1 if None."""
        ...

    def linear(self, e: Engine, s: Array, tau: Array | None, cotangents: Sequence[Array]) -> Linear:
        """Linearise at (s, τ), for cotangents of the arrays that `at` returns."""
        ...


class FullSupport:
    """What most paths have in common: policies of one support, no limit on τ, and no fast estimate of s."""

    floor: float = 0.0
    exceeds_support: None = None

    def guess(self, e: Engine, room: Array) -> None:
        return None

    def max_tau(self, e: Engine, s: Array) -> Array | float:
        return math.inf


class ProductPath:
    """The path of independent parts: KL, entropy and the products of F add up, and all parts share (s, τ)."""

    def __init__(self, parts: Sequence[Path], sizes: Sequence[int]) -> None:
        self.parts, self.sizes = tuple(parts), tuple(sizes)

    @property
    def floor(self) -> Array | float:
        return total(cast("Array", part.floor) for part in self.parts)

    @property
    def exceeds_support(self) -> Mask | None:
        found = [part.exceeds_support for part in self.parts if part.exceeds_support is not None]
        return functools.reduce(operator.or_, found) if found else None

    def spread(self, e: Engine) -> Array:
        return total(part.spread(e) for part in self.parts)

    def guess(self, e: Engine, room: Array) -> None:
        return None

    def along(self, e: Engine, s: Array) -> tuple[Array, Array]:
        kl, change = zip(*(part.along(e, s) for part in self.parts), strict=True)
        return total(kl), total(change)

    def moments(self, e: Engine, s: Array, tau: Array) -> Moments:
        return Moments(*map(total, zip(*(part.moments(e, s, tau) for part in self.parts), strict=True)))

    def max_tau(self, e: Engine, s: Array) -> Array | float:
        limits = [part.max_tau(e, s) for part in self.parts]
        found = [limit for limit in limits if not isinstance(limit, float | int)]
        return functools.reduce(e.xp.minimum, found) if found else limits[0]

    def at(self, e: Engine, s: Array, tau: Array | None) -> tuple[Array, ...]:
        return tuple(x for part in self.parts for x in part.at(e, s, tau))

    def linear(self, e: Engine, s: Array, tau: Array | None, cotangents: Sequence[Array]) -> Linear:
        left, each = list(cotangents), []
        for part, size in zip(self.parts, self.sizes, strict=True):
            each.append(part.linear(e, s, tau, left[:size]))
            left = left[size:]

        def back(along_path: Array, along_warmth: Array, old: bool) -> Pulled:
            found = [one.back(along_path, along_warmth, old) for one in each]
            to_old = tuple(x for _, q in found for x in q or ()) if old else None
            return tuple(x for p, _ in found for x in p), to_old

        change, cross, warmth, pull_change, pull_warmth = (total(one[i] for one in each) for i in range(5))
        return Linear(change, cross, warmth, pull_change, pull_warmth, back)
