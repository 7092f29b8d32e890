"""The projection's position on the path: s from the KL bound, τ from the entropy.

For given s the entropy falls with τ, and at the τ that meets it dKL/ds = τs(V − X²/W) ≥ 0: both are roots of monotone
functions, found by bracketing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from trpl.natural.path import Linear, Moments, Path
from trpl.roots import bracketed_root

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, PerState

TINY = 1e-30  # floor of denominators, and lower end of the bracket of s
MAX_TAU_STEPS = 80
ENTROPY_MET = 1e-9  # relative to 1 + |β|: tolerance within which the entropy counts as met
JOINT_TOLERANCE = 1e-8  # of √KL, before the last step: its slope jumps where the entropy becomes active
MIN_SLOPE = 1e-6  # lower limit of the slope of the KL by log s, relative to the KL
BEFORE_A_JUMP = 0.99  # of s where two classes tie: sharpened, all probability is on one before, on the other after
MAX_LOG_TAU_STEP = 2.0  # largest step in log τ without a bracket
MIN_LOG_TAU, MAX_LOG_TAU = -60.0, math.log(1e4)  # everything is uniform below; above, two classes nearly tie
UNIFORM = 1e-20  # θᵀFθ below which a policy counts as uniform


Held: TypeAlias = Literal["free", "minimum", "equal"]
"""A joint projection's constraint on the entropy: none, H ≥ β, or H = β."""


class Entropy(NamedTuple):
    """The target β of each state, and whether it is an equality or a lower bound."""

    target: PerState
    equality: bool


class Place(NamedTuple):
    """A position on the path: s, τ (None without an entropy target), and the masks of active bounds and entropies."""

    s: PerState
    tau: PerState | None
    outside: Mask
    held: Mask | None

    @property
    def moved(self) -> Mask:
        """The mask of states that differ from the prediction."""
        return self.outside if self.held is None else self.outside | self.held


def find(e: Engine, path: Path, bound: PerState, entropy: Entropy | None = None) -> Place:
    """Find the position of the projection: s = τ = 1 where the prediction is inside and meets the entropy."""
    return _bound_alone(e, path, bound) if entropy is None else _with_entropy(e, path, bound, entropy)


def _bound_alone(e: Engine, path: Path, bound: PerState) -> Place:
    xp = e.xp
    room = bound - path.floor
    one = xp.ones_like(room)
    reachable, unreached = room > 0.0, _unreached(e, room)
    room = xp.where(reachable, room, one)
    guess = path.guess(e, room)
    if guess is None:
        s = _search(e, path, room, one > 0.0)
    else:

        def search(s: PerState, unsure: Mask) -> PerState:
            some = guess.rows(unsure)
            if some is None:
                return xp.where(unsure, _search(e, guess.uncached(), room, unsure), s)
            s[unsure] = _search(e, some, room[unsure], unsure[unsure])
            return s

        unsure = ~guess.sure
        s = e.branch(unsure, search, lambda s, _: s, guess.s, unsure)
    s = xp.where(reachable, s, unreached)
    return Place(s, None, ~(s >= 1.0), None)  # NaN counts as outside, and gives NaN


def _unreached(e: Engine, room: PerState) -> PerState:
    """Return s where no s > 0 is within the bound: 0, the old policy; NaN for a NaN bound."""
    return e.xp.where(room <= 0.0, e.xp.zeros_like(room), room)


def _search(e: Engine, path: Path, room: PerState, wanted: Mask) -> PerState:
    """Find s at which the KL less its floor is `room`, 1 inside, for the states `wanted`."""
    xp = e.xp
    one = xp.ones_like(room)
    active = wanted & ~(path.along(e, one)[0] <= room)
    if not e.any(active):
        return one
    start = xp.clip(xp.sqrt(2.0 * room / xp.clip(path.spread(e), TINY, None)), TINY, 1.0)

    def evaluate(s: PerState) -> tuple[PerState, PerState]:
        kl, change = path.along(e, s)
        return kl, s * s * change

    root = bracketed_root(e, evaluate, room, start=start, active=active)
    return xp.where(active, xp.clip(root, 0.0, 1.0), one)


def _with_entropy(e: Engine, path: Path, bound: PerState, entropy: Entropy) -> Place:
    xp = e.xp
    one = xp.ones_like(bound)
    ends = xp.stack([0.0 * one, one])  # both at once: the path and the target have the batch's axes
    at_ends = path.moments(e, ends, xp.ones_like(ends))  # also fills the path's caches outside of the loops
    hottest = _hottest(e, at_ends)
    tau_ends = find_tau(e, path, ends, entropy, xp.ones_like(ends), hottest)
    found = path.moments(e, ends, tau_ends)
    least, change = found.kl[0], found.change[0]
    room = bound - least
    outside = ~(found.kl[1] <= bound)
    active = outside & (room > 0.0)
    log_first, log_last = xp.log(tau_ends)

    def at(s: PerState) -> tuple[PerState, Moments, Mask]:
        """Compute τ, the moments there, and the mask where it meets the entropy."""
        tau = find_tau(e, path, s, entropy, xp.exp((1.0 - s) * log_first + s * log_last), hottest)
        found = path.moments(e, s, tau)
        missing = xp.abs(found.entropy - entropy.target)
        return tau, found, (tau != 1.0) & ~(missing > entropy_tolerance(e, s) * (1.0 + xp.abs(entropy.target)))

    def evaluate(s: PerState) -> tuple[PerState, PerState]:
        tau, found, held = at(s)
        kl = xp.clip(found.kl - least, 0.0, None)
        lost = found.cross * found.cross / xp.where(found.warmth > 0.0, found.warmth, one)
        slope = tau * s * xp.where(held, s * (found.change - lost), s * found.change + (tau - 1.0) * found.cross)
        return kl, xp.maximum(slope, MIN_SLOPE * kl)

    start = xp.sqrt(2.0 * xp.where(active, room, one) / xp.clip(change, TINY, None))
    start = xp.clip(start, TINY, 1.0)
    near = JOINT_TOLERANCE if xp.finfo(bound.dtype).bits == 64 else None
    root = bracketed_root(e, evaluate, xp.where(active, room, one), start=start, active=active, tolerance=near)
    s = xp.where(outside, xp.where(active, xp.clip(root, 0.0, 1.0), _unreached(e, room)), one)
    tau, _, held = at(s)
    if entropy.equality:  # if the KL jumps over the bound, stop before the jump, where the entropy is met
        jumps = active & ~held
        s = xp.where(jumps, BEFORE_A_JUMP * s, s)
        tau, _, held = at(s)
        outside = outside & ~(jumps & held)
    return Place(s, tau, outside, held)


def _hottest(e: Engine, ends: Moments) -> PerState:
    """Return the largest log τ, from the moments at τ = 1 of both ends of the path.

    τ is relative to the size of θ: a nearly uniform policy needs a power as large as its logits are small.
    """
    size = e.xp.max(ends.warmth, axis=0)
    small = (size > UNIFORM) & (size < 1.0)
    return MAX_LOG_TAU - 0.5 * e.xp.log(e.xp.where(small, size, 1.0))


def find_tau(
    e: Engine, path: Path, s: PerState, entropy: Entropy, start: PerState, hottest: PerState | float
) -> PerState:
    """Find τ at which the entropy is β; for a lower bound exactly 1 where the entropy at 1 exceeds β.

    Newton on log τ, d H/d log τ = −τ²W, inside a bracket whose upper end is at most `hottest`.
    """
    xp = e.xp
    one = xp.ones_like(s)
    tolerance = 1e-7 if xp.finfo(s.dtype).bits == 64 else 1e-4
    unheld = (one < 0.0) if entropy.equality else path.moments(e, s, one).entropy >= entropy.target
    hot = xp.minimum(xp.log(path.max_tau(e, s) * one), hottest * one) if entropy.equality else 0.0 * one
    cold = MIN_LOG_TAU * one

    def body(
        log_tau: PerState, low: PerState, high: PerState, unfinished: Mask
    ) -> tuple[PerState, PerState, PerState, Mask]:
        tau = xp.exp(log_tau)
        found = path.moments(e, s, tau)
        excess = found.entropy - entropy.target
        slope = tau * tau * found.warmth
        step = excess / xp.where(slope > 0.0, slope, one)
        low = xp.where(unfinished & (excess >= 0.0), log_tau, low)  # too much entropy: τ must grow
        high = xp.where(unfinished & (excess < 0.0), log_tau, high)
        following = log_tau + step
        inside = (slope > 0.0) & (following > low) & (following < high) & (xp.abs(step) <= MAX_LOG_TAU_STEP)
        stuck = xp.abs(high - low) <= tolerance * tolerance
        done = (inside & (xp.abs(step) <= tolerance)) | (excess == 0.0)
        toward = xp.clip(xp.where(excess >= 0.0, log_tau + MAX_LOG_TAU_STEP, log_tau - MAX_LOG_TAU_STEP), low, high)
        nearer = 0.5 * (log_tau + xp.where(excess >= 0.0, high, low))
        middle = xp.where(excess >= 0.0, xp.minimum(toward, nearer), xp.maximum(toward, nearer))
        log_tau = xp.where(unfinished, xp.where(excess == 0.0, log_tau, xp.where(inside, following, middle)), log_tau)
        return log_tau, low, high, unfinished & ~done & ~stuck

    state = (xp.clip(xp.log(start), None, 0.0) if not entropy.equality else xp.log(start), cold, hot, ~unheld)
    state = e.loop(lambda *now: now[-1], body, state, max_steps=MAX_TAU_STEPS)
    found = xp.where(entropy.target == entropy.target, xp.exp(state[0]), math.nan)
    return xp.where(unheld, one, found)


def entropy_tolerance(e: Engine, like: PerState) -> float:
    """Return the tolerance within which an entropy β counts as met, relative to 1 + |β|."""
    return ENTROPY_MET if e.xp.finfo(like.dtype).bits == 64 else 1e5 * ENTROPY_MET


class Shares(NamedTuple):
    """The parts of a cotangent along the path (c₂) and along τ (c₁), and the cotangents of bound and entropy target."""

    along_path: PerState
    along_warmth: PerState
    bound: PerState
    entropy: PerState


def shares(e: Engine, place: Place, linear: Linear) -> Shares:
    """Differentiate s and τ implicitly: the solution stays on the active constraints.

    τX ds + W dτ = −dβ/τ − wᵀFe and τV ds + X dτ = (dε + (1 − 1/τ) dβ − (μ_old − μ̃)ᵀdθ_old)/s − ΔᵀFe, with
    e = τ((1 − s) dθ_old + s dθ) the change at fixed s and τ; one of them alone if only one constraint is active. Where
    τ is at its limit and constant, only s moves: τ(sV + (τ − 1)X) ds = dε − ….
    """
    xp = e.xp
    v, pull_v = linear.change, linear.pull_change
    s = xp.where(place.s > 0.0, place.s, 1.0)
    active = place.outside & (place.s > 0.0)
    if place.tau is None or place.held is None:
        alone = _quotient(e, pull_v, v, active)
        return Shares(alone, 0.0 * s, alone / s, 0.0 * s)
    x, w, pull_w, tau = linear.cross, linear.warmth, linear.pull_warmth, place.tau
    determinant = v * w - x * x
    independent = determinant > 1e-12 * v * w  # a family of one dimension cannot meet two constraints
    both = place.held & active & independent
    path_alone = _quotient(e, pull_v * s, s * v + (tau - 1.0) * x, active & ~both)
    along_path = xp.where(both, _quotient(e, w * pull_v - x * pull_w, determinant, both), path_alone)
    warmth_alone = _quotient(e, pull_w, w, place.held & ~active)
    along_warmth = xp.where(
        both,
        _quotient(e, v * pull_w - x * pull_v, determinant, both),
        warmth_alone + path_alone * (tau - 1.0) / s,
    )
    target = (tau - 1.0) / (tau * s) * along_path - along_warmth / tau
    return Shares(along_path, along_warmth, along_path / s, xp.where(place.held & ~(active & ~both), target, 0.0))


def _quotient(e: Engine, x: PerState, y: PerState, where: Mask) -> PerState:
    """Compute x/y in the mask, and 0 elsewhere or where y is 0."""
    sound = where & (y != 0.0)
    return e.xp.where(sound, x / e.xp.where(sound, y, 1.0), 0.0)
