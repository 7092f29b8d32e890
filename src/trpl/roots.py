"""Batched, bracketed Newton for increasing functions on (0, 1]; knows no Gaussians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trpl.backend import namespace, while_loop

Array = Any

FAST_STEPS = 4  # ordinary inputs need three
MAX_STEPS = 64  # bisection alone would be down to rounding by then
MAX_STEPS_COMPILED = 24  # every step is made there; the slowest of millions of hard cases took 14


def residual_tolerance(x: Array) -> float:
    """Relative residual from which one more Newton step ends at rounding (the error squares)."""
    return 1e-6 if namespace(x).finfo(x.dtype).bits == 64 else 1e-3


def increasing_root(
    evaluate: Callable[[Array], tuple[Array, Array]], target: Array, *, start: Array, active: Array
) -> Array:
    """x in (0, 1] with f(x) = target, for each entry that is `active`; the others stay at `start` and take no part.

    `evaluate(x)` gives f(x) and x·f′(x), f increasing with f(0) < target < f(1). Newton runs on √f − √target, nearly a straight line
    for distances, which are squares of something. A few bare steps do for ordinary inputs. What they leave is solved inside a
    bracket: a step that would leave it is replaced by its middle, on a logarithmic scale, so no start and no curvature can make it
    stall.
    """
    xp = namespace(target)
    tolerance = residual_tolerance(target) * target

    def newton(x: Array) -> tuple[Array, Array, Array]:
        """The next x, f(x), and whether x was so close that the next is a root to rounding."""
        value, slope = evaluate(x)
        following = x - x * (2.0 * (value - xp.sqrt(value * target)) / slope)
        return following, value, (xp.abs(value - target) <= tolerance) & (following <= 1.0)

    def bare(state: tuple) -> tuple:
        x, unfinished = state
        following, _, close = newton(x)
        return xp.where(unfinished, following, x), unfinished & ~close

    def bracketed(state: tuple) -> tuple:
        x, low, high, unfinished = state
        following, value, close = newton(x)
        below = value < target
        low, high = xp.where(below, x, low), xp.where(below, high, x)
        middle = xp.where(low > 0.0, xp.sqrt(low * high), 0.1 * high)
        inside = close | ((following > low) & (following < high))
        x = xp.where(unfinished, xp.where(inside, following, middle), x)
        return x, low, high, unfinished & ~close

    fast, unfinished = while_loop(
        lambda state: state[1], bare, (start, active), max_steps=FAST_STEPS, max_steps_compiled=FAST_STEPS
    )
    state = (xp.where(unfinished, start, fast), xp.zeros_like(start), xp.ones_like(start), unfinished)
    return while_loop(
        lambda state: state[3], bracketed, state, max_steps=MAX_STEPS, max_steps_compiled=MAX_STEPS_COMPILED
    )[0]
