"""The choice of an engine: by framework, by whether values are concrete, and NumPy in place of PyTorch."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from trpl.engines.for_jax import jax_engine
from trpl.engines.for_numpy import NUMPY
from trpl.engines.for_torch import torch_engine
from trpl.types import cast

if TYPE_CHECKING:
    from torch import Tensor

    from trpl.engines.protocol import Engine
    from trpl.types import A, Array

MAX_SERIAL_SIZE = 1 << 15
"""Number of entries up to which PyTorch computes on one thread, whatever its thread count."""
OLD_NUMPY = int(np.__version__.partition(".")[0]) < 2


def framework_of(x: object) -> str | None:
    """Return "NumPy", "PyTorch" or "JAX", or None if `x` is not an array; import nothing."""
    if isinstance(x, np.ndarray):
        return "NumPy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "PyTorch"
    jax = sys.modules.get("jax")
    return "JAX" if jax is not None and isinstance(x, jax.Array) else None


_FLOATS = frozenset((np.dtype("float32"), np.dtype("float64")))  # JAX uses NumPy's dtypes


def is_floating(x: Any) -> bool:
    """Tell whether an array is float32 or float64, the dtypes that the maths supports."""
    if framework_of(x) == "PyTorch":
        torch = sys.modules["torch"]
        return x.dtype in (torch.float32, torch.float64)
    return x.dtype in _FLOATS


_NUMBERS = (float, int, np.floating, np.integer)


def is_number(x: object) -> TypeGuard[float]:
    """Tell whether `x` is a number of Python or NumPy, whose value is known even if arrays are traced."""
    return isinstance(x, _NUMBERS) and not isinstance(x, bool)


def as_float(x: float) -> float:
    """Convert a number to a float; a whole number that is too large becomes infinite."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def is_symbolic_number(x: object) -> bool:
    """Tell whether `x` is a symbolic number of `torch.compile`, without a concrete value."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.SymFloat | torch.SymInt)


def engine_of(*arrays: object) -> Engine:
    """Return the engine for functions that the framework differentiates itself; ignore numbers among the arguments.

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


def constants(*arrays: A) -> tuple[A, ...]:
    """Return the same arrays without a derivative."""
    e = engine_of(*arrays)
    return cast("tuple[A, ...]", tuple([e.constant(x) for x in arrays]))


def _torch_is_concrete(arrays: Sequence[Any]) -> bool:
    """Tell whether values are concrete: not under `torch.compile` or `vmap`, nor for meta and fake tensors."""
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


def is_fake(x: object) -> bool:
    """Tell whether a tensor has a shape but no values: a fake one, or a compiler's functional one around it.

    PyTorch 2.6 traces with functional tensors while `torch.compiler.is_compiling()` is False.
    """
    return any(
        module in sys.modules and isinstance(x, getattr(sys.modules[module], name))
        for module, name in (
            ("torch._subclasses.fake_tensor", "FakeTensor"),
            ("torch._subclasses.functional_tensor", "FunctionalTensor"),
        )
    )


def jax_is_concrete(arrays: Sequence[object]) -> bool:
    """Tell whether values are concrete: no array is a tracer."""
    tracer = sys.modules["jax"].core.Tracer
    return not any(isinstance(x, tracer) for x in arrays)


def values_of(x: Any) -> np.ndarray | None:
    """Return an array's values as a NumPy array, or None if they are not concrete."""
    kind = framework_of(x)
    if kind == "PyTorch":
        if not _torch_is_concrete((x,)):
            return None
        state = sys.modules["torch"]._C
        with state._DisableFuncTorch():  # inside `torch.func.grad` even a constant is wrapped
            while state._functorch.is_gradtrackingtensor(x):
                x = state._functorch.get_unwrapped(x)
            x = x.detach()
            return None if is_fake(x) else x.numpy(force=True)  # fake in a `FakeTensorMode`, whatever it was
    if kind == "JAX" and not jax_is_concrete((x,)):
        return None
    return np.asarray(x)


def suits_numpy(tensors: Sequence[Tensor]) -> bool:
    """Tell whether NumPy should compute in PyTorch's place, on the same memory: where both would use one thread.

    A NumPy call takes a third of the time of a PyTorch call, and so does a product of many small matrices
    (docs/speed.md). Not if a compiler, a transform, a mode or a subclass has to see PyTorch's operations, nor for
    single precision with NumPy 1, which promotes a 0-d float32 array with a Python float to float64.
    """
    torch = sys.modules["torch"]
    state = torch._C
    if torch.compiler.is_compiling() or state._are_functorch_transforms_active() or state._get_tracing_state():
        return False
    plain, alone = (torch.Tensor, torch.nn.Parameter), torch.get_num_threads() == 1
    for x in tensors:
        if not (x.is_cpu and type(x) in plain and (alone or x.numel() <= MAX_SERIAL_SIZE)):
            return False
        if OLD_NUMPY and x.dtype != torch.float64:
            return False
    return not state._len_torch_dispatch_stack()


def to_numpy(values: Sequence[Tensor | np.ndarray | float | None], dtype: object = None) -> list[np.ndarray]:
    """View CPU tensors as NumPy arrays on the same memory.

    Numbers become constants of the tensors' `dtype`; NumPy arrays and None stay.
    """
    tensor = sys.modules["torch"].Tensor
    found: list[Any] = []
    x: Any  # in turn what is given and what is found
    for x in values:
        if isinstance(x, tensor):
            plain = x.detach() if x.requires_grad else x
            x = plain.numpy(force=True) if x.is_neg() else plain.numpy()  # `force` alone would double the cost
        elif x is not None and type(x) is not np.ndarray:
            x = _constant(x, dtype)
        found.append(x)
    return found


@functools.lru_cache(maxsize=256)
def _constant(value: float, dtype: object) -> np.ndarray:
    """Make a read-only array of a number, in the NumPy dtype of a PyTorch one."""
    found = np.asarray(value, "float32" if dtype is sys.modules["torch"].float32 else "float64")
    found.flags.writeable = False
    return found


def to_torch(values: Sequence[Array | float | None], *, contiguous: bool = False) -> list[Tensor]:
    """View NumPy arrays as tensors on the same memory; copy read-only arrays and scalars.

    Tensors and None stay.
    """
    torch = sys.modules["torch"]
    tensor, from_numpy = torch.Tensor, torch.from_numpy
    found: list[Any] = []
    x: Any
    for x in values:
        if x is not None and not isinstance(x, tensor):
            if type(x) is not np.ndarray or not x.flags.writeable:
                x = np.array(x)
            x = from_numpy(np.asarray(x, order="C") if contiguous else x)
        found.append(x)
    return found
