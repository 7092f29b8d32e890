"""What is solved and differentiated: the protocol that each layer fills in, and the shapes of its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array

NO_SECOND = "trpl: projections have first derivatives only; a second derivative was asked for"
NO_FORWARD = (
    "trpl: projections have derivatives in reverse mode only (backward, grad, jacrev); a derivative in forward mode "
    "(jvp, jacfwd, forward_ad) was asked for"
)


class Like(NamedTuple):
    """Give the shape of an output or residual: leading axes of some inputs, broadcast, then single axes of inputs.

    `Like(batch=(0, 2), core=((0, -1),))`: the broadcast leading axes of inputs 0 and 2, then the last axis of input 0.

    Args:
        batch: The inputs whose leading axes are broadcast.
        core: Pairs of an input and one of its axes.
    """

    batch: tuple[int, ...]
    core: tuple[tuple[int, int], ...] = ()

    def shape(self, shapes: Sequence[tuple[int, ...]], cores: Sequence[int]) -> tuple[int, ...]:
        """Work out the shape for given inputs.

        Args:
            shapes: The shapes of the inputs.
            cores: For each input how many of its last axes are not a batch.

        Returns:
            The shape.
        """
        leading = (shapes[i][: len(shapes[i]) - cores[i]] for i in self.batch)
        return (*broadcast_shapes(*leading), *(shapes[i][axis] for i, axis in self.core))


class Signature(NamedTuple):
    """The shapes of a problem's arrays: enough for a compiler, for meta tensors, and to fold a mapped axis in."""

    cores: tuple[int, ...]
    """For each input how many of its last axes are not a batch."""
    outputs: tuple[Like, ...]
    """Output k takes the place of input k, and is that input itself where nothing has to move."""
    residuals: tuple[Like, ...]
    """What `solve` leaves for `pullback` besides."""

    @property
    def results(self) -> tuple[Like, ...]:
        """Outputs and residuals."""
        return self.outputs + self.residuals

    @property
    def saved_cores(self) -> tuple[int, ...]:
        """The number of core axes of inputs, outputs and residuals."""
        return self.cores + tuple(len(like.core) for like in self.results)


class Solved(NamedTuple):
    """Hold a solution.

    Args:
        outputs: What the caller gets; None where the input stays as it is.
        residuals: What `pullback` needs besides; None where only outputs that are None would need it.
    """

    outputs: tuple[Array | None, ...]
    residuals: tuple[Array | None, ...]


class Saved(NamedTuple):
    """Hold what a solve was given and what it found, for `pullback`.

    Args:
        inputs: The arrays it was given.
        outputs: The solution; the input itself where nothing had to move.
        residuals: What else it left.
    """

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    residuals: Sequence[Array]


class Problem(Protocol):
    """A differentiable solve with a derivative by hand; a frozen value, equal to others with the same settings.

    All arrays that reach `solve` and `pullback` are constants of one engine. Their leading axes are a batch and
    broadcast after `align`.
    """

    @property
    def signature(self) -> Signature:
        """The shapes of inputs, outputs and residuals."""
        ...

    @property
    def check(self) -> bool:
        """Whether values are looked at, on the way in and on the way out."""
        ...

    @property
    def fusible(self) -> bool:
        """Whether a compiler gains by seeing the operations: few, elementwise, without a loop. Needs `recover`."""
        ...

    def admit(self, e: Engine, *inputs: Array) -> None:
        """Raise `ValueError` for values that make no sense, in the caller's words."""
        ...

    def solve(self, e: Engine, *inputs: Array, whole: bool = False) -> Solved | None:
        """The solution, or None if no input has to move.

        With `whole`, as traced engines need it, every output and residual comes in the shape of the signature.
        """
        ...

    def accept(self, e: Engine, *outputs: Array | None) -> None:
        """Raise `ConvergenceError` for outputs that are not finite."""
        ...

    def recover(self, e: Engine, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Array, ...]:
        """The residuals, from inputs and outputs alone: a compiler then saves nothing for the backward pass."""
        ...

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool]
    ) -> Sequence[Array | None]:
        """One cotangent for each input, of the broadcast batch shape, or None where it is not needed.

        A cotangent is None where nobody asked for the derivative of that output.
        """
        ...


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape; sizes may be symbols of a compiler, which NumPy's function would turn into numbers.

    Raises:
        ValueError: If there is none.
    """
    depth = max(map(len, shapes), default=0)
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
    """Each (array, number of its core axes) with as many leading axes as the deepest, new ones of length 1."""
    depth = max([x.ndim - core for x, core in pairs])
    return tuple([x[(None,) * (depth - (x.ndim - core))] if x.ndim - core < depth else x for x, core in pairs])


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
    """The problem's cotangents, each in the shape of its input; `saved` are inputs, outputs and residuals."""
    num, end = len(problem.signature.cores), len(problem.signature.cores) + len(problem.signature.outputs)
    inputs = saved[:num]
    found = problem.pullback(e, Saved(inputs, saved[num:end], saved[end:]), cotangents, needed)
    return [
        sum_to(e, g, x.shape) if here and g is not None else None
        for g, x, here in zip(found, inputs, needed, strict=True)
    ]
