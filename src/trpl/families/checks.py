"""Checks that families share, in the caller's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trpl.engines import framework_of, is_floating

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.families.protocol import Policy
    from trpl.types import Array


def dtype_name(x: Array) -> str:
    """Return the dtype's name, float32 for example, in any framework."""
    return str(x.dtype).removeprefix("torch.")


def num_states(count: int) -> str:
    """Write a number of states: "1 state", "2 states"."""
    return f"{count} state{'s' * (count != 1)}"


def check_arrays(name: str, fields: list[tuple[str, Any]]) -> None:
    """Refuse anything but arrays of floats of one framework and dtype.

    Args:
        name: The caller's name for the policy.
        fields: The name and the value of each of its arrays.
    """
    label, first = fields[0]
    kinds = []
    for field, x in fields:
        kinds.append(framework_of(x))
        if kinds[-1] is None:
            raise ValueError(f"{name}.{field} must be an array, not {type(x).__name__}")
        if not is_floating(x):
            raise ValueError(f"{name}.{field} must be float32 or float64, not {dtype_name(x)}")
    for kind, (field, x) in zip(kinds[1:], fields[1:], strict=True):
        if kind != kinds[0]:
            raise ValueError(f"{name}.{label} is a {kinds[0]} array and {name}.{field} a {kind} array")
        if x.dtype != first.dtype:
            raise ValueError(
                f"{name}.{label} is {dtype_name(first)} and {name}.{field} {dtype_name(x)}; convert them to one"
            )


def check_actions(p: Policy, x: Array) -> None:
    """Refuse actions without a number per component: `[64]` for a policy of `[64, 1]` would broadcast to `[64, 64]`.

    Args:
        p: The policy.
        x: The actions.
    """
    dim = p.arrays[0].shape[-1]
    if tuple(x.shape[-1:]) != (dim,):
        kind, shape = type(p).__name__, tuple(x.shape)
        raise ValueError(f"actions of a {kind} must end in ({dim},), a number per component; got {shape}")


def check_finite(e: Engine, name: str, fields: list[tuple[str, Array]]) -> None:
    """Refuse NaN and infinite entries, and say how many there are."""
    for field, x in fields:
        count = int(e.xp.sum(~e.xp.isfinite(x)))
        if count:
            raise ValueError(f"{name}.{field} has {count} entries that are NaN or infinite")
