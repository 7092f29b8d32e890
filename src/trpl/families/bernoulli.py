"""Bernoulli policies: independent binary decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from trpl.engines import constants, values_of
from trpl.errors import ConvergenceError
from trpl.families.checks import check_actions, check_finite
from trpl.families.interpolated import Vectors
from trpl.families.protocol import register
from trpl.natural.bernoulli import BernoulliPath, bernoulli_entropy, bernoulli_kl
from trpl.special import softplus
from trpl.types import A_co, Generic

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState


class Bernoulli(NamedTuple, Generic[A_co]):
    """A batch of products of Bernoulli distributions.

    Args:
        logits: `[*batch, dim]`: log p/(1 − p) of each component, finite.
    """

    logits: A_co

    @property
    def dim(self) -> int:
        """Number of components."""
        return self.logits.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the components."""
        return tuple(self.logits.shape[:-1])

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes: the logits."""
        return tuple(self)

    def detached(self) -> Bernoulli[A_co]:
        """Detach the distribution from autodiff.

        Returns:
            The distribution as a constant.
        """
        return Bernoulli(*constants(*self))


@dataclass(frozen=True)
class BernoulliFamily(Vectors[Bernoulli]):
    """Products of Bernoulli distributions; natural parameters are the logits."""

    policy: ClassVar = Bernoulli
    entries: ClassVar = "components"

    def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> BernoulliPath:
        return BernoulliPath(predicted[0], old[0])

    def admit(self, e: Engine, predicted: Bernoulli, old: Bernoulli) -> None:
        if not e.finite(predicted.logits, old.logits):
            check_finite(e, "predicted", [("logits", predicted.logits)])
            check_finite(e, "old", [("logits", old.logits)])

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        (logits,) = projected
        if logits is not None and not e.finite(logits):
            raise ConvergenceError("the projected logits are not finite: the logits are too large for their dtype")

    def kl(self, e: Engine, p: Bernoulli, q: Bernoulli) -> PerState:
        return e.xp.sum(bernoulli_kl(e, p.logits, q.logits), axis=-1)

    def entropy(self, e: Engine, p: Bernoulli) -> PerState:
        return e.xp.sum(bernoulli_entropy(e, p.logits), axis=-1)

    def log_prob(self, e: Engine, p: Bernoulli, x: Array) -> PerState:
        """Compute log σ(l) for each 1 of x, log σ(−l) for each 0."""
        check_actions(p, x)
        seen = values_of(x)
        if seen is not None and not ((seen == 0) | (seen == 1)).all():
            raise ValueError(f"actions are 0 or 1; one is {seen[(seen != 0) & (seen != 1)][0]:g}")
        chosen = e.xp.astype(x, p.logits.dtype) if x.dtype != p.logits.dtype else x
        return -e.xp.sum(chosen * softplus(e, -p.logits) + (1.0 - chosen) * softplus(e, p.logits), axis=-1)


BERNOULLI = BernoulliFamily()
register(Bernoulli, lambda p: BERNOULLI)
