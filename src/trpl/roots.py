"""Batched roots of increasing functions: one third-order step from a good start, else a bracketed Newton on (0, 1]."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, PerState

FAST_STEPS = 4
"""Most inputs converge in two steps from a good start; the residual is checked only after these."""
MAX_STEPS = 64
"""Bisection alone would reach rounding by then."""
LARGEST_GROWTH = 0.05
"""Largest logarithmic step that `one_step` takes; the starts in use are within 0.01 of their roots."""


def residual_tolerance(e: Engine, x: PerState) -> float:
    """Return the relative residual of √f from which one more Newton step reaches rounding (the error squares)."""
    return 1e-6 if e.xp.finfo(x.dtype).bits == 64 else 5e-4


def resolved(e: Engine, x: PerState, target: PerState) -> PerState:
    """Return the root x of f(x) = target, NaN where it is so small that the last steps towards it underflow.

    There the precision of the prediction, in units of the old one, is near the dtype's largest number. For a target of
    0, whose root is 0, return a number so small that the projection is the old policy.
    """
    xp = e.xp
    least = float(xp.finfo(x.dtype).smallest_normal) / residual_tolerance(e, x)
    found = x >= least
    return xp.where((target == 0.0) & ~found, least, xp.where(found, x, math.nan))  # a where of two floats is float64


def midpoint(e: Engine, low: PerState, high: PerState) -> PerState:
    """Return the geometric mean of a bracket in [0, 1], or a tenth of `high` if `low` is 0.

    Scaling by powers of two is exact, and the product does not underflow.
    """
    return e.xp.where(low > 0.0, e.xp.sqrt(2.0**120 * low * high) * 2.0**-60, 0.1 * high)


def one_step(
    e: Engine, target: PerState, value: PerState, first: PerState, second: PerState, third: PerState
) -> PerState:
    """Compute the factor on x that solves f(x) = target, from f and its first three derivatives by log x.

    The Taylor series of the inverse to third order, in log f, which is nearly linear for squared distances: an error of
    1e-3 in log x becomes less than 1e-12. The factor is 1 if the step would exceed `LARGEST_GROWTH`, as it does if f is
    only rounding.
    """
    xp = e.xp
    bend = second / first - first / value
    twist = third / first - (3.0 * second - 2.0 * first * first / value) / value
    step = xp.log(target / value) * value / first
    step = step * (1.0 - step * (0.5 * bend - step * (0.5 * bend * bend - twist / 6.0)))
    return xp.where(xp.abs(step) <= LARGEST_GROWTH, xp.exp(step), 1.0)


def increasing_root(
    e: Engine,
    evaluate: Callable[[PerState], tuple[PerState, PerState]],
    target: PerState,
    *,
    start: PerState,
    active: Mask,
) -> PerState:
    """Find x in (0, 1] with f(x) = target for each `active` entry, NaN where it underflows; the others stay at `start`.

    `evaluate(x)` returns f(x) and x·f′(x), f increasing with f(0) < target < f(1). Newton runs on √f − √target, nearly
    linear for squared distances. A few plain steps suffice for most inputs. The others are solved inside a bracket: a
    step that would leave it is replaced by its geometric midpoint, so no start and no curvature can make it stall.
    """
    xp = e.xp
    goal = xp.sqrt(target)
    tolerance = residual_tolerance(e, target) * goal
    newton = functools.partial(_newton, e, evaluate, goal)

    def bare(x: PerState, unfinished: Mask) -> tuple:
        following, missing = newton(x)
        close = (xp.abs(missing) <= tolerance) & (following > 0.0)
        return xp.where(unfinished, following, x), unfinished & ~close

    second, missing = newton(newton(start)[0])
    close = (xp.abs(missing) <= tolerance) & (second > 0.0)  # f may have a second root below 0
    fast, unfinished = xp.where(active, second, start), active & ~close
    if not e.any(unfinished):
        return resolved(e, fast, target)
    fast, unfinished = e.loop(lambda x, left: left, bare, (fast, unfinished), max_steps=FAST_STEPS - 2)
    x = bracketed_root(e, evaluate, target, start=xp.where(unfinished, start, fast), active=unfinished)
    return resolved(e, x, target)


def bracketed_root(
    e: Engine,
    evaluate: Callable[[PerState], tuple[PerState, PerState]],
    target: PerState,
    *,
    start: PerState,
    active: Mask,
    tolerance: float | None = None,
) -> PerState:
    """Find the same root inside a bracket from the first step on: a single call of `evaluate`, for a large one.

    `tolerance` is the relative residual of √f from which one more step is the last.
    """
    xp = e.xp
    goal = xp.sqrt(target)
    enough = (residual_tolerance(e, target) if tolerance is None else tolerance) * goal

    def bracketed(x: PerState, low: PerState, high: PerState, unfinished: Mask) -> tuple:
        following, missing = _newton(e, evaluate, goal, x)
        close, below = xp.abs(missing) <= enough, missing > 0.0
        low, high = xp.where(below, x, low), xp.where(below, high, x)
        inside = close | ((following > low) & (following < high))
        x = xp.where(unfinished, xp.where(inside, following, midpoint(e, low, high)), x)
        return x, low, high, unfinished & ~close

    state = (start, xp.zeros_like(start), xp.ones_like(start), active)
    return e.loop(lambda x, low, high, left: left, bracketed, state, max_steps=MAX_STEPS)[0]


def _newton(
    e: Engine, evaluate: Callable[[PerState], tuple[PerState, PerState]], goal: PerState, x: PerState
) -> tuple[PerState, PerState]:
    """Return the next x, and the residual of √f at this one."""
    value, slope = evaluate(x)
    root = e.xp.sqrt(value)
    missing = goal - root
    return x + 2.0 * x * root * missing / slope, missing
