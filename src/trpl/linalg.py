"""Matrix functions of a batch, each with its pullback by hand where a projection needs one.

Each numerical trick stands here once, with its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trpl.engines import mT
from trpl.implicit import Like, Signature, Solved, attach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trpl.engines import Engine
    from trpl.types import Array, Mask, Matrix, PerState, Vector


def apply(a: Array, v: Array) -> Array:
    """The matrix-vector product over the last axes."""
    return (a @ v[..., None])[..., 0]


def outer(u: Array, v: Array) -> Array:
    """uvᵀ over the last axis."""
    return u[..., :, None] * v[..., None, :]


def chosen(e: Engine, mask: Mask, x: Array, y: Array) -> Array:
    """x where the mask holds, else y; x itself, without a copy, where the mask is known to hold everywhere."""
    return x if e.all(mask) else e.xp.where(mask, x, y)


def solve_vector(e: Engine, chol: Array, v: Array, *, transpose: bool = False) -> Array:
    """chol⁻¹v over the last axis, or chol⁻ᵀv, for a lower triangular factor; leading axes broadcast."""
    if v.ndim >= 2 and math.prod(chol.shape[:-2]) == 1:  # one factor for all: one solve with many right-hand sides
        xp = e.xp
        rows, factor = xp.reshape(v, (-1, v.shape[-1])), xp.reshape(chol, chol.shape[-2:])
        return xp.reshape(mT(e.solve_triangular(factor, mT(rows), transpose=transpose)), v.shape)
    return e.solve_triangular(chol, v[..., None], transpose=transpose)[..., 0]


def symmetrised_half_tril(e: Engine, x: Matrix) -> Matrix:
    """½(Φ(x) + Φ(x)ᵀ), where Φ takes the lower triangle with half of the diagonal.

    The core of every Cholesky pullback.
    """
    half = (0.5 * e.lower(x) - 0.25 * e.eye(x)) * x
    return half + mT(half)


def gram_pullback(e: Engine, factor: Matrix, cotangent: Matrix) -> Matrix:
    """The cotangent of K = LLᵀ from that of its Cholesky factor: L⁻ᵀ ½(Φ + Φᵀ)(LᵀL̄) L⁻¹."""
    inner = symmetrised_half_tril(e, mT(factor) @ cotangent)
    half = e.solve_triangular(factor, inner, transpose=True)
    return e.solve_triangular(factor, mT(half), transpose=True)


def _positive_lower(e: Engine, upper: Matrix) -> Matrix:
    """The lower factor Rᵀ of a QR decomposition, with the signs that make its diagonal positive."""
    diag = e.diagonal(upper)
    sign = e.xp.where(diag < 0, -e.xp.ones_like(diag), e.xp.ones_like(diag))
    return mT(upper) * sign[..., None, :]


def gram_factor(e: Engine, b: Matrix) -> Matrix:
    """The lower Cholesky factor of bbᵀ, from a QR decomposition of bᵀ.

    The product itself is never formed, so its condition number never squares.
    """
    return _positive_lower(e, e.qr_r(mT(b)))


def gram_factor_pullback(e: Engine, b: Matrix, factor: Matrix, cotangent: Matrix) -> Matrix:
    """The cotangent of b from that of its `gram_factor`."""
    return 2.0 * gram_pullback(e, factor, cotangent) @ b


def interpolated_factor(e: Engine, weight: PerState, p: Matrix, q: Matrix) -> Matrix:
    """The lower Cholesky factor of w PPᵀ + (1 − w) QQᵀ, from a QR decomposition of both side by side."""
    xp = e.xp
    w = weight[..., None, None]
    stacked = xp.concat(xp.broadcast_arrays(xp.sqrt(1.0 - w) * q, xp.sqrt(w) * p), axis=-1)
    return _positive_lower(e, e.qr_r(mT(stacked)))


def reversed_lower(e: Engine, factor: Matrix) -> Matrix:
    """W, lower triangular with WWᵀ = P⁻¹, for a Cholesky factor C of P with rows and columns in reverse order.

    C⁻ᵀ is upper triangular; back in order it is W.
    """
    return e.xp.flip(mT(e.solve_triangular(factor, e.eye(factor))), axis=(-2, -1))


def polar(e: Engine, b: Matrix) -> tuple[Matrix, Matrix, Vector]:
    """The symmetric square root S of bbᵀ, and left singular vectors and singular values of b.

    Singular values of the factor are accurate to the factor's own rounding, where eigenvalues of bbᵀ would lose half
    the digits.
    """
    u, s, _ = e.xp.linalg.svd(b, full_matrices=False)
    return (u * s[..., None, :]) @ mT(u), u, s


def polar_pullback(b: Matrix, u: Matrix, s: Vector, cotangent: Matrix) -> Matrix:
    """The cotangent of b from that of the symmetric root S of bbᵀ: 2Xb with S X + X S = ½(S̄ + S̄ᵀ).

    In the singular basis the denominators are sums, never differences, so equal eigenvalues and b = I are ordinary.
    """
    rotated = mT(u) @ (cotangent + mT(cotangent)) @ u / (2.0 * (s[..., :, None] + s[..., None, :]))
    return 2.0 * (u @ rotated @ mT(u)) @ b


@dataclass(frozen=True)
class _SymmetricRoot:
    """`polar` as a differentiable function, for distances that the framework differentiates."""

    check: ClassVar[bool] = False
    fusible: ClassVar[bool] = False
    signature: ClassVar[Signature] = Signature(
        cores=(2,),
        outputs=(Like((0,), ((0, -2), (0, -1))),),
        residuals=(Like((0,), ((0, -2), (0, -1))), Like((0,), ((0, -1),))),
    )

    def admit(self, e: Engine, *inputs: Array) -> None: ...

    def accept(self, e: Engine, *outputs: Array | None) -> None: ...

    def solve(self, e: Engine, *inputs: Array, whole: bool = False) -> Solved:
        root, u, s = polar(e, inputs[0])
        return Solved((root,), (u, s))

    def recover(self, e: Engine, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Array, ...]:
        return polar(e, inputs[0])[1:]

    def pullback(
        self, e: Engine, inputs: Sequence[Array], outputs: Any, residuals: Any, cotangents: Any, needed: Any
    ) -> tuple[Array]:
        return (polar_pullback(inputs[0], residuals[0], residuals[1], cotangents[0]),)


def symmetric_root(b: Matrix) -> Matrix:
    """The symmetric square root of bbᵀ, differentiable in every framework."""
    return attach(_SymmetricRoot(), (b,))[0]  # pyright: ignore[reportArgumentType]
