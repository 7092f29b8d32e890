"""Code that several engines share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from trpl.engines.protocol import mT
from trpl.types import A, cast

if TYPE_CHECKING:
    from trpl.engines.namespace import Namespace
    from trpl.engines.protocol import State
    from trpl.types import Array, BoolArray

DIRECT = (
    *("abs", "clip", "exp", "expm1", "isfinite", "log", "log1p", "maximum", "minimum", "ones_like", "sqrt", "sum"),
    *("where", "zeros_like"),
)
"""Functions that each framework has under the standard's name, called without a wrapper's overhead."""


class Differentiable(Generic[A]):
    """The operations that PyTorch's and JAX's engines have in common; their frameworks differentiate them."""

    concrete: bool
    xp: Namespace[A]
    if TYPE_CHECKING:

        def eye(self, x: A) -> A: ...

    def any(self, mask: BoolArray) -> bool:
        return bool(mask.any()) if self.concrete else True

    def all(self, mask: BoolArray) -> bool:
        return bool(mask.all()) if self.concrete else False

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


SHORT_ROW = 256
"""Length up to which XLA computes several sums faster in one loop than in vectorised loops of their own."""


def recompute_indexed(bad: BoolArray, careful: Callable[..., State], found: State, operands: tuple) -> State:
    """Implement `recompute` by indexing with the mask; in place, as `found` is new."""
    if bad.any():
        for x, better in zip(found, careful(*[x[bad] for x in operands]), strict=True):
            x[bad] = better
    return found


def recompute_selected(
    where: Callable, bad: BoolArray, careful: Callable[..., State], found: State, operands: tuple
) -> State:
    """Implement `recompute` by computing all states and selecting."""

    def chosen(x: Array, y: Array) -> Array:
        return where(bad.reshape((*bad.shape, *(1,) * (x.ndim - bad.ndim))), y, x)

    return cast("State", tuple(map(chosen, found, careful(*operands))))


def python_loop(
    unfinished: Callable[..., BoolArray],
    body: Callable[..., State],
    state: State,
    max_steps: int,
    independent: bool = False,
) -> State:
    """Implement `Engine.loop` for concrete values; with `independent`, drop finished states once few remain."""
    for step in range(max_steps):
        mask = unfinished(*state)
        if not mask.any():
            break
        if independent and 2 * int(mask.sum()) < math.prod(mask.shape):
            rest = python_loop(unfinished, body, tuple([x[mask] for x in state]), max_steps - step)
            for x, better in zip(state, rest, strict=True):
                x[mask] = better  # in place: the arrays are new
            break
        state = body(*state)
    return state
