"""PyTorch and JAX behind one small interface, so that a test is written once: NumPy in, NumPy out.

JAX runs compiled, PyTorch eagerly: both as their users run them. JAX compiles once for all tests with the same shapes.
Where PyTorch is not installed, `FRAMEWORKS` has JAX alone, and using `torch` or `Torch()` is an ImportError.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

import trpl.jax
from generators import Pair
from trpl import DiagGaussian, FullGaussian, engines


class NotInstalled:
    """In the place of PyTorch where there is none: a file that tests JAX too is collected."""

    def __bool__(self):
        return False

    def __getattr__(self, name: str):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


try:
    import torch
except ImportError:
    torch = NotInstalled()

QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}  # compiling is most of the time
TYPES = {"diag": DiagGaussian, "full": FullGaussian}


class Torch:
    name = "torch"

    def __init__(self):
        import trpl.torch

        self.layers = trpl.torch

    def array(self, x: Any, dtype: str | None = None) -> torch.Tensor:
        return torch.as_tensor(np.array(x, dtype=dtype))

    def numpy(self, x: torch.Tensor) -> np.ndarray:
        return x.detach().numpy()

    def project(self, layer, predicted, old, **options):
        return layer(predicted, old, **options)

    def pullback(self, layer, predicted, old, options: dict, weights: tuple):
        leaves = [x.clone().requires_grad_() for x in (*predicted, *old, *options.values())]
        p, q = type(predicted)(*leaves[:2]), type(old)(*leaves[2:4])
        projected = layer(p, q, **dict(zip(options, leaves[4:], strict=True)))
        total = sum((w * x).sum() for w, x in zip(weights, projected, strict=True))
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


class TorchItself(Torch):
    """PyTorch with all its own operations, as on a GPU; otherwise it leaves those of small batches to NumPy."""

    name = "torch-itself"

    def project(self, layer, predicted, old, **options):
        with without_numpy():
            return super().project(layer, predicted, old, **options)

    def pullback(self, layer, predicted, old, options: dict, weights: tuple):
        with without_numpy():
            return super().pullback(layer, predicted, old, options, weights)


def without_numpy():
    """Where PyTorch computes everything itself."""
    return mock.patch.object(engines, "suits_numpy", return_value=False)


class Jax:
    name = "jax"
    layers = trpl.jax

    def array(self, x: Any, dtype: str | None = None) -> jax.Array:
        return jax.numpy.asarray(np.array(x, dtype=dtype))

    def numpy(self, x: jax.Array) -> np.ndarray:
        return np.asarray(x)

    @cached_property
    def _project(self):
        return jax.jit(lambda layer, p, q, options: layer(p, q, **options), compiler_options=QUICK)

    def project(self, layer, predicted, old, **options):
        return self._project(layer, predicted, old, options)

    @cached_property
    def _pullback(self):
        def total(leaves, layer, weights):
            predicted, old, options = leaves
            projected = layer(predicted, old, **options)
            return sum((w * x).sum() for w, x in zip(weights, projected, strict=True))

        return jax.jit(jax.grad(total), compiler_options=QUICK)

    def pullback(self, layer, predicted, old, options: dict, weights: tuple):
        p, q, bounds = self._pullback((predicted, old, options), layer, weights)
        return [*p, *q, *(bounds[name] for name in options)]


FRAMEWORKS = [Torch(), Jax(), TorchItself()] if torch else [Jax()]
needs_torch = pytest.mark.skipif(not torch, reason="PyTorch is not installed")


def policies(framework, pair: Pair, dtype: str = "float64"):
    """The pair's predicted and old policy in a framework."""
    make = TYPES[pair.kind]
    arrays = [framework.array(x, dtype) for x in pair[1:]]
    return make(*arrays[:2]), make(*arrays[2:])


def as_pair(framework, projected, pair: Pair) -> Pair:
    """The projected policy in the predicted one's place, as float64 NumPy arrays."""
    mean, scale = (framework.numpy(x).astype(np.float64) for x in projected)
    return pair._replace(mean=mean, scale=scale)
