"""The protocol of a differentiable problem, which each layer implements, and the shapes of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array

NO_SECOND = "trpl: projections support first derivatives only, not second derivatives"
NO_FORWARD = (
    "trpl: projections support reverse-mode derivatives only (backward, grad, jacrev), not forward mode "
    "(jvp, jacfwd, forward_ad)"
)


class Like(NamedTuple):
    """The shape of an output or residual: leading axes of some inputs, broadcast, then single axes of inputs.

    `Like(batch=(0, 2), core=((0, -1),))`: the broadcast leading axes of inputs 0 and 2, then the last axis of input 0.

    Args:
        batch: The inputs whose leading axes are broadcast.
        core: Pairs of an input and one of its axes.
    """

    batch: tuple[int, ...]
    core: tuple[tuple[int, int], ...] = ()

    def shape(self, shapes: Sequence[tuple[int, ...]], cores: Sequence[int]) -> tuple[int, ...]:
        """Compute the shape for given inputs.

        Args:
            shapes: The shapes of the inputs.
            cores: The number of trailing non-batch axes of each input.

        Returns:
            The shape.
        """
        leading = (shapes[i][: len(shapes[i]) - cores[i]] for i in self.batch)
        return (*broadcast_shapes(*leading), *(shapes[i][axis] for i, axis in self.core))


class Signature(NamedTuple):
    """The shapes of a problem's arrays: enough for a compiler, for meta tensors, and to fold a mapped axis."""

    cores: tuple[int, ...]
    """The number of trailing non-batch axes of each input."""
    outputs: tuple[Like, ...]
    """Output k replaces input k, and is that input itself if nothing has to move."""
    residuals: tuple[Like, ...]
    """Further results of `solve` that `pullback` needs."""

    @property
    def results(self) -> tuple[Like, ...]:
        """Outputs and residuals."""
        return self.outputs + self.residuals

    @property
    def saved_cores(self) -> tuple[int, ...]:
        """The number of core axes of inputs, outputs and residuals."""
        return self.cores + tuple(len(like.core) for like in self.results)


class Solved(NamedTuple):
    """A solution.

    Args:
        outputs: The outputs; None for one that equals its input.
        residuals: Further results that `pullback` needs; None if only outputs that are None would need them.
    """

    outputs: tuple[Array | None, ...]
    residuals: tuple[Array | None, ...]


class Saved(NamedTuple):
    """The inputs and results of a solve, for `pullback`.

    Args:
        inputs: The inputs.
        outputs: The solution; the input itself if nothing had to move.
        residuals: The residuals.
    """

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    residuals: Sequence[Array]


Recover: TypeAlias = "Callable[[Engine, Sequence[Array], Sequence[Array]], tuple[Array, ...]]"


class Problem(Protocol):
    """A differentiable solve with a hand-written derivative; a frozen value, equal to others with the same settings.

    All arrays passed to `solve` and `pullback` are constants of one engine. Their leading axes are a batch and
    broadcast after `align`.
    """

    @property
    def signature(self) -> Signature:
        """The shapes of inputs, outputs and residuals."""
        ...

    @property
    def check(self) -> bool:
        """Whether to check values of inputs and outputs."""
        ...

    @property
    def recover(self) -> Recover | None:
        """A function that recomputes the residuals from inputs and outputs, so that a compiler need not save them.

        None for a problem that a compiler does not gain by fusing: one that is not elementwise, or has a loop.
        """
        ...

    def admit(self, e: Engine, *inputs: Array) -> None:
        """Raise `ValueError`, in the caller's words, for inputs outside the problem's domain."""
        ...

    def solve(self, e: Engine, *inputs: Array, whole: bool = False) -> Solved | None:
        """Return the solution, or None if no input has to move.

        With `whole`, for traced engines, every output and residual has the shape of the signature.
        """
        ...

    def accept(self, e: Engine, *outputs: Array | None) -> None:
        """Raise `ConvergenceError` for non-finite outputs."""
        ...

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool]
    ) -> Sequence[Array | None]:
        """Return one cotangent per input, of the broadcast batch shape, or None if it is not needed.

        A given cotangent is None if its output is not differentiated.
        """
        ...


class Measurable(Problem, Protocol):
    """A problem with Lagrange multipliers for an audit."""

    def multipliers(self, e: Engine, inputs: Sequence[Array]) -> tuple[Array, Array]:
        """Return the multipliers of the KL and of the entropy, of the broadcast batch shape."""
        ...


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape; sizes may be a compiler's symbols, which NumPy's function would specialise.

    Raises:
        ValueError: If the shapes do not broadcast.
    """
    depth = max([0, *map(len, shapes)])  # Dynamo does not trace `default=`
    common = [1] * depth
    for shape in shapes:
        for i, size in enumerate(shape, depth - len(shape)):
            if common[i] is size or size == 1:
                continue
            if common[i] == 1:
                common[i] = size
            elif common[i] != size:
                raise ValueError(f"shapes {shapes} do not broadcast")
    return tuple(common)


def align(*pairs: tuple[Array, int]) -> tuple[Array, ...]:
    """Pad each (array, number of core axes) to the same number of leading axes, with axes of length 1.

    A scalar array broadcasts as it is.
    """
    depth = max([x.ndim - core for x, core in pairs])
    return tuple([x[(None,) * (depth - (x.ndim - core))] if 0 < x.ndim < depth + core else x for x, core in pairs])


def sum_to(e: Engine, x: Array, shape: tuple[int, ...]) -> Array:
    """Sum broadcast axes away, so that a cotangent has its input's shape."""
    if tuple(x.shape) == tuple(shape):
        return x
    extra = x.ndim - len(shape)
    axes = [i for i, have in enumerate(x.shape) if i < extra or have != shape[i - extra]]
    return e.xp.sum(x, axis=tuple(axes), keepdims=True).reshape(tuple(shape)) if axes else x.reshape(tuple(shape))


def pulled_back(
    problem: Problem,
    e: Engine,
    saved: Sequence[Array],
    cotangents: Sequence[Array | None],
    needed: Sequence[bool],
) -> list[Array | None]:
    """Run the problem's pullback and sum each cotangent to its input's shape; `saved` are the fields of `Saved`."""
    num, end = len(problem.signature.cores), len(problem.signature.cores) + len(problem.signature.outputs)
    inputs = saved[:num]
    found = problem.pullback(e, Saved(inputs, saved[num:end], saved[end:]), cotangents, needed)
    return [
        sum_to(e, g, x.shape) if here and g is not None else None
        for g, x, here in zip(found, inputs, needed, strict=True)
    ]
