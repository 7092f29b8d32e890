"""Matrix functions with gradients that survive equal eigenvalues, and scalar ones that do not cancel.

Each numerical trick stands here once, with its reason.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trpl.backend import cholesky, is_torch, namespace, solve_triangular, triangular_part
from trpl.rules import Rule

Array = Any


def dot(x: Array, y: Array) -> Array:
    """⟨x, y⟩ over the last axis."""
    return np.vecdot(x, y) if type(x) is np.ndarray else namespace(x).sum(x * y, axis=-1)


def squared_norm(x: Array) -> Array:
    """‖x‖² over the last axis."""
    return dot(x, x)


def matrix_dot(x: Array, y: Array) -> Array:
    """⟨x, y⟩ over the last two axes."""
    if type(x) is np.ndarray:
        return np.vecdot(*(z.reshape(*z.shape[:-2], z.shape[-2] * z.shape[-1]) for z in (x, y)))
    return namespace(x).sum(x * y, axis=(-2, -1))


def squared_frobenius(x: Array) -> Array:
    """‖x‖²_F over the last two axes."""
    return matrix_dot(x, x)


def gram(x: Array) -> Array:
    """xᵀx over the last two axes; for one array with itself NumPy would call what is slow for small matrices."""
    return (x.copy() if type(x) is np.ndarray else x).mT @ x


def diagonal(x: Array) -> Array:
    """The diagonals of a batch of matrices."""
    return namespace(x).linalg.diagonal(x)


def identity_like(x: Array) -> Array:
    """I of the matrices' size, dtype and device."""
    return namespace(x).eye(x.shape[-1], **_like(x))


def _like(x: Array) -> dict[str, Any]:
    """What makes a new array of the same kind; JAX places it itself."""
    return {"dtype": x.dtype, "device": x.device} if is_torch(x) else {"dtype": x.dtype}


def apply(a: Array, v: Array) -> Array:
    """The matrix-vector product over the last axes."""
    return (a @ v[..., None])[..., 0]


def solve_vector(chol: Array, v: Array, *, transpose: bool = False) -> Array:
    """chol⁻¹v over the last axis, or chol⁻ᵀv, for a lower triangular factor; leading axes broadcast."""
    if v.ndim >= 2 and math.prod(chol.shape[:-2]) == 1:  # one factor for all: one solve with many right-hand sides
        xp = namespace(v)
        rows, factor = xp.reshape(v, (-1, v.shape[-1])), xp.reshape(chol, chol.shape[-2:])
        return xp.reshape(solve_triangular(factor, rows.mT, transpose=transpose).mT, v.shape)
    return solve_triangular(chol, v[..., None], transpose=transpose)[..., 0]


def log_ratio(p: Array, q: Array) -> Array:
    """log(p/q) for positive numbers, as ±log(1 + |p − q|/min(p, q)).

    p/q would round to 1 when they are close, and (p − q)/q to −1 when p is much the smaller.
    """
    xp = namespace(p, q)
    if type(p) is np.ndarray:  # of which no derivative is asked
        change = p - q
        return np.copysign(np.log1p(np.abs(change) / np.minimum(p, q)), change)
    above = p >= q
    sign = xp.where(above, 1.0, -1.0)
    return sign * xp.log1p(sign * (p - q) / xp.where(above, q, p))


def lower_mask(x: Array) -> Array:
    """1 on and below the diagonal, 0 above, of the matrices' size.

    A product with it is much faster than a batched `tril`.
    """
    xp = namespace(x)
    return xp.tril(xp.ones(x.shape[-2:], **_like(x)))


def is_lower(x: Array) -> bool:
    """Whether nothing stands above the diagonal in any of the matrices, whose numbers can be looked at."""
    if type(x) is np.ndarray:
        anywhere = np.logical_or.reduce(x, axis=tuple(range(x.ndim - 2)))
        return not np.triu(anywhere, 1).any()
    xp = namespace(x)
    return float(xp.sum(xp.abs(x * (1.0 - lower_mask(x))))) == 0.0


def symmetrised_half_tril(x: Array) -> Array:
    """½(Φ(x) + Φ(x)ᵀ), where Φ takes the lower triangle with half of the diagonal.

    The core of every Cholesky backward.
    """
    half = (0.5 * lower_mask(x) - 0.25 * identity_like(x)) * x
    return half + half.mT


def _gram_backward(factor: Array, cotangent: Array) -> Array:
    """The cotangent of K = LLᵀ from that of its Cholesky factor: L⁻ᵀ ½(Φ + Φᵀ)(LᵀL̄) L⁻¹."""
    inner = symmetrised_half_tril(factor.mT @ cotangent)
    half = solve_triangular(factor, inner, transpose=True)
    return solve_triangular(factor, half.mT, transpose=True)


def _positive_lower(upper: Array) -> Array:
    """The lower factor Rᵀ of a QR decomposition, with the signs that make its diagonal positive."""
    xp = namespace(upper)
    diag = diagonal(upper)
    sign = xp.where(diag < 0, -xp.ones_like(diag), xp.ones_like(diag))
    return upper.mT * sign[..., None, :]


def _gram_factor_forward(b: Array) -> tuple[Array]:
    return (_positive_lower(triangular_part(b.mT)),)


def _gram_factor_backward(inputs: tuple, outputs: tuple, cotangent: Array, _needed: Any) -> tuple[Array]:
    return (2.0 * _gram_backward(outputs[0], cotangent) @ inputs[0],)


gram_factor = Rule(_gram_factor_forward, _gram_factor_backward)
"""The lower Cholesky factor of bbᵀ, from a QR decomposition of bᵀ.

The product itself is never formed, so its condition number never squares.
"""


def _interpolated_forward(weight: Array, p: Array, q: Array) -> tuple[Array]:
    xp = namespace(p)
    w = weight[..., None, None]
    stacked = xp.concat(xp.broadcast_arrays(xp.sqrt(1.0 - w) * q, xp.sqrt(w) * p), axis=-1)
    return (_positive_lower(triangular_part(stacked.mT)),)


def _interpolated_backward(inputs: tuple, outputs: tuple, cotangent: Array, _needed: Any) -> tuple[Array, Array, Array]:
    weight, p, q = inputs
    w = weight[..., None, None]
    xp = namespace(p)
    gram = _gram_backward(outputs[0], cotangent)
    gram_p, gram_q = gram @ p, gram @ q
    weight_bar = xp.sum(gram_p * p, axis=(-2, -1)) - xp.sum(gram_q * q, axis=(-2, -1))
    lower = 2.0 * lower_mask(p)
    return weight_bar, w * lower * gram_p, (1.0 - w) * lower * gram_q


interpolated_factor = Rule(_interpolated_forward, _interpolated_backward)
"""(w, P, Q) ↦ the lower Cholesky factor of w PPᵀ + (1 − w) QQᵀ, from a QR decomposition of both side by side."""


def _polar_forward(b: Array) -> tuple[Array, Array, Array]:
    u, s, _ = namespace(b).linalg.svd(b, full_matrices=False)
    return (u * s[..., None, :]) @ u.mT, u, s


def _polar_backward(inputs: tuple, outputs: tuple, cotangent: Array, _needed: Any) -> tuple[Array]:
    (b,), (_, u, s) = inputs, outputs
    rotated = u.mT @ (cotangent + cotangent.mT) @ u / (2.0 * (s[..., :, None] + s[..., None, :]))
    return (2.0 * (u @ rotated @ u.mT) @ b,)


symmetric_root = Rule(_polar_forward, _polar_backward)
"""The symmetric square root of bbᵀ, from singular values of b.

Singular values of the factor are accurate to the factor's own rounding, where eigenvalues of bbᵀ would lose half the
digits. The gradient solves S X + X S = S̄ in the singular basis: the denominators are sums, never differences, so equal
eigenvalues and b = I are ordinary points.
"""


def cholesky_inverse_factor(a: Array) -> Array:
    """C⁻¹ for a = CCᵀ, C lower triangular."""
    factor = cholesky(a)
    return solve_triangular(factor, identity_like(a))
