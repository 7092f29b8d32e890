"""The joint KL projection of well-conditioned full covariances: Newton's method on the factor that is returned.

No eigenvalue is needed. One Cholesky decomposition of Q = I + tB, B = Λ/s − I, gives the projected policy at t and its
KL. With R = I − Q⁻¹, of eigenvalues r, and D the derivative by log t, Dr = r(1 − r), and D log k is the mean r̄ of all
r if the entropy determines k, else 0. So three derivatives of the covariance's part f are sums of τ_j = tr R^j, j ≤ 4,
which R and R² give: with V = τ₂ − r̄τ₁ and T = V − τ₃ + r̄τ₂ = ½DV

    Df  = ½kV,    D²f = k(T + ½r̄V),
    D³f = r̄ D²f + k(½V Dr̄ + (2 + r̄)T − 3(τ₃ − τ₄) + τ₂Dr̄ + 2r̄(τ₂ − τ₃)),

and those of the mean's part g = ½‖m̃‖² are sums of q_j = m̃ᵀQ⁻ʲm̃:

    Dg = q₁,    D²g = 3q₂ − q₁,    D³g = 12q₃ − 9q₂ + q₁.

One step with all three reduces a relative error of 1e-3 in t to rounding; the start is that good for the bounds in use,
so two decompositions suffice.

Everything is computed with rows and columns in reverse order, so that the factor W of Q⁻¹ = WWᵀ comes out lower
triangular: it is the inverse Cholesky factor, transposed and in order again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from trpl.engines import mT
from trpl.linalg import apply
from trpl.projections.joint_kl.terms import Target
from trpl.projections.kl.equation import excess_of_change
from trpl.projections.kl.factor import kl_of_factor, normal
from trpl.roots import MAX_STEPS, midpoint, one_step
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, Matrix, PerState, Vector

    _Point: TypeAlias = tuple[PerState, PerState, PerState, PerState, Matrix, Vector, PerState, Mask, PerState]
    _State: TypeAlias = tuple[PerState, PerState, PerState, Mask, *_Point]

ILL_CONDITIONED = 1e4
"""Condition number of Q times the prediction's relative width from which `FINE` is used instead."""
ACCURACY = 1e-12
"""Relative error of the KL that is accepted even if rounding would allow less."""
LONGEST_SHIFT = 0.5
"""Largest relative correction of a start."""


class Pencil(NamedTuple):
    """B and Λm/s, in reverse order, of Q = I + tB and m̃ = (t/s)Q⁻¹Λm; s is 1 unless the entropy is fixed."""

    excess: Matrix
    pulled: Vector


class Point(NamedTuple):
    """The solution at a given t, in reverse order: the inverse factor √k C⁻¹, m̃ and its KL with three derivatives."""

    kl: PerState
    first: PerState
    second: PerState
    third: PerState
    inverse: Matrix
    mean: Vector
    log_k: PerState
    held: Mask
    spread: PerState
    """‖Q⁻¹ − I‖, to estimate the condition number of Q."""


def pencil(e: Engine, change: Matrix, shift: Vector) -> Pencil:
    """Compute the pencil of V − I and the whitened shift, with s = 1."""
    excess = e.xp.flip(excess_of_change(e, change), axis=(-2, -1))
    shift = e.xp.flip(shift, axis=-1)
    return Pencil(excess, shift + apply(excess, shift))


def rescaled(e: Engine, of: Pencil, unit: PerState) -> Pencil:
    """Change the unit s; see `Spectrum.rescaled`."""
    s = unit[..., None, None]
    return Pencil((of.excess + (1.0 - s) * e.eye(of.excess)) / s, of.pulled / unit[..., None])


def point(e: Engine, t: PerState, of: Pencil, target: Target) -> Point:
    """Evaluate the solution at t."""
    xp = e.xp
    dim = of.excess.shape[-1]
    precision = t[..., None, None] * of.excess
    precision += e.eye(precision)  # in place: the array is new
    inverse = e.solve_triangular(e.cholesky(precision), e.eye(precision))
    once = apply(inverse, of.pulled)
    mean = t[..., None] * apply(mT(inverse), once)
    y = apply(inverse, mean)
    z = apply(mT(inverse), y)
    last = apply(inverse, z)
    q1, q2, q3 = e.vecdot(y, y), e.vecdot(z, z), e.vecdot(last, last)
    n = normal(e, inverse)  # −R
    square = n @ n
    tau1, tau2 = -xp.sum(e.diagonal(n), axis=-1), e.matrix_dot(n, n)
    tau3, tau4 = -e.matrix_dot(square, n), e.matrix_dot(square, square)
    log_k, held = target.log_k(e, -2.0 * xp.sum(xp.log(e.diagonal(inverse)), axis=-1), dim)
    if target.log_scale is None:
        first, second, third = 0.5 * tau2, tau2 - tau3, 2.0 * tau2 - 5.0 * tau3 + 3.0 * tau4
    else:
        zero = 0.0 * tau1
        k, centre = xp.exp(log_k), xp.where(held, tau1 / dim, zero)
        slope = xp.where(held, (tau1 - tau2) / dim, zero)  # Dr̄
        v = tau2 - centre * tau1
        bend = v - tau3 + centre * tau2
        first, second = 0.5 * k * v, k * (bend + 0.5 * centre * v)
        third = 0.5 * v * slope + (2.0 + centre) * bend - 3.0 * (tau3 - tau4)
        third = centre * second + k * (third + tau2 * slope + 2.0 * centre * (tau2 - tau3))
        inverse = inverse * xp.sqrt(k)[..., None, None]
    kl = kl_of_factor(e, inverse) + 0.5 * e.vecdot(mean, mean)
    first, second = first + q1, second + 3.0 * q2 - q1
    third = third + 12.0 * q3 - 9.0 * q2 + q1
    return Point(kl, first, second, third, inverse, mean, log_k, held, xp.sqrt(tau2))


def start(e: Engine, of: Pencil, bound: PerState, fallback: PerState, target: Target) -> PerState:
    """Estimate the t with KL = ε by the first terms of the KL's power series in t, at s = 1.

    With T_j = tr B^j, m₁ and m₂ the means T₁/d and T₂/d if the entropy determines k = e^β, else 0, and w = Λm,

        2 KL = d(k − 1 − β) + c₂t² + c₃t³ + c₄t⁴ + …,
        c₂ = ½k(T₂ − m₁T₁) + ‖w‖²,
        c₃ = −k(⅔T₃ − m₁T₂ + ⅓m₁²T₁) − 2wᵀBw,
        c₄ = k(¾T₄ − m₁T₃ + ¾m₁²T₂ − ⅜m₂T₂ − ⅛m₁³T₁) + 3‖Bw‖².
    """
    xp = e.xp
    b, w = of.excess, of.pulled
    square, once = b @ b, apply(b, w)
    tr2, tr3, tr4 = e.matrix_dot(b, b), e.matrix_dot(square, b), e.matrix_dot(square, square)
    left = 2.0 * bound
    if target.log_scale is None:
        two, three, four = 0.5 * tr2, -(2.0 / 3.0) * tr3, 0.75 * tr4
    else:
        dim = b.shape[-1]
        log_k = target.log_scale if target.equality else xp.clip(target.log_scale, 0.0, None)
        tr1, k = xp.sum(e.diagonal(b), axis=-1), xp.exp(log_k)
        held = (target.log_scale > 0.0) | target.equality
        one, other = xp.where(held, tr1 / dim, 0.0 * tr1), xp.where(held, tr2 / dim, 0.0 * tr2)
        two = 0.5 * k * (tr2 - one * tr1)
        three = -k * ((2.0 / 3.0) * tr3 - one * (tr2 - one * tr1 / 3.0))
        four = k * (0.75 * tr4 - 0.375 * other * tr2 - one * (tr3 - one * (0.75 * tr2 - 0.125 * one * tr1)))
        left = xp.clip(left - dim * (xp.expm1(log_k) - log_k), 0.01 * bound, None)
    two = xp.clip(two + e.vecdot(w, w), xp.finfo(two.dtype).smallest_normal, None)
    near = xp.sqrt(left / two)
    bend = near * (three - 2.0 * e.vecdot(w, once)) / two
    twist = near * near * (four + 3.0 * e.vecdot(once, once)) / two
    near = near * (1.0 + xp.clip(bend * (0.625 * bend - 0.5) - 0.5 * twist, -LONGEST_SHIFT, LONGEST_SHIFT))
    return xp.where((near > 0.0) & (near < 1.0), near, fallback)


def condition(e: Engine, t: PerState, of: Pencil, found: Point) -> PerState:
    """Bound the condition number of Q from above by (1 + ‖Q − I‖)(1 + ‖Q⁻¹ − I‖)."""
    return (1.0 + t * e.xp.sqrt(e.matrix_dot(of.excess, of.excess))) * (1.0 + found.spread)


def _next_step(
    e: Engine, t: PerState, found: Point, bound: PerState, bracket: tuple[PerState, PerState], unfinished: Mask
) -> tuple[PerState, PerState, PerState, Mask]:
    """Return the next t, bracket and mask: a third-order step, else Newton's on √KL, else the bracket's midpoint."""
    xp = e.xp
    low, high = bracket
    eps = float(xp.finfo(t.dtype).eps)
    missing = bound - found.kl
    rounding = 8.0 * found.mean.shape[-1] ** 0.5 * eps * xp.sqrt(bound)
    below = missing > 0.0
    low, high = xp.where(unfinished & below, t, low), xp.where(unfinished & ~below, t, high)
    root = xp.sqrt(found.kl)
    newton = t + 2.0 * t * root * (xp.sqrt(bound) - root) / found.first
    grown = one_step(e, bound, found.kl, found.first, found.second, found.third)
    wanted = xp.where(grown != 1.0, grown * t, newton)
    wanted = xp.where((wanted > low) & (wanted < high), wanted, midpoint(e, low, high))
    done = (xp.abs(missing) <= xp.maximum(rounding, ACCURACY * bound)) | (xp.abs(wanted - t) <= 4.0 * eps * t)
    unfinished = unfinished & ~done
    return xp.where(unfinished, wanted, t), low, high, unfinished


def solve(
    e: Engine,
    of: Pencil,
    bound: PerState,
    begin: PerState,
    outside: Mask,
    target: Target,
) -> tuple[PerState, Point, Mask]:
    """Return t with KL = ε, the solution there, and the mask of states without convergence."""
    xp = e.xp

    def body(t: PerState, low: PerState, high: PerState, unfinished: Mask, *_: Array | Mask) -> _State:
        found = point(e, t, of, target)
        return *_next_step(e, t, found, bound, (low, high), unfinished), *cast("_Point", found)

    state = body(begin, xp.zeros_like(begin), xp.ones_like(begin), outside)
    state = e.loop(lambda t, low, high, unfinished, *_: unfinished, body, state, max_steps=MAX_STEPS)
    return state[0], Point(*state[4:]), state[3]
