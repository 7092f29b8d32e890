"""What the maths asks of an engine: a namespace of the array API, and the operations that the standard lacks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trpl.types import Array, Mask

mT = operator.methodcaller("swapaxes", -1, -2)
"""The transpose of the last two axes; NumPy before 2.0 has no `.mT`."""


class Engine(Protocol):
    """What the maths may use: a namespace of the array API, and the operations the standard lacks.

    `concrete` says whether values can be looked at now. `any`, `all` and `branch` do the right thing where they cannot.
    """

    name: str
    concrete: bool
    branches: bool
    """Whether `branch` leaves out what is not due."""
    xp: Any
    """The array API namespace; for PyTorch and NumPy with the shortest ways to what small batches call most."""

    def any(self, mask: Mask) -> bool:
        """Whether any entry holds; True where that cannot be known yet."""
        ...

    def all(self, mask: Mask) -> bool:
        """Whether every entry holds; False where that cannot be known yet."""
        ...

    def branch(self, mask: Mask, work: Callable[..., Any], idle: Callable[..., Any], *operands: Array) -> Any:
        """`work(*operands)` if any entry of `mask` holds, else `idle(*operands)`; both give the same structure.

        A Python branch where values are known, `lax.cond` in traced JAX; traced PyTorch always does the work.
        """
        ...

    def mend(
        self, bad: Mask, careful: Callable[..., tuple], found: tuple[Array, ...], *operands: Array
    ) -> tuple[Array, ...]:
        """`found`, and `careful(*operands)` in its place for the states that are `bad`; all have the mask's batch axes.

        Where values are known only those states are computed; traced JAX branches, and computes all if there is one.
        """
        ...

    def loop(
        self,
        unfinished: Callable[..., Mask],
        body: Callable[..., tuple],
        state: tuple,
        *,
        max_steps: int,
        apart: bool = False,
    ) -> tuple:
        """Repeat `state = body(*state)` while any entry of `unfinished(*state)` holds, at most `max_steps` times.

        A body must keep the entries that are finished. `apart` says that it treats each state for itself and knows
        nothing but `state`, whose arrays are new and have the mask's batch axes: then those that are finished may be
        left out.
        """
        ...

    def constant(self, x: Array) -> Array:
        """The same value without a derivative."""
        ...

    def finite(self, *arrays: Array) -> bool:
        """Whether all entries are finite; where values are concrete."""
        ...

    def is_lower(self, x: Array) -> bool:
        """Whether nothing stands above the diagonal in any of the matrices; where values are concrete."""
        ...

    def asarray(self, value: Any, like: Array) -> Array:
        """A number or NumPy array as an array of this engine, with the dtype and device of `like`."""
        ...

    def exp(self, x: Array) -> Array:
        """eˣ of a large array, by the fastest code there is."""
        ...

    def expm1(self, x: Array) -> Array:
        """eˣ − 1 of a large array, by the fastest code there is."""
        ...

    def once(self, x: Array) -> Array:
        """The same array, computed once although several sums use it: a compiler might repeat it for each."""
        ...

    def vecdot(self, x: Array, y: Array) -> Array:
        """⟨x, y⟩ over the last axis."""
        ...

    def dots(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        """⟨x, y⟩ over the last axis for each pair, in one go over the arrays."""
        ...

    def power_sums(self, w: Array, x: Array, num: int) -> tuple[Array, ...]:
        """Σ w xᵏ over the last axis for k = 0, …, num, in one go over the arrays, which have one shape."""
        ...

    def matrix_dot(self, x: Array, y: Array) -> Array:
        """⟨x, y⟩ over the last two axes."""
        ...

    def gram(self, x: Array, scale: Array | None = None) -> Array:
        """xᵀx over the last two axes, times one number for each matrix."""
        ...

    def square(self, x: Array) -> Array:
        """x² of symmetric matrices."""
        ...

    def diagonal(self, x: Array) -> Array:
        """The diagonals of a batch of matrices."""
        ...

    def plus_diagonal(self, x: Array, value: Array) -> Array:
        """x + value·I with one value for each matrix; in place where the engine can."""
        ...

    def eye(self, x: Array) -> Array:
        """The identity matrix of the size, dtype and device of the matrices `x`."""
        ...

    def lower(self, x: Array) -> Array:
        """1 on and below the diagonal, 0 above, as `eye`; a product with it is much faster than a batched `tril`."""
        ...

    def solve_triangular(self, a: Array, b: Array, *, transpose: bool = False) -> Array:
        """a⁻¹b for lower triangular a, or a⁻ᵀb; leading axes broadcast."""
        ...

    def cholesky(self, a: Array) -> Array:
        """Lower Cholesky factor; not finite, rather than an exception, where `a` is not positive definite."""
        ...

    def qr_r(self, a: Array) -> Array:
        """R of a reduced QR decomposition, without the cost of Q."""
        ...

    def log_ratio(self, p: Array, q: Array) -> Array:
        """log(p/q) for positive numbers, as ±log(1 + |p − q|/min(p, q)).

        p/q would round to 1 when they are close, and (p − q)/q to −1 when p is much the smaller.
        """
        ...
