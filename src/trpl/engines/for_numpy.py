"""NumPy's engine; uses PyTorch for a few operations where it is loaded and faster."""

from __future__ import annotations

import functools
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trpl.engines.for_torch import solve_lower
from trpl.engines.protocol import mT
from trpl.engines.shared import python_loop, recompute_indexed

if TYPE_CHECKING:
    from trpl.engines.namespace import Namespace
    from trpl.engines.protocol import Engine, State, T
    from trpl.types import BoolArray


@functools.cache
def _ones(size: int, dtype: np.dtype) -> np.ndarray:
    return np.ones(size, dtype)


def _numpy_sum(x: np.ndarray, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> np.ndarray:
    """Sum; over one of the last two axes by a product with ones, since NumPy's reduction is slow for a short axis."""
    if axis == -1 and not keepdims and x.dtype.kind == "f":
        return x @ _ones(x.shape[-1], x.dtype)
    if axis == -2 and not keepdims and x.dtype.kind == "f":
        return _ones(x.shape[-2], x.dtype) @ x
    return np.add.reduce(x, axis=axis, keepdims=keepdims)


def _numpy_clip(x: np.ndarray, lowest: np.ndarray | float | None, highest: np.ndarray | float | None) -> np.ndarray:
    if lowest is not None:
        x = np.maximum(x, lowest)
    return x if highest is None else np.minimum(x, highest)


def _numpy_solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute A⁻¹B of matrices; NumPy 1 would interpret a B with one axis less than A as vectors."""
    return np.linalg.solve(a, b[(None,) * (a.ndim - b.ndim)] if b.ndim < a.ndim else b)


def _numpy_namespace() -> Namespace[np.ndarray]:
    made: Any = types.ModuleType("trpl.engines.numpy")
    made.__dict__.update({name: value for name, value in vars(np).items() if not name.startswith("_")})
    made.__dict__.update(
        sum=_numpy_sum,
        clip=_numpy_clip,
        min=functools.partial(_extreme, "amin", np.minimum),
        max=functools.partial(_extreme, "amax", np.maximum),
        flip=lambda x, axis: np.flip(x, axis).copy(),  # contiguous, as PyTorch's: a product follows
        concat=np.concatenate,  # np.concat, np.astype and svdvals are new in NumPy 2
        astype=lambda x, dtype: x.astype(dtype),
        finfo=functools.cache(np.finfo),
        linalg=types.SimpleNamespace(
            eigh=np.linalg.eigh,
            eigvalsh=np.linalg.eigvalsh,
            svd=np.linalg.svd,
            svdvals=lambda x: np.linalg.svd(x, compute_uv=False),
            solve=_numpy_solve,
        ),
    )
    return made


@functools.cache
def _numpy_lower(size: int, dtype: np.dtype) -> np.ndarray:
    return np.tril(np.ones((size, size), dtype))


@functools.cache
def _numpy_eye(size: int, dtype: np.dtype) -> np.ndarray:
    return np.eye(size, dtype=dtype)


MIN_SIZE_FOR_TORCH = 1 << 11
"""Number of entries from which a PyTorch function is faster than NumPy's despite the conversion."""


MIN_ROWS_FOR_HALVES = 40
"""Number of rows from which a triangular inverse by halves is faster than a solve; by 40 % for 63 rows."""
MIN_ROWS_FOR_SYRK = 32
"""Number of rows from which a symmetric product (BLAS's `syrk`) is faster than a general one."""


def _by_torch(name: str, x: np.ndarray) -> np.ndarray:
    """Use PyTorch's exponentials if it is loaded: they are vectorised for float64 too."""
    torch = sys.modules.get("torch")
    if torch is None or x.size < MIN_SIZE_FOR_TORCH:
        return getattr(np, name)(x)
    return getattr(torch, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def _extreme(name: str, ufunc: np.ufunc, x: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Return the least or greatest entry; by PyTorch, if it is loaded, along a short last axis: six times as fast."""
    if axis is None and x.size:  # a third of the time of a reduction; NaN wins in both
        return x.reshape(-1)[x.argmin() if ufunc is np.minimum else x.argmax()]
    if axis != -1 or x.size < MIN_SIZE_FOR_TORCH or x.dtype.kind != "f" or not x.flags.writeable:
        return ufunc.reduce(x, axis=axis)
    torch = sys.modules.get("torch")
    if torch is None:
        return ufunc.reduce(x, axis=axis)
    return getattr(torch, name)(torch.from_numpy(x), -1).numpy()


class NumpyEngine:
    """NumPy on its own arrays, or on the memory of CPU tensors (see `suits_numpy`)."""

    name = "NumPy"
    concrete = True
    branches = True
    xp = _numpy_namespace()
    vecdot = staticmethod(getattr(np, "vecdot", lambda x, y: np.einsum("...i,...i->...", x, y)))  # new in NumPy 2
    qr_r = staticmethod(functools.partial(cast("Callable[..., np.ndarray]", np.linalg.qr), mode="r"))
    diagonal = staticmethod(operator.methodcaller("diagonal", 0, -2, -1))

    def any(self, mask: BoolArray) -> bool:
        given: Any = mask
        return bool(np.count_nonzero(given))  # a quarter of the time of `mask.any()`

    def all(self, mask: BoolArray) -> bool:
        given: Any = mask
        return bool(np.count_nonzero(given) == given.size)

    def branch(self, mask: BoolArray, work: Callable[..., T], idle: Callable[..., T], *operands: object) -> T:
        return work(*operands) if self.any(mask) else idle(*operands)

    def recompute(self, bad: BoolArray, careful: Callable[..., State], found: State, *operands: object) -> State:
        return recompute_indexed(bad, careful, found, operands)

    def loop(
        self,
        unfinished: Callable[..., BoolArray],
        body: Callable[..., State],
        state: State,
        *,
        max_steps: int,
        independent: bool = False,
    ) -> State:
        return python_loop(unfinished, body, state, max_steps, independent)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return _by_torch("exp", x)

    def expm1(self, x: np.ndarray) -> np.ndarray:
        return _by_torch("expm1", x)

    def barrier(self, x: np.ndarray) -> np.ndarray:
        return x

    def constant(self, x: np.ndarray) -> np.ndarray:
        return x

    def finite(self, *arrays: np.ndarray) -> bool:
        total, rest = 0.0, iter(arrays)
        for x in rest:  # in pairs: a product is finite only where both are
            y = next(rest, x)
            total += np.vdot(x, y) if x.size == y.size else np.vdot(x, x) + np.vdot(y, y)
        # The sum may overflow: then check each entry.
        return math.isfinite(total) or all([bool(np.isfinite(x).all()) for x in arrays])

    def is_lower(self, x: np.ndarray) -> bool:
        anywhere = np.logical_or.reduce(x, axis=tuple(range(x.ndim - 2)))
        return not np.triu(anywhere, 1).any()

    def asarray(self, value: np.ndarray | float, like: np.ndarray) -> np.ndarray:
        return np.asarray(value, dtype=like.dtype)

    def dots(self, *pairs: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, ...]:
        return tuple(self.vecdot(x, y) for x, y in pairs)

    def power_sums(self, w: np.ndarray, x: np.ndarray, num: int) -> tuple[np.ndarray, ...]:
        found, product = [_numpy_sum(w, -1)], w
        for k in range(num):
            product = np.multiply(product, x, out=product if k else None)
            found.append(_numpy_sum(product, -1))
        return tuple(found)

    def matrix_dot(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        size = x.shape[-2] * x.shape[-1]
        return self.vecdot(x.reshape(*x.shape[:-2], size), y.reshape(*y.shape[:-2], size))

    def gram(self, x: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
        if scale is not None:
            return (x * scale[..., None, None]).swapaxes(-1, -2) @ x
        if x.shape[-1] < MIN_ROWS_FOR_SYRK:  # a copy: for an array and itself NumPy calls `syrk`, slow for small ones
            return x.copy().swapaxes(-1, -2) @ x
        return x.swapaxes(-1, -2) @ x

    def square(self, x: np.ndarray) -> np.ndarray:
        return x @ x if x.shape[-1] < MIN_ROWS_FOR_SYRK else x.swapaxes(-1, -2) @ x

    def plus_diagonal(self, x: np.ndarray, value: np.ndarray) -> np.ndarray:
        size = x.shape[-1]
        x.reshape(*x.shape[:-2], size * size)[..., :: size + 1] += value[..., None]  # a view: the array is contiguous
        return x

    def eye(self, x: np.ndarray) -> np.ndarray:
        return _numpy_eye(x.shape[-1], x.dtype)

    def lower(self, x: np.ndarray) -> np.ndarray:
        return _numpy_lower(x.shape[-1], x.dtype)

    def log_ratio(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        change = p - q
        return np.copysign(np.log1p(np.abs(change) / np.minimum(p, q)), change)

    def solve_triangular(self, a: np.ndarray, b: np.ndarray, *, transpose: bool = False) -> np.ndarray:
        if a.shape[-1] >= MIN_ROWS_FOR_HALVES and b is self.eye(a) and not transpose:
            return self._inverse(a)
        torch = sys.modules.get("torch")
        if torch is not None:  # NumPy has no triangular solve
            one, other = (torch.from_numpy(x if x.flags.writeable else x.copy()) for x in (a, b))
            return solve_lower(one, other, transpose=transpose).numpy()
        return _numpy_solve(mT(a) if transpose else a, b)

    def _inverse(self, a: np.ndarray) -> np.ndarray:
        """Invert lower triangular matrices by blocks: (A 0; C B)⁻¹ = (A⁻¹ 0; −B⁻¹CA⁻¹ B⁻¹)."""
        half = a.shape[-1] // 2
        one, side, two = a[..., :half, :half], a[..., half:, :half], a[..., half:, half:]
        first, second = (self.solve_triangular(x, self.eye(x)) for x in (one, two))
        found = np.zeros_like(a)
        found[..., :half, :half], found[..., half:, half:] = first, second
        found[..., half:, :half] = -second @ (side @ first)
        return found

    def cholesky(self, a: np.ndarray) -> np.ndarray:
        try:
            return np.linalg.cholesky(a)
        except np.linalg.LinAlgError:  # NumPy fails for the whole batch: decompose the matrices one by one
            factors = np.full_like(a, np.nan)
            for index in np.ndindex(a.shape[:-2]):
                try:
                    factors[index] = np.linalg.cholesky(a[index])
                except np.linalg.LinAlgError:
                    continue
            return factors


_OWN: Engine[np.ndarray] = NumpyEngine()
NUMPY = cast("Engine", _OWN)
