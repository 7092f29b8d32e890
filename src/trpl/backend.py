"""The few operations the array API standard lacks, for each framework.

This and `trpl.rules` are the only modules of the maths that know which frameworks exist. A framework is imported when
one of its arrays arrives, so NumPy, PyTorch and JAX are each optional.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any


def is_torch(x: Any) -> bool:
    """Whether `x` is a PyTorch tensor; never imports PyTorch."""
    if type(x) is np.ndarray:
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_jax(x: Any) -> bool:
    """Whether `x` is a JAX array or tracer; never imports JAX."""
    if type(x) is np.ndarray:
        return False
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def is_array(x: Any) -> bool:
    """Whether `x` is an array of one of the supported frameworks."""
    return isinstance(x, np.ndarray) or is_torch(x) or is_jax(x)


def is_number(x: Any) -> bool:
    """Whether `x` is a single number, of Python or NumPy, whose value is known also where arrays are traced."""
    return isinstance(x, int | float | np.generic)


def is_varying_number(x: Any) -> bool:
    """Whether `x` is a number that `torch.compile` lets vary from call to call: it has no value to look at."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.SymFloat | torch.SymInt)


_FLOATS: set[Any] = {np.dtype("float32"), np.dtype("float64")}  # JAX's are these too; PyTorch's join with it


def is_floating(x: Array) -> bool:
    """Whether `x` is float32 or float64, the types the maths is made for."""
    if not _TORCH and is_torch(x):
        namespace_of_torch()
    return x.dtype in _FLOATS


_TORCH: list[Any] = []  # PyTorch's namespace, once it is made
_AS_THE_STANDARD_HAS_THEM = (
    *("abs", "clip", "exp", "expm1", "isfinite", "log", "log1p", "maximum", "minimum", "ones_like", "sqrt", "sum"),
    *("where", "zeros_like"),
)


def namespace_of_torch() -> Any:
    """The standard's names for PyTorch; for one dtype many of its own functions do, and cost less for small batches."""
    if not _TORCH:
        import array_api_compat.torch
        import torch

        made = types.ModuleType("trpl.backend.torch")
        made.__dict__.update({name: getattr(array_api_compat.torch, name) for name in dir(array_api_compat.torch)})
        made.__dict__.update({name: getattr(torch, name) for name in _AS_THE_STANDARD_HAS_THEM})
        made.__dict__.update(min=torch.amin, max=torch.amax)
        made.__name__ = "trpl.backend.torch"
        _FLOATS.update((torch.float32, torch.float64))
        _TORCH.append(made)
    return _TORCH[0]


@functools.cache
def _ones(size: int, dtype: Any) -> np.ndarray:
    return np.ones(size, dtype)


def _numpy_sum(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> np.ndarray:
    """NumPy's sum; over the last axis as a product with ones, since its own is slow where that axis is short."""
    if axis == -1 and not keepdims and x.dtype.kind == "f":
        return x @ _ones(x.shape[-1], x.dtype)
    return np.add.reduce(x, axis=axis, keepdims=keepdims)


def _numpy_clip(x: np.ndarray, lowest: Any, highest: Any) -> np.ndarray:
    if lowest is not None:
        x = np.maximum(x, lowest)
    return x if highest is None else np.minimum(x, highest)


_NUMPY: Any = types.ModuleType("trpl.backend.numpy")
"""NumPy, with the shortest ways to what small batches call most."""
_NUMPY.__getattr__ = lambda name: getattr(np, name)
_NUMPY.__dict__.update(
    sum=_numpy_sum,
    clip=_numpy_clip,
    min=lambda x, axis=None: np.minimum.reduce(x, axis=axis),
    max=lambda x, axis=None: np.maximum.reduce(x, axis=axis),
    flip=lambda x, axis: np.flip(x, axis).copy(),  # as PyTorch's: what comes next is a product
    **{name: getattr(np, name) for name in _AS_THE_STANDARD_HAS_THEM if name not in ("sum", "clip")},
)


def namespace(*arrays: Array) -> Any:
    """The array API namespace of the arguments; Python numbers are ignored."""
    for x in arrays:
        if type(x) is np.ndarray:
            return _NUMPY
        if is_torch(x):
            return _TORCH[0] if _TORCH else namespace_of_torch()
        if is_jax(x):
            return sys.modules["jax"].numpy
        if isinstance(x, np.ndarray | np.generic):
            return _NUMPY
    raise TypeError(f"no array among the {len(arrays)} arguments")


def has_values(*arrays: Array) -> bool:
    """Whether the numbers can be looked at now: not a tracer of JAX, not inside `torch.compile` or `torch.vmap`."""
    for x in arrays:
        if is_torch(x):
            torch = sys.modules["torch"]
            if torch.compiler.is_compiling():
                return False
            functorch = torch._C._functorch
            while functorch.is_gradtrackingtensor(x):
                x = functorch.get_unwrapped(x)
            if functorch.is_batchedtensor(x):
                return False
        elif is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer):
            return False
    return True


SERIAL = 1 << 15  # entries up to which PyTorch computes on one thread, however many it has


def suits_numpy(tensors: Sequence[Array]) -> bool:
    """Whether NumPy should compute in PyTorch's place, on the same memory, where both would use one thread.

    A call of it costs a third, and so does a product of many small matrices. Not where something wants to see PyTorch's
    operations: a compiler, a transformation, a mode, a subclass.
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


def numbers(*arrays: Array) -> tuple[Array, ...]:
    """The same values, constants for differentiation; NumPy's arrays in PyTorch's place where that is faster.

    Rules that are given one of those compute with NumPy too. It pays where nearly everything does: the operations of
    two libraries in turn push each other out of the processor's caches.
    """
    if all(is_torch(x) for x in arrays) and suits_numpy(arrays):
        return as_numpy(*arrays)
    return tuple(stop_gradient(x) for x in arrays)


def alongside(x: Array, *others: Array) -> tuple[Array, ...]:
    """The others as constants to compute with beside `x`, which came from `numbers`."""
    return as_numpy(*others) if type(x) is np.ndarray else tuple(stop_gradient(other) for other in others)


def as_numpy(*arrays: Array) -> tuple[np.ndarray, ...]:
    return tuple(x if type(x) is np.ndarray else np.asarray(x.numpy(force=True) if is_torch(x) else x) for x in arrays)


def as_tensor(x: Array, order: Any = "K") -> Array:
    """A new array of NumPy's as a tensor, on the same memory if it is in this order; a tensor itself."""
    return x if is_torch(x) else sys.modules["torch"].from_numpy(np.asarray(x, order=order))


def computes_again(x: Array) -> bool:
    """Whether a compiler decides what is kept for the backward pass and what is computed again there: PyTorch's."""
    return is_torch(x) and not has_values(x)


def later(cotangent: Array, *arrays: Array) -> tuple[Array, ...]:
    """The same arrays, but not before the cotangent is known, so that what is computed from them is not kept for it.

    PyTorch's compiler would rather keep every sum, and search for a root twice. It does not see that this is x anyway.
    """
    xp = namespace(cotangent)
    return tuple(xp.where(cotangent == cotangent, x, x) for x in arrays)


def quiet(x: Array) -> contextlib.AbstractContextManager:
    """Where one computes with what `numbers` gave: NumPy would warn of infinities and NaN, which the maths expects."""
    return np.errstate(all="ignore") if type(x) is np.ndarray else contextlib.nullcontext()


def reading(x: Array) -> contextlib.AbstractContextManager:
    """Where values of `x` are looked at: JAX stages even operations on constants while it traces something else."""
    if is_jax(x):
        import jax

        return jax.ensure_compile_time_eval()
    return quiet(x)


def stop_gradient(x: Array) -> Array:
    """The same value, a constant for differentiation."""
    if is_torch(x):
        return x.detach() if x.requires_grad else x
    if is_jax(x):
        import jax

        return jax.lax.stop_gradient(x)
    return x


def solve_triangular(a: Array, b: Array, *, transpose: bool = False) -> Array:
    """a⁻¹b for lower triangular a, or a⁻ᵀb.

    As a solve from the right, whose transposed arrays are in LAPACK's order already: nothing is copied.
    """
    if is_torch(a):
        import torch

        factor = a if transpose else a.mT
        return torch.linalg.solve_triangular(factor, b.mT, upper=not transpose, left=False).mT
    if is_jax(a):
        import jax

        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (jax.numpy.broadcast_to(z, batch + z.shape[-2:]) for z in (a, b))
        return jax.lax.linalg.triangular_solve(a.mT, b.mT, left_side=False, transpose_a=transpose).mT
    if "torch" in sys.modules:  # NumPy has none
        return solve_triangular(as_tensor(a), as_tensor(b), transpose=transpose).numpy()
    return np.linalg.solve(a.mT if transpose else a, b)


def cholesky(a: Array) -> Array:
    """Lower Cholesky factor; not finite, rather than an exception, where `a` is not positive definite."""
    if is_torch(a):
        import torch

        factor, info = torch.linalg.cholesky_ex(a)
        failed = info > 0
        return torch.where(failed[..., None, None], torch.nan, factor) if any_true(failed) else factor
    if is_jax(a):
        import jax

        return jax.lax.linalg.cholesky(a, symmetrize_input=False)
    try:
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        if "torch" in sys.modules:
            return cholesky(as_tensor(a)).numpy()
        raise


def triangular_part(a: Array) -> Array:
    """R of a reduced QR decomposition, without the cost of Q."""
    if is_torch(a):
        import torch

        return torch.linalg.qr(a, mode="r")[1]
    return namespace(a).linalg.qr(a, mode="r")


def any_true(mask: Array) -> bool:
    """Whether any entry holds; True where that cannot be known yet (compiled or batched code)."""
    return bool(mask.any()) if has_values(mask) else True


def all_true(mask: Array) -> bool:
    """Whether every entry holds; False where that cannot be known yet."""
    return bool(mask.all()) if has_values(mask) else False


def when_any(mask: Array, work: Callable[..., Any], idle: Callable[..., Any], *operands: Array) -> Any:
    """`work(*operands)` if any entry of `mask` holds, else `idle(*operands)`: no work is done when none is due.

    Both must return the same structure. Compiled PyTorch has no cheap branch and always works.
    """
    if is_jax(mask):
        import jax

        return jax.lax.cond(mask.any(), work, idle, *operands)
    return work(*operands) if any_true(mask) else idle(*operands)


def unless_none(mask: Array, work: Callable[..., Any], idle: Callable[..., Any], *operands: Array) -> Any:
    """`when_any` for a caller who has looked at `mask` already where that was possible: all but JAX just work."""
    return when_any(mask, work, idle, *operands) if is_jax(mask) else work(*operands)


def while_loop(
    unfinished: Callable[..., Array], body: Callable[..., tuple], state: tuple, *, max_steps: int, unroll: bool = False
) -> tuple:
    """Repeat `state = body(*state)` while any entry of `unfinished(*state)` holds, at most `max_steps` times.

    With `unroll`, compiled PyTorch makes all the steps in a row, to be fused; a body must therefore keep what is
    finished.
    """
    mask = unfinished(*state)
    if is_jax(mask):
        import jax

        def go_on(carry: tuple) -> Array:
            return (carry[0] < max_steps) & unfinished(*carry[1:]).any()

        return jax.lax.while_loop(go_on, lambda carry: (carry[0] + 1, *body(*carry[1:])), (0, *state))[1:]
    if is_torch(mask) and not unroll:
        import torch

        if torch.compiler.is_compiling():
            count = torch.zeros((), dtype=torch.int64, device=mask.device)
            return torch.while_loop(
                lambda count, *now: (count < max_steps) & unfinished(*now).any(),
                lambda count, *now: (count + 1, *body(*now)),
                (count, *state),
            )[1:]
    for _ in range(max_steps):
        if not any_true(unfinished(*state)):
            break
        state = body(*state)
    return state
