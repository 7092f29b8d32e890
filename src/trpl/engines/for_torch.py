"""PyTorch's engine, eager or traced; imports PyTorch when the engine is made."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trpl.engines.shared import Differentiable, powers, python_loop, recompute_indexed, recompute_selected

if TYPE_CHECKING:
    from torch import Tensor

    from trpl.engines.namespace import Namespace
    from trpl.engines.protocol import Engine, State, T
    from trpl.types import BoolArray


DIRECT = (
    *("abs", "clip", "exp", "expm1", "isfinite", "log", "log1p", "maximum", "minimum", "ones_like", "sqrt", "sum"),
    *("where", "zeros_like"),
)
"""Functions that PyTorch has under the standard's name, called without a wrapper's overhead."""


def solve_lower(a: Tensor, b: Tensor, *, transpose: bool = False, lower: bool = False) -> Tensor:
    """Solve from the right, with transposed arrays, which are in LAPACK's order already: nothing is copied.

    LAPACK has no use for a `lower` triangular b.
    """
    factor = a if transpose else a.mT
    return sys.modules["torch"].linalg.solve_triangular(factor, b.mT, upper=not transpose, left=False).mT


class TorchEngine(Differentiable["Tensor"]):
    """PyTorch's operations: eager, or under `torch.compile`, `torch.func.vmap`, meta and fake tensors."""

    name = "PyTorch"
    solve_triangular = staticmethod(solve_lower)

    def __init__(self, *, concrete: bool) -> None:
        import array_api_compat.torch
        import torch

        made: Any = types.ModuleType("trpl.engines.torch")
        made.__dict__.update({name: getattr(array_api_compat.torch, name) for name in dir(array_api_compat.torch)})
        made.__dict__.update({name: getattr(torch, name) for name in DIRECT})
        made.__dict__.update(min=torch.amin, max=torch.amax)
        self.xp: Namespace[Tensor] = made
        self.torch = torch
        self.concrete = self.branches = concrete

    def branch(self, mask: BoolArray, work: Callable[..., T], idle: Callable[..., T], *operands: object) -> T:
        return work(*operands) if self.any(mask) else idle(*operands)

    def recompute(self, bad: BoolArray, careful: Callable[..., State], found: State, *operands: object) -> State:
        if self.concrete:
            return recompute_indexed(bad, careful, found, *operands)
        return recompute_selected(self.xp.where, bad, careful, found, *operands)

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
            return python_loop(unfinished, body, state, max_steps=max_steps, independent=independent)
        if not self.torch.compiler.is_compiling():  # under `vmap` values are not concrete, so do every step
            for _ in range(max_steps):
                state = body(*state)
            return state
        count = self.torch.zeros((), dtype=self.torch.int64, device=state[0].device)
        return self.torch.while_loop(
            lambda count, *now: (count < max_steps) & unfinished(*now).any(),
            lambda count, *now: (count + 1, *body(*now)),
            (count, *state),
        )[1:]

    def barrier(self, x: Tensor) -> Tensor:
        return x

    def constant(self, x: Tensor) -> Tensor:
        return x.detach()

    def is_lower(self, x: Tensor) -> bool:
        return not bool(x.triu(1).any())

    def asarray(self, value: Tensor | np.ndarray | float, like: Tensor) -> Tensor:
        if isinstance(value, np.ndarray):
            return self.torch.as_tensor(value, dtype=like.dtype, device=like.device)
        return value if isinstance(value, self.torch.Tensor) else like.new_full((), value)

    def dots(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return tuple(self.vecdot(x, y) for x, y in pairs)

    def power_sums(self, w: Tensor, x: Tensor, num: int) -> tuple[Tensor, ...]:
        return tuple(self.torch.sum(y, -1) for y in powers(w, x, num))

    def diagonal(self, x: Tensor) -> Tensor:
        return x.diagonal(0, -2, -1)

    def eye(self, x: Tensor) -> Tensor:
        return self.torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)

    def lower(self, x: Tensor) -> Tensor:
        return self.torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device).tril()

    def cholesky(self, a: Tensor) -> Tensor:
        factor, info = self.torch.linalg.cholesky_ex(a)
        failed = info > 0
        return self.torch.where(failed[..., None, None], self.torch.nan, factor) if self.any(failed) else factor

    def qr_r(self, a: Tensor) -> Tensor:
        return self.torch.linalg.qr(a, mode="r")[1]


_TORCH: list[Engine] = []  # traced and eager, once made; Dynamo would trace through `functools.cache`


def torch_engine(*, concrete: bool = True) -> Engine:
    """Return PyTorch's engine, eager or traced, as the maths sees it."""
    _make_engines()  # before Dynamo sees the list
    return _TORCH[concrete]


def _make_engines() -> None:
    if not _TORCH:
        made: list[Engine[Tensor]] = [TorchEngine(concrete=False), TorchEngine(concrete=True)]
        _TORCH.extend(cast("list[Engine]", made))


# As by `torch.compiler.assume_constant_result`, but without PyTorch, which may be imported later or never: Dynamo,
# which cannot trace the making of an engine, calls the function.
_make_engines._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
