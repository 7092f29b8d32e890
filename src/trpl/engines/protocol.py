"""The protocol of an engine: an array API namespace, and operations that the standard lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, TypeVarTuple

from trpl.types import A

if TYPE_CHECKING:
    import numpy as np

    from trpl.engines.namespace import Namespace
    from trpl.types import BoolArray

T = TypeVar("T")
Found = TypeVar("Found", bound=tuple)
State = TypeVar("State", bound=tuple)
Ts = TypeVarTuple("Ts")


def mT(x: A) -> A:
    """Transpose the last two axes; NumPy before 2.0 has no `.mT`, and Dynamo traces no `operator.methodcaller`."""
    return x.swapaxes(-1, -2)


class Engine(Protocol[A]):
    """The operations that the maths may use: an array API namespace, and operations that the standard lacks.

    `concrete` says whether values are known now. `any`, `all` and `branch` are safe if they are not.
    """

    name: str
    concrete: bool
    branches: bool
    """Whether `branch` skips the branch that is not taken."""
    xp: Namespace[A]
    """The array API namespace; PyTorch's and NumPy's have no wrapper around the functions called most."""

    def any(self, mask: BoolArray) -> bool:
        """Tell whether any entry holds; True if values are not concrete."""
        ...

    def all(self, mask: BoolArray) -> bool:
        """Tell whether every entry holds; False if values are not concrete."""
        ...

    def branch(self, mask: BoolArray, work: Callable[[*Ts], T], idle: Callable[[*Ts], T], *operands: *Ts) -> T:
        """Return `work(*operands)` if any entry of `mask` holds, else `idle(*operands)`, of the same structure.

        A Python branch for concrete values, `lax.cond` in traced JAX; traced PyTorch always calls `work`.
        """
        ...

    def recompute(self, bad: BoolArray, careful: Callable[[*Ts], Found], found: Found, *operands: *Ts) -> Found:
        """Replace `found` by `careful(*operands)` for the states in the mask `bad`, whose batch axes all arrays have.

        Concrete engines compute only those states; traced JAX branches, and computes all states if any is bad.
        """
        ...

    def loop(
        self,
        unfinished: Callable[[*Ts], BoolArray],
        body: Callable[[*Ts], tuple[*Ts]],
        state: tuple[*Ts],
        *,
        max_steps: int,
        independent: bool = False,
    ) -> tuple[*Ts]:
        """Repeat `state = body(*state)` while any entry of `unfinished(*state)` holds, at most `max_steps` times.

        `body` must keep finished entries. `independent` says that it treats states independently and uses nothing but
        `state`, whose arrays are new and have the mask's batch axes: then finished states may be left out.
        """
        ...

    def constant(self, x: A) -> A:
        """Detach the value from autodiff."""
        ...

    def finite(self, *arrays: A) -> bool:
        """Tell whether all entries are finite; values must be concrete."""
        ...

    def is_lower(self, x: A) -> bool:
        """Tell whether all matrices are lower triangular; values must be concrete."""
        ...

    def asarray(self, value: A | np.ndarray | float, like: A) -> A:
        """Convert a number or NumPy array to an array of this engine, with the dtype and device of `like`."""
        ...

    def exp(self, x: A) -> A:
        """Compute eˣ of a large array, by the fastest available code."""
        ...

    def expm1(self, x: A) -> A:
        """Compute eˣ − 1 of a large array, by the fastest available code."""
        ...

    def barrier(self, x: A) -> A:
        """Put the array behind an optimisation barrier, so that a compiler does not recompute it for each use."""
        ...

    def vecdot(self, x: A, y: A) -> A:
        """Compute ⟨x, y⟩ over the last axis."""
        ...

    def dots(self, *pairs: tuple[A, A]) -> tuple[A, ...]:
        """Compute ⟨x, y⟩ over the last axis for each pair, in one pass over the arrays."""
        ...

    def power_sums(self, w: A, x: A, num: int) -> tuple[A, ...]:
        """Compute Σ w xᵏ over the last axis for k = 0, …, num, in one pass over the arrays, which have one shape."""
        ...

    def matrix_dot(self, x: A, y: A) -> A:
        """Compute ⟨x, y⟩ over the last two axes."""
        ...

    def gram(self, x: A, scale: A | None = None) -> A:
        """Compute xᵀx over the last two axes, times one number per matrix."""
        ...

    def square(self, x: A) -> A:
        """Compute x² of symmetric matrices."""
        ...

    def diagonal(self, x: A, /) -> A:
        """Return the diagonals of a batch of matrices."""
        ...

    def plus_diagonal(self, x: A, value: A) -> A:
        """Compute x + value·I with one value per matrix; in place if the engine can."""
        ...

    def eye(self, x: A) -> A:
        """Return the identity matrix with the size, dtype and device of the matrices `x`."""
        ...

    def lower(self, x: A) -> A:
        """Return a mask, 1 on and below the diagonal; multiplying by it is much faster than a batched `tril`."""
        ...

    def solve_triangular(self, a: A, b: A, *, transpose: bool = False, lower: bool = False) -> A:
        """Compute a⁻¹b for lower triangular a, or a⁻ᵀb; leading axes broadcast. `lower`: b is lower triangular too."""
        ...

    def lower_product(self, a: A, b: A) -> A:
        """Compute ab for lower triangular matrices; leading axes broadcast."""
        ...

    def cholesky(self, a: A) -> A:
        """Return the lower Cholesky factor; NaN, rather than an exception, where `a` is not positive definite."""
        ...

    def svd(self, x: A) -> tuple[A, A, A]:
        """Compute U, σ and Vᵀ, without the columns of U beyond x's; NaN for a matrix that is not finite."""
        ...

    def svdvals(self, x: A) -> A:
        """Compute the singular values; NaN for a matrix that is not finite."""
        ...

    def eigh(self, x: A) -> tuple[A, A]:
        """Compute the eigenvalues and eigenvectors of symmetric matrices; NaN for a matrix that is not finite."""
        ...

    def eigvalsh(self, x: A) -> A:
        """Compute the eigenvalues of symmetric matrices; NaN for a matrix that is not finite."""
        ...

    def qr_r(self, a: A, /) -> A:
        """Compute R of a reduced QR decomposition, without the cost of Q."""
        ...

    def log_ratio(self, p: A, q: A) -> A:
        """Compute log(p/q) for positive numbers, as ±log(1 + |p − q|/min(p, q)).

        p/q would round to 1 if they are close, and (p − q)/q to −1 if p is much smaller.
        """
        ...
