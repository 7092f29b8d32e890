"""The equation of the KL projection, and its roots.

Whitened by the old policy, with V = L_p⁻¹L_q and A = VᵀV − I (predicted precision minus old), the projected precision
is P(x) = I + xA, x = 1/(1 + η) in (0, 1], and the constraint a sum over the eigenvalues a of A, u = xa:

    KL(x) = ½ Σ (log(1 + u) − u/(1 + u)) = ε,    x KL′(x) = ½ Σ (u/(1 + u))².

For |u| < 1 it is a power series in the traces of the powers of A,

    2 KL(x) = Σ_k (−1)^k (k − 1)/k · tr(A^k) x^k,    k = 2, 3, …

and within a bound ε no |u| exceeds about 2√ε, whatever A. For ε ≤ 0.005 eight traces, from three matrix products, and
an extrapolation of the next four replace the eigenvalues, at less than half their cost.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from trpl.engines import mT
from trpl.linalg import total
from trpl.roots import increasing_root, one_step, resolved

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, Matrix, PerState, Vector

LARGEST_NARROW = 0.005
"""|u| < 0.15 there: truncating the series costs at most 4e-6 of the KL, and half of that in x."""


# The terms -----------------------------------------------------------------------------------------------------------


def diag_excess(p: Vector, q: Vector) -> Vector:
    """Compute A = q²/p² − 1 for standard deviations, from their difference to avoid cancellation."""
    change = (q - p) / p
    return change * (change + 2.0)


def excess_of_change(e: Engine, change: Matrix) -> Matrix:
    """Compute A = VᵀV − I = EᵀE + E + Eᵀ from E = V − I."""
    excess = e.gram(change)
    excess += change  # in place: the array is new, large, and in the cache
    excess += mT(change)
    return excess


def singular_excess(e: Engine, change: Matrix) -> Vector:
    """Compute the eigenvalues of A from E = V − I: (σ − 1)(σ + 1) with the singular values σ of V."""
    singular = e.svdvals(e.eye(change) + change)
    return (singular - 1.0) * (singular + 1.0)


def twice_kl(e: Engine, u: Vector, ratio: Vector) -> PerState:
    """Compute 2 KL from u and u/(1 + u); `log1p` avoids cancellation for small u."""
    return e.xp.sum(e.xp.log1p(u) - ratio, axis=-1)


def twice_kl_of_excess(e: Engine, u: Vector) -> tuple[PerState, PerState]:
    """Compute 2 KL and its derivative by log x, from the eigenvalues u of xA."""
    ratio = u / (1.0 + u)
    return twice_kl(e, u, ratio), e.vecdot(ratio, ratio)


def within(e: Engine, excess: Vector, bound: PerState) -> Mask:
    """Return the mask of diagonal covariances within ε, by the function whose root is sought.

    For a prediction so wide that 1 + a rounds to 0 the KL is NaN, which counts as outside.
    """
    return twice_kl(e, excess, excess / (1.0 + excess)) <= 2.0 * bound


def surely_within(e: Engine, excess: Vector, bound: PerState) -> Mask:
    """Return the mask where 2 KL ≤ Σ a²/(1 + a) ≤ 2ε: a cheap sufficient test, without a logarithm."""
    return e.vecdot(excess, excess / (1.0 + excess)) <= 2.0 * bound


def kl_range(e: Engine, size: PerState) -> tuple[PerState, PerState]:
    """Bound 2 KL from n = ‖A‖ alone: log(1 + n) − n/(1 + n) ≤ 2 KL ≤ log(1 − n) + n/(1 − n), which is NaN for n ≥ 1.

    A summand log(1 + a) − a/(1 + a) is at least that of |a|, a concave function of a², and at most that of −|a|, a
    convex one. Both are 0 at 0, so that one eigenvalue with all of ‖A‖² is the extreme case of either.
    """
    log1p = e.xp.log1p
    return log1p(size) - size / (1.0 + size), log1p(-size) + size / (1.0 - size)


# Starts --------------------------------------------------------------------------------------------------------------


def corrections(two: PerState, three: PerState, four: PerState) -> tuple[PerState, PerState]:
    """Compute the relative shifts of the root due to the second and the third term of the series.

    `two`, `three`, `four` are Σu², Σu³, Σu⁴ at the root of the first term alone.
    """
    second = (2.0 / 3.0) * three / two
    return second, 2.5 * second * second - 0.75 * four / two


def _power_sums(e: Engine, u: Vector) -> tuple[PerState, PerState, PerState]:
    """Compute Σu², Σu³ and Σu⁴."""
    squares = u * u
    return e.vecdot(u, u), e.vecdot(squares, u), e.vecdot(squares, squares)


def _from_one_term(e: Engine, eigenvalues: Vector, bound: PerState) -> tuple[PerState, Vector]:
    """Compute x and u = xa from the series' first term alone, KL ≈ ¼ x²‖a‖².

    Dividing by the sum of all |a| keeps powers from overflowing, even in float32. Equal policies give NaN here; they
    are never outside.
    """
    xp = e.xp
    unit = xp.sum(xp.abs(eigenvalues), axis=-1)
    share = eigenvalues / unit[..., None]
    size = 2.0 * xp.sqrt(bound / e.vecdot(share, share))
    return size / unit, size[..., None] * share


def _start(e: Engine, eigenvalues: Vector, bound: PerState) -> PerState:
    """Estimate x, at most what the smallest eigenvalue alone allows.

    The estimate is from two terms of the series, with an exponential that keeps their sum positive. For one eigenvalue
    a < 0 the root is a Lambert W, bounded by −u/(1 + u) < 2√ε + (4/3)ε.
    """
    xp = e.xp
    near, u = _from_one_term(e, eigenvalues, bound)
    correction, _ = corrections(*_power_sums(e, u))
    excess = 2.0 * xp.sqrt(bound) + (4.0 / 3.0) * bound
    tiny = xp.finfo(eigenvalues.dtype).smallest_normal
    most = excess / ((1.0 + excess) * xp.clip(-xp.min(eigenvalues, axis=-1), tiny, None))
    return xp.clip(xp.minimum(near * xp.exp(xp.clip(correction, -1.0, 1.0)), most), None, 1.0)


# Roots ---------------------------------------------------------------------------------------------------------------


def narrow_root(e: Engine, eigenvalues: Vector, bound: PerState) -> PerState:
    """Find x for bounds up to `LARGEST_NARROW`, where one third-order step from three terms reaches rounding.

    With r = u/(1 + u), whose derivative by log x is r(1 − r), the derivatives of 2 KL are sums of powers of r.
    """
    near, u = _from_one_term(e, eigenvalues, bound)
    second, third = corrections(*_power_sums(e, u))
    start = 1.0 + second + third
    u = start[..., None] * u
    ratio = u / (1.0 + u)
    two, three, four = _power_sums(e, ratio)
    derivatives = two, 2.0 * (two - three), 4.0 * two - 10.0 * three + 6.0 * four
    grown = start * one_step(e, 2.0 * bound, twice_kl(e, u, ratio), *derivatives)
    return resolved(e, e.xp.clip(near * grown, None, 1.0), bound)


def narrow_root_outside(e: Engine, eigenvalues: Vector, bound: PerState, outside: Mask) -> PerState:
    """Return `narrow_root` where `outside`, else 1."""
    return e.xp.where(outside, narrow_root(e, eigenvalues, bound), 1.0)


def any_root(e: Engine, eigenvalues: Vector, bound: PerState, outside: Mask) -> PerState:
    """Find x = 1/(1 + η) with KL(x) = ε where `outside`, else 1; for every bound."""
    return increasing_root(
        e,
        lambda x: twice_kl_of_excess(e, x[..., None] * eigenvalues),
        2.0 * bound,
        start=e.xp.where(outside, _start(e, eigenvalues, bound), 1.0),
        active=outside,
    )


def series_root(e: Engine, excess: Matrix, bound: PerState, outside: Mask) -> PerState:
    """Find x in (0, 1] with KL(x) = ε where `outside`, else 1, from A itself; for bounds up to `LARGEST_NARROW`."""
    xp = e.xp
    size = _clamped_positive(e, e.matrix_dot(excess, excess))
    near = 2.0 * xp.sqrt(bound / size)  # the root of the first term alone
    traces = power_traces(e, near[..., None, None] * excess)
    second, third = corrections(_clamped_positive(e, traces[0]), *traces[1:3])
    start = 1.0 + second + third  # relative to it, the root of the first three
    degrees = range(2, 2 + len(traces))
    terms = [(-1.0) ** k * (k - 1) / k * t * power for k, t, power in zip(degrees, traces, powers(start), strict=True)]
    value, *derivatives = [
        total([float(k**order) * term for k, term in zip(degrees, terms, strict=True)]) for order in range(4)
    ]
    x = near * start * one_step(e, 2.0 * bound, value, *derivatives)
    return xp.where(outside, resolved(e, xp.clip(x, None, 1.0), bound), 1.0)


def power_traces(e: Engine, a: Matrix) -> list[PerState]:
    """Compute tr(a^k), k = 2 … 12, of symmetric matrices: ⟨a^i, a^j⟩ = tr(a^(i + j)) up to the eighth.

    The others extrapolate as for a single |u|, which is right where it matters most: at one large eigenvalue.
    """
    square = e.square(a)
    power = (a, square, a @ square, e.square(square))
    traces = [e.matrix_dot(power[k // 2 - 1], power[(k + 1) // 2 - 1]) for k in range(2, 9)]
    ratio = traces[6] / _clamped_positive(e, traces[4])
    for _ in range(4):
        traces.append(traces[-2] * ratio)
    return traces


def powers(y: PerState) -> list[PerState]:
    """Compute y^k, k = 2 … 12."""
    return list(accumulate([y * y] + [y] * 10, mul))


def _clamped_positive(e: Engine, x: PerState) -> PerState:
    """Make a denominator positive also for equal policies, whose root is never used."""
    return e.xp.clip(x, e.xp.finfo(x.dtype).smallest_normal, None)
