"""Attachment of a hand-written derivative to a solution, in any framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trpl.engines import NUMPY, framework_of
from trpl.errors import ConvergenceError

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.implicit.problems import Measurable, Problem, Solved
    from trpl.types import Array


def attach(problem: Problem, inputs: Sequence[Array | float]) -> tuple[Array, ...]:
    """Solve the problem and attach its derivative as one node of the framework's graph.

    Args:
        problem: The problem.
        inputs: Its inputs: arrays of one framework and numbers; the first is an array.

    Returns:
        One array per output. An output that is known to equal its input is the same object.

    Raises:
        ValueError: If the problem does not admit the inputs' values.
        ConvergenceError: If there is no finite solution.
    """
    kind = framework_of(inputs[0])
    assert kind is not None
    if kind not in ADAPTERS:
        importlib.import_module({"PyTorch": "trpl.implicit.for_torch", "JAX": "trpl.implicit.for_jax"}[kind])
    return ADAPTERS[kind](problem, inputs)


def _attach_numpy(problem: Problem, inputs: Sequence[Any]) -> tuple[Array, ...]:
    dtype = inputs[0].dtype
    solved = checked_solve(problem, NUMPY, [x if type(x) is np.ndarray else np.asarray(x, dtype=dtype) for x in inputs])
    if solved is None:
        return tuple(inputs[: len(problem.signature.outputs)])
    return tuple([x if y is None else y for x, y in zip(inputs, solved.outputs, strict=False)])


ADAPTERS: dict[str, Callable[[Problem, Sequence[Any]], tuple[Array, ...]]] = {"NumPy": _attach_numpy}
"""`attach` by framework; adapters register themselves on import."""


def multipliers(problem: Measurable, e: Engine, inputs: Sequence[Array]) -> Sequence[Array]:
    """Compute the Lagrange multipliers of a joint projection: of the KL and of the entropy.

    Args:
        problem: The problem.
        e: The engine of the inputs.
        inputs: Its inputs, all arrays.

    Returns:
        Both, state by state; 0 where a constraint is inactive.
    """
    return MEASURES[e.name](problem, e, inputs) if e.name in MEASURES else problem.multipliers(e, inputs)


MEASURES: dict[str, Callable[[Measurable, Engine, Sequence[Any]], Sequence[Any]]] = {}
"""`multipliers` by framework, where a compiler needs an operator; adapters register themselves on import."""


def checked_solve(problem: Problem, e: Engine, inputs: Sequence[Array], *, whole: bool = False) -> Solved | None:
    """Check the inputs, solve and check the outputs, for concrete constants.

    The maths expects infinities and NaN, so NumPy's warnings about them are off here.
    """
    try:
        with np.errstate(all="ignore"):
            if problem.check:
                problem.admit(e, *inputs)
            solved = problem.solve(e, *inputs, whole=whole)
            if problem.check and solved is not None:
                problem.accept(e, *solved.outputs)
            return solved
    except (np.linalg.LinAlgError, RuntimeError) as error:
        if isinstance(error, ConvergenceError) or type(error).__name__ not in ("LinAlgError", "_LinAlgError"):
            raise
        raise ConvergenceError(f"a decomposition failed: the covariances are too ill-conditioned ({error})") from error
