"""Symmetric square roots of covariances, and the Lyapunov equation of their derivative, by matrix products.

A product of small matrices costs a hundredth of a singular value decomposition, and both iterations here need about
twenty. Each checks its own result; states that are too ill-conditioned for it are decomposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trpl.engines import mT
from trpl.implicit import Like, Saved, Signature, Solved, attach

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, Matrix, PerState

LARGEST_STRETCH = 4.0
"""Largest singular value after Newton's step that the iteration accepts: condition numbers of the factor below 62."""
MAX_STEPS = 8
"""More than enough from `LARGEST_STRETCH`."""
MAX_REPAIRS = 4
"""Newton steps for states with larger singular values than estimated."""
MAX_DOUBLINGS = 9
"""Enough for condition numbers of the root up to about 200."""


def _cubic(e: Engine, low: PerState, high: PerState) -> tuple[PerState, PerState]:
    """Compute a and b of ax + bx³, the odd cubic nearest to 1 on [low, high]; it maps the interval to [l, 2 − l].

    With α² = (h² + hl + l²)/3 both ends have the same value, and β centres it and the maximum, at α, about 1:

        β (3x/(2α) − x³/(2α³)),    β = 4/(2 + lh(l + h)/α³).
    """
    alpha = e.xp.sqrt((high * high + low * high + low * low) / 3.0)
    beta = 4.0 / (2.0 + low * high * (low + high) / (alpha * alpha * alpha))
    return 1.5 * beta / alpha, -0.5 * beta / (alpha * alpha * alpha)


def _decomposed(e: Engine, b: Matrix) -> tuple[Matrix]:
    """Compute the root by singular values, precise to the rounding of b; eigenvalues of bbᵀ lose half the digits."""
    u, s, _ = e.svd(b)
    return ((u * s[..., None, :]) @ mT(u),)


def root_of_factor(e: Engine, b: Matrix, inverse: Matrix) -> tuple[Matrix, Mask]:
    """Compute the symmetric root S of bbᵀ, and the mask of ill-conditioned states; b is lower triangular.

    With b = SU, U orthogonal, S = bUᵀ. U is the limit of iterations that change singular values only. The first step is
    Newton's, since b⁻¹ is known: X = ½(ζb + b⁻ᵀ/ζ) maps singular values between 1/κ and κ (ζ balances the norms) to
    between 1 and ½(κ + 1/κ); their size is measured. The others are X ← X(aI + cXᵀX), each with the optimal cubic for
    the interval that contains the singular values, so after n steps they are in a known [l, 2 − l] without further
    measurements. The last step is Newton's own cubic, and its XᵀX − I the check.
    """
    xp = e.xp
    balance = xp.sqrt(xp.sqrt(e.matrix_dot(inverse, inverse) / e.matrix_dot(b, b)))[..., None, None]
    x = (0.5 * balance) * b + (0.5 / balance) * mT(inverse)
    one = xp.ones_like(balance[..., 0, 0])
    rest = e.plus_diagonal(e.gram(x, one), -one)
    stretch = _stretch(e, rest)
    usual = stretch <= LARGEST_STRETCH  # False for non-finite values
    linear, cubic = _cubic(e, one, xp.where(usual, stretch, one))
    rest *= cubic[..., None, None]  # in place: the array is new
    low = linear + cubic
    x = x @ e.plus_diagonal(rest, low)
    if not e.all(usual):
        x = xp.where(usual[..., None, None], x, e.eye(x))  # converged
    enough = 0.5 * float(xp.finfo(b.dtype).eps) ** 0.5  # squared by the last step

    def planned(x: Matrix, low: PerState) -> tuple[Matrix, PerState]:
        moving = 1.0 - low > enough  # a converged state keeps every bit
        linear, cubic = _cubic(e, low, 2.0 - low)
        linear, cubic = xp.where(moving, linear, xp.ones_like(low)), xp.where(moving, cubic, xp.zeros_like(low))
        return x @ e.plus_diagonal(e.gram(x, cubic), linear), low * (linear + cubic * low * low)

    def newton(x: Matrix, half: Matrix) -> tuple[Matrix, Matrix]:
        moving = rough(x, half)
        some = xp.where(moving[..., None, None], half, xp.zeros_like(half))
        x = x + x @ some
        return x, missing(x)

    def missing(x: Matrix) -> Matrix:  # ½(I − XᵀX)
        half = xp.zeros_like(x[..., 0, 0]) + 0.5
        return e.plus_diagonal(e.gram(x, -half), half)

    def rough(x: Matrix, half: Matrix) -> Mask:
        return ~(e.matrix_dot(half, half) <= b.shape[-1] * enough * enough)

    x, low = e.loop(lambda x, low: 1.0 - low > enough, planned, (x, low), max_steps=MAX_STEPS, independent=True)
    x, half = e.loop(rough, newton, (x, missing(x)), max_steps=MAX_REPAIRS, independent=True)
    bad = ~usual | rough(x, half)
    root = b @ mT(x @ e.plus_diagonal(half, one))
    (root,) = e.recompute(bad, lambda b: _decomposed(e, b), (root,), b)
    root = root + mT(root)
    root *= 0.5
    return root, bad


def _stretch(e: Engine, rest: Matrix) -> PerState:
    """Estimate the largest singular value of X, none below 1, from XᵀX − I = `rest`.

    It is at most √(1 + r), r the norm of `rest`. For r ≤ 1 the eigenvalues are assumed to be within 2.5 standard
    deviations of their mean: usually they are, and the cubics do not flip larger ones, which then need one more step.
    """
    xp, dim = e.xp, rest.shape[-1]
    squared = e.matrix_dot(rest, rest)
    mean = xp.sum(e.diagonal(rest), axis=-1) / dim
    likely = mean + 2.5 * xp.sqrt(xp.clip(squared / dim - mean * mean, 0.0, None))
    norm = xp.sqrt(squared)
    return xp.sqrt(1.0 + xp.where(norm <= 1.0, xp.minimum(likely, norm), norm))


def _lyapunov_decomposed(e: Engine, s: Matrix, c: Matrix) -> tuple[Matrix]:
    """Solve in the eigenbasis of s, with sums as denominators: equal eigenvalues and s = I are not special cases."""
    xp = e.xp
    values, basis = e.eigh(s)
    values = xp.clip(values, xp.finfo(s.dtype).smallest_normal, None)
    inner = (mT(basis) @ c @ basis) / (values[..., :, None] + values[..., None, :])
    return (basis @ inner @ mT(basis),)


def lyapunov(e: Engine, s: Matrix, c: Matrix) -> Matrix:
    """Solve sX + Xs = c for symmetric c and positive definite s, by Smith's squared method.

    With P = (s + γI)⁻¹ and A = I − 2γP the equation is X = 2γPcP + AXA. Its solution is the sum of Aʲ(2γPcP)Aʲ, whose
    terms X ← X + AXA, A ← A² doubles, until ‖A‖² is rounding. The best γ is the geometric mean of the smallest and the
    largest eigenvalue; with m the mean of all and v their variance, √(m² − 1.5v) is near it.
    """
    xp = e.xp
    if s.ndim > 2 and s.shape != c.shape:  # masks select whole states
        s, c = xp.broadcast_arrays(s, c)
    one, dim = e.eye(s), s.shape[-1]
    middle = xp.sum(e.diagonal(s), axis=-1) / dim
    middle = middle * middle
    gamma = xp.sqrt(xp.maximum(2.5 * middle - (1.5 / dim) * e.matrix_dot(s, s), 0.25 * middle))[..., None, None]
    shifted = e.gram(e.solve_triangular(e.cholesky(s + gamma * one), one))
    half = (2.0 * gamma) * shifted
    x, a = half @ c @ shifted, one - half
    enough = float(xp.finfo(s.dtype).eps) ** 0.5

    def unfinished(x: Matrix, a: Matrix) -> Mask:
        return ~(e.matrix_dot(a, a) <= enough)  # ‖A²‖² ≤ ‖A‖⁴ is rounding after one more

    def doubled(x: Matrix, a: Matrix) -> Matrix:
        more = a @ x @ a
        more += x
        return more

    x, a = e.loop(
        unfinished, lambda x, a: (doubled(x, a), e.square(a)), (x, a), max_steps=MAX_DOUBLINGS, independent=True
    )
    (x,) = e.recompute(unfinished(x, a), lambda s, c: _lyapunov_decomposed(e, s, c), (doubled(x, a),), s, c)
    return x


def root_pullback(e: Engine, b: Matrix, root: Matrix, cotangent: Matrix) -> Matrix:
    """Return the cotangent of b from that of the symmetric root S of bbᵀ: 2Xb with S X + X S = ½(S̄ + S̄ᵀ)."""
    return lyapunov(e, root, cotangent + mT(cotangent)) @ b


_ONE_MATRIX = Signature(cores=(2,), outputs=(Like((0,), ((0, -2), (0, -1))),), residuals=())


@dataclass(frozen=True)
class _SymmetricRoot:
    """The root as a differentiable function, for distances that the framework differentiates."""

    check: bool = False
    recover: None = None
    signature: Signature = _ONE_MATRIX

    def admit(self, e: Engine, *inputs: Array) -> None: ...

    def accept(self, e: Engine, *outputs: Array | None) -> None: ...

    def solve(self, e: Engine, *inputs: Array, whole: bool = False) -> Solved:
        (b,) = inputs
        return Solved((root_of_factor(e, b, e.solve_triangular(b, e.eye(b)))[0],), ())

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool]
    ) -> tuple[Array]:
        (b,), (root,), _ = saved
        (cotangent,) = cotangents
        assert cotangent is not None
        return (root_pullback(e, b, root, cotangent),)


def symmetric_root(b: Matrix) -> Matrix:
    """Return the symmetric square root of bbᵀ, differentiable in every framework; b is lower triangular."""
    return attach(_SymmetricRoot(), (b,))[0]
