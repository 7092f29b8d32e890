"""What a kind of policy must know to have a trust region: the protocol of a family, and the register of all.

A family is one file: its value type, its KL, entropy and log-density, what is checked at the door, and its joint KL
projection with the derivative by hand. `register` makes it known to layers, audits, penalties and public functions.
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
"""What a joint projection asks of the entropy: nothing, H ≥ β, or H = β."""


class Family(Protocol):
    """A kind of policy; a frozen value, equal to others with the same settings."""

    @property
    def words(self) -> str:
        """What the value type is called in messages."""
        ...

    @property
    def cores(self) -> tuple[int, ...]:
        """For each array of the policy how many of its last axes are not a batch."""
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

    # At the door -----------------------------------------------------------------------------------------------------

    def check_one(self, name: str, p: Policy) -> None:
        """Raise `ValueError` if the arrays of the policy called `name` do not fit together (shapes, dtypes)."""
        ...

    def check_pair(self, name: str, p: Policy, q: Policy) -> None:
        """Raise `ValueError` if the sizes of the policy called `name` and of the old one differ, but for the batch."""
        ...

    def admit(self, e: Engine, predicted: Policy, old: Policy) -> None:
        """Raise `ValueError` for values that make no policy; fast where all is well."""
        ...

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        """Raise `ConvergenceError` if a result is not a policy; None stands for an array that was not changed."""
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
        """The shapes of what `solve` leaves for `pullback`; inputs are `(*predicted, *old, bound[, entropy])`."""
        ...

    def solve(
        self, e: Engine, p: Policy, q: Policy, bound: PerState, entropy: PerState | None, held: Held, *, whole: bool
    ) -> Solved | None:
        """Compute argmin KL(π̃‖p) subject to KL(π̃‖q) ≤ ε and the entropy; see `trpl.implicit.Problem.solve`."""
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
        """Return the Lagrangian multipliers of the KL and of the entropy; 0 where a constraint does not bind."""
        ...

    def entropy_range(self, e: Engine, q: Policy, bound: PerState) -> tuple[PerState, PerState] | None:
        """Return the least and the greatest entropy of any policy within the bound of q; None if that is not known."""
        ...


_FAMILIES: dict[type, Callable[[Policy], Family]] = {}


def register(policy: type, family: Callable[[Policy], Family]) -> None:
    """Make a value type known.

    Args:
        policy: The type of the policy values.
        family: `family(p)` gives the family of a policy of this type.
    """
    _FAMILIES[policy] = family


def family_of(p: Policy) -> Family:
    """Look up the family of a policy.

    Args:
        p: A policy value.

    Returns:
        Its family.

    Raises:
        TypeError: If the type is of no registered family.
    """
    try:
        return _FAMILIES[type(p)](p)
    except KeyError:
        known = ", ".join(sorted(t.__name__ for t in _FAMILIES))
        raise TypeError(f"{type(p).__name__} is no policy; known are {known}") from None


def is_policy(p: object) -> bool:
    """Tell whether a value is of a registered type.

    Args:
        p: Any value.

    Returns:
        Whether `family_of` knows it.
    """
    return type(p) in _FAMILIES


def known_policies() -> tuple[str, ...]:
    """List the names of all registered types.

    Returns:
        The names, in the order of their registration.
    """
    return tuple(t.__name__ for t in _FAMILIES)
