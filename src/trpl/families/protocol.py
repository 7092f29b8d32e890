"""The protocol of a policy family, and the registry of all families.

A family is one file: its value type, its KL, entropy and log-density, its argument checks, and its joint KL projection
with a hand-written derivative. `register` makes it known to layers, audits, penalties and public functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard

from trpl.natural.solver import Held
from trpl.types import A_co, cast

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from trpl.engines import Engine
    from trpl.gaussians.values import Parts
    from trpl.implicit import Like, Saved, Solved
    from trpl.natural.path import Path
    from trpl.types import Array, PerState
else:
    from typing import TypeVar


class Policy(Protocol[A_co]):
    """A policy of a registered type: an immutable `NamedTuple` of arrays whose leading axes are a batch."""

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes, in a fixed order."""
        ...

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the batch of states."""
        ...

    def detached(self) -> Policy[A_co]:
        """Return the same policy as a constant for differentiation."""
        ...


if TYPE_CHECKING:
    P = TypeVar("P", bound=Policy, default=Policy)
    Q = TypeVar("Q", bound=Policy, default=Policy)
else:
    P, Q = TypeVar("P"), TypeVar("Q")


class Family(Protocol[P]):
    """A family of policies; a frozen value, equal to others with the same settings."""

    @property
    def words(self) -> str:
        """The name of the value type in messages."""
        ...

    @property
    def cores(self) -> tuple[int, ...]:
        """The number of trailing non-batch axes of each array."""
        ...

    def make(self, arrays: Sequence[Array], like: Policy | None = None) -> P:
        """Return the policy with these `arrays`, and with whatever else `like` has that no projection moves."""
        ...

    # Validation ------------------------------------------------------------------------------------------------------

    def check_one(self, name: str, p: P) -> None:
        """Raise `ValueError` if the arrays of the policy called `name` are inconsistent (shapes, dtypes)."""
        ...

    def check_pair(self, name: str, p: P, q: P, *, other: str = "old") -> None:
        """Raise `ValueError` if the policies called `name` and `other` differ in size, except for the batch."""
        ...

    def admit(self, e: Engine, predicted: P, old: P) -> None:
        """Raise `ValueError` for values that are not policies; fast if there are none."""
        ...

    def accept(self, e: Engine, projected: Sequence[Array | None]) -> None:
        """Raise `ConvergenceError` if a result is not a policy; None stands for an unchanged array."""
        ...

    # Differentiable by the framework ---------------------------------------------------------------------------------

    def kl(self, e: Engine, p: P, q: P) -> PerState:
        """Compute KL(p‖q)."""
        ...

    def kl_parts(self, e: Engine, p: P, q: P) -> Parts:
        """Compute KL(p‖q) by parts; without a covariance all of it is in the mean part."""
        ...

    def penalty(self, e: Engine, p: P, q: P) -> PerState:
        """Compute the regression penalty: KL(p‖q), of Gaussians with a shared covariance only the mean part."""
        ...

    def entropy(self, e: Engine, p: P) -> PerState:
        """Compute H(p)."""
        ...

    def log_prob(self, e: Engine, p: P, x: Array, /) -> PerState:
        """Compute log p(x)."""
        ...

    # The joint KL projection -----------------------------------------------------------------------------------------

    # Its inputs are everywhere `(*predicted, *old, bound[, entropy])`; `held` says whether there is an entropy.

    def residuals(self, held: Held) -> tuple[Like, ...]:
        """Return the shapes of `solve`'s residuals."""
        ...

    def solve(self, e: Engine, inputs: Sequence[Array], held: Held, *, whole: bool) -> Solved | None:
        """Solve argmin KL(π̃‖p) subject to KL(π̃‖q) ≤ ε and the entropy; see `trpl.implicit.Problem.solve`."""
        ...

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool], held: Held
    ) -> Sequence[Array | None]:
        """Compute the cotangents of the inputs; see `trpl.implicit.Problem.pullback`."""
        ...

    def multipliers(self, e: Engine, inputs: Sequence[Array], held: Held) -> tuple[PerState, PerState]:
        """Compute the Lagrange multipliers of the KL and of the entropy; 0 where a constraint is inactive."""
        ...

    def entropy_range(self, e: Engine, q: P, bound: PerState) -> tuple[PerState, PerState]:
        """Return the least and the greatest H − H(q) of any policy within the bound of q."""
        ...


class Part(Family[P], Protocol[P]):
    """A family whose policies may be parts of a product."""

    def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> Path:
        """Make the path between two policies, given by their arrays."""
        ...

    def split_action(self, p: P, x: Array) -> tuple[Array, Array]:
        """Split off this policy's action from the last axis of a product's."""
        ...


_FAMILIES: dict[type, Callable[[Policy], Family]] = {}


def register(policy: type[P], family: Callable[[P], Family[Q]]) -> None:
    """Register a value type.

    Args:
        policy: The type of the policy values.
        family: `family(p)` returns the family of a policy of this type.
    """
    _FAMILIES[policy] = cast("Callable[[Policy], Family]", family)


def family_of(p: P) -> Family[P]:
    """Look up the family of a policy.

    Args:
        p: A policy value.

    Returns:
        Its family.

    Raises:
        TypeError: If the type is not registered.
    """
    try:
        return cast("Family[P]", _FAMILIES[type(p)](p))
    except KeyError:
        known = ", ".join(sorted(t.__name__ for t in _FAMILIES))
        raise TypeError(f"{type(p).__name__} is not a policy; known are {known}") from None


def is_policy(p: object) -> TypeGuard[Policy]:
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
