"""Symmetric square roots of covariances, and the Lyapunov equation of their derivative, by matrix products.

A product of small matrices costs a hundredth of a singular value decomposition, and both iterations here need some
twenty. Each checks itself; states for which it is not made (ill-conditioned ones) are decomposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trpl.engines import mT
from trpl.implicit import Like, Saved, Signature, Solved, attach

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, Matrix, PerState

SMALLEST_SHARE = 0.01
"""Smallest singular value, in terms of the largest, that the iteration takes: its first step maps both to the same
number, about five times the smaller, so rounding grows by a fifth of the inverse."""
MOST_STEPS = 12
"""More than enough from `SMALLEST_SHARE`."""
MOST_DOUBLINGS = 9
"""Enough for condition numbers of the root up to about 200."""


def _norm_bound(e: Engine, x: Matrix) -> PerState:
    """√(‖x‖₁‖x‖∞), at least the largest singular value."""
    size = e.xp.abs(x)
    return e.xp.sqrt(e.xp.max(e.xp.sum(size, axis=-1), axis=-1) * e.xp.max(e.xp.sum(size, axis=-2), axis=-1))


def _cubic(e: Engine, low: PerState, high: PerState) -> tuple[PerState, PerState]:
    """a and b of ax + bx³, the odd cubic nearest to 1 on [low, high]; it maps the interval to [l, 2 − l].

    With α² = (h² + hl + l²)/3 both ends have the same value, and β centres it and the maximum, at α, about 1:

        β (3x/(2α) − x³/(2α³)),    β = 4/(2 + lh(l + h)/α³).
    """
    alpha = e.xp.sqrt((high * high + low * high + low * low) / 3.0)
    beta = 4.0 / (2.0 + low * high * (low + high) / (alpha * alpha * alpha))
    return 1.5 * beta / alpha, -0.5 * beta / (alpha * alpha * alpha)


def _decomposed(e: Engine, b: Matrix) -> tuple[Matrix]:
    """The root by singular values, accurate to the factor's own rounding; eigenvalues of bbᵀ would lose half of it."""
    u, s, _ = e.xp.linalg.svd(b, full_matrices=False)
    return ((u * s[..., None, :]) @ mT(u),)


def root_of_factor(e: Engine, b: Matrix, inverse: Matrix) -> tuple[Matrix, Mask]:
    """The symmetric square root S of bbᵀ, and where it was too ill-conditioned for products; b is lower triangular.

    With b = SU, U orthogonal, S = bUᵀ. U is the limit of X ← X(aI + bXᵀX), which moves singular values alone: each step
    by the cubic that is best for the interval where they are known to be, so after n steps they are in a known
    [l, 2 − l] and nothing has to be measured. The last step is Newton's own, and its XᵀX − I the check. b⁻¹ says how
    small the singular values are.
    """
    xp = e.xp
    gram = e.gram(b)
    highest = xp.sqrt(xp.sqrt(e.matrix_dot(gram, gram)))  # (Σσ⁴)^¼, nearer to the largest than other norms
    share = 1.0 / (highest * _norm_bound(e, inverse))
    usual = share >= SMALLEST_SHARE  # not where anything is not finite
    low = xp.where(usual, xp.clip(share, None, 1.0), xp.ones_like(share))
    enough = 0.5 * float(xp.finfo(b.dtype).eps) ** 0.5  # squared by the last step

    def stepped(x: Matrix, gram: Matrix, linear: PerState, cubic: PerState) -> Matrix:
        gram *= cubic[..., None, None]  # in place: the array is new
        return x @ e.plus_diagonal(gram, linear)

    def body(x: Matrix, low: PerState) -> tuple[Matrix, PerState]:
        moving = 1.0 - low > enough  # a state that is done keeps every bit
        linear, cubic = _cubic(e, low, 2.0 - low)
        linear, cubic = xp.where(moving, linear, 1.0), xp.where(moving, cubic, 0.0)
        return stepped(x, e.gram(x), linear, cubic), low * (linear + cubic * low * low)

    linear, cubic = _cubic(e, low, xp.ones_like(low))
    x = stepped(b, gram, linear / highest, cubic / (highest * highest * highest))
    low = low * (linear + cubic * low * low)
    x, low = e.loop(lambda x, low: 1.0 - low > enough, body, (x, low), max_steps=MOST_STEPS)
    rest = e.plus_diagonal(e.gram(x), -xp.ones_like(low))
    left = e.matrix_dot(rest, rest)
    rest *= -0.5
    x = x @ e.plus_diagonal(rest, xp.ones_like(low))
    bad = ~usual | ~(left <= 64.0 * b.shape[-1] * enough * enough)
    (root,) = e.mend(bad, lambda b: _decomposed(e, b), (b @ mT(x),), b)
    return 0.5 * (root + mT(root)), bad


def _lyapunov_decomposed(e: Engine, s: Matrix, c: Matrix) -> tuple[Matrix]:
    """In the basis of s the denominators are sums, never differences: equal eigenvalues and s = I are ordinary."""
    xp = e.xp
    values, basis = xp.linalg.eigh(s)
    values = xp.clip(values, xp.finfo(s.dtype).smallest_normal, None)
    inner = (mT(basis) @ c @ basis) / (values[..., :, None] + values[..., None, :])
    return (basis @ inner @ mT(basis),)


def lyapunov(e: Engine, s: Matrix, c: Matrix) -> Matrix:
    """X with sX + Xs = c, for symmetric c and positive definite s, by the squared method of Smith.

    With P = (s + γI)⁻¹ and A = I − 2γP the equation is X = 2γPcP + AXA. Its solution is the sum of Aʲ(2γPcP)Aʲ, of
    which X ← X + AXA, A ← A² doubles the terms, until ‖A‖² is rounding. The best γ is the geometric mean of the
    smallest and the largest eigenvalue; with m the mean of all and v their variance, √(m² − 1.5v) is near it.
    """
    xp = e.xp
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

    x, a = e.loop(unfinished, lambda x, a: (doubled(x, a), a @ a), (x, a), max_steps=MOST_DOUBLINGS)
    (x,) = e.mend(unfinished(x, a), lambda s, c: _lyapunov_decomposed(e, s, c), (doubled(x, a),), s, c)
    return x


def root_pullback(e: Engine, b: Matrix, root: Matrix, cotangent: Matrix) -> Matrix:
    """The cotangent of b from that of the symmetric root S of bbᵀ: 2Xb with S X + X S = ½(S̄ + S̄ᵀ)."""
    return lyapunov(e, root, cotangent + mT(cotangent)) @ b


@dataclass(frozen=True)
class _SymmetricRoot:
    """The root as a differentiable function, for distances that the framework differentiates."""

    check: ClassVar[bool] = False
    fusible: ClassVar[bool] = False
    signature: ClassVar[Signature] = Signature(
        cores=(2,),
        outputs=(Like((0,), ((0, -2), (0, -1))),),
        residuals=(),
    )

    def admit(self, e: Engine, *inputs: Array) -> None: ...

    def accept(self, e: Engine, *outputs: Array | None) -> None: ...

    def solve(self, e: Engine, *inputs: Array, whole: bool = False) -> Solved:
        (b,) = inputs
        return Solved((root_of_factor(e, b, e.solve_triangular(b, e.eye(b)))[0],), ())

    def recover(self, e: Engine, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Array, ...]:
        return ()

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool]
    ) -> tuple[Array]:
        (b,), (root,), _ = saved
        (cotangent,) = cotangents
        assert cotangent is not None
        return (root_pullback(e, b, root, cotangent),)


def symmetric_root(b: Matrix) -> Matrix:
    """The symmetric square root of bbᵀ, differentiable in every framework; b is lower triangular."""
    return attach(_SymmetricRoot(), (b,))[0]  # pyright: ignore[reportArgumentType]
