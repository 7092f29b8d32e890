"""Solve and pullback on tensors with values, by NumPy where that is faster, and both as operators for compilers.

A compiler sees one opaque operator for the solve of a problem that it cannot fuse, and one for the pullback. Both get
tensors with values when the compiled code runs, so they compute as eager code does and only copy if nothing is outside.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trpl import engines
from trpl.engines import NUMPY, Engine, to_numpy, to_torch, torch_engine
from trpl.implicit.attaching import checked_solve
from trpl.implicit.problems import Like, Measurable, Problem, Solved, pulled_back


def without_autocast(like: Tensor) -> contextlib.AbstractContextManager:
    """Disable autocast, which would compute the maths' products in bfloat16."""
    kind = like.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return contextlib.nullcontext()
    return torch.autocast(kind, enabled=False)


def solution(problem: Problem, inputs: Sequence[Tensor], *, whole: bool = False) -> Solved | None:
    """Solve a problem, in arrays of NumPy or PyTorch."""
    if engines.suits_numpy(inputs):
        return checked_solve(problem, NUMPY, to_numpy(inputs), whole=whole)
    with torch.no_grad(), without_autocast(inputs[0]):
        return checked_solve(problem, torch_engine(), [x.detach() for x in inputs], whole=whole)


def solve_whole(problem: Problem, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Compute all outputs and residuals in the shapes of the signature, in new memory."""
    solved = solution(problem, inputs, whole=True)
    assert solved is not None
    found: list[Any] = [*solved.outputs, *solved.residuals]
    return _fresh(inputs[0], found, [tuple(x.shape) for x in found])


def _fresh(like: Tensor, values: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Give each value its shape and its own memory, as an operator requires; uninitialised memory for None."""
    made = []
    for k, (x, shape) in enumerate(zip(values, shapes, strict=True)):
        if x is None:
            made.append(like.new_empty(shape))
        elif isinstance(x, Tensor):
            made.append(x.detach().expand(shape).clone(memory_format=torch.contiguous_format))
        else:
            new = type(x) is np.ndarray and x.base is None and all([x is not y for y in values[:k]])
            usable = new and x.flags.carray and x.shape == shape
            made.append(torch.from_numpy(x if usable else np.array(np.broadcast_to(x, shape), order="C")))
    return made


def gradients(
    problem: Problem,
    e: Engine,
    saved: Sequence[Any],
    cotangents: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> tuple[Any, ...]:
    """Compute the cotangents of the inputs, with the engine that computed the solution.

    `sum()` gives an expanded (stride-0) cotangent, and batched products of such views are slow, so it is copied.
    """
    given = [None if g is None else g.contiguous() for g in cotangents]
    if e is not NUMPY or not engines.suits_numpy([g for g in given if g is not None]):
        with without_autocast(saved[0]):
            return tuple(pulled_back(problem, torch_engine() if e is NUMPY else e, to_torch(saved), given, needed))
    arrays = to_numpy([*saved, *given])
    constants, bars = arrays[: len(saved)], arrays[len(saved) :]
    with np.errstate(all="ignore"):
        found = pulled_back(problem, NUMPY, constants, bars, needed)
    # Pass a cotangent through as the caller's tensor, not as an alias of its memory.
    known = {id(a): g for a, g in zip(bars, cotangents, strict=True) if a is not None}
    return tuple(to_torch([g if g is None else known.get(id(g), g) for g in found], contiguous=True))


# The operators -------------------------------------------------------------------------------------------------------

_PROBLEMS: dict[str, Problem] = {}
"""The problems that compiled code refers to by name."""


def register(problem: Problem) -> str:
    """Return the name under which the operators find a problem."""
    name = repr(problem)
    _PROBLEMS[name] = problem
    return name


@functools.lru_cache(maxsize=256)
def _shapes(problem: str, inputs: tuple[torch.Size, ...]) -> list[tuple[int, ...]]:
    """Compute the shapes of outputs and residuals."""
    signature = _PROBLEMS[problem].signature
    return [like.shape(inputs, signature.cores) for like in signature.results]


# Not `torch.library.custom_op`, whose Python wrappers cost about 40 µs per call. No derivative is registered: an
# autograd node is around the operators.
torch.library.define("trpl::solve", "(Tensor[] inputs, str problem) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
torch.library.define(
    "trpl::pullback",
    "(Tensor[] saved, Tensor[] cotangents, bool[] needed, str problem) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    "trpl::multipliers", "(Tensor[] inputs, str problem) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag
)


@torch.library.impl("trpl::solve", "CompositeExplicitAutograd")
def _solve(inputs: list[Tensor], problem: str) -> list[Tensor]:
    """Return outputs, residuals, and flags for the outputs that moved; the others are copies of their inputs."""
    solved, num = solution(_PROBLEMS[problem], inputs), len(_PROBLEMS[problem].signature.outputs)
    shapes = _shapes(problem, tuple([x.shape for x in inputs]))
    found = (None,) * len(shapes) if solved is None else (*solved.outputs, *solved.residuals)
    moved = [x is not None for x in found[:num]]
    outputs = [x if here else y for here, x, y in zip(moved, found, inputs, strict=False)]
    return [*_fresh(inputs[0], [*outputs, *found[num:]], shapes), torch.tensor(moved, device="cpu")]


@torch.library.register_fake("trpl::solve")
def _(inputs: list[Tensor], problem: str) -> list[Tensor]:
    signature = _PROBLEMS[problem].signature
    shapes = [tuple(x.shape) for x in inputs]
    results = [inputs[0].new_empty(like.shape(shapes, signature.cores)) for like in signature.results]
    return [*results, inputs[0].new_empty(len(signature.outputs), dtype=torch.bool, device="cpu")]


@torch.library.impl("trpl::pullback", "CompositeExplicitAutograd")
def _pullback(saved: list[Tensor], cotangents: list[Tensor], needed: list[bool], problem: str) -> list[Tensor]:
    *rest, flags = saved
    moved: list[bool] = flags.tolist()
    found: list[Any] = [None] * len(needed)
    if any(moved):
        given = [g if here else None for g, here in zip(cotangents, moved, strict=True)]
        found = [*gradients(_PROBLEMS[problem], NUMPY, rest, given, needed)]
    for k, g in enumerate(cotangents):
        if not moved[k] and needed[k]:  # the output is the input
            passed = g.sum_to_size(saved[k].shape)
            found[k] = passed if found[k] is None else found[k] + passed
    wanted = [(g, x) for g, x, here in zip(found, saved, needed, strict=False) if here]
    given = {id(g) for g in cotangents}
    return [torch.zeros_like(x) if g is None else g.clone() if id(g) in given else g for g, x in wanted]


@torch.library.register_fake("trpl::pullback")
def _(saved: list[Tensor], cotangents: list[Tensor], needed: list[bool], problem: str) -> list[Tensor]:
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x, here in zip(saved, needed, strict=False)
        if here
    ]


@torch.library.impl("trpl::multipliers", "CompositeExplicitAutograd")
def _multipliers(inputs: list[Tensor], problem: str) -> list[Tensor]:
    own = cast("Measurable", _PROBLEMS[problem])
    return _fresh(inputs[0], own.multipliers(torch_engine(), inputs), [_batch(problem, inputs)] * 2)


@torch.library.register_fake("trpl::multipliers")
def _(inputs: list[Tensor], problem: str) -> list[Tensor]:
    return [inputs[0].new_empty(_batch(problem, inputs)) for _ in range(2)]


def _batch(problem: str, inputs: Sequence[Tensor]) -> tuple[int, ...]:
    cores = _PROBLEMS[problem].signature.cores
    return Like(tuple(range(len(cores)))).shape([tuple(x.shape) for x in inputs], cores)
