"""PyTorch's engine, eager or traced; imports PyTorch when the engine is made."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from trpl.engines.shared import DIRECT, log_ratio, powers, python_loop, recompute_indexed, recompute_selected


class TorchEngine:
    """PyTorch's operations: eager, or under `torch.compile`, `torch.func.vmap`, meta and fake tensors."""

    name = "PyTorch"

    def __init__(self, *, concrete: bool) -> None:
        import array_api_compat.torch
        import torch

        made: Any = types.ModuleType("trpl.engines.torch")
        made.__dict__.update({name: getattr(array_api_compat.torch, name) for name in dir(array_api_compat.torch)})
        made.__dict__.update({name: getattr(torch, name) for name in DIRECT})
        made.__dict__.update(min=torch.amin, max=torch.amax)
        self.torch, self.xp, self.concrete = torch, made, concrete
        self.branches = concrete
        self.floats = frozenset((torch.float32, torch.float64))

    def any(self, mask: Any) -> bool:
        return bool(mask.any()) if self.concrete else True

    def all(self, mask: Any) -> bool:
        return bool(mask.all()) if self.concrete else False

    def branch(self, mask: Any, work: Callable[..., Any], idle: Callable[..., Any], *operands: Any) -> Any:
        return work(*operands) if self.any(mask) else idle(*operands)

    def recompute(self, bad: Any, careful: Callable[..., tuple], found: tuple, *operands: Any) -> tuple:
        if self.concrete:
            return recompute_indexed(bad, careful, found, operands)
        return recompute_selected(self.torch, bad, careful, found, operands)

    def loop(
        self, unfinished: Callable, body: Callable, state: tuple, *, max_steps: int, independent: bool = False
    ) -> tuple:
        if self.concrete:
            return python_loop(unfinished, body, state, max_steps, independent)
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

    def exp(self, x: Any) -> Any:
        return self.torch.exp(x)

    def expm1(self, x: Any) -> Any:
        return self.torch.expm1(x)

    def barrier(self, x: Any) -> Any:
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

    def dots(self, *pairs: tuple[Any, Any]) -> tuple[Any, ...]:
        return tuple(self.vecdot(x, y) for x, y in pairs)

    def power_sums(self, w: Any, x: Any, num: int) -> tuple[Any, ...]:
        return tuple(self.torch.sum(y, -1) for y in powers(w, x, num))

    def matrix_dot(self, x: Any, y: Any) -> Any:
        return self.torch.sum(x * y, (-2, -1))

    def gram(self, x: Any, scale: Any = None) -> Any:
        return x.mT @ x if scale is None else scale[..., None, None] * (x.mT @ x)

    def square(self, x: Any) -> Any:
        return x @ x

    def diagonal(self, x: Any) -> Any:
        return x.diagonal(0, -2, -1)

    def plus_diagonal(self, x: Any, value: Any) -> Any:
        return x + value[..., None, None] * self.eye(x)

    def eye(self, x: Any) -> Any:
        return self.torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)

    def lower(self, x: Any) -> Any:
        return self.torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device).tril()

    def solve_triangular(self, a: Any, b: Any, *, transpose: bool = False) -> Any:
        """Solve from the right, with transposed arrays, which are in LAPACK's order already: nothing is copied."""
        factor = a if transpose else a.mT
        return self.torch.linalg.solve_triangular(factor, b.mT, upper=not transpose, left=False).mT

    def cholesky(self, a: Any) -> Any:
        factor, info = self.torch.linalg.cholesky_ex(a)
        failed = info > 0
        return self.torch.where(failed[..., None, None], self.torch.nan, factor) if self.any(failed) else factor

    def qr_r(self, a: Any) -> Any:
        return self.torch.linalg.qr(a, mode="r")[1]

    def log_ratio(self, p: Any, q: Any) -> Any:
        return log_ratio(self.torch, p, q)


_TORCH: list[TorchEngine] = []  # traced and eager, once made; Dynamo would trace through `functools.cache`


def torch_engine(*, concrete: bool = True) -> TorchEngine:
    """Return PyTorch's engine, eager or traced."""
    if not _TORCH:
        _TORCH.extend((TorchEngine(concrete=False), TorchEngine(concrete=True)))
    return _TORCH[concrete]
