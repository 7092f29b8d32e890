"""JAX's engine, on arrays or on tracers; imports JAX when the engine is made."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trpl.engines.shared import SHORT_ROW, log_ratio, powers, python_loop, recompute_selected


class JaxEngine:
    """JAX's operations: on arrays, or on tracers."""

    name = "JAX"

    def __init__(self, *, concrete: bool) -> None:
        import jax

        self.jax, self.xp, self.concrete = jax, jax.numpy, concrete
        self.branches = True

    def any(self, mask: Any) -> bool:
        return bool(mask.any()) if self.concrete else True

    def all(self, mask: Any) -> bool:
        return bool(mask.all()) if self.concrete else False

    def branch(self, mask: Any, work: Callable[..., Any], idle: Callable[..., Any], *operands: Any) -> Any:
        if self.concrete:
            return work(*operands) if mask.any() else idle(*operands)
        axes = self.device_axes((mask, *operands))
        if axes:  # inside `shard_map` both branches must have results that vary over the same device axes
            work, idle = (lambda *x, f=f: self.varying(f(*x), axes) for f in (work, idle))
        return self.jax.lax.cond(mask.any(), work, idle, *operands)

    def device_axes(self, arrays: Sequence[Any]) -> frozenset[str]:
        """Return the device axes over which `shard_map` maps any of the arrays."""
        found: frozenset[str] = frozenset()
        if hasattr(self.jax, "typeof"):
            for x in arrays:
                kind = self.jax.typeof(x)
                here = getattr(kind, "manual_axis_type", None)  # `vma` before JAX 0.10
                found |= getattr(kind, "vma", frozenset()) if here is None else here.varying
        return found

    def varying(self, arrays: Any, axes: frozenset[str]) -> Any:
        """Cast arrays to vary over device axes; the cast's derivative sums over the devices."""

        def cast(x: Any) -> Any:
            missing = tuple(sorted(axes - self.device_axes((x,))))
            if not missing:
                return x
            lax = self.jax.lax
            return lax.pcast(x, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, missing)

        return self.jax.tree.map(cast, arrays) if axes else arrays

    def recompute(self, bad: Any, careful: Callable[..., tuple], found: tuple, *operands: Any) -> tuple:
        num = len(found)

        def work(*arrays: Any) -> tuple:
            return recompute_selected(self.xp, bad, careful, arrays[:num], arrays[num:])

        return self.branch(bad, work, lambda *arrays: arrays[:num], *found, *operands)

    def loop(
        self, unfinished: Callable, body: Callable, state: tuple, *, max_steps: int, independent: bool = False
    ) -> tuple:
        if self.concrete:
            return python_loop(unfinished, body, state, max_steps)

        state = self.varying(state, self.device_axes(state))

        def keep_going(carry: tuple) -> Any:
            return (carry[0] < max_steps) & unfinished(*carry[1:]).any()

        return self.jax.lax.while_loop(keep_going, lambda carry: (carry[0] + 1, *body(*carry[1:])), (0, *state))[1:]

    def exp(self, x: Any) -> Any:
        return self.xp.exp(x)

    def expm1(self, x: Any) -> Any:
        return self.xp.expm1(x)

    def barrier(self, x: Any) -> Any:
        return self.jax.lax.optimization_barrier(x)

    def constant(self, x: Any) -> Any:
        return self.jax.lax.stop_gradient(x)

    def finite(self, *arrays: Any) -> bool:
        return all([bool(self.xp.isfinite(x).all()) for x in arrays])

    def is_lower(self, x: Any) -> bool:
        return not bool(self.xp.triu(x, 1).any())

    def asarray(self, value: Any, like: Any) -> Any:
        return self.xp.asarray(value, dtype=like.dtype)

    def vecdot(self, x: Any, y: Any) -> Any:
        return self.xp.sum(x * y, axis=-1)

    def dots(self, *pairs: tuple[Any, Any]) -> tuple[Any, ...]:
        return self._sums([x * y for x, y in pairs])

    def power_sums(self, w: Any, x: Any, num: int) -> tuple[Any, ...]:
        first, *others = powers(w, x, num)
        return self.xp.sum(first, axis=-1), *self._sums(others)  # in a joint sum an exponential is not vectorised

    def _sums(self, terms: list[Any]) -> tuple[Any, ...]:
        """Sum each term over the last axis; short rows in one loop."""
        shape = self.xp.broadcast_shapes(*(x.shape for x in terms))
        if shape[-1] > SHORT_ROW:
            return tuple(self.xp.sum(x, axis=-1) for x in terms)
        zero = self.xp.zeros((), terms[0].dtype)
        return self.jax.lax.reduce(
            tuple(self.xp.broadcast_to(x, shape) for x in terms),
            (zero,) * len(terms),
            lambda one, two: tuple(map(operator.add, one, two)),
            (len(shape) - 1,),
        )

    def matrix_dot(self, x: Any, y: Any) -> Any:
        return self.xp.sum(x * y, axis=(-2, -1))

    def gram(self, x: Any, scale: Any = None) -> Any:
        return x.mT @ x if scale is None else scale[..., None, None] * (x.mT @ x)

    def square(self, x: Any) -> Any:
        return x @ x

    def diagonal(self, x: Any) -> Any:
        return self.xp.linalg.diagonal(x)

    def plus_diagonal(self, x: Any, value: Any) -> Any:
        return x + value[..., None, None] * self.eye(x)

    def eye(self, x: Any) -> Any:
        return self.xp.eye(x.shape[-1], dtype=x.dtype)

    def lower(self, x: Any) -> Any:
        return self.xp.tril(self.xp.ones(x.shape[-2:], dtype=x.dtype))

    def solve_triangular(self, a: Any, b: Any, *, transpose: bool = False) -> Any:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (self.xp.broadcast_to(z, batch + z.shape[-2:]) for z in (a, b))
        return self.jax.lax.linalg.triangular_solve(a.mT, b.mT, left_side=False, transpose_a=transpose).mT

    def cholesky(self, a: Any) -> Any:
        return self.jax.lax.linalg.cholesky(a, symmetrize_input=False)

    def qr_r(self, a: Any) -> Any:
        return self.xp.linalg.qr(a, mode="r")

    def log_ratio(self, p: Any, q: Any) -> Any:
        return log_ratio(self.xp, p, q)


@functools.cache
def _jax_engines() -> tuple[JaxEngine, JaxEngine]:
    return JaxEngine(concrete=False), JaxEngine(concrete=True)


def jax_engine(*, concrete: bool = True) -> JaxEngine:
    """Return JAX's engine, eager or traced."""
    return _jax_engines()[concrete]
