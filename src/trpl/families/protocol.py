"""The protocol of a policy family, and the registry of all families.

A family is one file: its value type, its KL, entropy and log-density, its argument checks, and its joint KL projection
with a hand-written derivative. `register` makes it known to layers, audits, penalties and public functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.implicit import Like, Solved
    from trpl.types import Array, PerState

Policy: TypeAlias = Any
"""A policy of a registered type: an immutable `NamedTuple` of arrays whose leading axes are a batch."""
Held: TypeAlias = Literal["free", "minimum", "equal"]
"""A joint projection's constraint on the entropy: none, H ≥ β, or H = β."""


class Family(Protocol):
    """A family of policies; a frozen value, equal to others with the same settings."""

    @property
    def words(self) -> str:
        """The name of the value type in messages."""
        ...

    @property
    def cores(self) -> tuple[int, ...]:
        """The number of trailing non-batch axes of each array."""
        ...

    def arrays(self, p: Policy) -> tuple[Array, ...]:
        """Return the policy's arrays in a fixed order."""
        ...

    def make(self, arrays: Sequence[Array]) -> Policy:
        """Return the policy with these arrays."""
        ...

    def batch_shape(self, p: Policy) -> tuple[int, ...]:
        """Return the shape of the batch of states."""
        ...

    # Validation ------------------------------------------------------------------------------------------------------

    def check_one(self, name: str, p: Policy) -> None:
        """Raise `ValueError` if the arrays of the policy called `name` are inconsistent (shapes, dtypes)."""
        ...

    def check_pair(self, name: str, p: Policy, q: Policy) -> None:
        """Raise `ValueError` if the policy called `name` and the old one differ in size, except for the batch."""
        ...

    def admit(self, e: Engine, predicted: Policy, old: Policy) -> None:
        """Raise `ValueError` for values that are not policies; fast if there are none."""
        ...

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        """Raise `ConvergenceError` if a result is not a policy; None stands for an unchanged array."""
        ...

    # Differentiable by the framework ---------------------------------------------------------------------------------

    def kl(self, e: Engine, p: Policy, q: Policy) -> PerState:
        """Compute KL(p‖q)."""
        ...

    def entropy(self, e: Engine, p: Policy) -> PerState:
        """Compute H(p)."""
        ...

    def log_prob(self, e: Engine, p: Policy, x: Array) -> PerState:
        """Compute log p(x)."""
        ...

    # The joint KL projection -----------------------------------------------------------------------------------------

    def residuals(self, held: Held) -> tuple[Like, ...]:
        """Return the shapes of `solve`'s residuals; inputs are `(*predicted, *old, bound[, entropy])`."""
        ...

    def solve(
        self, e: Engine, p: Policy, q: Policy, bound: PerState, entropy: PerState | None, held: Held, *, whole: bool
    ) -> Solved | None:
        """Solve argmin KL(π̃‖p) subject to KL(π̃‖q) ≤ ε and the entropy; see `trpl.implicit.Problem.solve`."""
        ...

    def pullback(
        self,
        e: Engine,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        residuals: Sequence[Array],
        cotangents: Sequence[Array | None],
        needed: Sequence[bool],
        held: Held,
    ) -> Sequence[Array | None]:
        """Compute the cotangents of `(*predicted, *old, bound[, entropy])`; see `trpl.implicit.Problem.pullback`."""
        ...

    def multipliers(
        self, e: Engine, p: Policy, q: Policy, bound: PerState, entropy: PerState | None, held: Held
    ) -> tuple[PerState, PerState]:
        """Compute the Lagrange multipliers of the KL and of the entropy; 0 where a constraint is inactive."""
        ...

    def entropy_range(self, e: Engine, q: Policy, bound: PerState) -> tuple[PerState, PerState] | None:
        """Return the least and the greatest entropy of any policy within the bound of q; None if unknown."""
        ...


_FAMILIES: dict[type, Callable[[Policy], Family]] = {}


def register(policy: type, family: Callable[[Policy], Family]) -> None:
    """Register a value type.

    Args:
        policy: The type of the policy values.
        family: `family(p)` returns the family of a policy of this type.
    """
    _FAMILIES[policy] = family


def family_of(p: Policy) -> Family:
    """Look up the family of a policy.

    Args:
        p: A policy value.

    Returns:
        Its family.

    Raises:
        TypeError: If the type is not registered.
    """
    try:
        return _FAMILIES[type(p)](p)
    except KeyError:
        known = ", ".join(sorted(t.__name__ for t in _FAMILIES))
        raise TypeError(f"{type(p).__name__} is not a policy; known are {known}") from None


def is_policy(p: object) -> bool:
    """Tell whether a value is of a registered type.

    Args:
        p: Any value.

    Returns:
        Whether the type is registered.
    """
    return type(p) in _FAMILIES


def known_policies() -> tuple[str, ...]:
    """List the names of all registered types.

    Returns:
        The names, in order of registration.
    """
    return tuple(t.__name__ for t in _FAMILIES)
