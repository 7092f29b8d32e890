"""Leading axes of equal number, so that batches of different depth broadcast from the left."""

from __future__ import annotations

from typing import Any

import numpy as np

from trpl.backend import namespace

Array = Any


def align(*pairs: tuple[Array, int]) -> tuple[Array, ...]:
    """Each (array, number of its own trailing axes) with as many leading axes as the deepest, new ones of length 1."""
    depth = max(x.ndim - core for x, core in pairs)
    return tuple(x[(None,) * (depth - (x.ndim - core))] if x.ndim - core < depth else x for x, core in pairs)


def broadcast(*pairs: tuple[Array, int]) -> tuple[Array, ...]:
    """Each (array, number of its own trailing axes) with the common leading axes of all."""
    batch = np.broadcast_shapes(*(tuple(x.shape[: x.ndim - core]) for x, core in pairs))
    return tuple(namespace(x).broadcast_to(x, (*batch, *x.shape[x.ndim - core :])) for x, core in pairs)
