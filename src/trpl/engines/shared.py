"""Code that several engines share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from trpl.engines.protocol import mT
from trpl.types import A, cast

if TYPE_CHECKING:
    from trpl.engines.namespace import Namespace
    from trpl.engines.protocol import Found, State
    from trpl.types import Array, BoolArray


class Decompositions(Generic[A]):
    """Decompositions of matrices, all NaN for a matrix with an entry that is not finite.

    LAPACK fails for the whole batch at a NaN. At an infinity, OpenBLAS's singular value decomposition, which NumPy and
    JAX use, does not return.
    """

    concrete: bool
    xp: Namespace[A]
    if TYPE_CHECKING:

        def finite(self, *arrays: A) -> bool: ...

    def svd(self, x: A) -> tuple[A, A, A]:
        return self._of_finite(lambda x: self.xp.linalg.svd(x, full_matrices=False), x)

    def svdvals(self, x: A) -> A:
        return self._of_finite(lambda x: (self.xp.linalg.svdvals(x),), x)[0]

    def eigh(self, x: A) -> tuple[A, A]:
        return self._of_finite(lambda x: self.xp.linalg.eigh(x), x)

    def eigvalsh(self, x: A) -> A:
        return self._of_finite(lambda x: (self.xp.linalg.eigvalsh(x),), x)[0]

    def _of_finite(self, decompose: Callable[[A], Found], x: A) -> Found:
        if self.concrete and self.finite(x):
            return decompose(x)
        xp = self.xp
        sound = ~xp.any(xp.any(~xp.isfinite(x), axis=-1), axis=-1)
        found = decompose(xp.where(sound[..., None, None], x, 0.0))
        return cast("Found", tuple([xp.where(_beside(sound, y), y, math.nan) for y in found]))


class Differentiable(Decompositions[A]):
    """The operations that PyTorch's and JAX's engines have in common; their frameworks differentiate them."""

    if TYPE_CHECKING:

        def eye(self, x: A) -> A: ...

    def any(self, mask: BoolArray) -> bool:
        return bool(mask.any()) if self.concrete else True

    def all(self, mask: BoolArray) -> bool:
        return bool(mask.all()) if self.concrete else False

    def lower_product(self, a: A, b: A) -> A:
        return a @ b

    def exp(self, x: A) -> A:
        return self.xp.exp(x)

    def expm1(self, x: A) -> A:
        return self.xp.expm1(x)

    def finite(self, *arrays: A) -> bool:
        return all([bool(self.xp.isfinite(x).all()) for x in arrays])

    def vecdot(self, x: A, y: A) -> A:
        return self.xp.sum(x * y, axis=-1)

    def matrix_dot(self, x: A, y: A) -> A:
        return self.xp.sum(x * y, axis=(-2, -1))

    def gram(self, x: A, scale: A | None = None) -> A:
        return mT(x) @ x if scale is None else scale[..., None, None] * (mT(x) @ x)

    def square(self, x: A) -> A:
        return x @ x

    def plus_diagonal(self, x: A, value: A) -> A:
        return x + value[..., None, None] * self.eye(x)

    def log_ratio(self, p: A, q: A) -> A:
        """Compute log(p/q) without |p − q|, whose derivative is 0 at p = q."""
        xp = self.xp
        above = p >= q
        one = xp.ones_like(above, dtype=p.dtype)  # Python numbers would get the framework's default dtype
        sign = xp.where(above, one, -one)
        return sign * xp.log1p(sign * (p - q) / xp.where(above, q, p))


def powers(w: A, x: A, num: int) -> list[A]:
    """Compute w, wx, wx², …"""
    found = [w]
    for _ in range(num):
        found.append(found[-1] * x)
    return found


def _beside(mask: BoolArray, x: Array) -> BoolArray:
    """Give a mask of states the number of axes of an array of theirs."""
    return mask.reshape((*mask.shape, *(1,) * (x.ndim - mask.ndim)))


def recompute_indexed(bad: BoolArray, careful: Callable[..., State], found: State, *operands: Any) -> State:
    """Implement `recompute` by indexing with the mask; in place, as `found` is new."""
    if not bad.shape:  # a single state: NumPy's arithmetic gives scalars, which cannot be assigned to
        return careful(*operands) if bad.any() else found
    if bad.any():
        for x, better in zip(found, careful(*[x[bad] for x in operands]), strict=True):
            x[bad] = better
    return found


def recompute_selected(
    where: Callable, bad: BoolArray, careful: Callable[..., State], found: State, *operands: object
) -> State:
    """Implement `recompute` by computing all states and selecting."""

    def chosen(x: Array, y: Array) -> Array:
        return where(_beside(bad, x), y, x)

    return cast("State", tuple(map(chosen, found, careful(*operands))))


def python_loop(
    unfinished: Callable[..., BoolArray],
    body: Callable[..., State],
    state: State,
    *,
    max_steps: int,
    independent: bool = False,
) -> State:
    """Implement `Engine.loop` for concrete values; with `independent`, drop finished states once few remain."""
    for step in range(max_steps):
        mask = unfinished(*state)
        if not mask.any():
            break
        if independent and 2 * int(mask.sum()) < math.prod(mask.shape):
            rest = python_loop(unfinished, body, tuple([x[mask] for x in state]), max_steps=max_steps - step)
            for x, better in zip(state, rest, strict=True):
                x[mask] = better  # in place: the arrays are new
            break
        state = body(*state)
    return state
