"""The path between two categoricals: log-probabilities are interpolated, zeros stay zeros.

π̃ ∝ π_old e^x with x = (τ − 1) log π_old + τ s u, u = log π − log π_old, both centred under the old policy. Then
log Z = log Σ π_old e^x ≥ 0 by Jensen, both it and the KL = E x − log Z are small where the policies are close, and
nothing underflows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trpl.natural.path import Guess, Linear, Moments

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, PerState, Vector

HEAVY = 30.0
"""Exponent from which a class may outgrow all others, and e^x its number format."""
FURTHEST = 1e15
"""Largest difference of logits: its square is finite in float32 as well."""
QUICK_STEPS = 4
"""Ordinary rows need two or three."""
FAR_START = 2.0
"""Factor by which the start of the search may differ from the root of the KL's leading term."""


class Tilted(NamedTuple):
    """π̃ before it is normalised, its sum, and log Z."""

    weight: Vector
    total: PerState
    log_total: PerState


def tilt(e: Engine, q: Vector, log_q: Vector, x: Vector) -> Tilted:
    """π_old e^x, with x centred under the old policy.

    Z − 1 = Σ π_old (e^x − 1) keeps the digits of a small log Z. Where x is large the class's probability was tiny, and
    e^x may be infinite where their product is ordinary: there, and only if there is such a class, in logarithms.
    """
    xp = e.xp

    def ordinary(q: Vector, log_q: Vector, x: Vector) -> tuple[Vector, PerState, PerState]:
        grown = q * e.expm1(x)
        rise = xp.sum(grown, axis=-1)
        return q + grown, 1.0 + rise, xp.log1p(rise)

    def heavy(q: Vector, log_q: Vector, x: Vector) -> tuple[Vector, PerState, PerState]:
        large = x > HEAVY
        logs = xp.where(large, log_q + x, 0.0)
        top = xp.max(logs, axis=-1)  # at least 0, since a class with the mean exponent is not large
        grown = q * e.expm1(xp.where(large, 0.0, x))
        weight = xp.where(large, e.exp(logs - top[..., None]), (q + grown) * xp.exp(-top)[..., None])
        total = xp.sum(weight, axis=-1)
        rise = xp.sum(xp.where(large, weight - q, grown), axis=-1)
        return (
            weight,
            xp.where(top > 0.0, total, 1.0 + rise),
            xp.where(top > 0.0, top + xp.log(total), xp.log1p(rise)),
        )

    return Tilted(*e.branch(x > HEAVY, heavy, ordinary, q, log_q, x))


class Centred(NamedTuple):
    """The old policy on the common support, u with mean 0 under it, and the KL that the support alone costs."""

    q: Vector
    log_q: Vector  # −inf outside of the support
    change: Vector  # 0 outside of the support
    floor: PerState | float


class CategoricalPath:
    """Between two batches of logits; a class that either policy gives probability 0 has probability 0."""

    def __init__(self, e: Engine, predicted: Vector, old: Vector, *, precise: bool = True) -> None:
        """`precise` says that KLs below 1e-6 must keep their digits."""
        self.e, self.predicted, self.old, self.precise = e, predicted, old, precise

    def rows(self, mask: Mask) -> CategoricalPath | None:
        """The same for some of the states, if the arrays have one row for each."""
        if tuple(self.predicted.shape[:-1]) != tuple(mask.shape) != () or self.predicted.shape != self.old.shape:
            return None
        return CategoricalPath(self.e, self.predicted[mask], self.old[mask], precise=self.precise)

    @functools.cached_property
    def support(self) -> Mask | None:
        """Where both policies' probabilities are positive; None if it is known to be everywhere."""
        xp = self.e.xp
        if self.e.concrete and math.isfinite(float(xp.sum(self.predicted)) + float(xp.sum(self.old))):
            return None
        return xp.isfinite(self.predicted) & xp.isfinite(self.old)

    @property
    def narrows(self) -> Mask | None:
        """The states whose prediction allows a class that the old policy forbids."""
        if self.support is None:
            return None
        lost = self.e.xp.where((self.predicted > -math.inf) & ~(self.old > -math.inf), 1.0, 0.0)
        return self.e.xp.max(lost, axis=-1) > 0.0

    def _supported(self, x: Vector) -> Vector:
        return x if self.support is None else self.e.xp.where(self.support, x, 0.0)

    @functools.cached_property
    def raw_change(self) -> Vector:
        """log π − log π_old up to a constant, 0 outside of the support."""
        return self.e.xp.clip(self._supported(self.predicted - self.old), -FURTHEST, FURTHEST)

    @functools.cached_property
    def centred(self) -> Centred:
        e, xp = self.e, self.e.xp
        top = _finite_max(e, self.old)
        shifted = self.old - top[..., None]
        weight = e.exp(shifted)
        total = xp.sum(weight, axis=-1)
        floor = 0.0
        if self.support is not None:
            kept = xp.where(self.support, weight, 0.0)
            kept_total = xp.sum(kept, axis=-1)
            floor = xp.log(total) - xp.log(kept_total)
            shifted, weight, total = xp.where(self.support, shifted, -math.inf), kept, kept_total
        q = weight / total[..., None]
        change = self.raw_change - xp.sum(q * self.raw_change, axis=-1)[..., None]
        return Centred(q, shifted - xp.log(total)[..., None], self._supported(change), floor)

    @property
    def floor(self) -> PerState | float:
        return self.centred.floor

    def spread(self, e: Engine) -> PerState:
        q, _, u, _ = self.centred
        return e.xp.sum(q * u * u, axis=-1)

    def guess(self, e: Engine, room: PerState) -> Guess:
        """A few steps of third order from where the KL's first two terms, ½V₀s² + ⅓κs³, meet the bound.

        The third derivative of log Z at s is that of the parabola through V there, and V and its slope κ at the old
        policy. Sure is who is at s = 1 and inside, or whose last step was so short that its square is rounding; nobody
        with a class so heavy that its e^x may be out of range.
        """
        xp = e.xp
        q, _, u, _ = self.centred
        quarter = q * u * u
        v0, skew = xp.sum(quarter, axis=-1), xp.sum(quarter * u, axis=-1)
        leading = xp.sqrt(2.0 * room / v0)
        s = leading
        for _ in range(3):
            s = s - (s * (0.5 * v0 + s * skew / 3.0) - room / s) / (v0 + s * skew)
        s = xp.where((s * FAR_START > leading) & (s < FAR_START * leading), s, leading)
        s = xp.where(s < 1.0, s, 1.0)
        short = 2e-5 if xp.finfo(room.dtype).bits == 64 else 3e-3

        def step(s: PerState, unsure: Mask) -> tuple[PerState, Mask]:
            grown = e.once(q * (e.expm1(s[..., None] * u) if self.precise else e.exp(s[..., None] * u) - 1.0))
            rise = xp.sum(grown, axis=-1)
            weighted = (q + grown) * u
            mean = xp.sum(weighted, axis=-1) / (1.0 + rise)
            v = xp.sum(weighted * u, axis=-1) / (1.0 + rise) - mean * mean
            excess = s * mean - xp.log1p(rise) - room
            slope, bend = s * v, 3.0 * v - 2.0 * v0 - s * skew
            change = excess / (slope - 0.5 * excess * bend / slope)
            following = s - change
            inside = (s == 1.0) & (excess <= 0.0)
            close = (xp.abs(change) <= short * s) & (xp.abs(excess) <= 2.0 * short * room) & (following < 1.0)
            following = xp.where(inside | ~(following < 1.0), 1.0, following)
            return xp.where(unsure, following, s), unsure & ~(inside | close)

        unsure = s * xp.max(u, axis=-1) < HEAVY  # the others are left to the search
        heavy = ~unsure
        s, unsure = step(*step(s, unsure))
        s, unsure = e.loop(lambda s, unsure: unsure, step, (s, unsure), max_steps=QUICK_STEPS - 2)
        light = s * xp.max(u, axis=-1) < HEAVY
        return Guess(s, ~unsure & ~heavy & light & (s > 0.0))

    def along(self, e: Engine, s: PerState) -> tuple[PerState, PerState]:
        q, log_q, u, _ = self.centred
        found = tilt(e, q, log_q, s[..., None] * u)
        mean = e.vecdot(found.weight, u) / found.total
        about = u - mean[..., None]
        variance = e.vecdot(found.weight, about * about) / found.total
        return e.xp.clip(s * mean - found.log_total, 0.0, None), variance

    @functools.cached_property
    def _surprise(self) -> tuple[Vector, PerState]:
        """log π_old less its mean, 0 where there is no probability; and the mean, −H(π_old)."""
        q, log_q, _, _ = self.centred
        log_q = self._supported(log_q)
        mean = self.e.xp.sum(q * log_q, axis=-1)
        return self._supported(log_q - mean[..., None]), mean

    def moments(self, e: Engine, s: PerState, tau: PerState) -> Moments:
        q, log_q, change, floor = self.centred
        surprise, mean_surprise = self._surprise
        direction = surprise + s[..., None] * change  # w
        x = tau[..., None] * direction - surprise
        found = tilt(e, q, log_q, x)

        def mean(y: Vector) -> PerState:
            return e.vecdot(found.weight, y) / found.total

        kl = e.xp.clip(mean(x) - found.log_total, 0.0, None)
        u, w = (y - mean(y)[..., None] for y in (change, direction))
        entropy = -kl - mean(surprise) - mean_surprise
        return Moments(kl + floor, entropy, mean(u * u), mean(u * w), mean(w * w))

    def hottest(self, e: Engine, s: PerState) -> float:
        return math.inf

    def at(self, e: Engine, s: PerState, tau: PerState | None) -> tuple[Vector, ...]:
        between = self.old + s[..., None] * (self.predicted - self.old)
        between = between if tau is None else tau[..., None] * between
        return (between if self.support is None else e.xp.where(self.support, between, -math.inf),)

    def linear(self, e: Engine, s: PerState, tau: PerState | None, cotangents: Sequence[Vector]) -> Linear:
        xp = e.xp
        pull = self._supported(cotangents[0])
        change = self.raw_change
        between = self._supported(self.old) + s[..., None] * change
        warmed = between if tau is None else tau[..., None] * between
        if self.support is not None:
            warmed = xp.where(self.support, warmed, -math.inf)
        weight = e.once(e.exp(warmed - _finite_max(e, warmed)[..., None]))
        p = weight / xp.sum(weight, axis=-1)[..., None]

        def about(y: Vector) -> Vector:
            return y - e.vecdot(p, y)[..., None]

        u, w = about(change), None if tau is None else about(between)

        def back(along_path: PerState, along_warmth: PerState, old: bool) -> tuple[tuple, tuple | None]:
            moved = along_path[..., None] * u
            if w is not None:
                moved = moved + along_warmth[..., None] * w
            natural = pull - p * moved
            natural = natural if tau is None else tau[..., None] * natural
            to_predicted = (s[..., None] * natural,)
            if not old:
                return to_predicted, None
            weight = e.exp(self.old - _finite_max(e, self.old)[..., None])
            q = weight / xp.sum(weight, axis=-1)[..., None]
            pressed = (along_path / xp.where(s > 0.0, s, 1.0))[..., None]
            return to_predicted, ((1.0 - s)[..., None] * natural - pressed * (q - p),)

        none = 0.0 * s
        return Linear(
            e.vecdot(p, u * u),
            none if w is None else e.vecdot(p, u * w),
            none if w is None else e.vecdot(p, w * w),
            e.vecdot(pull, change),
            none if w is None else e.vecdot(pull, between),
            back,
        )


def _finite_max(e: Engine, x: Vector) -> PerState:
    """The largest entry of each row, and 0 where that is not finite."""
    top = e.xp.max(x, axis=-1)
    return e.xp.where(e.xp.isfinite(top), top, 0.0)


def log_sum_exp(e: Engine, x: Vector) -> PerState:
    """log Σ eˣ over the last axis; −inf where all entries are."""
    top = e.constant(_finite_max(e, x))
    return top + e.xp.log(e.xp.sum(e.xp.exp(x - top[..., None]), axis=-1))
