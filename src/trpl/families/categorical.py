"""Categorical policies: one of several classes, some of which may be forbidden."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from trpl.engines import constants, values_of
from trpl.errors import ConvergenceError
from trpl.families.checks import num_states
from trpl.families.interpolated import Vectors
from trpl.families.protocol import register
from trpl.natural.categorical import LARGE_EXPONENT, CategoricalPath, log_sum_exp
from trpl.types import A_co, Generic

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, PerState, Vector


class Categorical(NamedTuple, Generic[A_co]):
    """A batch of categorical distributions.

    Args:
        logits: `[*batch, num_classes]`: log-probabilities up to a constant per state. −inf forbids a class.

    Examples:
        >>> import numpy as np
        >>> from trpl import Categorical, kl
        >>> old = Categorical(np.log([[0.5, 0.5], [0.5, 0.5]]))
        >>> kl(Categorical(np.log([[0.5, 0.5], [0.9, 0.1]])), old).round(3)
        array([0.   , 0.368])
    """

    logits: A_co

    @property
    def dim(self) -> int:
        """Number of classes."""
        return self.logits.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the classes."""
        return tuple(self.logits.shape[:-1])

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes: the logits."""
        return tuple(self)

    def detached(self) -> Categorical[A_co]:
        """Detach the distribution from autodiff.

        Returns:
            The distribution as a constant.
        """
        return Categorical(*constants(*self))


def log_probabilities(e: Engine, p: Categorical) -> Vector:
    """Return the normalised logits."""
    return p.logits - log_sum_exp(e, p.logits)[..., None]


@dataclass(frozen=True)
class CategoricalFamily(Vectors[Categorical]):
    """Categorical distributions; natural parameters are the logits."""

    policy: ClassVar = Categorical
    entries: ClassVar = "classes"

    def split_action(self, p: Categorical, x: Array) -> tuple[Array, Array]:
        """Split off the class, one number, from the last axis of an action."""
        return x[..., 0], x[..., 1:]

    def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> CategoricalPath:
        return CategoricalPath(e, predicted[0], old[0])

    def admit(self, e: Engine, predicted: Categorical, old: Categorical) -> None:
        if e.finite(predicted.logits, old.logits):
            return
        for name, p in (("predicted", predicted), ("old", old)):
            count = int(e.xp.sum((p.logits != p.logits) | (p.logits == math.inf)))
            if count:
                raise ValueError(f"{name}.logits has {count} entries that are NaN or +inf; −inf forbids a class")
            empty = int(e.xp.sum(e.xp.max(p.logits, axis=-1) == -math.inf)) if 0 not in p.logits.shape else 0
            if empty:
                raise ValueError(f"{name}.logits forbids every class in {num_states(empty)}")
        lost = e.xp.max((predicted.logits == -math.inf) & (old.logits > -math.inf), axis=-1)
        count = int(e.xp.sum(lost))
        if count:
            raise ValueError(
                f"predicted forbids classes that old allows in {num_states(count)}, which a bound on the KL to old may "
                "rule out; give both policies the same mask"
            )

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        (logits,) = projected
        if logits is not None and not e.finite(logits) and bool(e.xp.sum(logits != logits)):
            raise ConvergenceError("the projected logits are not numbers: the logits are too large for their dtype")

    def kl(self, e: Engine, p: Categorical, q: Categorical) -> PerState:
        """Compute Σ q φ(t), φ(t) = te^t − (e^t − 1) ≥ 0, t = log p/q: no cancellation, and exact for p near q.

        Classes of probability 0 contribute their limits: q if p is 0, ∞ if only q is 0.
        """
        xp = e.xp
        log_p, log_q = log_probabilities(e, p), log_probabilities(e, q)
        has_p, has_q = log_p > -math.inf, log_q > -math.inf
        both = has_p & has_q
        log_p, log_q = xp.where(both, log_p, 0.0), xp.where(has_q, log_q, 0.0)
        t = xp.where(both, log_p - log_q, 0.0)
        light = t < LARGE_EXPONENT
        grown = xp.expm1(xp.where(light, t, 0.0))
        q_weight = xp.exp(log_q)
        heavy = xp.exp(log_p) * (t - 1.0) + q_weight
        terms = xp.where(both, xp.where(light, q_weight * (t + t * grown - grown), heavy), 0.0)
        lost = xp.where(has_q & ~has_p, q_weight, 0.0)
        return xp.sum(terms + xp.where(has_p & ~has_q, math.inf, lost), axis=-1)

    def entropy(self, e: Engine, p: Categorical) -> PerState:
        """Compute −Σ p log p; a class of probability 0 contributes nothing."""
        logs = log_probabilities(e, p)
        has = logs > -math.inf
        safe = e.xp.where(has, logs, 0.0)
        return -e.xp.sum(e.xp.where(has, e.xp.exp(safe) * safe, 0.0), axis=-1)

    def log_prob(self, e: Engine, p: Categorical, x: Array) -> PerState:
        """Return the log-probability of class x, an array of whole numbers of the batch shape."""
        seen = values_of(x)
        if seen is not None and not ((seen >= 0) & (seen < p.dim)).all():
            raise ValueError(f"classes are 0 to {p.dim - 1}; the actions are {seen.min()} to {seen.max()}")
        if seen is not None and seen.dtype.kind == "f" and (seen % 1.0).any():
            raise ValueError(f"classes are whole numbers; an action is {seen[seen % 1.0 > 0.0][0]:g}")
        batch, own = tuple(x.shape), p.batch_shape
        if len(batch) < len(own) or any([n not in (1, m) for n, m in zip(own[::-1], batch[::-1], strict=False)]):
            raise ValueError(f"actions of a Categorical are one class per state of {own}; got shape {batch}")
        logits = e.xp.broadcast_to(p.logits, (*batch, p.dim)) if batch != own else p.logits
        index = e.xp.astype(x, int) if x.dtype != e.xp.int64 else x  # the framework's index dtype
        chosen = e.xp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]
        return chosen - log_sum_exp(e, p.logits)


CATEGORICAL = CategoricalFamily()
register(Categorical, lambda p: CATEGORICAL)
