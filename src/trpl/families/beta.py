"""Beta policies: independent actions between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from trpl.engines import constants, values_of
from trpl.errors import ConvergenceError
from trpl.families.checks import check_actions, check_finite
from trpl.families.interpolated import Vectors
from trpl.families.protocol import register
from trpl.natural.beta import BetaPath, Shape, beta_entropy, beta_kl
from trpl.special import gamma_rest
from trpl.types import A_co, Generic

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState, Vector


class Beta(NamedTuple, Generic[A_co]):
    """A batch of products of Beta distributions on (0, 1).

    Args:
        alpha: `[*batch, dim]`, positive.
        beta: `[*batch, dim]`, positive.
    """

    alpha: A_co
    beta: A_co

    @property
    def dim(self) -> int:
        """Number of components."""
        return self.alpha.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the components."""
        return tuple(self.alpha.shape[:-1])

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes: α and β."""
        return tuple(self)

    def detached(self) -> Beta[A_co]:
        """Detach the distribution from autodiff.

        Returns:
            The distribution as a constant.
        """
        return Beta(*constants(*self))


@dataclass(frozen=True)
class BetaFamily(Vectors[Beta]):
    """Products of Beta distributions; natural parameters are α and β."""

    policy: ClassVar = Beta
    entries: ClassVar = "components"

    def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> BetaPath:
        return BetaPath(Shape(*predicted), Shape(*old))

    def admit(self, e: Engine, predicted: Beta, old: Beta) -> None:
        for name, p in (("predicted", predicted), ("old", old)):
            if not e.finite(*p):
                check_finite(e, name, [("alpha", p.alpha), ("beta", p.beta)])
            lowest = float(e.xp.min(e.xp.minimum(*p))) if 0 not in p.alpha.shape else 1.0
            if not lowest > 0.0:
                raise ValueError(f"{name}.alpha and {name}.beta must be positive; the smallest entry is {lowest:g}")

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        sound = all(x is None or 0 in x.shape or (e.finite(x) and bool(e.xp.min(x) > 0.0)) for x in projected)
        if not sound:
            raise ConvergenceError(
                "the projected alpha and beta are not finite and positive: the entropy target is too far, or the "
                "parameters are too large for their dtype; use float64 or a smaller bound"
            )

    def kl(self, e: Engine, p: Beta, q: Beta) -> PerState:
        return e.xp.sum(beta_kl(e, Shape(*p), Shape(*q)), axis=-1)

    def entropy(self, e: Engine, p: Beta) -> PerState:
        return e.xp.sum(beta_entropy(e, Shape(*p)), axis=-1)

    def log_prob(self, e: Engine, p: Beta, x: Vector) -> PerState:
        """Compute (α − 1) log x + (β − 1) log(1 − x) − log B(α, β), pairing the large terms of log B with those of x.

        −log B = −R(α) − R(β) + R(α + β) − α log m − β log(1 − m) with the mean m. NaN for x outside of [0, 1].
        """
        check_actions(p, x)
        xp = e.xp
        seen = values_of(x)
        if seen is not None and not ((seen >= 0.0) & (seen <= 1.0)).all():
            raise ValueError(f"actions of a Beta are between 0 and 1; these are {seen.min():g} to {seen.max():g}")
        total = p.alpha + p.beta
        rest = gamma_rest(e, total) - gamma_rest(e, p.alpha) - gamma_rest(e, p.beta)

        def side(shape: Vector, log_x: Vector) -> Vector:
            inside = log_x != -math.inf
            log_x = xp.where(inside, log_x, 0.0)
            edge = xp.where(shape > 1.0, -math.inf, xp.where(shape < 1.0, math.inf, 0.0))  # (shape − 1) log 0
            return shape * (log_x - xp.log(shape / total)) + xp.where(inside, -log_x, edge)

        return xp.sum(side(p.alpha, xp.log(x)) + side(p.beta, xp.log1p(-x)) + rest, axis=-1)


BETA = BetaFamily()
register(Beta, lambda p: BETA)
