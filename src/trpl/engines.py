"""The array engines: NumPy, PyTorch and JAX, eager or traced, behind one protocol.

This module alone asks what kind of array it has, once per call; every function of the maths takes the engine as its
first argument `e` and asks nothing. That NumPy computes in PyTorch's place is decided here too (`suits_numpy`). A
framework is imported when one of its arrays arrives, so NumPy, PyTorch and JAX are each optional.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

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

    def loop(
        self, unfinished: Callable[..., Mask], body: Callable[..., tuple], state: tuple, *, max_steps: int
    ) -> tuple:
        """Repeat `state = body(*state)` while any entry of `unfinished(*state)` holds, at most `max_steps` times.

        A body must keep the entries that are finished.
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

    def power_sums(self, w: Array, x: Array, num: int) -> tuple[Array, ...]:
        """Σ w xᵏ over the last axis for k = 0, …, num, in one go over the arrays, which have one shape."""
        ...

    def matrix_dot(self, x: Array, y: Array) -> Array:
        """⟨x, y⟩ over the last two axes."""
        ...

    def gram(self, x: Array) -> Array:
        """xᵀx over the last two axes."""
        ...

    def diagonal(self, x: Array) -> Array:
        """The diagonals of a batch of matrices."""
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


# NumPy ---------------------------------------------------------------------------------------------------------------

_DIRECT = (
    *("abs", "clip", "exp", "expm1", "isfinite", "log", "log1p", "maximum", "minimum", "ones_like", "sqrt", "sum"),
    *("where", "zeros_like"),
)
"""Functions that each framework has under the standard's name, and that cost less than a general wrapper."""


@functools.cache
def _ones(size: int, dtype: Any) -> np.ndarray:
    return np.ones(size, dtype)


def _numpy_sum(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> np.ndarray:
    """NumPy's sum; over the last axis as a product with ones, since the reduction is slow for a short axis."""
    if axis == -1 and not keepdims and x.dtype.kind == "f":
        return x @ _ones(x.shape[-1], x.dtype)
    return np.add.reduce(x, axis=axis, keepdims=keepdims)


def _numpy_clip(x: np.ndarray, lowest: Any, highest: Any) -> np.ndarray:
    if lowest is not None:
        x = np.maximum(x, lowest)
    return x if highest is None else np.minimum(x, highest)


def _numpy_solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A⁻¹B of matrices; NumPy 1 would take a B with one axis less than A for vectors."""
    return np.linalg.solve(a, b[(None,) * (a.ndim - b.ndim)] if b.ndim < a.ndim else b)


def _numpy_namespace() -> Any:
    made: Any = types.ModuleType("trpl.engines.numpy")
    made.__getattr__ = lambda name: getattr(np, name)
    made.__dict__.update(
        sum=_numpy_sum,
        clip=_numpy_clip,
        min=lambda x, axis=None: _extreme("amin", np.minimum, x, axis),
        max=lambda x, axis=None: _extreme("amax", np.maximum, x, axis),
        flip=lambda x, axis: np.flip(x, axis).copy(),  # contiguous, as PyTorch's: a product comes next
        concat=np.concatenate,  # np.concat, np.astype and svdvals are new in NumPy 2
        astype=lambda x, dtype: x.astype(dtype),
        linalg=types.SimpleNamespace(
            eigh=np.linalg.eigh,
            eigvalsh=np.linalg.eigvalsh,
            svd=np.linalg.svd,
            svdvals=lambda x: np.linalg.svd(x, compute_uv=False),
            solve=_numpy_solve,
        ),
        **{name: getattr(np, name) for name in _DIRECT if name not in ("sum", "clip")},
    )
    return made


@functools.cache
def _numpy_lower(size: int, dtype: Any) -> np.ndarray:
    return np.tril(np.ones((size, size), dtype))


@functools.cache
def _numpy_eye(size: int, dtype: Any) -> np.ndarray:
    return np.eye(size, dtype=dtype)


WORTH_A_CROSSING = 1 << 11
"""Number of entries from which a function of PyTorch is worth the call for NumPy."""


def _by_torch(name: str, x: np.ndarray) -> np.ndarray:
    """PyTorch's exponentials, if it is loaded: for float64 too they use the processor's vector units."""
    torch = sys.modules.get("torch")
    if torch is None or x.size < WORTH_A_CROSSING:
        return getattr(np, name)(x)
    return getattr(torch, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def _extreme(name: str, ufunc: np.ufunc, x: np.ndarray, axis: int | None) -> np.ndarray:
    """The least or greatest entry; along a short last axis PyTorch, if it is loaded, is six times as fast."""
    torch = sys.modules.get("torch")
    if torch is None or axis != -1 or x.size < WORTH_A_CROSSING or x.dtype.kind != "f" or not x.flags.writeable:
        return ufunc.reduce(x, axis=axis)
    return getattr(torch, name)(torch.from_numpy(x), -1).numpy()


class NumpyEngine:
    """NumPy on arrays of its own, or on the memory of CPU tensors (see `enter`)."""

    name = "NumPy"
    concrete = True
    branches = True
    xp = _numpy_namespace()
    vecdot: Any = staticmethod(getattr(np, "vecdot", lambda x, y: np.einsum("...i,...i->...", x, y)))  # new in NumPy 2
    qr_r = staticmethod(functools.partial(np.linalg.qr, mode="r"))
    diagonal = staticmethod(operator.methodcaller("diagonal", 0, -2, -1))

    def any(self, mask: np.ndarray) -> bool:
        return bool(mask.any())

    def all(self, mask: np.ndarray) -> bool:
        return bool(mask.all())

    def branch(self, mask: np.ndarray, work: Callable[..., Any], idle: Callable[..., Any], *operands: Any) -> Any:
        return work(*operands) if mask.any() else idle(*operands)

    def loop(self, unfinished: Callable, body: Callable, state: tuple, *, max_steps: int) -> tuple:
        return _python_loop(unfinished, body, state, max_steps)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return _by_torch("exp", x)

    def expm1(self, x: np.ndarray) -> np.ndarray:
        return _by_torch("expm1", x)

    def once(self, x: np.ndarray) -> np.ndarray:
        return x

    def constant(self, x: np.ndarray) -> np.ndarray:
        return x

    def finite(self, *arrays: np.ndarray) -> bool:
        total = sum([np.vdot(x, x) for x in arrays])  # may overflow: then each entry is looked at
        return math.isfinite(total) or all([bool(np.isfinite(x).all()) for x in arrays])

    def is_lower(self, x: np.ndarray) -> bool:
        anywhere = np.logical_or.reduce(x, axis=tuple(range(x.ndim - 2)))
        return not np.triu(anywhere, 1).any()

    def asarray(self, value: Any, like: np.ndarray) -> np.ndarray:
        return np.asarray(value, dtype=like.dtype)

    def power_sums(self, w: np.ndarray, x: np.ndarray, num: int) -> tuple[np.ndarray, ...]:
        found, product = [_numpy_sum(w, -1)], w
        for k in range(num):
            product = np.multiply(product, x, out=product if k else None)
            found.append(_numpy_sum(product, -1))
        return tuple(found)

    def matrix_dot(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        size = x.shape[-2] * x.shape[-1]
        return self.vecdot(x.reshape(*x.shape[:-2], size), y.reshape(*y.shape[:-2], size))

    def gram(self, x: np.ndarray) -> np.ndarray:
        return x.copy().swapaxes(-1, -2) @ x  # for one array with itself NumPy calls what is slow for small matrices

    def eye(self, x: np.ndarray) -> np.ndarray:
        return _numpy_eye(x.shape[-1], x.dtype)

    def lower(self, x: np.ndarray) -> np.ndarray:
        return _numpy_lower(x.shape[-1], x.dtype)

    def log_ratio(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        change = p - q
        return np.copysign(np.log1p(np.abs(change) / np.minimum(p, q)), change)

    def solve_triangular(self, a: np.ndarray, b: np.ndarray, *, transpose: bool = False) -> np.ndarray:
        torch = sys.modules.get("torch")
        if torch is not None:  # NumPy has none
            one, other = (torch.from_numpy(x if x.flags.writeable else x.copy()) for x in (a, b))
            return torch_engine().solve_triangular(one, other, transpose=transpose).numpy()
        return _numpy_solve(mT(a) if transpose else a, b)

    def cholesky(self, a: np.ndarray) -> np.ndarray:
        try:
            return np.linalg.cholesky(a)
        except np.linalg.LinAlgError:  # one failure spoils NumPy's batch: decompose one by one
            factors = np.full_like(a, np.nan)
            for index in np.ndindex(a.shape[:-2]):
                try:
                    factors[index] = np.linalg.cholesky(a[index])
                except np.linalg.LinAlgError:
                    continue
            return factors


def _log_ratio(xp: Any, p: Any, q: Any) -> Any:
    """Without |p − q|, whose derivative is 0 at p = q."""
    above = p >= q
    one = xp.ones_like(above, dtype=p.dtype)  # two numbers would have the framework's default dtype
    sign = xp.where(above, one, -one)
    return sign * xp.log1p(sign * (p - q) / xp.where(above, q, p))


def _powers(w: Any, x: Any, num: int) -> list[Any]:
    """w, wx, wx², …"""
    found = [w]
    for _ in range(num):
        found.append(found[-1] * x)
    return found


SHORT_ROW = 256
"""Length up to which XLA's compiler makes several sums faster in one loop than in vectorised loops of their own."""


def _python_loop(unfinished: Callable, body: Callable, state: tuple, max_steps: int) -> tuple:
    for _ in range(max_steps):
        if not unfinished(*state).any():
            break
        state = body(*state)
    return state


NUMPY: Engine = NumpyEngine()  # pyright: ignore[reportAssignmentType]


# PyTorch -------------------------------------------------------------------------------------------------------------


class TorchEngine:
    """PyTorch's operations: eager, or under `torch.compile`, `torch.func.vmap`, meta and fake tensors."""

    name = "PyTorch"

    def __init__(self, *, concrete: bool) -> None:
        import array_api_compat.torch
        import torch

        made: Any = types.ModuleType("trpl.engines.torch")
        made.__dict__.update({name: getattr(array_api_compat.torch, name) for name in dir(array_api_compat.torch)})
        made.__dict__.update({name: getattr(torch, name) for name in _DIRECT})
        made.__dict__.update(min=torch.amin, max=torch.amax)
        self.torch, self.xp, self.concrete = torch, made, concrete
        self.branches = concrete
        _FLOATS.update((torch.float32, torch.float64))

    def any(self, mask: Any) -> bool:
        return bool(mask.any()) if self.concrete else True

    def all(self, mask: Any) -> bool:
        return bool(mask.all()) if self.concrete else False

    def branch(self, mask: Any, work: Callable[..., Any], idle: Callable[..., Any], *operands: Any) -> Any:
        return work(*operands) if self.any(mask) else idle(*operands)

    def loop(self, unfinished: Callable, body: Callable, state: tuple, *, max_steps: int) -> tuple:
        if self.concrete:
            return _python_loop(unfinished, body, state, max_steps)
        if not self.torch.compiler.is_compiling():  # `vmap`: nothing can be looked at, so make every step
            for _ in range(max_steps):
                state = body(*state)
            return state
        count = self.torch.zeros((), dtype=self.torch.int64, device=state[0].device)
        return self.torch.while_loop(
            lambda count, *now: (count < max_steps) & unfinished(*now).any(),
            lambda count, *now: (count + 1, *body(*now)),
            (count, *state),
        )[1:]

    def exp(self, x: Any) -> Any:
        return self.torch.exp(x)

    def expm1(self, x: Any) -> Any:
        return self.torch.expm1(x)

    def once(self, x: Any) -> Any:
        return x

    def constant(self, x: Any) -> Any:
        return x.detach()

    def finite(self, *arrays: Any) -> bool:
        return all([bool(x.isfinite().all()) for x in arrays])

    def is_lower(self, x: Any) -> bool:
        return not bool(x.triu(1).any())

    def asarray(self, value: Any, like: Any) -> Any:
        if isinstance(value, self.torch.Tensor):
            return value
        if isinstance(value, np.ndarray):
            return self.torch.as_tensor(value, dtype=like.dtype, device=like.device)
        return like.new_full((), value)

    def vecdot(self, x: Any, y: Any) -> Any:
        return self.torch.sum(x * y, -1)

    def power_sums(self, w: Any, x: Any, num: int) -> tuple[Any, ...]:
        return tuple(self.torch.sum(y, -1) for y in _powers(w, x, num))

    def matrix_dot(self, x: Any, y: Any) -> Any:
        return self.torch.sum(x * y, (-2, -1))

    def gram(self, x: Any) -> Any:
        return x.mT @ x

    def diagonal(self, x: Any) -> Any:
        return x.diagonal(0, -2, -1)

    def eye(self, x: Any) -> Any:
        return self.torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)

    def lower(self, x: Any) -> Any:
        return self.torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device).tril()

    def solve_triangular(self, a: Any, b: Any, *, transpose: bool = False) -> Any:
        """As a solve from the right, whose transposed arrays are in LAPACK's order already: nothing is copied."""
        factor = a if transpose else a.mT
        return self.torch.linalg.solve_triangular(factor, b.mT, upper=not transpose, left=False).mT

    def cholesky(self, a: Any) -> Any:
        factor, info = self.torch.linalg.cholesky_ex(a)
        failed = info > 0
        return self.torch.where(failed[..., None, None], self.torch.nan, factor) if self.any(failed) else factor

    def qr_r(self, a: Any) -> Any:
        return self.torch.linalg.qr(a, mode="r")[1]

    def log_ratio(self, p: Any, q: Any) -> Any:
        return _log_ratio(self.torch, p, q)


_TORCH: list[TorchEngine] = []  # traced and eager, once they are made; Dynamo would look through a `functools.cache`


def torch_engine(*, concrete: bool = True) -> TorchEngine:
    """PyTorch's engine, eager or traced."""
    if not _TORCH:
        _TORCH.extend((TorchEngine(concrete=False), TorchEngine(concrete=True)))
    return _TORCH[concrete]


# JAX -----------------------------------------------------------------------------------------------------------------


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
        if axes:  # inside `shard_map` both branches must say that their results differ from device to device
            work, idle = (lambda *x, f=f: self.varying(f(*x), axes) for f in (work, idle))
        return self.jax.lax.cond(mask.any(), work, idle, *operands)

    def device_axes(self, arrays: Sequence[Any]) -> frozenset[str]:
        """The axes of devices over which `shard_map` maps any of the arrays."""
        found: frozenset[str] = frozenset()
        if hasattr(self.jax, "typeof"):
            for x in arrays:
                kind = self.jax.typeof(x)
                here = getattr(kind, "manual_axis_type", None)  # `vma` before JAX 0.10
                found |= getattr(kind, "vma", frozenset()) if here is None else here.varying
        return found

    def varying(self, arrays: Any, axes: frozenset[str]) -> Any:
        """The same arrays, typed as mapped over these axes; the derivative of it sums over the devices."""

        def cast(x: Any) -> Any:
            missing = tuple(sorted(axes - self.device_axes((x,))))
            if not missing:
                return x
            lax = self.jax.lax
            return lax.pcast(x, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, missing)

        return self.jax.tree.map(cast, arrays) if axes else arrays

    def loop(self, unfinished: Callable, body: Callable, state: tuple, *, max_steps: int) -> tuple:
        if self.concrete:
            return _python_loop(unfinished, body, state, max_steps)

        state = self.varying(state, self.device_axes(state))

        def go_on(carry: tuple) -> Any:
            return (carry[0] < max_steps) & unfinished(*carry[1:]).any()

        return self.jax.lax.while_loop(go_on, lambda carry: (carry[0] + 1, *body(*carry[1:])), (0, *state))[1:]

    def exp(self, x: Any) -> Any:
        return self.xp.exp(x)

    def expm1(self, x: Any) -> Any:
        return self.xp.expm1(x)

    def once(self, x: Any) -> Any:
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

    def power_sums(self, w: Any, x: Any, num: int) -> tuple[Any, ...]:
        terms = _powers(w, x, num)
        if x.shape[-1] > SHORT_ROW:
            return tuple(self.xp.sum(y, axis=-1) for y in terms)
        zero, axis = self.xp.zeros((), x.dtype), x.ndim - 1
        return self.jax.lax.reduce(
            tuple(terms), (zero,) * (num + 1), lambda one, two: tuple(map(operator.add, one, two)), (axis,)
        )

    def matrix_dot(self, x: Any, y: Any) -> Any:
        return self.xp.sum(x * y, axis=(-2, -1))

    def gram(self, x: Any) -> Any:
        return x.mT @ x

    def diagonal(self, x: Any) -> Any:
        return self.xp.linalg.diagonal(x)

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
        return _log_ratio(self.xp, p, q)


@functools.cache
def _jax_engines() -> tuple[JaxEngine, JaxEngine]:
    return JaxEngine(concrete=False), JaxEngine(concrete=True)


def jax_engine(*, concrete: bool = True) -> JaxEngine:
    """JAX's engine, eager or traced."""
    return _jax_engines()[concrete]


# Which one -----------------------------------------------------------------------------------------------------------

SERIAL = 1 << 15
"""Number of entries up to which PyTorch computes on one thread, however many it has."""


def framework_of(x: object) -> str | None:
    """ "NumPy", "PyTorch" or "JAX", or None for what is no array; imports nothing."""
    if isinstance(x, np.ndarray):
        return "NumPy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "PyTorch"
    jax = sys.modules.get("jax")
    return "JAX" if jax is not None and isinstance(x, jax.Array) else None


_FLOATS: set[Any] = {np.dtype("float32"), np.dtype("float64")}  # JAX's too; PyTorch's join with its engine


def is_floating(x: Any) -> bool:
    """Whether an array is float32 or float64, the types the maths is made for."""
    if not _TORCH and framework_of(x) == "PyTorch":
        torch_engine()
    return x.dtype in _FLOATS


def is_number(x: object) -> bool:
    """Whether `x` is a single number of Python or NumPy, whose value is known also where arrays are traced."""
    return isinstance(x, int | float | np.generic)


def is_symbolic_number(x: object) -> bool:
    """Whether `x` is a number that `torch.compile` keeps symbolic: it has no value to look at."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.SymFloat | torch.SymInt)


def engine_of(*arrays: object) -> Engine:
    """The engine for functions whose derivatives the framework itself takes; numbers among the arguments are ignored.

    Raises:
        TypeError: If no argument is an array.
    """
    for x in arrays:
        kind = framework_of(x)
        if kind == "NumPy":
            return NUMPY
        if kind == "PyTorch":
            return torch_engine(concrete=_torch_is_concrete(arrays))
        if kind == "JAX":
            return jax_engine(concrete=jax_is_concrete(arrays))
        if isinstance(x, np.generic):
            return NUMPY
    raise TypeError(f"no array among the {len(arrays)} arguments")


def _torch_is_concrete(arrays: Sequence[Any]) -> bool:
    """Whether values can be looked at: not under `torch.compile` or `vmap`, nor of meta and fake tensors."""
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return False
    transformed = torch._C._are_functorch_transforms_active()
    for x in arrays:
        if not isinstance(x, torch.Tensor):
            continue
        if transformed:
            functorch = torch._C._functorch
            while functorch.is_gradtrackingtensor(x):
                x = functorch.get_unwrapped(x)
            if functorch.is_batchedtensor(x):
                return False
        if x.is_meta or is_fake(x):
            return False
    return True


def is_fake(x: Any) -> bool:
    """Whether a tensor has a shape but no values."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and isinstance(x, fake.FakeTensor)


def jax_is_concrete(arrays: Sequence[object]) -> bool:
    """Whether values can be looked at: of no tracer."""
    tracer = sys.modules["jax"].core.Tracer
    return not any(isinstance(x, tracer) for x in arrays)


def values_of(x: Any) -> np.ndarray | None:
    """The values of an array as NumPy has them, or None where they cannot be looked at now."""
    kind = framework_of(x)
    if kind == "PyTorch":
        if not _torch_is_concrete((x,)):
            return None
        state = sys.modules["torch"]._C
        with state._DisableFuncTorch():  # inside `torch.func.grad` even a constant is wrapped
            while state._functorch.is_gradtrackingtensor(x):
                x = state._functorch.get_unwrapped(x)
            return x.numpy(force=True)
    if kind == "JAX" and not jax_is_concrete((x,)):
        return None
    return np.asarray(x)


def suits_numpy(tensors: Sequence[Any]) -> bool:
    """Whether NumPy should compute in PyTorch's place, on the same memory: where both would use one thread.

    A call of NumPy costs a third of one of PyTorch, and so does a product of many small matrices (docs/speed.md). Not
    where something wants to see PyTorch's operations: a compiler, a transformation, a mode, a subclass.
    """
    torch = sys.modules["torch"]
    state = torch._C
    if torch.compiler.is_compiling() or state._are_functorch_transforms_active() or state._get_tracing_state():
        return False
    alone = torch.get_num_threads() == 1
    for x in tensors:
        if not (x.is_cpu and type(x) in (torch.Tensor, torch.nn.Parameter) and (alone or x.numel() <= SERIAL)):
            return False
    return not state._len_torch_dispatch_stack()


def to_numpy(tensors: Sequence[Any]) -> list[Any]:
    """CPU tensors as NumPy arrays on the same memory, None as None: one crossing of the border."""
    return [None if x is None else x.numpy(force=True) for x in tensors]


def to_torch(arrays: Sequence[Any]) -> list[Any]:
    """NumPy arrays as tensors on the same memory, read-only ones and scalars copied: one crossing of the border."""
    from_numpy = sys.modules["torch"].from_numpy
    return [
        None if x is None else from_numpy(x if type(x) is np.ndarray and x.flags.writeable else np.array(x))
        for x in arrays
    ]
