"""The protocol of an engine: an array API namespace, and operations that the standard lacks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trpl.types import Array, Mask

mT = operator.methodcaller("swapaxes", -1, -2)
"""The transpose of the last two axes; NumPy before 2.0 has no `.mT`."""


class Engine(Protocol):
    """The operations that the maths may use: an array API namespace, and operations that the standard lacks.

    `concrete` says whether values are known now. `any`, `all` and `branch` are safe if they are not.
    """

    name: str
    concrete: bool
    branches: bool
    """Whether `branch` skips the branch that is not taken."""
    xp: Any
    """The array API namespace; PyTorch's and NumPy's bind the functions that small batches call most directly."""

    def any(self, mask: Mask) -> bool:
        """Tell whether any entry holds; True if values are not concrete."""
        ...

    def all(self, mask: Mask) -> bool:
        """Tell whether every entry holds; False if values are not concrete."""
        ...

    def branch(self, mask: Mask, work: Callable[..., Any], idle: Callable[..., Any], *operands: Array) -> Any:
        """Return `work(*operands)` if any entry of `mask` holds, else `idle(*operands)`, of the same structure.

        A Python branch for concrete values, `lax.cond` in traced JAX; traced PyTorch always calls `work`.
        """
        ...

    def recompute(
        self, bad: Mask, careful: Callable[..., tuple], found: tuple[Array, ...], *operands: Array
    ) -> tuple[Array, ...]:
        """Replace `found` by `careful(*operands)` for the states in the mask `bad`, whose batch axes all arrays have.

        Concrete engines compute only those states; traced JAX branches, and computes all states if any is bad.
        """
        ...

    def loop(
        self,
        unfinished: Callable[..., Mask],
        body: Callable[..., tuple],
        state: tuple,
        *,
        max_steps: int,
        independent: bool = False,
    ) -> tuple:
        """Repeat `state = body(*state)` while any entry of `unfinished(*state)` holds, at most `max_steps` times.

        `body` must keep finished entries. `independent` says that it treats states independently and uses nothing but
        `state`, whose arrays are new and have the mask's batch axes: then finished states may be left out.
        """
        ...

    def constant(self, x: Array) -> Array:
        """Detach the value from autodiff."""
        ...

    def finite(self, *arrays: Array) -> bool:
        """Tell whether all entries are finite; values must be concrete."""
        ...

    def is_lower(self, x: Array) -> bool:
        """Tell whether all matrices are lower triangular; values must be concrete."""
        ...

    def asarray(self, value: Any, like: Array) -> Array:
        """Convert a number or NumPy array to an array of this engine, with the dtype and device of `like`."""
        ...

    def exp(self, x: Array) -> Array:
        """Compute eˣ of a large array, by the fastest available code."""
        ...

    def expm1(self, x: Array) -> Array:
        """Compute eˣ − 1 of a large array, by the fastest available code."""
        ...

    def barrier(self, x: Array) -> Array:
        """Put the array behind an optimisation barrier, so that a compiler does not recompute it for each use."""
        ...

    def vecdot(self, x: Array, y: Array) -> Array:
        """Compute ⟨x, y⟩ over the last axis."""
        ...

    def dots(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        """Compute ⟨x, y⟩ over the last axis for each pair, in one pass over the arrays."""
        ...

    def power_sums(self, w: Array, x: Array, num: int) -> tuple[Array, ...]:
        """Compute Σ w xᵏ over the last axis for k = 0, …, num, in one pass over the arrays, which have one shape."""
        ...

    def matrix_dot(self, x: Array, y: Array) -> Array:
        """Compute ⟨x, y⟩ over the last two axes."""
        ...

    def gram(self, x: Array, scale: Array | None = None) -> Array:
        """Compute xᵀx over the last two axes, times one number per matrix."""
        ...

    def square(self, x: Array) -> Array:
        """Compute x² of symmetric matrices."""
        ...

    def diagonal(self, x: Array) -> Array:
        """Return the diagonals of a batch of matrices."""
        ...

    def plus_diagonal(self, x: Array, value: Array) -> Array:
        """Compute x + value·I with one value per matrix; in place if the engine can."""
        ...

    def eye(self, x: Array) -> Array:
        """Return the identity matrix with the size, dtype and device of the matrices `x`."""
        ...

    def lower(self, x: Array) -> Array:
        """Return a mask, 1 on and below the diagonal; multiplying by it is much faster than a batched `tril`."""
        ...

    def solve_triangular(self, a: Array, b: Array, *, transpose: bool = False) -> Array:
        """Compute a⁻¹b for lower triangular a, or a⁻ᵀb; leading axes broadcast."""
        ...

    def cholesky(self, a: Array) -> Array:
        """Return the lower Cholesky factor; NaN, rather than an exception, where `a` is not positive definite."""
        ...

    def qr_r(self, a: Array) -> Array:
        """Compute R of a reduced QR decomposition, without the cost of Q."""
        ...

    def log_ratio(self, p: Array, q: Array) -> Array:
        """Compute log(p/q) for positive numbers, as ±log(1 + |p − q|/min(p, q)).

        p/q would round to 1 if they are close, and (p − q)/q to −1 if p is much smaller.
        """
        ...
