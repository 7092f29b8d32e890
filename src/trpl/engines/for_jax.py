"""JAX's engine, on arrays or on tracers; imports JAX when the engine is made."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from trpl.engines.shared import Differentiable, powers, python_loop, recompute_selected

if TYPE_CHECKING:
    from jax import Array

    from trpl.engines.namespace import Namespace
    from trpl.engines.protocol import Engine, State, T
    from trpl.types import BoolArray


SHORT_ROW = 256
"""Length up to which XLA computes several sums faster in one loop than in vectorised loops of their own."""


class JaxEngine(Differentiable["Array"]):
    """JAX's operations: on arrays, or on tracers."""

    name = "JAX"

    def __init__(self, *, concrete: bool) -> None:
        import jax

        self.jax, self.jnp, self.concrete = jax, jax.numpy, concrete
        self.xp = cast("Namespace[Array]", jax.numpy)
        self.branches = True

    def branch(self, mask: BoolArray, work: Callable[..., T], idle: Callable[..., T], *operands: object) -> T:
        if self.concrete:
            return work(*operands) if mask.any() else idle(*operands)
        axes = device_axes((mask, *operands))
        if axes:  # inside `shard_map` both branches must have results that vary over the same device axes
            work, idle = (lambda *x, f=f: varying(f(*x), axes) for f in (work, idle))
        return self.jax.lax.cond(mask.any(), work, idle, *operands)

    def recompute(self, bad: BoolArray, careful: Callable[..., State], found: State, *operands: object) -> State:
        num = len(found)

        def work(*arrays: Array) -> tuple:
            return recompute_selected(self.xp.where, bad, careful, arrays[:num], *arrays[num:])

        return cast("State", self.branch(bad, work, lambda *arrays: arrays[:num], *found, *operands))

    def loop(
        self,
        unfinished: Callable[..., BoolArray],
        body: Callable[..., State],
        state: State,
        *,
        max_steps: int,
        independent: bool = False,
    ) -> State:
        if self.concrete:
            return python_loop(unfinished, body, state, max_steps=max_steps)

        state = varying(state, device_axes(state))

        def keep_going(carry: tuple) -> Array:
            return (carry[0] < max_steps) & unfinished(*carry[1:]).any()

        return self.jax.lax.while_loop(keep_going, lambda carry: (carry[0] + 1, *body(*carry[1:])), (0, *state))[1:]

    def barrier(self, x: Array) -> Array:
        return self.jax.lax.optimization_barrier(x)

    def constant(self, x: Array) -> Array:
        return self.jax.lax.stop_gradient(x)

    def is_lower(self, x: Array) -> bool:
        return not bool(self.jnp.triu(x, 1).any())

    def asarray(self, value: Array | np.ndarray | float, like: Array) -> Array:
        return self.jnp.asarray(value, dtype=like.dtype)

    def dots(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        return self._sums([x * y for x, y in pairs])

    def power_sums(self, w: Array, x: Array, num: int) -> tuple[Array, ...]:
        first, *others = powers(w, x, num)
        return self.xp.sum(first, axis=-1), *self._sums(others)  # in a joint sum an exponential is not vectorised

    def _sums(self, terms: list[Array]) -> tuple[Array, ...]:
        """Sum each term over the last axis; short rows in one loop."""
        shape = self.jnp.broadcast_shapes(*(x.shape for x in terms))
        if shape[-1] > SHORT_ROW:
            return tuple(self.xp.sum(x, axis=-1) for x in terms)
        zero = self.jnp.zeros((), terms[0].dtype)
        return self.jax.lax.reduce(
            tuple(self.xp.broadcast_to(x, shape) for x in terms),
            (zero,) * len(terms),
            lambda one, two: tuple(map(operator.add, one, two)),
            (len(shape) - 1,),
        )

    def diagonal(self, x: Array) -> Array:
        return self.jnp.linalg.diagonal(x)

    def eye(self, x: Array) -> Array:
        return self.jnp.eye(x.shape[-1], dtype=x.dtype)

    def lower(self, x: Array) -> Array:
        return self.jnp.tril(self.jnp.ones(x.shape[-2:], dtype=x.dtype))

    def solve_triangular(self, a: Array, b: Array, *, transpose: bool = False, lower: bool = False) -> Array:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (self.jnp.broadcast_to(z, batch + z.shape[-2:]) for z in (a, b))
        return self.jax.lax.linalg.triangular_solve(a.mT, b.mT, left_side=False, transpose_a=transpose).mT

    def cholesky(self, a: Array) -> Array:
        return self.jax.lax.linalg.cholesky(a, symmetrize_input=False)

    def qr_r(self, a: Array) -> Array:
        return self.jnp.linalg.qr(a, mode="r")


def device_axes(arrays: Sequence[object]) -> frozenset[str]:
    """Return the device axes over which `shard_map` maps any of the arrays."""
    jax = sys.modules["jax"]
    found: frozenset[str] = frozenset()
    if hasattr(jax, "typeof"):
        for x in arrays:
            kind = jax.typeof(x)
            here = getattr(kind, "manual_axis_type", None)  # `vma` before JAX 0.10
            found |= getattr(kind, "vma", frozenset()) if here is None else here.varying
    return found


def varying(arrays: T, axes: frozenset[str]) -> T:
    """Cast arrays to vary over device axes; the cast's derivative sums over the devices."""
    jax = sys.modules["jax"]

    def cast_one(x: Array) -> Array:
        missing = tuple(sorted(axes - device_axes((x,))))
        if not missing:
            return x
        lax = jax.lax
        return lax.pcast(x, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, missing)

    return jax.tree.map(cast_one, arrays) if axes else arrays


@functools.cache
def _jax_engines() -> tuple[Engine, Engine]:
    made: tuple[Engine[Array], Engine[Array]] = JaxEngine(concrete=False), JaxEngine(concrete=True)
    return cast("tuple[Engine, Engine]", made)


def jax_engine(*, concrete: bool = True) -> Engine:
    """Return JAX's engine, eager or traced, as the maths sees it."""
    return _jax_engines()[concrete]
