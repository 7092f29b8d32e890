"""The path between two products of Beta distributions: interpolated α and β.

log B(α, β) = log Γ(α) + log Γ(β) − log Γ(α + β), with log Γ(x) = x log x − x + R(x): the first terms of the three make
(α + β) times a KL of two Bernoullis, and the R have no large terms, so a KL of α, β = 10⁶ does not cancel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trpl.natural.path import FullSupport, Linear, Moments, Pulled
from trpl.special import digamma_rest, gamma_rest, gamma_rest_bregman, log1p_excess, trigamma_rest

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array


class Shape(NamedTuple):
    """α and β of each component, or a direction in their space."""

    alpha: Array
    beta: Array

    @property
    def total(self) -> Array:
        return self.alpha + self.beta

    def three(self, e: Engine) -> Array:
        """Stack α, β and α + β on a new last axis, to evaluate a function of all three in one call."""
        return e.xp.stack(e.xp.broadcast_arrays(self.alpha, self.beta, self.total), axis=-1)

    def plus(self, other: Shape, factor: Array | float = 1.0) -> Shape:
        return Shape(self.alpha + factor * other.alpha, self.beta + factor * other.beta)

    def times(self, factor: Array | float) -> Shape:
        return Shape(factor * self.alpha, factor * self.beta)


def beta_kl(e: Engine, p: Shape, q: Shape, change: Shape | None = None) -> Array:
    """Compute KL(p‖q) of Beta distributions, componentwise; `change` is q − p, if known more precisely.

    The Bregman divergence of log B: S_q KL(m_q‖m_p) of the means m = α/S, and R's Bregman divergences.
    """
    xp = e.xp
    change = Shape(q.alpha - p.alpha, q.beta - p.beta) if change is None else change
    turned = change.alpha * p.beta - change.beta * p.alpha  # (m_q − m_p) S_q S_p

    def term(own: Array, part: Array, sign: float) -> Array:
        """Compute S_q m_q log m_q/m_p − S_q (m_q − m_p) for one outcome, as S_q m_p ((1 + r) log(1 + r) − r)."""
        r = sign * turned / (q.total * part)
        grown = xp.clip(own / q.total * (p.total / part), 0.0, None)  # 1 + r, where r is near −1
        log = xp.where(r > -0.5, xp.log1p(xp.where(r > -0.5, r, 0.0)), xp.log(xp.where(r > -0.5, 1.0, grown)))
        excess = log1p_excess(e, r, log)  # r − log(1 + r)
        return q.total * (part / p.total) * xp.where(r > -0.5, r * r - (1.0 + r) * excess, grown * log - r)

    mean = term(q.alpha, p.alpha, 1.0) + term(q.beta, p.beta, -1.0)
    rest = gamma_rest_bregman(e, p.three(e), q.three(e), change.three(e))
    return xp.clip(mean + (rest[..., 0] + rest[..., 1] - rest[..., 2]), 0.0, None)


def beta_entropy(e: Engine, p: Shape) -> Array:
    """Compute log B − (α − 1)ψ(α) − (β − 1)ψ(β) + (α + β − 2)ψ(α + β), with the large logarithms cancelled."""
    three = p.three(e)
    digammas = digamma_rest(e, three)
    logs = e.xp.log(three)
    own = gamma_rest(e, three) - three * digammas + (digammas + logs)  # digammas + logs are ψ
    return own[..., 0] + own[..., 1] - own[..., 2] - (digammas[..., 2] + logs[..., 2])


class Curvature(NamedTuple):
    """F = ∇² log B as a bilinear form: ψ′ = 1/x + rest, and the 1/x of the three combine to a square."""

    shape: Shape
    rest: Shape
    rest_total: Array

    @classmethod
    def of(cls, e: Engine, p: Shape) -> Curvature:
        rest = trigamma_rest(e, p.three(e))
        return cls(p, Shape(rest[..., 0], rest[..., 1]), rest[..., 2])

    def apply(self, d: Shape) -> Shape:
        """Compute F d."""
        a, b = self.shape
        turned = (d.alpha * b - d.beta * a) / self.shape.total
        common = self.rest_total * d.total
        return Shape(turned / a + self.rest.alpha * d.alpha - common, -turned / b + self.rest.beta * d.beta - common)

    def product(self, c: Shape, d: Shape) -> Array:
        """Compute cᵀF d."""
        a, b = self.shape
        square = (c.alpha * b - c.beta * a) / a * ((d.alpha * b - d.beta * a) / b) / self.shape.total
        rest = self.rest.alpha * c.alpha * d.alpha + self.rest.beta * c.beta * d.beta
        return square + (rest - self.rest_total * c.total * d.total)


def mean_statistics(e: Engine, change: Shape, p: Shape, q: Shape) -> Shape:
    """Compute μ_q − μ_p of log x and log(1 − x), ψ(α) − ψ(α + β) and ψ(β) − ψ(α + β)."""

    def rise(x: Array, y: Array, step: Array) -> Array:
        above = step >= 0.0
        one = e.xp.ones_like(step)
        sign = e.xp.where(above, one, -one)
        log = sign * e.xp.log1p(sign * step / e.xp.where(above, x, y))
        return log + digamma_rest(e, y) - digamma_rest(e, x)

    common = rise(p.total, q.total, change.total)
    return Shape(rise(p.alpha, q.alpha, change.alpha) - common, rise(p.beta, q.beta, change.beta) - common)


@dataclass(frozen=True)
class BetaPath(FullSupport):
    """The path between two batches of shapes; θ = (α − 1, β − 1), so that the entropy is A(θ) − θᵀμ."""

    predicted: Shape
    old: Shape

    def _change(self) -> Shape:
        return self.predicted.plus(self.old, -1.0)

    def _policy(self, s: Array, tau: Array | None) -> tuple[Shape, Shape]:
        """Return the shapes at (s, τ), and their difference from the old ones."""
        step = self._change().times(s[..., None])
        if tau is not None:  # θ̃ − θ_old = τsΔ + (τ − 1)θ_old
            t = tau[..., None]
            step = Shape(
                t * step.alpha + (t - 1.0) * (self.old.alpha - 1.0), t * step.beta + (t - 1.0) * (self.old.beta - 1.0)
            )
        return self.old.plus(step), step

    def _direction(self, s: Array) -> Shape:
        """Compute w = θ_old + sΔ."""
        between = self.old.plus(self._change(), s[..., None])
        return Shape(between.alpha - 1.0, between.beta - 1.0)

    def spread(self, e: Engine) -> Array:
        change = self._change()
        return e.xp.sum(Curvature.of(e, self.old).product(change, change), axis=-1)

    def along(self, e: Engine, s: Array) -> tuple[Array, Array]:
        between, step = self._policy(s, None)
        change = self._change()
        kl = beta_kl(e, between, self.old, Shape(-step.alpha, -step.beta))
        return e.xp.sum(kl, axis=-1), e.xp.sum(Curvature.of(e, between).product(change, change), axis=-1)

    def moments(self, e: Engine, s: Array, tau: Array) -> Moments:
        p, step = self._policy(s, tau)
        u, w, f = self._change(), self._direction(s), Curvature.of(e, p)
        total = functools.partial(e.xp.sum, axis=-1)
        return Moments(
            total(beta_kl(e, p, self.old, Shape(-step.alpha, -step.beta))),
            total(beta_entropy(e, p)),
            total(f.product(u, u)),
            total(f.product(u, w)),
            total(f.product(w, w)),
        )

    def max_tau(self, e: Engine, s: Array) -> Array:
        """Bound τ so that α̃ = 1 + τw stays positive."""
        w = self._direction(s)
        lowest = e.xp.min(e.xp.minimum(w.alpha, w.beta), axis=-1)
        return e.xp.where(lowest < 0.0, -1.0 / e.xp.where(lowest < 0.0, lowest, -1.0), math.inf)

    def at(self, e: Engine, s: Array, tau: Array | None) -> tuple[Array, ...]:
        return tuple(self._policy(s, tau)[0])

    def linear(self, e: Engine, s: Array, tau: Array | None, cotangents: Sequence[Array]) -> Linear:
        p, step = self._policy(s, tau)
        u, w, f = self._change(), self._direction(s), Curvature.of(e, p)
        pull = Shape(*cotangents)
        warmed, total = 1.0 if tau is None else tau[..., None], functools.partial(e.xp.sum, axis=-1)

        def dot(d: Shape) -> Array:
            return total(pull.alpha * d.alpha + pull.beta * d.beta)

        def back(along_path: Array, along_warmth: Array, old: bool) -> Pulled:
            moved = f.apply(u.times(along_path[..., None]).plus(w.times(along_warmth[..., None])))
            natural = pull.plus(moved, -1.0).times(warmed)
            if not old:
                return tuple(natural.times(s[..., None])), None
            rise = mean_statistics(e, Shape(-step.alpha, -step.beta), p, self.old)
            pressed = (along_path / e.xp.where(s > 0.0, s, 1.0))[..., None]
            to_old = natural.times((1.0 - s)[..., None]).plus(rise, -pressed)
            return tuple(natural.times(s[..., None])), tuple(to_old)

        return Linear(total(f.product(u, u)), total(f.product(u, w)), total(f.product(w, w)), dot(u), dot(w), back)
