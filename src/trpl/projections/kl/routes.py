"""A table of solvers by the size of the bound.

A static bound selects its route before tracing; an array selects it by its largest value if that is concrete. Traced
code with an unknown bound contains all routes, and branches between neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from trpl.projections.kl.equation import (
    LARGEST_NARROW,
    any_root,
    narrow_root_outside,
    series_root,
    singular_excess,
)
from trpl.projections.kl.factor import cholesky_factor, polished, qr_factor

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Mask, Matrix, PerState, Vector

LARGEST_ORDINARY = 3.0
"""Up to here the condition number of P stays below e^(2ε + 1)(2ε + 3) ≈ 1e4, for any policies."""


def _by_series(e: Engine, change: Matrix, excess: Matrix, bound: PerState, outside: Mask) -> tuple[Matrix, PerState]:
    """Compute x from traces, W from a Cholesky factor."""
    excess = e.xp.flip(excess, axis=(-2, -1))
    x = series_root(e, excess, bound, outside)
    return polished(e, lambda x: cholesky_factor(e, x, excess), x, bound, outside)


def _by_eigenvalues(
    e: Engine, change: Matrix, excess: Matrix, bound: PerState, outside: Mask
) -> tuple[Matrix, PerState]:
    """Compute x from eigenvalues, or from traces if all bounds allow it; W from a Cholesky factor."""
    excess = e.xp.flip(excess, axis=(-2, -1))
    x = e.branch(
        outside & (bound > LARGEST_NARROW),
        lambda excess, bound, outside: any_root(e, e.eigvalsh(excess), bound, outside),
        lambda excess, bound, outside: series_root(e, excess, bound, outside),
        *(excess, bound, outside),
    )
    return polished(e, lambda x: cholesky_factor(e, x, excess), x, bound, outside)


def _by_qr(e: Engine, change: Matrix, excess: Matrix, bound: PerState, outside: Mask) -> tuple[Matrix, PerState]:
    """Compute x from singular values of V, W from a QR decomposition."""
    ratio = e.eye(change) + change
    x = e.xp.clip(any_root(e, singular_excess(e, change), bound, outside), None, 1.0)  # rounding may exceed 1
    return polished(e, lambda x: qr_factor(e, x, ratio), x, bound, outside)


def _by_width(e: Engine, change: Matrix, excess: Matrix, bound: PerState, outside: Mask) -> tuple[Matrix, PerState]:
    """Use QR for wide regions, in which P can be ill-conditioned: it never squares a condition number."""
    return e.branch(
        outside & (bound > LARGEST_ORDINARY),
        lambda *given: _by_qr(e, *given),
        lambda *given: _by_eigenvalues(e, *given),
        *(change, excess, bound, outside),
    )


class Route(NamedTuple):
    """A solver, exact to rounding for bounds up to `up_to`."""

    name: str
    up_to: float
    root: Callable[[Engine, Vector, PerState, Mask], PerState]
    """x from the eigenvalues of A, for diagonal covariances."""
    factor: Callable[[Engine, Matrix, Matrix, PerState, Mask], tuple[Matrix, PerState]]
    """W and x from V − I and A, for full ones."""

    def __repr__(self) -> str:
        return self.name


NARROW = Route("NARROW", LARGEST_NARROW, narrow_root_outside, _by_series)
ORDINARY = Route("ORDINARY", LARGEST_ORDINARY, any_root, _by_eigenvalues)
WIDE = Route("WIDE", math.inf, any_root, _by_width)
ROUTES = (NARROW, ORDINARY, WIDE)


def route_for(largest: float) -> Route:
    """Return the first route that covers bounds up to `largest`; the last one for NaN."""
    return next((route for route in ROUTES if largest <= route.up_to), WIDE)


def choose(e: Engine, known: Route | None, bound: PerState) -> Route:
    """Return the static route if there is one, else the one for the largest bound, if that is concrete."""
    if known is not None:
        return known
    return route_for(float(e.xp.max(bound))) if e.concrete and 0 not in bound.shape else WIDE
