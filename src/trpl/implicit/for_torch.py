"""The PyTorch adapter: one autograd node, for eager code, `torch.func`, `torch.compile` and `torch.export`.

Eager code solves first and attaches afterwards (`Eager`), in NumPy where that is faster. Function transforms get a
node that solves inside (`Transformed`), with a rule that folds a mapped axis into the batch. A compiler sees the
operations of a fusible problem; any other problem is one opaque operator for the solve and one for the pullback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from trpl import engines
from trpl.engines import NUMPY, Engine, to_numpy, to_torch, torch_engine
from trpl.implicit.attaching import ADAPTERS, checked_solve
from trpl.implicit.folding import folded, without_axis
from trpl.implicit.problems import NO_FORWARD, NO_SECOND, Problem, pulled_back

_state: Any = torch._C  # private names, each with a canary in tests/test_engines.py
_batching: Any = torch


def attach(problem: Problem, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """See `trpl.implicit.attach`."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if engines.suits_numpy(tensors):
        dtype = _NUMPY_DTYPES[inputs[0].dtype]
        found = iter(to_numpy(tensors))
        constants = [next(found) if isinstance(x, Tensor) else np.asarray(x, dtype) for x in inputs]
        return _attach_eagerly(problem, NUMPY, inputs, constants)
    like = inputs[0]
    filled = [x if isinstance(x, Tensor) else like.new_full((), x) for x in inputs]
    traced = torch.compiler.is_compiling() or any(x.is_meta or engines.is_fake(x) for x in tensors)
    with _without_autocast(like):
        if traced or torch._C._are_functorch_transforms_active():
            return Transformed.apply(problem, *filled)[: len(problem.signature.outputs)]  # pyright: ignore[reportOptionalSubscript]
        return _attach_eagerly(problem, torch_engine(), filled, [x.detach() for x in filled])


_NUMPY_DTYPES = {torch.float32: np.dtype("float32"), torch.float64: np.dtype("float64")}


def _without_autocast(like: Tensor) -> contextlib.AbstractContextManager:
    """Disable autocast, which would compute the maths' products in bfloat16."""
    kind = like.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return contextlib.nullcontext()
    return torch.autocast(kind, enabled=False)


class _Call(NamedTuple):
    """The settings of a call that the backward pass needs besides its tensors."""

    problem: Problem
    engine: Engine
    moved: tuple[bool, ...]  # which outputs belong to the node


def _attach_eagerly(problem: Problem, e: Engine, inputs: Sequence[Any], constants: list) -> tuple[Any, ...]:
    wanted = torch.is_grad_enabled() and any([isinstance(x, Tensor) and x.requires_grad for x in inputs])
    with contextlib.nullcontext() if e is NUMPY else torch.no_grad():
        solved = checked_solve(problem, e, constants)
    outputs = inputs[: len(problem.signature.outputs)]
    if solved is None:
        return tuple(outputs)
    moved = tuple([y is not None for y in solved.outputs])
    contiguous = np.ascontiguousarray if e is NUMPY else Tensor.contiguous  # LAPACK's factors are column-major
    arrays = [contiguous(y) for y in solved.outputs if y is not None]
    if wanted or forward_ad._current_level >= 0:
        arrays = [*arrays, *solved.residuals]
        if e is NUMPY:
            numbers = [c for x, c in zip(inputs, constants, strict=True) if not isinstance(x, Tensor)]
            size = len(arrays)
            arrays = to_torch(arrays + numbers)
            rest = iter(arrays[size:])
            inputs = [x if isinstance(x, Tensor) else next(rest) for x in inputs]
            del arrays[size:]
        found = iter(Eager.apply(_Call(problem, e, moved), arrays, *inputs))  # pyright: ignore[reportArgumentType]
    else:
        found = iter(to_torch(arrays) if e is NUMPY else arrays)
    return tuple([next(found) if here else x for here, x in zip(moved, outputs, strict=True)])


def _gradients(
    call: _Call, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Any, ...]:
    """Compute the cotangents of the inputs, with the engine that computed the solution.

    `sum()` gives an expanded (stride-0) cotangent, and batched products of such views are slow, so it is copied.
    """
    problem, e, _ = call
    given = [None if g is None else g.contiguous() for g in cotangents]
    dense = [g for g in given if g is not None]
    if e is not NUMPY or not engines.suits_numpy(dense):
        with _without_autocast(saved[0]):
            e = torch_engine() if e is NUMPY else e
            return tuple(pulled_back(problem, e, saved, given, needed))
    arrays = to_numpy([*saved, *dense])
    rest = iter(arrays[len(saved) :])
    numpy_given = [None if g is None else next(rest) for g in given]
    with np.errstate(all="ignore"):
        found = pulled_back(problem, NUMPY, arrays[: len(saved)], numpy_given, needed)
    # Pass a cotangent through as the caller's tensor, not as an alias of its memory.
    known = {id(a): g for a, g in zip(numpy_given, cotangents, strict=True) if a is not None}
    fresh = iter(to_torch([np.ascontiguousarray(g) for g in found if g is not None and id(g) not in known]))
    return tuple([None if g is None else known[id(g)] if id(g) in known else next(fresh) for g in found])


def _per_output(call: _Call, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return one cotangent per output of the problem, None for outputs that are not the node's."""
    rest = iter(cotangents)
    return [next(rest) if here else None for here in call.moved]


def _backward(
    call: _Call, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Any, ...]:
    num = len(needed)
    if all(g is None for g in cotangents):
        return (None,) * num
    if torch.compiler.is_compiling():
        return _traced_gradients(call, saved, cotangents, needed)
    dense = [g for g in cotangents if g is not None]
    if any(_state._functorch.is_legacy_batchedtensor(g) for g in dense):
        return _gradients_of_batched(call, saved, cotangents, needed)
    if torch._C._are_functorch_transforms_active():
        given = tuple(g is not None for g in cotangents)
        rest = iter(Pullback.apply(call, tuple(needed), given, *saved, *dense))  # pyright: ignore[reportArgumentType]
        return tuple([next(rest) if here else None for here in needed])
    if not torch.is_grad_enabled():
        return _gradients(call, saved, cotangents, needed)
    with torch.no_grad():  # create_graph=True
        found = _gradients(call, saved, cotangents, needed)
    fresh = [g for g in found if g is not None]
    rest = iter(FirstOrderOnly.apply(len(fresh), *fresh, *dense, *saved[:num]) if fresh else ())  # pyright: ignore[reportArgumentType]
    return tuple([None if g is None else next(rest) for g in found])


def _gradients_of_batched(
    call: _Call, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Any, ...]:
    """Compute gradients for `is_grads_batched` and batched gradient checks, which use the legacy `vmap`."""
    level = _state._vmapmode_increment_nesting() - 1
    _state._vmapmode_decrement_nesting()
    given = [None if g is None else _batching._remove_batch_dim(g, level, 1, 0) for g in cotangents]
    size = max(g.shape[0] for g in given if g is not None)
    given = [None if g is None else g.expand(size, *g.shape[1:]) for g in given]
    here, dense = tuple(g is not None for g in given), [g for g in given if g is not None]
    dims = (None,) * len(saved) + (0,) * len(dense)
    found = iter(_mapped_pullback(size, dims, call, tuple(needed), here, *saved, *dense))
    return tuple([_batching._add_batch_dim(next(found), 0, level) if wanted else None for wanted in needed])


def _mapped_pullback(
    size: int,
    dims: Sequence[int | None],
    call: _Call,
    needed: Sequence[bool],
    given: Sequence[bool],
    *arrays: Tensor,
) -> tuple[Tensor, ...]:
    """Compute the pullback of arrays with a mapped axis, folded into the batch."""
    signature = call.problem.signature
    outputs = [len(like.core) for like in signature.outputs]
    cores = (*signature.saved_cores, *[c for c, here in zip(outputs, given, strict=True) if here])
    shapes = [without_axis(x, dim) for x, dim in zip(arrays[: len(needed)], dims, strict=False)]
    found = Pullback.apply(call, needed, given, *folded(arrays, dims, cores, size, expand=True))
    wanted = [shape for shape, here in zip(shapes, needed, strict=False) if here]
    return tuple([g.reshape(size, *shape) for g, shape in zip(found, wanted, strict=True)])  # pyright: ignore[reportArgumentType]


class Eager(torch.autograd.Function):
    """A node for a precomputed solution, in the old style with `ctx`, which halves the time per call."""

    @staticmethod
    def forward(ctx, call, arrays, *inputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        outputs = arrays[: sum(call.moved)]
        whole = iter(outputs)
        kept = [next(whole) if here else inputs[k] for k, here in enumerate(call.moved)]
        ctx.call = call
        ctx.save_for_backward(*inputs, *kept, *arrays[len(outputs) :])
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *cotangents):  # pyright: ignore[reportIncompatibleMethodOverride]
        needed = ctx.needs_input_grad[2:]
        return (None, None, *_backward(ctx.call, ctx.saved_tensors, _per_output(ctx.call, cotangents), needed))

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD)


class Transformed(torch.autograd.Function):
    """A node that solves inside, for `torch.func` and compilers; residuals are non-differentiable outputs."""

    @staticmethod
    def forward(problem, *inputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.compiler.is_compiling() or any(x.is_meta or engines.is_fake(x) for x in inputs):
            if problem.fusible:
                solved = problem.solve(torch_engine(concrete=False), *inputs, whole=True)
                return solved.outputs  # `recover` recomputes the residuals
            return tuple(torch.ops.trpl.solve(list(inputs), _register(problem)))
        return tuple(_solve_whole(problem, inputs))

    @staticmethod
    def setup_context(ctx, inputs, output):
        problem, *arrays = inputs
        ctx.problem = problem
        num = len(problem.signature.outputs)
        ctx.save_for_backward(*arrays, *output)
        ctx.mark_non_differentiable(*output[num:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *cotangents):  # pyright: ignore[reportIncompatibleMethodOverride]
        problem = ctx.problem
        num = len(problem.signature.outputs)
        call = _Call(problem, NUMPY, (True,) * num)
        return (None, *_backward(call, ctx.saved_tensors, cotangents[:num], ctx.needs_input_grad[1:]))

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD)

    @staticmethod
    def vmap(info, in_dims, problem, *inputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fold the mapped axis into the batch."""
        cores, size = problem.signature.cores, info.batch_size
        shapes = [without_axis(x, dim) for x, dim in zip(inputs, in_dims[1:], strict=True)]
        found = Transformed.apply(problem, *folded(inputs, in_dims[1:], cores, size, expand=False))
        likes = problem.signature.results
        whole = []
        for x, like in zip(found, likes, strict=False):  # pyright: ignore[reportArgumentType]
            shape = like.shape(shapes, cores)
            whole.append(x.reshape(x.shape[0], *shape).expand(size, *shape))
        return tuple(whole), (0,) * len(whole)


class Pullback(torch.autograd.Function):
    """The pullback as a function of its own, so that a mapped axis of cotangents is folded into the batch."""

    @staticmethod
    def forward(call, needed, given, *arrays):  # pyright: ignore[reportIncompatibleMethodOverride]
        num = len(arrays) - sum(given)
        rest = iter(arrays[num:])
        cotangents = [next(rest) if here else None for here in given]
        found = _gradients(call, arrays[:num], cotangents, needed)
        found = [torch.zeros_like(x) if g is None else g for g, x in zip(found, arrays, strict=False)]
        return tuple(
            [g.clone() if any(g is x for x in arrays) else g for g, here in zip(found, needed, strict=True) if here]
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError(NO_SECOND)

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD)

    @staticmethod
    def vmap(info, in_dims, call, needed, given, *arrays):  # pyright: ignore[reportIncompatibleMethodOverride]
        found = _mapped_pullback(info.batch_size, in_dims[3:], call, needed, given, *arrays)
        return found, (0,) * len(found)


class FirstOrderOnly(torch.autograd.Function):
    """Gradients whose own derivatives are an error, for `create_graph=True`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(num, *arrays):  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(x.clone() for x in arrays[:num])

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError(NO_SECOND)


def _solve_whole(problem: Problem, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Compute outputs and residuals in the shapes of the signature, in new memory as an operator requires."""
    if engines.suits_numpy(inputs):
        solved = checked_solve(problem, NUMPY, to_numpy(inputs), whole=True)
        found = [np.ascontiguousarray(x) for x in (*solved.outputs, *solved.residuals)]  # pyright: ignore[reportOptionalMemberAccess]
        return to_torch([x.copy() if x.base is not None else x for x in found])
    with torch.no_grad(), _without_autocast(inputs[0]):
        solved = checked_solve(problem, torch_engine(), [x.detach() for x in inputs], whole=True)
    found: list[Any] = [*solved.outputs, *solved.residuals]  # pyright: ignore[reportOptionalMemberAccess]
    return [x.clone() if any(x is y for y in inputs) else x for x in found]


# For compilers -------------------------------------------------------------------------------------------------------

_PROBLEMS: dict[str, Problem] = {}
"""The problems that compiled code refers to by name."""


def _register(problem: Problem) -> str:
    name = repr(problem)
    _PROBLEMS[name] = problem
    return name


# The schemas are explicit because PyTorch 2.6 does not parse list[Tensor] annotations.
@torch.library.custom_op("trpl::solve", mutates_args=(), schema="(Tensor[] inputs, str problem) -> Tensor[]")
def _solve(inputs: list[Tensor], problem: str) -> list[Tensor]:
    return _solve_whole(_PROBLEMS[problem], inputs)


@_solve.register_fake
def _(inputs: list[Tensor], problem: str) -> list[Tensor]:
    signature = _PROBLEMS[problem].signature
    shapes = [tuple(x.shape) for x in inputs]
    return [inputs[0].new_empty(like.shape(shapes, signature.cores)) for like in signature.results]


@torch.library.custom_op(
    "trpl::pullback",
    mutates_args=(),
    schema="(Tensor[] saved, Tensor[] cotangents, bool[] needed, str problem) -> Tensor[]",
)
def _pullback(saved: list[Tensor], cotangents: list[Tensor], needed: list[bool], problem: str) -> list[Tensor]:
    call = _Call(_PROBLEMS[problem], NUMPY, (True,) * len(cotangents))
    found = _gradients(call, saved, cotangents, needed)
    whole = [torch.zeros_like(x) if g is None else g for g, x in zip(found, saved, strict=False)]
    return [g.clone() if any(g is x for x in cotangents) else g for g, here in zip(whole, needed, strict=True) if here]


@_pullback.register_fake
def _(saved: list[Tensor], cotangents: list[Tensor], needed: list[bool], problem: str) -> list[Tensor]:
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x, here in zip(saved, needed, strict=False)
        if here
    ]


def _traced_gradients(
    call: _Call, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Any, ...]:
    """Compute the pullback under a compiler.

    For a fusible problem only inputs and outputs are saved. They are gated on the cotangent, so that AOTAutograd
    recomputes the residuals in the backward graph instead of saving every intermediate value and finding a root twice.
    """
    problem, num = call.problem, len(needed)
    size = len(problem.signature.outputs)
    outputs = saved[num : num + size]
    if not problem.fusible:
        dense = [torch.zeros_like(y) if g is None else g for g, y in zip(cotangents, outputs, strict=True)]
        found = iter(torch.ops.trpl.pullback(list(saved), dense, list(needed), _register(problem)))
        return tuple([next(found) if here else None for here in needed])
    e = torch_engine(concrete=False)
    gate = next(g for g in cotangents if g is not None)
    gate = (gate == gate).flatten()[0]
    gated = [torch.where(gate, x, x) for x in saved]
    residuals = problem.recover(e, gated[:num], gated[num:])
    return tuple(pulled_back(problem, e, [*gated, *residuals], cotangents, needed))


ADAPTERS["PyTorch"] = torch.compiler.allow_in_graph(attach)  # pyright: ignore[reportArgumentType]
