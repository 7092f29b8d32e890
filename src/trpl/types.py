"""Types of arrays with their shapes, for the whole maths.

`Array` is what the maths asks of an array and what NumPy's, PyTorch's and JAX's have in common, so each of them goes in
as it is. What a caller sees is generic in it: out of a `DiagGaussian[Tensor]` come tensors. Inside the maths nobody
knows the framework, so a bare `DiagGaussian`, `Policy` or `Engine` is that of an `Array`; the adapters of each
framework (`trpl.engines`, `trpl.implicit`) cast where its own arrays come out again.

The aliases below carry shapes for `jaxtyping`. A static checker reads `Float[Array, "... d"]` as `Array`; the tests
check shapes and dtypes at run time (tests/typed.py). Users pay nothing: unless `jaxtyping` is loaded each alias is its
array, and it is no dependency of the package.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, Self, SupportsInt, TypeAlias, runtime_checkable


class Dtype(Protocol):
    """The type of an array's entries."""

    @property
    def itemsize(self) -> int:
        """The size of an entry in bytes."""
        ...


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Dtype: ...
    def __getitem__(self, key: Any, /) -> Self: ...  # each framework has its own keys
    def reshape(self, shape: tuple[int, ...], /) -> Self: ...

    if TYPE_CHECKING:  # for code that runs only eagerly: NumPy's scalars lack it, JAX's arrays refuse

        def __setitem__(self, key: Any, value: Any, /) -> None: ...


@runtime_checkable
class BoolArray(_Shaped, Protocol):
    """An array of truth values of NumPy, PyTorch or JAX."""

    def __and__(self, other: Any, /) -> Self: ...
    def __or__(self, other: Any, /) -> Self: ...
    def __invert__(self) -> Self: ...
    def any(self) -> object: ...
    def all(self) -> object: ...
    def sum(self) -> SupportsInt: ...


@runtime_checkable
class Array(_Shaped, Protocol):
    """An array of NumPy, PyTorch or JAX, as the array API standard has it; each adds, for itself, what it can."""

    def swapaxes(self, axis1: int, axis2: int, /) -> Self: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __neg__(self) -> Self: ...
    def __add__(self, other: Any, /) -> Self: ...
    def __radd__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __rsub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __rmul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...
    def __rtruediv__(self, other: Any, /) -> Self: ...
    def __pow__(self, other: Any, /) -> Self: ...
    def __rpow__(self, other: Any, /) -> Self: ...
    def __lt__(self, other: Any, /) -> BoolArray: ...
    def __le__(self, other: Any, /) -> BoolArray: ...
    def __gt__(self, other: Any, /) -> BoolArray: ...
    def __ge__(self, other: Any, /) -> BoolArray: ...
    def __eq__(self, other: Any, /) -> BoolArray: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __ne__(self, other: Any, /) -> BoolArray: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    if TYPE_CHECKING:  # NumPy's scalars stand for arrays without axes, and have none

        def __matmul__(self, other: Any, /) -> Self: ...


if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Generic, cast

    from typing_extensions import TypeVar

    A = TypeVar("A", bound=Array, default=Array)
    A_co = TypeVar("A_co", bound=Array, default=Array, covariant=True)
else:
    from typing import TypeVar

    A, A_co = TypeVar("A"), TypeVar("A_co")

    def cast(_: object, value: object) -> object:
        """`typing.cast`, which Dynamo of PyTorch 2.6 does not follow."""
        return value

    class _NoBase:
        def __mro_entries__(self, bases: tuple) -> tuple:
            return ()

    class Generic:
        """No base of a `NamedTuple`, where a checker sees `typing.Generic`: PyTorch 2.6 wants `tuple` alone."""

        def __class_getitem__(cls, _: object) -> _NoBase:
            return _NoBase()

    if "jaxtyping" in sys.modules:
        from jaxtyping import Bool, Float
    else:

        class _Unchecked:
            """Stands for `Float` and `Bool` where nothing checks shapes."""

            def __class_getitem__(cls, item: tuple[object, str]) -> object:
                return item[0]

        Float = Bool = _Unchecked

Mask: TypeAlias = Bool[BoolArray, "..."]
"""Truth values, one for each state."""
PerState: TypeAlias = Float[Array, "..."]
"""One number for each state, or one for all."""
Vector: TypeAlias = Float[Array, "... d"]
"""A vector for each state: means, standard deviations, eigenvalues."""
Matrix: TypeAlias = Float[Array, "... d d"]
"""A square matrix for each state: Cholesky factors, covariances."""
Scale: TypeAlias = Float[Array, "... d"]
"""The representation of a covariance: standard deviations `[…, d]` or a Cholesky factor `[…, d, d]`."""
