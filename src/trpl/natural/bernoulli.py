"""The path between two products of Bernoullis: interpolated logits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trpl.natural.path import FullSupport, Linear, Moments, Pulled
from trpl.special import sigmoid, softplus, softplus_difference

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array


def bernoulli_kl(e: Engine, p: Array, q: Array) -> Array:
    """Compute the KL of two Bernoullis by their logits: σ(p) log σ(p)/σ(q) + σ(−p) log σ(−p)/σ(−q), componentwise."""
    ones = sigmoid(e, p) * softplus_difference(e, -q, -p)
    return e.xp.clip(ones + sigmoid(e, -p) * softplus_difference(e, q, p), 0.0, None)


def bernoulli_entropy(e: Engine, logits: Array) -> Array:
    """Compute σ(l) log(1 + e^−l) + σ(−l) log(1 + e^l), componentwise."""
    return sigmoid(e, logits) * softplus(e, -logits) + sigmoid(e, -logits) * softplus(e, logits)


@dataclass(frozen=True)
class BernoulliPath(FullSupport):
    """The path between two batches of logits."""

    predicted: Array
    old: Array

    def _variance(self, e: Engine, logits: Array) -> Array:
        return sigmoid(e, logits) * sigmoid(e, -logits)

    def _between(self, s: Array) -> Array:
        return self.old + s[..., None] * (self.predicted - self.old)

    def spread(self, e: Engine) -> Array:
        change = self.predicted - self.old
        return e.xp.sum(self._variance(e, self.old) * change * change, axis=-1)

    def along(self, e: Engine, s: Array) -> tuple[Array, Array]:
        between, change = self._between(s), self.predicted - self.old
        kl = e.xp.sum(bernoulli_kl(e, between, self.old), axis=-1)
        return kl, e.xp.sum(self._variance(e, between) * change * change, axis=-1)

    def moments(self, e: Engine, s: Array, tau: Array) -> Moments:
        w, u = self._between(s), self.predicted - self.old
        logits = tau[..., None] * w
        f, total = self._variance(e, logits), functools.partial(e.xp.sum, axis=-1)
        kl, entropy = total(bernoulli_kl(e, logits, self.old)), total(bernoulli_entropy(e, logits))
        return Moments(kl, entropy, total(f * u * u), total(f * u * w), total(f * w * w))

    def at(self, e: Engine, s: Array, tau: Array | None) -> tuple[Array, ...]:
        between = self._between(s)
        return (between if tau is None else tau[..., None] * between,)

    def linear(self, e: Engine, s: Array, tau: Array | None, cotangents: Sequence[Array]) -> Linear:
        (pull,) = cotangents
        u, w = self.predicted - self.old, self._between(s)
        warmed = e.xp.ones_like(s) if tau is None else tau
        logits = warmed[..., None] * w
        f, total = self._variance(e, logits), functools.partial(e.xp.sum, axis=-1)

        def back(along_path: Array, along_warmth: Array, old: bool) -> Pulled:
            natural = warmed[..., None] * (pull - f * (along_path[..., None] * u + along_warmth[..., None] * w))
            if not old:
                return (s[..., None] * natural,), None
            pressed = (along_path / e.xp.where(s > 0.0, s, 1.0))[..., None]
            rise = probability_difference(e, self.old, logits)
            return (s[..., None] * natural,), ((1.0 - s)[..., None] * natural - pressed * rise,)

        return Linear(total(f * u * u), total(f * u * w), total(f * w * w), total(pull * u), total(pull * w), back)


def probability_difference(e: Engine, x: Array, y: Array) -> Array:
    """Compute σ(x) − σ(y) = σ(x) σ(−y) (1 − e^(y − x)), from the side where it does not overflow."""
    gap = e.xp.expm1(-e.xp.abs(x - y))
    larger, smaller = e.xp.maximum(x, y), e.xp.minimum(x, y)
    size = sigmoid(e, larger) * sigmoid(e, -smaller) * gap
    return e.xp.where(x >= y, -size, size)
