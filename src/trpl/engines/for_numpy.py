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
from trpl.engines.shared import Decompositions, python_loop, recompute_indexed

if TYPE_CHECKING:
    from torch import Tensor

    from trpl.engines.namespace import Namespace
    from trpl.engines.protocol import Engine, T
    from trpl.types import BoolArray


_ones = functools.cache(np.ones)


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


def _numpy_broadcast_arrays(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Broadcast arrays, to read-only views: those of NumPy's own function warn where something looks at their flags."""
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return tuple([x if x.shape == shape else np.broadcast_to(x, shape) for x in arrays])


def _shareable(x: np.ndarray) -> bool:
    """Tell whether PyTorch can view an array: it has no read-only tensors, and no negative strides."""
    return x.flags.writeable and min(x.strides, default=0) >= 0


def _shared_tensor(torch: Any, x: np.ndarray) -> Tensor:
    """View an array as a tensor on the same memory; copy one that PyTorch cannot view."""
    return torch.from_numpy(x if _shareable(x) else x.copy())


def _decomposition(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Make a decomposition of matrices: PyTorch's if it is loaded, otherwise NumPy's.

    NumPy's OpenBLAS wakes threads of its own, even for small matrices. Where other programs use the cores, waiting for
    these threads takes longer than the decomposition. On one thread, PyTorch's eigenvalues of 17 to 63 rows take 0.8 to
    0.9 of the time of NumPy's; its QR decomposition takes as long for 17 rows, and 1.3 times as long for 63.
    """

    def decompose(x: np.ndarray, **options: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return plain(x, **options)
        found = getattr(torch.linalg, name)(_shared_tensor(torch, x), **options)
        return found.numpy() if isinstance(found, torch.Tensor) else tuple([y.numpy() for y in found])

    return decompose


_qr = _decomposition("qr", lambda x, mode: (None, np.linalg.qr(x, mode=mode)))  # PyTorch returns an empty Q


def _numpy_namespace() -> Namespace[np.ndarray]:
    made: Any = types.ModuleType("trpl.engines.numpy")
    made.__dict__.update({name: value for name, value in vars(np).items() if not name.startswith("_")})
    made.__dict__.update(
        sum=_numpy_sum,
        clip=_numpy_clip,
        broadcast_arrays=_numpy_broadcast_arrays,
        min=functools.partial(_extreme, "amin", np.minimum),
        max=functools.partial(_extreme, "amax", np.maximum),
        flip=lambda x, axis: np.flip(x, axis).copy(),  # contiguous, as PyTorch's: a product follows
        concat=np.concatenate,  # np.concat, np.astype and svdvals are new in NumPy 2
        astype=lambda x, dtype: x.astype(dtype),
        finfo=functools.cache(np.finfo),
        linalg=types.SimpleNamespace(
            eigh=_decomposition("eigh", np.linalg.eigh),
            eigvalsh=_decomposition("eigvalsh", np.linalg.eigvalsh),
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


MAX_SERIAL_DOT = 10_000
"""Number of entries up to which OpenBLAS computes a dot product on one thread, without waking others."""
MIN_ROWS_FOR_HALVES = 40
"""Number of rows from which triangular matrices are solved and multiplied by halves, which leaves out zeros."""
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
    torch = sys.modules.get("torch")
    if torch is None or axis != -1 or x.size < MIN_SIZE_FOR_TORCH or x.dtype.kind != "f" or not _shareable(x):
        return ufunc.reduce(x, axis=axis)
    return getattr(torch, name)(torch.from_numpy(x), -1).numpy()


def _zeros_for(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Make an array for a product of matrices."""
    return np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)


def _solve_lower(a: np.ndarray, b: np.ndarray, *, transpose: bool) -> np.ndarray:
    torch = sys.modules.get("torch")
    if torch is not None:  # NumPy has no triangular solve
        return solve_lower(_shared_tensor(torch, a), _shared_tensor(torch, b), transpose=transpose).numpy()
    return _numpy_solve(mT(a) if transpose else a, b)


def _solve_by_halves(a: np.ndarray, b: np.ndarray, *, transpose: bool, lower: bool) -> np.ndarray:
    """Solve by blocks, with a product for a quarter of a: (A 0; C B)⁻¹(X; Y) = (A⁻¹X; B⁻¹(Y − CA⁻¹X)).

    With `lower` b is lower triangular too, and so is the result.
    """
    half, found = a.shape[-1] // 2, _zeros_for(a, b)
    first, side, last = a[..., :half, :half], a[..., half:, :half], a[..., half:, half:]
    top, bottom = found[..., :half, :], found[..., half:, :]
    if transpose:
        bottom[...] = _solve_lower(last, b[..., half:, :], transpose=True)
        top[...] = _solve_lower(first, b[..., :half, :] - mT(side) @ bottom, transpose=True)
        return found
    width = half if lower else b.shape[-1]
    top[..., :width] = _solve_lower(first, b[..., :half, :width], transpose=False)
    bottom[...] = b[..., half:, :]
    bottom[..., :width] -= side @ top[..., :width]
    bottom[...] = _solve_lower(last, bottom, transpose=False)
    return found


class NumpyEngine(Decompositions[np.ndarray]):
    """NumPy on its own arrays, or on the memory of CPU tensors (see `suits_numpy`)."""

    name = "NumPy"
    concrete = True
    branches = True
    xp = _numpy_namespace()
    exp = staticmethod(functools.partial(_by_torch, "exp"))
    expm1 = staticmethod(functools.partial(_by_torch, "expm1"))
    recompute, loop = staticmethod(recompute_indexed), staticmethod(python_loop)
    vecdot = staticmethod(getattr(np, "vecdot", lambda x, y: np.einsum("...i,...i->...", x, y)))  # new in NumPy 2
    diagonal = staticmethod(operator.methodcaller("diagonal", 0, -2, -1))

    def qr_r(self, a: np.ndarray) -> np.ndarray:
        return _qr(a, mode="r")[1]

    def any(self, mask: BoolArray) -> bool:
        given: Any = mask
        return bool(np.count_nonzero(given))  # a quarter of the time of `mask.any()`

    def all(self, mask: BoolArray) -> bool:
        given: Any = mask
        return bool(np.count_nonzero(given) == given.size)

    def branch(self, mask: BoolArray, work: Callable[..., T], idle: Callable[..., T], *operands: object) -> T:
        return work(*operands) if self.any(mask) else idle(*operands)

    def barrier(self, x: np.ndarray) -> np.ndarray:
        return x

    def constant(self, x: np.ndarray) -> np.ndarray:
        return x

    def finite(self, *arrays: np.ndarray) -> bool:
        total, rest = 0.0, iter([x for x in arrays if x.size <= MAX_SERIAL_DOT])
        for x in rest:  # in pairs: a product is finite only where both are
            y = next(rest, x)
            total += np.vdot(x, y) if x.size == y.size else np.vdot(x, x) + np.vdot(y, y)
        # The sum may overflow: then check each entry.
        unsure = [x for x in arrays if x.size > MAX_SERIAL_DOT] if math.isfinite(total) else arrays
        return all([bool(np.isfinite(x).all()) for x in unsure])

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

    def solve_triangular(
        self, a: np.ndarray, b: np.ndarray, *, transpose: bool = False, lower: bool = False
    ) -> np.ndarray:
        if min(a.shape[-1], b.shape[-1]) >= MIN_ROWS_FOR_HALVES:
            return _solve_by_halves(a, b, transpose=transpose, lower=lower or b is self.eye(a))
        return _solve_lower(a, b, transpose=transpose)

    def lower_product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.shape[-1] < MIN_ROWS_FOR_HALVES:
            return a @ b
        half, found = a.shape[-1] // 2, _zeros_for(a, b)
        np.matmul(a[..., :half, :half], b[..., :half, :half], out=found[..., :half, :half])
        np.matmul(a[..., half:, :], b[..., :half], out=found[..., half:, :half])
        np.matmul(a[..., half:, half:], b[..., half:, half:], out=found[..., half:, half:])
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
