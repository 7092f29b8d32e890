"""The PyTorch adapter: one autograd node, for eager code, `torch.func`, `torch.compile` and `torch.export`.

Eager code solves first and attaches afterwards (`Eager`), in NumPy where that is faster. Function transforms get a
node that solves inside (`Transformed`), with a rule that folds a mapped axis into the batch. A compiler sees the
operations of a fusible problem; any other problem is one opaque operator for the solve and one for the pullback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from trpl import engines
from trpl.engines import NUMPY, Engine, to_numpy, to_torch, torch_engine
from trpl.implicit.attaching import ADAPTERS, MEASURES, checked_solve
from trpl.implicit.folding import folded, without_axis
from trpl.implicit.operators import gradients, register, solve_whole, without_autocast
from trpl.implicit.problems import NO_FORWARD, NO_SECOND, Measurable, Problem, pulled_back
from trpl.types import Array

_state: Any = torch._C  # private names, each with a canary in tests/test_engines.py
_batching: Any = torch


def attach(problem: Problem, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """See `trpl.implicit.attach`."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if engines.suits_numpy(tensors):
        return _attach_eagerly(problem, NUMPY, inputs, to_numpy(inputs, inputs[0].dtype))
    like = inputs[0]
    if len({x.is_meta for x in tensors}) > 1:
        raise ValueError(
            "some arrays of the policies and bounds are on the meta device, without values; others are not"
        )
    filled = [x if isinstance(x, Tensor) else like.new_full((), x) for x in inputs]
    with without_autocast(like):
        if _without_values(filled) or torch._C._are_functorch_transforms_active():
            return Transformed.apply(problem, *filled)[: len(problem.signature.outputs)]  # pyright: ignore[reportOptionalSubscript]
        return _attach_eagerly(problem, torch_engine(), filled, [x.detach() for x in filled])


def _without_values(tensors: Sequence[Tensor]) -> bool:
    """Tell whether only shapes are known: under a compiler, or for meta and fake tensors."""
    return torch.compiler.is_compiling() or any([x.is_meta or engines.is_fake(x) for x in tensors])


LEAST_FUSED = 3
"""Number of components from which a fusible problem is fused. Inductor writes out a sum of two terms and repeats all
operations before it for each, so that compiling would take minutes."""


def _fuses(problem: Problem, like: Tensor) -> bool:
    """Tell whether a compiler sees the problem's operations, or one opaque operator."""
    return problem.recover is not None and like.shape[-1] >= LEAST_FUSED


MAX_KEPT = 1 << 15
"""Number of residuals' entries up to which the NumPy arrays stay on the node: a crossing costs 2–4 µs per tensor."""


class _Call(NamedTuple):
    """The settings of a call that the backward pass needs besides its tensors."""

    problem: Problem
    engine: Engine
    moved: tuple[bool, ...]  # which outputs belong to the node
    inputs: tuple[Any, ...] = ()  # the caller's tensors and numbers
    numbers: tuple[Any, ...] = ()  # constants where the caller gave numbers, else None
    arrays: tuple[Array | None, ...] = ()  # inputs, outputs and residuals in NumPy, where they are small

    def saved(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return inputs, outputs and residuals: the tensors that the node saved and the arrays that the call kept."""
        rest = iter(tensors)
        found = [next(rest) if x is None else x for x in self.numbers] + [*rest]
        return [*found, *self.arrays[len(found) :]]

    def constants(self, saved: Sequence[Any]) -> Sequence[Any]:
        """Return the forward pass's NumPy arrays if the saved tensors are still the caller's own, else what was saved.

        Saved-tensor hooks may have replaced them. PyTorch has checked the versions of `saved`, so values are equal.
        """
        same = self.arrays and all([x is y for x, y in zip(saved, self.inputs, strict=False) if isinstance(y, Tensor)])
        return self.arrays if same else saved


def _attach_eagerly(problem: Problem, e: Engine, inputs: Sequence[Any], constants: list) -> tuple[Any, ...]:
    wanted = torch.is_grad_enabled() and any([isinstance(x, Tensor) and x.requires_grad for x in inputs])
    if e is NUMPY:
        solved = checked_solve(problem, e, constants)
    else:
        with torch.no_grad():
            solved = checked_solve(problem, e, constants)
    outputs = inputs[: len(problem.signature.outputs)]
    if solved is None:
        return tuple(outputs)
    contiguous: Any = np.ascontiguousarray if e is NUMPY else Tensor.contiguous  # LAPACK's factors are column-major
    moved, residuals = tuple([y is not None for y in solved.outputs]), solved.residuals
    arrays = [contiguous(y) for y in solved.outputs if y is not None]
    if wanted or forward_ad._current_level >= 0:
        small = e is NUMPY and sum([x.size for x in residuals if x is not None]) <= MAX_KEPT  # pyright: ignore[reportAttributeAccessIssue]
        numbers = tuple([None if isinstance(x, Tensor) else c for x, c in zip(inputs, constants, strict=True)])
        if small:
            whole = iter(arrays)
            solution = [next(whole) if here else x for here, x in zip(moved, constants, strict=False)]
            call = _Call(problem, e, moved, tuple(inputs), numbers, (*constants, *solution, *residuals))
        else:
            call = _Call(problem, e, moved, (), numbers)
            arrays = [*arrays, *residuals]
        found = iter(Eager.apply(call, to_torch(arrays) if e is NUMPY else arrays, *inputs))  # pyright: ignore[reportArgumentType]
    else:
        found = iter(to_torch(arrays) if e is NUMPY else arrays)
    return tuple([next(found) if here else x for here, x in zip(moved, outputs, strict=True)])


def _backward(
    call: _Call, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Any, ...]:
    num = len(needed)
    dense = [g for g in cotangents if g is not None]
    if not dense:
        return (None,) * num
    if _without_values(dense):
        return _traced_gradients(call, saved, cotangents, needed)
    transformed = torch._C._are_functorch_transforms_active()
    batched = any([_state._functorch.is_legacy_batchedtensor(g) for g in dense])
    if not (transformed or batched or torch.is_grad_enabled()):
        return gradients(call.problem, call.engine, call.constants(saved), cotangents, needed)
    saved = to_torch(saved)
    if batched:
        return _gradients_of_batched(call, saved, cotangents, needed)
    if transformed:
        given = tuple(g is not None for g in cotangents)
        rest = iter(Pullback.apply(call, tuple(needed), given, *saved, *dense))  # pyright: ignore[reportArgumentType]
        return tuple([next(rest) if here else None for here in needed])
    with torch.no_grad():  # create_graph=True
        found = gradients(call.problem, call.engine, saved, cotangents, needed)
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
        given = [x for x in inputs if isinstance(x, Tensor)]
        kept = [next(whole) if here else x for here, x in zip(call.moved, inputs, strict=False)]
        ctx.call = call
        ctx.save_for_backward(*given, *kept, *arrays[len(outputs) :])
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *cotangents):  # pyright: ignore[reportIncompatibleMethodOverride]
        call, needed = ctx.call, ctx.needs_input_grad[2:]
        rest = iter(cotangents)
        given = [next(rest) if here else None for here in call.moved]
        return (None, None, *_backward(call, call.saved(ctx.saved_tensors), given, needed))

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD)


class Transformed(torch.autograd.Function):
    """A node that solves inside, for `torch.func` and compilers; residuals are non-differentiable outputs."""

    @staticmethod
    def forward(problem, *inputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        if _without_values(inputs):
            if _fuses(problem, inputs[0]):
                solved = problem.solve(torch_engine(concrete=False), *inputs, whole=True)
                return solved.outputs  # `recover` recomputes the residuals
            return tuple(torch.ops.trpl.solve(list(inputs), register(problem)))
        return tuple(solve_whole(problem, inputs))

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
        num = len(ctx.problem.signature.outputs)
        call = _Call(ctx.problem, NUMPY, (True,) * num)
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
        flags = found[len(likes) :]  # pyright: ignore[reportOptionalSubscript]  (of the operator: one for all)
        return (*whole, *flags), (0,) * len(whole) + (None,) * len(flags)


class Pullback(torch.autograd.Function):
    """The pullback as a function of its own, so that a mapped axis of cotangents is folded into the batch."""

    @staticmethod
    def forward(call, needed, given, *arrays):  # pyright: ignore[reportIncompatibleMethodOverride]
        num = len(arrays) - sum(given)
        rest = iter(arrays[num:])
        cotangents = [next(rest) if here else None for here in given]
        found = gradients(call.problem, call.engine, arrays[:num], cotangents, needed)
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


def _traced_gradients(
    call: _Call, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Any, ...]:
    """Compute the pullback where only shapes are known.

    For a fusible problem only inputs and outputs are saved. They are gated on the cotangent, so that AOTAutograd
    recomputes the residuals in the backward graph instead of saving every intermediate value and finding a root twice.
    """
    problem, num = call.problem, len(needed)
    size = len(problem.signature.outputs)
    outputs = saved[num : num + size]
    if problem.recover is None or not _fuses(problem, saved[0]):
        dense = [torch.zeros_like(y) if g is None else g for g, y in zip(cotangents, outputs, strict=True)]
        found = iter(torch.ops.trpl.pullback(list(saved), dense, list(needed), register(problem)))
        return tuple([next(found) if here else None for here in needed])
    e = torch_engine(concrete=False)
    gate = next(g for g in cotangents if g is not None)
    gate = (gate == gate).flatten()[0]
    gated = [torch.where(gate, x, x) for x in saved]
    residuals = problem.recover(e, gated[:num], gated[num:])
    return tuple(pulled_back(problem, e, [*gated, *residuals], cotangents, needed))


ADAPTERS["PyTorch"] = torch.compiler.allow_in_graph(attach)  # pyright: ignore[reportArgumentType]


def multipliers(problem: Measurable, e: Engine, inputs: Sequence[Any]) -> Sequence[Any]:
    """See `trpl.implicit.multipliers`; one operator for compilers, which take minutes for the search."""
    if _without_values(inputs) and not torch._C._are_functorch_transforms_active():
        return torch.ops.trpl.multipliers(list(inputs), register(problem))
    return problem.multipliers(e, inputs)


MEASURES["PyTorch"] = multipliers
