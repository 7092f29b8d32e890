"""Folding of an axis mapped by PyTorch's `vmap` into the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def without_axis(x: Tensor, dim: int | None) -> tuple[int, ...]:
    """Return the shape of a tensor without its mapped axis."""
    shape = tuple(x.shape)
    return shape if dim is None else shape[: dim % x.ndim] + shape[dim % x.ndim + 1 :]


def folded(
    arrays: Sequence[Tensor | None], dims: Sequence[int | None], cores: Sequence[int], size: int, *, expand: bool
) -> list[Tensor | None]:
    """Move the mapped axis to the front of each array and pad the other batch axes to the deepest array's."""
    depth = max(
        x.ndim - core + (dim is None) for x, dim, core in zip(arrays, dims, cores, strict=True) if x is not None
    )

    def fold(x: Tensor | None, dim: int | None, core: int) -> Tensor | None:
        if x is None:
            return None
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        x = x.expand(size, *x.shape[1:]) if expand else x
        return x.reshape(x.shape[0], *(1,) * (depth - (x.ndim - core)), *x.shape[1:])

    return [fold(x, dim, core) for x, dim, core in zip(arrays, dims, cores, strict=True)]
