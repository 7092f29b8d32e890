"""Types of arrays with their shapes, for the whole maths.

The aliases carry shapes for `jaxtyping`: the tests check them at run time (tests/conftest.py). At no cost to users:
unless `jaxtyping`, which is not a dependency, is loaded, each alias is `Any`. A static checker sees `Any` too: arrays
keep the type of the caller's framework, which no common array protocol could express.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

Array: TypeAlias = Any
"""An array of NumPy, PyTorch or JAX."""

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float
else:

    class _Unchecked:
        """Stands for `Float` and `Bool` where nothing checks shapes."""

        def __class_getitem__(cls, _: Any) -> Any:
            return Any

    Float = Bool = _Unchecked

Mask: TypeAlias = Bool[Array, "..."]
"""Truth values, one for each state."""
PerState: TypeAlias = Float[Array, "..."]
"""One number for each state, or one for all."""
Vector: TypeAlias = Float[Array, "... d"]
"""A vector for each state: means, standard deviations, eigenvalues."""
Matrix: TypeAlias = Float[Array, "... d d"]
"""A square matrix for each state: Cholesky factors, covariances."""
Scale: TypeAlias = Float[Array, "... d"]
"""The representation of a covariance: standard deviations `[…, d]` or a Cholesky factor `[…, d, d]`."""
