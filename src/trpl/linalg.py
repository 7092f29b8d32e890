"""Batched matrix functions, each with a hand-written pullback if a projection needs one.

Each numerical trick is here once, with its reason.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from trpl.engines import mT

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, Matrix, PerState


def apply(a: Array, v: Array) -> Array:
    """Compute the matrix-vector product over the last axes."""
    return (a @ v[..., None])[..., 0]


def outer(u: Array, v: Array) -> Array:
    """Compute uvᵀ over the last axis."""
    return u[..., :, None] * v[..., None, :]


def total(values: Iterable[Array]) -> Array:
    """Add up arrays."""
    add: Callable[[Array, Array], Array] = operator.add
    return functools.reduce(add, values)


def chosen(e: Engine, mask: Mask, x: Array, y: Array) -> Array:
    """Return x where the mask holds, else y; x itself, without a copy, if the mask is known to hold everywhere."""
    return x if e.all(mask) else e.xp.where(mask, x, y)


def solve_vector(e: Engine, chol: Array, v: Array, *, transpose: bool = False) -> Array:
    """Compute chol⁻¹v over the last axis, or chol⁻ᵀv, for a lower triangular factor; leading axes broadcast."""
    if v.ndim >= 2 and math.prod(chol.shape[:-2]) == 1:  # a shared factor: one solve with many right-hand sides
        xp = e.xp
        rows, factor = xp.reshape(v, (-1, v.shape[-1])), xp.reshape(chol, chol.shape[-2:])
        return xp.reshape(mT(e.solve_triangular(factor, mT(rows), transpose=transpose)), v.shape)
    return e.solve_triangular(chol, v[..., None], transpose=transpose)[..., 0]


def symmetrised_half_tril(e: Engine, x: Matrix) -> Matrix:
    """Compute ½(Φ(x) + Φ(x)ᵀ), where Φ takes the lower triangle with half of the diagonal.

    The core of every Cholesky pullback.
    """
    half = (0.5 * e.lower(x) - 0.25 * e.eye(x)) * x
    return half + mT(half)


def gram_pullback(e: Engine, factor: Matrix, cotangent: Matrix, *, inverse: Matrix | None = None) -> Matrix:
    """Pull a cotangent back from a Cholesky factor L to K = LLᵀ: L⁻ᵀ ½(Φ + Φᵀ)(LᵀL̄) L⁻¹, by L⁻¹ if given."""
    inner = symmetrised_half_tril(e, mT(factor) @ cotangent)
    if inverse is not None:
        return mT(inverse) @ (inner @ inverse)
    half = e.solve_triangular(factor, inner, transpose=True)
    return e.solve_triangular(factor, mT(half), transpose=True)


def _positive_lower(e: Engine, upper: Matrix) -> Matrix:
    """Return the lower factor Rᵀ of a QR decomposition, with signs that make its diagonal positive."""
    diag = e.diagonal(upper)
    sign = e.xp.where(diag < 0, -e.xp.ones_like(diag), e.xp.ones_like(diag))
    return mT(upper) * sign[..., None, :]


def gram_factor(e: Engine, b: Matrix) -> Matrix:
    """Compute the lower Cholesky factor of bbᵀ from a QR decomposition of bᵀ.

    The product itself is never formed, so its condition number is never squared.
    """
    return _positive_lower(e, e.qr_r(mT(b)))


def gram_factor_pullback(
    e: Engine, b: Matrix, factor: Matrix, cotangent: Matrix, *, inverse: Matrix | None = None
) -> Matrix:
    """Pull a cotangent back from `gram_factor` to b, by the factor's inverse if given."""
    return gram_pullback(e, factor, 2.0 * cotangent, inverse=inverse) @ b


def interpolated_factor(e: Engine, weight: PerState, p: Matrix, q: Matrix) -> Matrix:
    """Compute the lower Cholesky factor of w PPᵀ + (1 − w) QQᵀ from a QR decomposition of both side by side."""
    xp = e.xp
    w = weight[..., None, None]
    stacked = xp.concat(xp.broadcast_arrays(xp.sqrt(1.0 - w) * q, xp.sqrt(w) * p), axis=-1)
    return _positive_lower(e, e.qr_r(mT(stacked)))


LARGEST_SQUARED = 1e5
"""Largest ‖L‖²‖L⁻¹‖², at least the condition number of LLᵀ and d², for which L is computed from the product itself, at
a loss of half of the remaining digits."""


def square_factor(e: Engine, root: Matrix, bad: Mask) -> tuple[Matrix, Matrix]:
    """Compute the lower Cholesky factor of S² for symmetric S, and its inverse.

    From the product itself, or by `gram_factor` where S is too ill-conditioned (`bad`) to be squared.
    """

    def careful(root: Matrix) -> tuple[Matrix, Matrix]:
        return _inverted(e, gram_factor(e, root))

    return e.recompute(bad, careful, _inverted(e, e.cholesky(e.square(root))), root)


def _inverted(e: Engine, factor: Matrix) -> tuple[Matrix, Matrix]:
    """Return a lower triangular factor and its inverse."""
    return factor, e.solve_triangular(factor, e.eye(factor))


def mixed_factor(
    e: Engine, weight: PerState, p: Matrix, q: Matrix, *, seen: Matrix | None = None
) -> tuple[Matrix, Matrix]:
    """Compute the lower Cholesky factor of w PPᵀ + (1 − w) QQᵀ and its inverse.

    From the sum itself, or by `interpolated_factor` if that is ill-conditioned. With `seen`, the difference D of the
    covariances whitened by q, from Q(I + wD)Qᵀ: its errors are small relative to q, however q is conditioned. No
    eigenvalue of D is below −1, so the condition number of I + wD is at most (1 + w‖D‖)/(1 − w).
    """
    w = weight[..., None, None]
    if seen is None:
        factor, inverse = _inverted(e, e.cholesky((w * p) @ mT(p) + ((1.0 - w) * q) @ mT(q)))
        bad = ~(e.matrix_dot(factor, factor) * e.matrix_dot(inverse, inverse) <= LARGEST_SQUARED)
    else:
        factor, inverse = _inverted(e, q @ e.cholesky(e.eye(seen) + w * seen))
        bad = ~(1.0 + weight * e.xp.sqrt(e.matrix_dot(seen, seen)) <= LARGEST_SQUARED * (1.0 - weight))

    def careful(weight: PerState, p: Matrix, q: Matrix) -> tuple[Matrix, Matrix]:
        return _inverted(e, interpolated_factor(e, weight, p, q))

    batch = factor.shape[:-2]
    weight, p, q = (
        e.xp.broadcast_to(x, (*batch, *x.shape[x.ndim - core :])) for x, core in ((weight, 0), (p, 2), (q, 2))
    )
    return e.recompute(e.xp.broadcast_to(bad, batch), careful, (factor, inverse), weight, p, q)


def reversed_lower(e: Engine, factor: Matrix) -> Matrix:
    """Compute W, lower triangular with WWᵀ = P⁻¹, for a Cholesky factor C of P with rows and columns in reverse order.

    C⁻ᵀ is upper triangular; reversing its rows and columns gives W.
    """
    return e.xp.flip(mT(e.solve_triangular(factor, e.eye(factor))), axis=(-2, -1))
