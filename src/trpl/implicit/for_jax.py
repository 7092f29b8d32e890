"""The JAX adapter: `custom_vjp` around a jitted solve and pullback, which fold a `vmap` axis into the batch.

The functions are made once per problem, a value of a few settings. Called eagerly they are compiled once per shape;
inside `jit` they are inlined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from trpl.engines import NUMPY, device_axes, jax_engine, jax_is_concrete, varying
from trpl.implicit.attaching import ADAPTERS
from trpl.implicit.problems import NO_FORWARD, NO_SECOND, Problem, pulled_back


def attach(problem: Problem, inputs: Sequence[Any]) -> tuple[jax.Array, ...]:
    """See `trpl.implicit.attach`."""
    dtype = inputs[0].dtype
    # inside `enable_x64` a weakly typed float32 array from outside becomes float64 beside a Python number
    widens = dtype != jnp.result_type(float)
    arrays = [
        jnp.asarray(x, dtype=dtype) if not isinstance(x, jax.Array) or (widens and x.weak_type) else x for x in inputs
    ]
    look = problem.check and jax_is_concrete(arrays)
    if look:
        with np.errstate(all="ignore"):
            problem.admit(NUMPY, *map(np.asarray, arrays))
    # inside `shard_map` all inputs vary alike, so cotangents have their inputs' types
    try:
        outputs = _functions(problem)(*varying(arrays, device_axes(arrays)))
    except TypeError as error:
        if "forward-mode" not in str(error):  # JAX's refusal of a `custom_vjp`
            raise
        raise TypeError(NO_FORWARD) from None
    if look:
        with np.errstate(all="ignore"):
            problem.accept(NUMPY, *map(np.asarray, outputs))
    return outputs


@functools.cache
def _functions(problem: Problem) -> Callable[..., tuple[jax.Array, ...]]:
    """Make the differentiable function of a problem."""
    e = jax_engine(concrete=False)
    signature = problem.signature
    cores, num, num_outputs = signature.cores, len(signature.cores), len(signature.outputs)

    def solve(*inputs: jax.Array) -> tuple[Any, ...]:
        solved = problem.solve(e, *inputs, whole=True)
        assert solved is not None
        return (*solved.outputs, *solved.residuals)

    def solve_mapped(size: int, mapped: list[bool], *inputs: jax.Array) -> tuple[tuple, tuple]:
        shapes = [x.shape[1:] if here else x.shape for x, here in zip(inputs, mapped, strict=True)]
        found = solve(*_folded(inputs, mapped, cores, size, expand=False))
        results, moved = [], []
        for x, like in zip(found, signature.results, strict=True):
            batched = any(mapped[i] for i in like.batch) or any(mapped[i] for i, _ in like.core)
            results.append(x.reshape((size,) * batched + like.shape(shapes, cores)))
            moved.append(batched)
        return tuple(results), tuple(moved)

    def pullback(*arrays: jax.Array) -> tuple[Any, ...]:
        saved, cotangents = arrays[:-num_outputs], arrays[-num_outputs:]
        found = pulled_back(problem, e, saved, cotangents, (True,) * num)
        return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(found, saved, strict=False))

    def pullback_mapped(size: int, mapped: list[bool], *arrays: jax.Array) -> tuple[tuple, tuple]:
        shapes = [x.shape[1:] if here else x.shape for x, here in zip(arrays[:num], mapped, strict=False)]
        saved_cores = (*signature.saved_cores, *(len(like.core) for like in signature.outputs))
        found = pullback(*_folded(arrays, mapped, saved_cores, size, expand=True))
        return tuple(g.reshape(size, *shape) for g, shape in zip(found, shapes, strict=True)), (True,) * num

    solve, pullback = _compiled(solve, solve_mapped), _compiled(pullback, pullback_mapped)

    @jax.custom_vjp
    def differentiable(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        return solve(*inputs)[:num_outputs]

    def forward(*inputs: jax.Array) -> tuple[tuple, tuple]:
        found = solve(*inputs)
        return found[:num_outputs], (*inputs, *found)

    def backward(saved: tuple, cotangents: tuple) -> tuple[jax.Array, ...]:
        return pullback(*saved, *cotangents)

    differentiable.defvjp(forward, backward)
    return differentiable


def _compiled(function: Callable, mapped: Callable) -> Callable:
    """Give a function its batching rule, refuse its derivative, and compile it."""
    batched = custom_vmap(function)
    batched.def_vmap(mapped)
    constant = jax.custom_jvp(batched)

    @constant.defjvp
    def refuse(primals: tuple, tangents: tuple) -> tuple:
        raise TypeError(NO_SECOND)

    return jax.jit(constant, inline=True)


def _folded(
    arrays: Sequence[jax.Array], mapped: Sequence[bool], cores: Sequence[int], size: int, *, expand: bool
) -> list[jax.Array]:
    """Move the mapped axis to the front of each array and pad the other batch axes to the deepest array's."""
    fronts = [x if here else x[None] for x, here in zip(arrays, mapped, strict=True)]
    if expand:
        fronts = [jnp.broadcast_to(x, (size, *x.shape[1:])) for x in fronts]
    depth = max(x.ndim - core for x, core in zip(fronts, cores, strict=True))
    return [
        x.reshape(x.shape[0], *(1,) * (depth - (x.ndim - core)), *x.shape[1:])
        for x, core in zip(fronts, cores, strict=True)
    ]


ADAPTERS["JAX"] = attach
