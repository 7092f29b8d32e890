"""The joint KL projection of any family with a path: solution, pullback, multipliers, and the range of entropies.

NumPy, which computes for PyTorch on small batches and on one thread, works in float64 and in blocks of states that fit
into the processor's cache: 256 states with 50,000 classes need no more memory than their result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from trpl.engines import NUMPY
from trpl.implicit import Like, Saved, Solved
from trpl.implicit.problems import align, broadcast_shapes
from trpl.natural.path import Path
from trpl.natural.solver import UNIFORM, Entropy, Held, Place, entropy_tolerance, find, shares
from trpl.types import cast

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, PerState

BLOCK = 1 << 16
"""The number of entries of the largest array in a block."""
FLAT, SHARP = 1e-9, 30.0
"""Values of τ with as much, or as little, entropy as is ever needed, if θᵀFθ is 1."""


class Between(Protocol):
    """A family's constructor of the path between two policies."""

    def __call__(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> Path:
        """Make the path, without computing anything yet."""
        ...


class Problem(NamedTuple):
    """The arrays of a projection, with aligned leading axes, in the broadcast batch shape where they are numbers."""

    predicted: tuple[Array, ...]
    path: Path
    batch: tuple[int, ...]
    bound: PerState
    entropy: Entropy | None

    def place(self, e: Engine) -> Place:
        """Find the projection's position on the path."""
        return find(e, self.path, self.bound, self.entropy)


class Projection(NamedTuple):
    """The joint projection of a family, given by its path and the core axes of its arrays, for one entropy constraint.

    `inputs` are everywhere `(*predicted, *old, bound[, entropy])`.
    """

    between: Between
    cores: tuple[int, ...]
    held: Held = "free"

    @property
    def input_cores(self) -> tuple[int, ...]:
        """The number of trailing non-batch axes of each input."""
        return (*self.cores, *self.cores, *(0,) * (1 if self.held == "free" else 2))

    def residuals(self) -> tuple[Like, ...]:
        """Return the shapes of s and, with an entropy, of τ and the active constraints."""
        return (Like(tuple(range(len(self.input_cores)))),) * (1 if self.held == "free" else 3)

    def batch(self, inputs: Sequence[Array]) -> tuple[int, ...]:
        """Return the broadcast leading axes."""
        every = zip(inputs, self.input_cores, strict=True)
        return broadcast_shapes(*(tuple(x.shape[: x.ndim - core]) for x, core in every))

    def problem(self, e: Engine, inputs: Sequence[Array]) -> Problem:
        """Make the path from the old to the predicted policy, and broadcast the bound and the entropy."""
        num, batch = len(self.cores), self.batch(inputs)
        aligned = align(*zip(inputs, self.input_cores, strict=True))
        predicted, old, numbers = aligned[:num], aligned[num : 2 * num], aligned[2 * num :]
        bound, *target = (e.xp.broadcast_to(x, batch) for x in numbers)
        entropy = Entropy(*target, equality=self.held == "equal") if target else None
        return Problem(predicted, self.between(e, predicted, old), batch, bound, entropy)

    def solve(self, e: Engine, inputs: Sequence[Array], *, whole: bool) -> Solved | None:
        """Return the projected arrays and the residuals; None if no state has to move, unless `whole`."""
        found, moved = self._solve_in_blocks(inputs) if e is NUMPY else self._solve(e, inputs)
        return found if whole or e.any(moved) else None

    def _solve(self, e: Engine, inputs: Sequence[Array]) -> tuple[Solved, Mask]:
        """Return the solution, and the mask of states that differ from the prediction."""
        problem = self.problem(e, inputs)
        path, place = problem.path, problem.place(e)
        moved = place.moved
        if path.exceeds_support is not None:
            moved = moved | path.exceeds_support
        outputs, everybody = [], e.all(moved)
        for x, at, core in zip(problem.predicted, path.at(e, place.s, place.tau), self.cores, strict=True):
            mask = moved[(..., *(None,) * core)]
            own = e.xp.broadcast_to(x, (*problem.batch, *x.shape[x.ndim - core :]))
            outputs.append(at if everybody else e.xp.where(mask, at, own))
        if place.tau is None or place.held is None:
            return Solved(tuple(outputs), (e.xp.where(moved, place.s, 1.0),)), moved
        one = e.xp.ones_like(place.s)
        binding = e.xp.where(place.outside, one, 0.0 * one) + e.xp.where(place.held, 2.0 * one, 0.0 * one)
        return Solved(tuple(outputs), (place.s, place.tau, binding)), moved

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool]
    ) -> list[Array | None]:
        """Compute the cotangents of the inputs; the outputs are not needed for it."""
        old_too = any(needed[len(self.cores) : 2 * len(self.cores)])
        run = self._pullback_in_blocks if e is NUMPY else self._pullback
        return run(e, saved, cotangents, old_too)

    def _pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], old_too: bool
    ) -> list[Array | None]:
        problem, place = self.problem(e, saved.inputs), _place(e, saved.residuals)
        given = []
        for g, x, core in zip(cotangents, problem.predicted, self.cores, strict=True):
            like = e.xp.broadcast_to(x, (*problem.batch, *x.shape[x.ndim - core :]))
            given.append(e.xp.zeros_like(like) if g is None else g)
        linear = problem.path.linear(e, place.s, place.tau, given)
        found = shares(e, place, linear)
        to_predicted, to_old = linear.back(found.along_path, found.along_warmth, old_too)
        of_old = (None,) * len(self.cores) if to_old is None else to_old
        return [*to_predicted, *of_old, found.bound, found.entropy][: len(saved.inputs)]

    def multipliers(self, e: Engine, inputs: Sequence[Array]) -> tuple[PerState, PerState]:
        """Compute η = 1/s − 1 of the KL and ω = (1 + η)(1/τ − 1) of the entropy; 0 where a constraint is inactive."""
        place = self.problem(e, inputs).place(e)
        s = e.xp.where(place.s > 0.0, place.s, 1.0)
        eta = e.xp.where(place.outside, e.xp.where(place.s > 0.0, 1.0 / s - 1.0, math.inf), 0.0)
        if place.tau is None or place.held is None:
            return eta, 0.0 * s
        return eta, e.xp.where(place.held, (1.0 / place.tau - 1.0) / s, 0.0)

    # Blocks of states, for NumPy -------------------------------------------------------------------------------------

    def _flat(self, inputs: Sequence[Array]) -> tuple[list[np.ndarray], list[slice]]:
        """Flatten the batch of the inputs to one leading axis; return slices of the states too."""
        batch = self.batch(inputs)
        flat = [_rows(x, batch, core) for x, core in zip(inputs, self.input_cores, strict=True)]
        num, widest = len(flat[0]), max(math.prod(x.shape[1:]) for x in flat[: len(self.cores)])
        count = max(1, round(num * widest / BLOCK))  # equal blocks: a small one needs as many calls as a large one
        step = max(1, -(-num // count))
        return flat, [slice(i, min(i + step, num)) for i in range(0, num, step)]

    def _solve_in_blocks(self, inputs: Sequence[Array]) -> tuple[Solved, Mask]:
        flat, blocks = self._flat(inputs)
        num, dtype = len(self.cores), flat[0].dtype
        results = [np.empty(x.shape, dtype) for x in flat[:num]]
        results += [np.empty(len(flat[0]), dtype) for _ in self.residuals()]
        moved = np.empty(len(flat[0]), bool)
        for rows in blocks:
            found, moved[rows] = self._solve(NUMPY, _wide(flat, rows))
            for into, x in zip(results, (*found.outputs, *found.residuals), strict=True):
                into[rows] = x
        shaped = [x.reshape((*self.batch(inputs), *x.shape[1:])) for x in results]
        return Solved(tuple(shaped[:num]), tuple(shaped[num:])), cast("Mask", moved)

    def _pullback_in_blocks(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], old_too: bool
    ) -> list[Array | None]:
        num, batch = len(self.cores), self.batch(saved.inputs)
        flat, blocks = self._flat(saved.inputs)
        left = [_rows(x, batch, 0) for x in saved.residuals]
        given = [None if g is None else _rows(g, batch, core) for g, core in zip(cotangents, self.cores, strict=True)]
        wanted = [old_too or not num <= i < 2 * num for i in range(len(flat))]
        results = [np.empty(x.shape, flat[0].dtype) if want else None for x, want in zip(flat, wanted, strict=True)]
        for rows in blocks:
            own = Saved(_wide(flat, rows), (), _wide(left, rows))
            found = self._pullback(e, own, _wide(given, rows), old_too)
            for into, x in zip(results, found, strict=True):
                if into is not None:
                    into[rows] = x
        return cast("list[Array | None]", [None if x is None else x.reshape((*batch, *x.shape[1:])) for x in results])


def _place(e: Engine, left: Sequence[Array]) -> Place:
    """Rebuild the position from the residuals of `_solve`."""
    if len(left) == 1:
        return Place(left[0], None, left[0] < 1.0, None)
    s, tau, binding = left
    held = binding > 1.5
    return Place(s, tau, (binding - e.xp.where(held, 2.0, 0.0)) > 0.5, held)


def _rows(x: Array, batch: tuple[int, ...], core: int) -> np.ndarray:
    """Flatten the batch of an array to one leading axis; a view if nothing is broadcast."""
    tail = x.shape[x.ndim - core :]
    return np.broadcast_to(cast("np.ndarray", x), (*batch, *tail)).reshape(-1, *tail)


def _wide(arrays: Sequence[np.ndarray | None], rows: slice) -> list[Any]:
    """Select states, in float64."""
    return [x if x is None else x[rows].astype(np.float64, copy=False) for x in arrays]


def entropy_range(
    e: Engine, between: Between, cores: tuple[int, ...], old: Sequence[Array], bound: PerState
) -> tuple[PerState, PerState]:
    """Compute the least and the greatest entropy within the bound of the old policy, both on the path of its powers.

    q^τ has the least KL to q among all policies with its entropy. So both extremes are projections: of a very flat and
    of a very sharp power of q. Powers of a uniform policy are uniform; there KL(p‖q) = H(q) − H(p), so the least
    entropy is H(q) − ε. The range includes the tolerance within which an entropy counts as met.
    """
    projection = Projection(between, cores)
    problem = projection.problem(e, (*old, *old, bound))
    old, here, bound, one = problem.predicted, problem.path, problem.bound, e.xp.ones_like(problem.bound)
    at_old = here.moments(e, 0.0 * one, one)
    spread = at_old.warmth
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
    least = e.xp.where(varies, least, at_old.entropy - bound)
    least = least - slack * (1.0 + e.xp.abs(least))
    return least, greatest + slack * (1.0 + e.xp.abs(greatest))
