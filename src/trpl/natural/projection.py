"""The joint KL projection of any family with a path: solution, pullback, multipliers, and the range of entropies.

NumPy, which computes for PyTorch on small batches and on one thread, works in float64 and in blocks of states that fit
into the processor's cache: 256 states with 50,000 classes need no more memory than their result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from trpl.engines import NUMPY
from trpl.implicit import Like, Solved
from trpl.implicit.problems import align, broadcast_shapes
from trpl.natural.path import Path
from trpl.natural.solver import Entropy, Place, entropy_tolerance, find, shares
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, PerState

BLOCK = 1 << 16
"""The number of entries of the largest array in a block."""
FLAT, SHARP = 1e-9, 30.0
"""Values of τ with as much, or as little, entropy as is ever needed, if θᵀFθ is 1."""
UNIFORM = 1e-20
"""θᵀFθ below which a policy counts as uniform."""


class Between(Protocol):
    """A family's constructor of the path between two policies."""

    def __call__(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> Path:
        """Make the path, without computing anything yet."""
        ...


class Problem(NamedTuple):
    """The arrays of a projection, with aligned leading axes, and the core axes of a policy's arrays."""

    predicted: tuple[Array, ...]
    old: tuple[Array, ...]
    bound: PerState
    entropy: PerState | None
    cores: tuple[int, ...]
    equality: bool

    @classmethod
    def of(cls, inputs: Sequence[Array], cores: tuple[int, ...], held: str) -> Problem:
        """Make the problem from `(*predicted, *old, bound[, entropy])`."""
        num = len(cores)
        every = (*cores, *cores, *(0,) * (len(inputs) - 2 * num))
        aligned = align(*zip(inputs, every, strict=True))
        entropy = aligned[2 * num + 1] if held != "free" else None
        return cls(aligned[:num], aligned[num : 2 * num], aligned[2 * num], entropy, cores, held == "equal")

    @property
    def batch(self) -> tuple[int, ...]:
        """The broadcast leading axes."""
        arrays = zip((*self.predicted, *self.old), (*self.cores, *self.cores), strict=True)
        leading = [tuple(x.shape[: x.ndim - core]) for x, core in arrays]
        leading += [tuple(x.shape) for x in (self.bound, self.entropy) if x is not None]
        return broadcast_shapes(*leading)

    def path(self, e: Engine, between: Between) -> Path:
        """Make the path from the old to the predicted policy."""
        return between(e, self.predicted, self.old)

    def place(self, e: Engine, path: Path) -> Place:
        """Find the projection's position on the path."""
        batch = self.batch
        bound = e.xp.broadcast_to(self.bound, batch)
        if self.entropy is None:
            return find(e, path, bound)
        return find(e, path, bound, Entropy(e.xp.broadcast_to(self.entropy, batch), self.equality))


def residuals(num_arrays: int, held: str) -> tuple[Like, ...]:
    """Return the shapes of s and, with an entropy, of τ and the active constraints."""
    every = tuple(range(2 * num_arrays + (1 if held == "free" else 2)))
    return (Like(every),) * (1 if held == "free" else 3)


def solve(
    e: Engine, between: Between, cores: tuple[int, ...], inputs: Sequence[Array], held: str, *, whole: bool
) -> Solved | None:
    """Return the projected arrays, s, τ and the active constraints; None if no state has to move, unless `whole`."""
    if e is NUMPY:
        return _solve_in_blocks(between, cores, inputs, held, whole=whole)
    found, moved = _solve(e, between, Problem.of(inputs, cores, held))
    return found if whole or e.any(moved) else None


def _solve(e: Engine, between: Between, problem: Problem) -> tuple[Solved, Mask]:
    """Return the solution, and the mask of states that differ from the prediction."""
    path = problem.path(e, between)
    place = problem.place(e, path)
    moved, shape = place.moved, problem.batch
    if path.exceeds_support is not None:
        moved = moved | path.exceeds_support
    outputs, everybody = [], e.all(moved)
    for x, at, core in zip(problem.predicted, path.at(e, place.s, place.tau), problem.cores, strict=True):
        mask = moved[(..., *(None,) * core)]
        own = e.xp.broadcast_to(x, (*shape, *x.shape[x.ndim - core :]))
        outputs.append(at if everybody else e.xp.where(mask, at, own))
    if place.tau is None or place.held is None:
        return Solved(tuple(outputs), (e.xp.where(moved, place.s, 1.0),)), moved
    one = e.xp.ones_like(place.s)
    binding = e.xp.where(place.outside, one, 0.0 * one) + e.xp.where(place.held, 2.0 * one, 0.0 * one)
    return Solved(tuple(outputs), (place.s, place.tau, binding)), moved


def _place(e: Engine, left: Sequence[Array]) -> Place:
    """Rebuild the position from the residuals of `_solve`."""
    if len(left) == 1:
        return Place(left[0], None, left[0] < 1.0, None, left[0] < 0.0)
    s, tau, binding = left
    held = binding > 1.5
    return Place(s, tau, (binding - e.xp.where(held, 2.0, 0.0)) > 0.5, held, s < 0.0)


def pullback(
    e: Engine,
    between: Between,
    cores: tuple[int, ...],
    inputs: Sequence[Array],
    left: Sequence[Array],
    cotangents: Sequence[Array | None],
    needed: Sequence[bool],
    held: str,
) -> list[Array | None]:
    """Compute the cotangents of `(*predicted, *old, bound[, entropy])`."""
    run = _pullback_in_blocks if e is NUMPY else _pullback
    return run(e, between, cores, inputs, left, cotangents, needed, held)


def _pullback(
    e: Engine,
    between: Between,
    cores: tuple[int, ...],
    inputs: Sequence[Array],
    left: Sequence[Array],
    cotangents: Sequence[Array | None],
    needed: Sequence[bool],
    held: str,
) -> list[Array | None]:
    problem = Problem.of(inputs, cores, held)
    path = problem.path(e, between)
    batch, place = problem.batch, _place(e, left)
    given = []
    for g, x, core in zip(cotangents, problem.predicted, cores, strict=True):
        like = e.xp.broadcast_to(x, (*batch, *x.shape[x.ndim - core :]))
        given.append(e.xp.zeros_like(like) if g is None else g)
    linear = path.linear(e, place.s, place.tau, given)
    found = shares(e, place, linear)
    old_needed = any(needed[len(cores) : 2 * len(cores)])
    to_predicted, to_old = linear.back(found.along_path, found.along_warmth, old_needed)
    of_old = (None,) * len(cores) if to_old is None else to_old
    return [*to_predicted, *of_old, found.bound, found.entropy][: len(inputs)]


def multipliers(
    e: Engine, between: Between, cores: tuple[int, ...], inputs: Sequence[Array], held: str
) -> tuple[PerState, PerState]:
    """Compute η = 1/s − 1 of the KL and ω = (1 + η)(1/τ − 1) of the entropy; 0 where a constraint is inactive."""
    problem = Problem.of(inputs, cores, held)
    place = problem.place(e, problem.path(e, between))
    s = e.xp.where(place.s > 0.0, place.s, 1.0)
    eta = e.xp.where(place.outside, e.xp.where(place.s > 0.0, 1.0 / s - 1.0, math.inf), 0.0)
    if place.tau is None or place.held is None:
        return eta, 0.0 * s
    return eta, e.xp.where(place.held, (1.0 / place.tau - 1.0) / s, 0.0)


def entropy_range(
    e: Engine, between: Between, cores: tuple[int, ...], old: Sequence[Array], bound: PerState
) -> tuple[PerState, PerState]:
    """Compute the least and the greatest entropy within the bound of the old policy, both on the path of its powers.

    q^τ has the least KL to q among all policies with its entropy. So both extremes are projections: of a very flat and
    of a very sharp power of q. Powers of a uniform policy are uniform, so its least entropy is unknown (−∞). The range
    includes the tolerance within which an entropy counts as met.
    """
    problem = Problem.of((*old, *old, bound), cores, "free")
    old, bound = problem.old, e.xp.broadcast_to(problem.bound, problem.batch)
    here, one = between(e, old, old), e.xp.ones_like(bound)
    spread = here.moments(e, 0.0 * one, one).warmth
    varies = spread > UNIFORM
    sharp = SHARP / e.xp.sqrt(e.xp.clip(spread, UNIFORM, 1.0))
    sharp = e.xp.minimum(sharp, 0.999 * here.max_tau(e, 0.0 * one) * one)
    found = []
    for tau in (sharp, FLAT * one):
        path = between(e, here.at(e, 0.0 * one, tau), old)
        place = find(e, path, bound)
        found.append(path.moments(e, place.s, one).entropy)
    least, greatest = found
    slack = entropy_tolerance(e, bound)
    least = e.xp.where(varies, least - slack * (1.0 + e.xp.abs(least)), -math.inf)
    return least, greatest + slack * (1.0 + e.xp.abs(greatest))


# Blocks of states, for NumPy -----------------------------------------------------------------------------------------


def _rows(x: Array, batch: tuple[int, ...], core: int) -> np.ndarray:
    """Flatten the batch of an array to one leading axis; a view if nothing is broadcast."""
    tail = x.shape[x.ndim - core :]
    return np.broadcast_to(cast("np.ndarray", x), (*batch, *tail)).reshape(-1, *tail)


def _blocks(problem: Problem) -> tuple[int, list[slice]]:
    """Return the number of states, and slices of them."""
    num = math.prod(problem.batch)
    widest = max(math.prod(x.shape[x.ndim - core :]) for x, core in zip(problem.predicted, problem.cores, strict=True))
    count = max(1, round(num * widest / BLOCK))  # equal blocks: a small one needs as many calls as a large one
    step = max(1, -(-num // count))
    return num, [slice(i, min(i + step, num)) for i in range(0, num, step)]


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype != np.float64 else x


def _every_core(cores: tuple[int, ...], num: int) -> tuple[int, ...]:
    return (*cores, *cores, *(0,) * (num - 2 * len(cores)))


def _solve_in_blocks(
    between: Between, cores: tuple[int, ...], inputs: Sequence[Array], held: str, *, whole: bool
) -> Solved | None:
    problem = Problem.of(inputs, cores, held)
    batch = problem.batch
    num, blocks = _blocks(problem)
    every = _every_core(cores, len(inputs))
    flat = [_rows(x, batch, core) for x, core in zip(inputs, every, strict=True)]
    outputs = [np.empty(x.shape, flat[0].dtype) for x in flat[: len(cores)]]
    left = [np.empty(num, flat[0].dtype) for _ in residuals(len(cores), held)]
    any_moved = False
    for rows in blocks:
        found, moved = _solve(NUMPY, between, Problem.of([_wide(x[rows]) for x in flat], cores, held))
        for into, x in zip((*outputs, *left), (*found.outputs, *found.residuals), strict=True):
            into[rows] = x
        any_moved = any_moved or bool(moved.any())
    if not any_moved and not whole:
        return None
    shaped = [x.reshape(*batch, *x.shape[1:]) for x in (*outputs, *left)]
    return Solved(tuple(shaped[: len(cores)]), tuple(shaped[len(cores) :]))


def _pullback_in_blocks(
    e: Engine,
    between: Between,
    cores: tuple[int, ...],
    inputs: Sequence[Array],
    left: Sequence[Array],
    cotangents: Sequence[Array | None],
    needed: Sequence[bool],
    held: str,
) -> list[Array | None]:
    problem = Problem.of(inputs, cores, held)
    batch = problem.batch
    _, blocks = _blocks(problem)
    every = _every_core(cores, len(inputs))
    flat = [_rows(x, batch, core) for x, core in zip(inputs, every, strict=True)]
    flat_left = [_rows(x, batch, 0) for x in left]
    flat_given = [None if g is None else _rows(g, batch, core) for g, core in zip(cotangents, cores, strict=True)]
    old_needed = any(needed[len(cores) : 2 * len(cores)])
    wanted = [i < len(cores) or i >= 2 * len(cores) or old_needed for i in range(len(inputs))]
    outputs = [np.empty(x.shape, flat[0].dtype) if want else None for x, want in zip(flat, wanted, strict=True)]
    for rows in blocks:
        found = _pullback(
            e,
            between,
            cores,
            [_wide(x[rows]) for x in flat],
            [_wide(x[rows]) for x in flat_left],
            [None if g is None else _wide(g[rows]) for g in flat_given],
            needed,
            held,
        )
        for into, x in zip(outputs, found, strict=True):
            if into is not None:
                into[rows] = x
    return cast("list[Array | None]", [None if x is None else x.reshape(*batch, *x.shape[1:]) for x in outputs])
