"""Scalar functions without the cancellation of the textbook formulas, and the gamma function's family.

The gamma functions are written once, for every engine: arguments below 8 are shifted up by Γ(x + 1) = x Γ(x); above,
the error of Stirling's series is below one rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask

SHIFT = 8
"""From here Stirling's series with the coefficients below is exact to rounding."""
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
"""B₂ₖ/(2k(2k − 1)): J(x) = Σ cₖ x^(1 − 2k) is log Γ(x) − (x − ½) log x + x − ½ log 2π."""
ATANH_TERMS = 9


def log1p_excess(e: Engine, r: Array, log: Array) -> Array:
    """Compute r − log(1 + r) ≥ 0 to full relative precision; `log` is log(1 + r) to the caller's precision.

    Where r is small: with z = r/(2 + r), log(1 + r) = 2 artanh z and r − 2z = r²/(2 + r).
    """
    small = (r > -1 / 3) & (r < 0.5)
    r_small = e.xp.where(small, r, 0.0 * r)
    z = r_small / (2.0 + r_small)
    square = z * z
    series = 0.0 * z
    for k in range(ATANH_TERMS, 0, -1):
        series = series * square + 1.0 / (2 * k + 1)
    return e.xp.where(small, r_small * z - 2.0 * z * square * series, r - log)


def softplus_difference(e: Engine, x: Array, y: Array) -> Array:
    """Compute log(1 + eˣ) − log(1 + eʸ); for close x and y as ∓log(1 − σ(larger)(1 − e^−|x − y|))."""
    xp = e.xp
    larger, gap = xp.maximum(x, y), xp.abs(x - y)
    near = gap < 1.0
    shrunk = xp.expm1(-xp.where(near, gap, 0.0 * gap))
    close = -xp.log1p(sigmoid(e, larger) * shrunk)
    return xp.where(near, xp.where(x >= y, close, -close), softplus(e, x) - softplus(e, y))


def softplus(e: Engine, x: Array) -> Array:
    """Compute log(1 + eˣ)."""
    return e.xp.clip(x, 0.0, None) + e.xp.log1p(e.xp.exp(-e.xp.abs(x)))


def sigmoid(e: Engine, x: Array) -> Array:
    """Compute 1/(1 + e⁻ˣ), precise near 0 and near 1."""
    small = e.xp.exp(-e.xp.abs(x))
    return e.xp.where(x >= 0.0, 1.0 + 0.0 * small, small) / (1.0 + small)


def _stirling(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Compute Σ cₖ x^(1 − 2k)."""
    inverse = 1.0 / x
    square = inverse * inverse
    total = coefficients[-1] + 0.0 * x
    for c in coefficients[-2::-1]:
        total = total * square + c
    return total * inverse


J_SLOPE = tuple(-(2 * k + 1) * c for k, c in enumerate(STIRLING))
J_CURVE = tuple(-(2 * k + 2) * c for k, c in enumerate(J_SLOPE))


def j_value(x: Array) -> Array:
    """Compute J(x), the rest of Stirling's formula, for x ≥ 8."""
    return _stirling(x, STIRLING)


def j_slope(x: Array) -> Array:
    """Compute J′(x) for x ≥ 8."""
    return _stirling(x, J_SLOPE) / x


def _lifted(e: Engine, x: Array) -> tuple[Array, Mask]:
    """Return x, or x + 8 where it is below 8, and the mask of the latter."""
    low = x < SHIFT
    return e.xp.where(low, x + SHIFT, x), low


def gamma_rest(e: Engine, x: Array) -> Array:
    """Compute R(x) = log Γ(x) − x log x + x, without cancellation of large terms."""
    xp = e.xp
    lifted, low = _lifted(e, x)
    rest = -0.5 * xp.log(lifted) + 0.5 * math.log(2.0 * math.pi) + j_value(lifted)
    small = xp.where(low, x, 1.0 + 0.0 * x)
    product = small
    for i in range(1, SHIFT):
        product = product * (small + i)
    moved = SHIFT * (xp.log(small + SHIFT) - 1.0) + small * xp.log1p(SHIFT / small) - xp.log(product)
    return rest + xp.where(low, moved, 0.0 * x)


def digamma_rest(e: Engine, x: Array) -> Array:
    """Compute ρ(x) = ψ(x) − log x < 0."""
    xp = e.xp
    lifted, low = _lifted(e, x)
    rest = -0.5 / lifted + j_slope(lifted)
    small = xp.where(low, x, 1.0 + 0.0 * x)
    moved = xp.log1p(SHIFT / small)
    for i in range(SHIFT):
        moved = moved - 1.0 / (small + i)
    return rest + xp.where(low, moved, 0.0 * x)


def trigamma_rest(e: Engine, x: Array) -> Array:
    """Compute ψ′(x) − 1/x > 0."""
    xp = e.xp
    lifted, low = _lifted(e, x)
    rest = 0.5 / (lifted * lifted) + _stirling(lifted, J_CURVE) / (lifted * lifted)
    small = xp.where(low, x, 1.0 + 0.0 * x)
    moved = 1.0 / (small + SHIFT) - 1.0 / small
    for i in range(SHIFT):
        term = 1.0 / (small + i)
        moved = moved + term * term
    return rest + xp.where(low, moved, 0.0 * x)


def gamma_rest_bregman(e: Engine, x: Array, y: Array, change: Array) -> Array:
    """Compute R(y) − R(x) − R′(x)(y − x), `change` = y − x, from squares and logarithms of ratios.

    No large terms cancel, also for y near x.

    With r = (y − x)/x, the term −½ log x gives ½(r − log(1 + r)) and each factor 1/(x + i) of a lifted gamma function
    r_i − log(1 + r_i), r_i = (y − x)/(x + i). Lifting x log x by n leaves n l_n − y(l_0 − l_n),
    l_n = log (y + n)/(x + n).
    """
    xp = e.xp
    low = (x < SHIFT) | (y < SHIFT)
    lower, one = xp.minimum(x, y), xp.ones_like(change)  # a where of two numbers has the framework's default dtype
    grows = xp.where(change >= 0.0, one, -one)

    def excess(x: Array, lower: Array, change: Array, grows: Array) -> tuple[Array, Array]:
        log = grows * xp.log1p(grows * change / lower)  # of y + n itself the change would be rounded off
        return log1p_excess(e, change / x, log), log

    shift = xp.where(low, SHIFT + 0.0 * x, 0.0 * x)
    above = x + shift
    half, log_above = excess(above, lower + shift, change, grows)
    rest = 0.5 * half + (j_value(y + shift) - j_value(above) - j_slope(above) * change)

    def moved() -> Array:
        steps = e.asarray(np.arange(SHIFT), x)  # one call for all of them, on a new last axis
        wide = [z[..., None] for z in (x, lower, change, grows)]
        found, logs = excess(wide[0] + steps, wide[1] + steps, wide[2], wide[3])
        return xp.sum(found, axis=-1) + SHIFT * log_above - y * (logs[..., 0] - log_above)

    return rest + xp.where(low, moved(), 0.0 * x) if e.any(low) else rest
