"""The path between two categoricals: interpolated log-probabilities; zeros stay zeros.

π̃ ∝ π_old e^x with x = (τ − 1) log π_old + τ s u, u = log π − log π_old, both centred under the old policy. Then
log Z = log Σ π_old e^x ≥ 0 by Jensen, log Z and the KL = E x − log Z are small for close policies, and nothing
underflows.
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

LARGE_EXPONENT = 30.0
"""Exponent from which a single class may dominate, and e^x may overflow."""
MAX_LOGIT_DIFFERENCE = 1e15
"""Largest difference of logits: its square is finite in float32 as well."""
FAR_START = 2.0
"""Factor by which the start of the search may differ from the root of the KL's leading term."""
QUICK_STEPS = 3
"""Steps before the bracketed search; most states need one."""
LONGEST_STEP = 0.7
"""Largest step in log s."""
SMALL_EXPONENT = 0.2
"""Largest exponent up to which log Z is integrated from its derivatives at both ends, to a relative 1e-11."""
DRIFT = 1e3
"""Squared mean over variance, up to which their difference is precise enough for a step."""


class Tilted(NamedTuple):
    """The unnormalised π̃, its sum, and log Z."""

    weight: Vector
    total: PerState
    log_total: PerState


def tilt(e: Engine, q: Vector, log_q: Vector, x: Vector) -> Tilted:
    """Compute π_old e^x, with x centred under the old policy.

    Z − 1 = Σ π_old (e^x − 1) avoids cancellation for a small log Z. For a large x the probability was tiny, and e^x may
    overflow although their product does not: such states, if there are any, are computed in logarithms.
    """
    xp = e.xp

    def ordinary(q: Vector, log_q: Vector, x: Vector) -> tuple[Vector, PerState, PerState]:
        grown = q * e.expm1(x)
        rise = xp.sum(grown, axis=-1)
        return q + grown, 1.0 + rise, xp.log1p(rise)

    def heavy(q: Vector, log_q: Vector, x: Vector) -> tuple[Vector, PerState, PerState]:
        large = x > LARGE_EXPONENT
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

    return Tilted(*e.branch(x > LARGE_EXPONENT, heavy, ordinary, q, log_q, x))


class Cumulants(NamedTuple):
    """The sum Z of weights, and the first five derivatives of log Z by s: the cumulants of u under them."""

    total: PerState
    k1: PerState
    k2: PerState
    k3: PerState
    k4: PerState
    k5: PerState

    @classmethod
    def of(cls, e: Engine, weight: Vector, u: Vector) -> Cumulants:
        total, *sums = e.power_sums(weight, u, 5)
        m1, m2, m3, m4, m5 = (x / total for x in sums)
        square = m1 * m1
        k2 = m2 - square
        k3 = m3 - m1 * (m2 + 2.0 * k2)
        fourth = m4 - m1 * (4.0 * m3 - m1 * (6.0 * m2 - 3.0 * square))  # central moments
        fifth = m5 - m1 * (5.0 * m4 - m1 * (10.0 * m3 - m1 * (10.0 * m2 - 4.0 * square)))
        return cls(total, m1, k2, k3, fourth - 3.0 * k2 * k2, fifth - 10.0 * k2 * k3)


class Centred(NamedTuple):
    """The old policy on the common support, and u with mean 0 under it."""

    weight: Vector  # of the old policy, not normalised
    change: Vector  # u, 0 outside of the support
    reach: PerState  # max |u|
    total: PerState  # of the weights
    top: PerState  # the logit of weight 1


class Quick(NamedTuple):
    """The inputs of a fifth-order step, for some states."""

    weight: Vector
    u: Vector
    reach: PerState
    room: PerState
    old: Cumulants

    def rows(self, mask: Mask) -> Quick:
        old = Cumulants(*(x[mask] for x in self.old))
        return Quick(self.weight[mask], self.u[mask], self.reach[mask], self.room[mask], old)

    def start(self, e: Engine) -> PerState:
        """Compute s at which the KL's first four terms, ½κ₂s² + ⅓κ₃s³ + ⅛κ₄s⁴ + κ₅s⁵/30, meet the bound; at most 1.

        This is the inverse of √KL as a series, written as a quotient.
        """
        xp = e.xp
        _, _, k2, k3, k4, k5 = self.old
        leading = xp.sqrt(2.0 * self.room / k2)
        k3, k4, k5 = k3 / k2, k4 / k2, k5 / k2
        last = k5 / 30.0 - k3 * (k4 / 6.0 - (4 / 27) * k3 * k3)
        divisor = 1.0 + leading * (k3 / 3.0 + leading * (k4 / 8.0 - k3 * k3 / 6.0 + leading * last))
        s = leading / xp.where((divisor * FAR_START > 1.0) & (divisor < FAR_START), divisor, 1.0)
        return xp.where(s < 1.0, s, 1.0)

    def step(self, e: Engine, s: PerState) -> tuple[PerState, Mask]:
        """Do a fifth-order step, by the inverse of log KL as a function of log s; return s and the mask of convergence.

        For small exponents log Z is integrated from its derivatives at both ends, since the sum of exponentials would
        cancel. Converged states are at s = 1 and inside, or have so short a step that its fifth power is rounding, and
        have no class so heavy that e^x may overflow. Newton's step must be short as well: higher orders might shorten a
        long step by chance.
        """
        xp = e.xp
        x = s[..., None] * self.u
        total, mean, k2, k3, k4, k5 = Cumulants.of(e, e.barrier(self.weight * e.exp(x)), self.u)
        old_total, old1, old2, old3, old4, _ = self.old  # old1 is 0 up to rounding
        integral = s * (
            0.5 * (old1 + mean) + s * (3 / 28 * (old2 - k2) + s * ((old3 + k3) / 84 + s * (old4 - k4) / 1680))
        )
        exponent = s * self.reach
        near = exponent <= SMALL_EXPONENT
        kl = s * mean - xp.where(near, integral, xp.log(total / old_total))
        slope = s * (s * k2)  # of the KL by log s; higher derivatives are multiples of it
        ratio = s / k2
        skew, kurtosis = ratio * k3, ratio * (s * k4)
        second, third = 2.0 + skew, 4.0 + 5.0 * skew + kurtosis
        fourth = 8.0 + 19.0 * skew + 9.0 * kurtosis + ratio * (s * s * k5)
        growth = slope / kl  # of log KL by log s; its derivatives are multiples of it
        bend = second - growth
        twist = third - growth * (3.0 * second - 2.0 * growth)
        warp = fourth - growth * (4.0 * third + 3.0 * second * second - growth * (12.0 * second - 6.0 * growth))
        newton = xp.log(self.room / kl) / growth
        last = bend * (0.625 * bend * bend - (5 / 12) * twist) + warp / 24.0
        step = newton * (1.0 - newton * (0.5 * bend - newton * (0.5 * bend * bend - twist / 6.0 - newton * last)))
        inside = (s == 1.0) & (kl <= self.room)
        following = xp.where(inside, 1.0, s * xp.exp(xp.clip(step, -LONGEST_STEP, LONGEST_STEP)))
        double = xp.finfo(s.dtype).bits == 64
        short, direct = (0.04, 1e-6) if double else (0.3, 1e-3)
        short = short / (2.0 + exponent)  # larger exponents have larger fifth-order errors
        converged = inside | ((xp.abs(newton) <= short) & (following < 1.0) & (mean * mean <= DRIFT * k2))
        trusted = (exponent < LARGE_EXPONENT) & (near | (self.room >= direct))
        return xp.where(following < 1.0, following, xp.where(following >= 1.0, 1.0, s)), converged & trusted


class CategoricalPath:
    """The path between two batches of logits; a class that either policy forbids has probability 0."""

    def __init__(self, e: Engine, predicted: Vector, old: Vector) -> None:
        self.e, self.predicted, self.old = e, predicted, old

    def rows(self, mask: Mask) -> CategoricalPath | None:
        """Return the path of some of the states, if the arrays have one row for each; else None."""
        one_row_each = tuple(self.predicted.shape[:-1]) == tuple(mask.shape) != ()
        if not (self.e.concrete and one_row_each and self.predicted.shape == self.old.shape):
            return None
        return CategoricalPath(self.e, self.predicted[mask], self.old[mask])

    def uncached(self) -> CategoricalPath:
        """Return the same path with empty caches."""
        return CategoricalPath(self.e, self.predicted, self.old)

    @functools.cached_property
    def _difference(self) -> Vector:
        return self.predicted - self.old

    @functools.cached_property
    def _plain(self) -> bool:
        """Whether no class is forbidden and no difference is too large, by one sum of squares."""
        if not self.e.concrete:
            return False
        flat = self._difference.reshape((-1,))
        return float(self.e.vecdot(flat, flat)) <= MAX_LOGIT_DIFFERENCE * MAX_LOGIT_DIFFERENCE

    @functools.cached_property
    def support(self) -> Mask | None:
        """Where neither policy forbids a class, which NaN does not; None if known to be everywhere."""
        if self._plain:
            return None
        return (self.predicted != -math.inf) & (self.old != -math.inf)

    @functools.cached_property
    def _masked(self) -> tuple[PerState | float, Mask | None]:
        """The KL due to the support alone, and the states whose prediction allows a class that the old policy forbids.

        The KL is log(1 + forbidden ÷ supported mass), exactly 0 if both policies forbid the same classes. Computed only
        if some class has no support.
        """
        e, xp, support = self.e, self.e.xp, self.support
        if support is None:
            return 0.0, None

        def costs(predicted: Vector, old: Vector, top: PerState, total: PerState) -> tuple[PerState, Mask]:
            forbidden = xp.where(predicted > -math.inf, 0.0, e.exp(old - top[..., None]))
            lost = xp.where((predicted > -math.inf) & ~(old > -math.inf), 1.0, 0.0)
            return xp.log1p(xp.sum(forbidden, axis=-1) / total), xp.max(lost, axis=-1) > 0.0

        def nothing(predicted: Vector, old: Vector, top: PerState, total: PerState) -> tuple[PerState, Mask]:
            return xp.zeros_like(total), total < 0.0

        _, _, _, total, top = self.centred
        return e.branch(~support, costs, nothing, self.predicted, self.old, top, total)

    @property
    def floor(self) -> PerState | float:
        return self._masked[0]

    @property
    def exceeds_support(self) -> Mask | None:
        return self._masked[1]

    def _supported(self, x: Vector) -> Vector:
        return x if self.support is None else self.e.xp.where(self.support, x, 0.0)

    @functools.cached_property
    def change(self) -> Vector:
        """log π − log π_old up to a constant, 0 outside of the support."""
        if self._plain:
            return self._difference
        return self.e.xp.clip(self._supported(self._difference), -MAX_LOGIT_DIFFERENCE, MAX_LOGIT_DIFFERENCE)

    @functools.cached_property
    def centred(self) -> Centred:
        e, xp = self.e, self.e.xp
        top = _finite_max(e, self.old)
        weight = self._supported(e.exp(self.old - top[..., None]))
        total = xp.sum(weight, axis=-1)
        change, weight = self.change, e.barrier(weight)
        low, high = xp.min(change, axis=-1), xp.max(change, axis=-1)
        mean = e.vecdot(weight, change) / total
        u = e.barrier(self._supported(change - mean[..., None]))
        return Centred(weight, u, xp.maximum(high - mean, mean - low), total, top)

    @functools.cached_property
    def _old(self) -> tuple[Vector, Vector]:
        """π_old and its logarithm on the support; 0 and −inf elsewhere."""
        weight, _, _, total, top = self.centred
        logs = self.old - (top + self.e.xp.log(total))[..., None]
        logs = logs if self.support is None else self.e.xp.where(self.support, logs, -math.inf)
        return weight / total[..., None], logs

    def spread(self, e: Engine) -> PerState:
        weight, u, _, total, *_ = self.centred
        return e.vecdot(weight, u * u) / total

    def guess(self, e: Engine, room: PerState) -> Guess:
        """Take a few fifth-order steps from where the KL's first terms meet the bound."""
        xp = e.xp
        weight, u, reach, *_ = self.centred
        if weight.shape[:-1] != room.shape:  # one old policy for several predictions: the change has more rows
            weight, u = (xp.broadcast_to(x, (*room.shape, u.shape[-1])) for x in (weight, u))
            reach = xp.broadcast_to(reach, room.shape)
        quick = Quick(weight, u, reach, room, Cumulants.of(e, weight, u))
        s, sure = quick.step(e, quick.start(e))

        def again(quick: Quick, s: PerState, sure: Mask) -> tuple[PerState, Mask]:
            def step(s: PerState, sure: Mask) -> tuple[PerState, Mask]:
                following, last = quick.step(e, s)
                return xp.where(sure, s, following), sure | last

            return e.loop(lambda s, sure: ~sure, step, (s, sure), max_steps=QUICK_STEPS - 1)

        if not e.concrete or room.ndim == 0:  # a single state has no rows to select, and in NumPy no array to assign to
            return Guess(*again(quick, s, sure), self.rows, self.uncached)
        left = ~sure
        if e.any(left):
            s[left], sure[left] = again(quick.rows(left), s[left], sure[left])
        return Guess(s, sure, self.rows, self.uncached)

    def along(self, e: Engine, s: PerState) -> tuple[PerState, PerState]:
        u = self.centred.change
        found = tilt(e, *self._old, s[..., None] * u)
        mean = e.vecdot(found.weight, u) / found.total
        about = u - mean[..., None]
        variance = e.vecdot(found.weight, about * about) / found.total
        return e.xp.clip(s * mean - found.log_total, 0.0, None), variance

    @functools.cached_property
    def _surprise(self) -> tuple[Vector, PerState]:
        """log π_old less its mean, 0 outside of the support, and the mean, −H(π_old)."""
        q, log_q = self._old
        log_q = self._supported(log_q)
        mean = self.e.vecdot(q, log_q)
        return self._supported(log_q - mean[..., None]), mean

    def moments(self, e: Engine, s: PerState, tau: PerState) -> Moments:
        change = self.centred.change
        surprise, mean_surprise = self._surprise
        direction = surprise + s[..., None] * change  # w
        x = tau[..., None] * direction - surprise
        found = tilt(e, *self._old, x)

        def mean(y: Vector) -> PerState:
            return e.vecdot(found.weight, y) / found.total

        kl = e.xp.clip(mean(x) - found.log_total, 0.0, None)
        u, w = (y - mean(y)[..., None] for y in (change, direction))
        entropy = -kl - mean(surprise) - mean_surprise
        return Moments(kl + self.floor, entropy, mean(u * u), mean(u * w), mean(w * w))

    def max_tau(self, e: Engine, s: PerState) -> float:
        return math.inf

    def at(self, e: Engine, s: PerState, tau: PerState | None) -> tuple[Vector, ...]:
        between = s[..., None] * self.change
        between += self.old
        if tau is not None:
            between *= tau[..., None]
        return (between if self.support is None else e.xp.where(self.support, between, -math.inf),)

    def linear(self, e: Engine, s: PerState, tau: PerState | None, cotangents: Sequence[Vector]) -> Linear:
        xp = e.xp
        pull = self._supported(cotangents[0])
        change = self.change
        between = s[..., None] * change
        between += self._supported(self.old)
        warmed = between if tau is None else tau[..., None] * between
        if self.support is not None:
            warmed = xp.where(self.support, warmed, -math.inf)
        weight = e.barrier(e.exp(warmed - _finite_max(e, warmed)[..., None]))
        total, along = e.power_sums(weight, change, 1)
        u = change - (along / total)[..., None]
        weighted = weight * u
        w = None if tau is None else between - (e.vecdot(weight, between) / total)[..., None]

        def back(along_path: PerState, along_warmth: PerState, old: bool) -> tuple[tuple, tuple | None]:
            moved = (along_path / total)[..., None] * weighted
            if w is not None:
                moved += (along_warmth / total)[..., None] * (weight * w)
            natural = pull - moved
            if tau is not None:
                natural *= tau[..., None]
            to_predicted = (s[..., None] * natural,)
            if not old:
                return to_predicted, None
            old_weight = e.exp(self.old - _finite_max(e, self.old)[..., None])
            q = old_weight / xp.sum(old_weight, axis=-1)[..., None]
            pressed = (along_path / xp.where(s > 0.0, s, 1.0))[..., None]
            return to_predicted, ((1.0 - s)[..., None] * natural - pressed * (q - weight / total[..., None]),)

        none = 0.0 * s
        if w is None:
            spread, pull_change = e.dots((weighted, u), (pull, change))
            return Linear(spread / total, none, none, pull_change, none, back)
        spread, cross, warmth, pull_change, pull_warmth = e.dots(
            (weighted, u), (weighted, w), (weight * w, w), (pull, change), (pull, between)
        )
        return Linear(spread / total, cross / total, warmth / total, pull_change, pull_warmth, back)


def _finite_max(e: Engine, x: Vector) -> PerState:
    """Return the largest entry of each row, or 0 if that is not finite."""
    top = e.xp.max(x, axis=-1)
    return e.xp.where(e.xp.isfinite(top), top, 0.0)


def log_sum_exp(e: Engine, x: Vector) -> PerState:
    """Compute log Σ eˣ over the last axis; −inf where all entries are."""
    top = e.constant(_finite_max(e, x))
    return top + e.xp.log(e.xp.sum(e.xp.exp(x - top[..., None]), axis=-1))
