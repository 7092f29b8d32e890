"""Validation of arguments, in the caller's words; nothing is checked twice further in.

Structure (types, shapes, dtypes) is always checked: it is cheap and works under `jit` and `compile`. Values of bounds
and targets are checked if they are concrete and the layer's `check` is on; those of policies in
`trpl.layers.problems`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trpl.engines import as_float, engine_of, framework_of, is_floating, is_number, is_symbolic_number, values_of
from trpl.families import Family, Policy, family_of, is_policy, known_policies
from trpl.families.checks import dtype_name
from trpl.gaussians.values import DiagGaussian, FullGaussian
from trpl.implicit.problems import broadcast_shapes

if TYPE_CHECKING:
    from trpl.types import Array, PerState


_VALIDATED: dict[tuple[Any, ...], Family] = {}
"""Cache of validated pairs: their families by types, shapes and dtypes."""
MAX_VALIDATED = 256


def check_structure(predicted: Policy, old: Policy, name: str = "predicted", other: str = "old") -> Family:
    """Check types, dimensions, batch shapes and dtypes of a pair; return its family."""
    seen = _cache_key(predicted, old)
    family = None if seen is None else _VALIDATED.get(seen)
    if family is None:
        family = _checked_structure(predicted, old, name, other)
        if seen is not None:
            if len(_VALIDATED) >= MAX_VALIDATED:
                _VALIDATED.clear()
            _VALIDATED[seen] = family
    return family


def _cache_key(predicted: Policy, old: Policy) -> tuple[Any, ...] | None:
    """Return types, shapes and dtypes of two Gaussians of plain arrays with concrete sizes, else None."""
    if not (isinstance(predicted, _GAUSSIANS) and isinstance(old, _GAUSSIANS)):
        return None
    found: list[Any] = [type(predicted), type(old)]
    for x in (*predicted, *old):
        kind = type(x)
        if kind.__name__ not in _PLAIN:
            return None
        found += (kind, x.shape, x.dtype)
    return tuple(found)


_GAUSSIANS = (DiagGaussian, FullGaussian)
_PLAIN = frozenset(("ndarray", "Tensor", "Parameter", "ArrayImpl"))  # not tracers, nor fake tensors


def _checked_structure(predicted: Policy, old: Policy, name: str, other: str) -> Family:
    for label, p in ((name, predicted), (other, old)):
        if not is_policy(p):
            raise ValueError(f"{label} must be a {' or a '.join(known_policies())}, not {type(p).__name__}")
    family = family_of(predicted)
    family.check_one(name, predicted)
    family_of(old).check_one(other, old)  # a product's family is that of its own parts
    if type(predicted) is not type(old):
        raise ValueError(
            f"{name} is a {type(predicted).__name__} and {other} a {type(old).__name__}; "
            "they must have the same structure"
        )
    family.check_pair(name, predicted, old, other=other)
    first, second = predicted.arrays[0], old.arrays[0]
    kinds = framework_of(first), framework_of(second)
    if kinds[0] != kinds[1]:
        raise ValueError(f"{name} has {kinds[0]} arrays and {other} {kinds[1]} arrays")
    if first.dtype != second.dtype:
        raise ValueError(
            f"{name} is {dtype_name(first)} and {other} {dtype_name(second)}; convert them to one floating-point type"
        )
    shapes = predicted.batch_shape, old.batch_shape
    if shapes[0] != shapes[1] and not _broadcast(*shapes):
        raise ValueError(f"batch shapes do not fit: {name} has {shapes[0]}, {other} has {shapes[1]}")
    return family


def _broadcast(*shapes: tuple[int, ...]) -> bool:
    try:
        broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def as_bound(
    name: str, bound: object, like: Array, batch: tuple[int, ...], *, check: bool, positive: bool = True
) -> PerState | float:
    """Return the bound as a number, or as an array of the policy's framework and dtype; refuse invalid values.

    Args:
        name: The caller's name for the bound.
        bound: A number, or an array with one per state.
        like: An array of the policy.
        batch: The policy's batch shape.
        check: Whether to check values.
        positive: Whether it must be positive; an entropy need not be.
    """
    if is_number(bound):
        number = as_float(bound)
        value = _as_stored(number, like)
        if check and not (math.isfinite(value) and (value > 0.0 or not positive)):
            raise ValueError(f"{name} {_wanted(positive, like)} {number!r}")
        return number
    array = _as_array(name, bound, like, batch)
    found = values_of(array) if check and not is_symbolic_number(array) else None
    if found is not None and not (good := _valid(found, positive)).all():
        raise ValueError(f"{name} {_wanted(positive, like)} {found[~good].ravel()[0]:g} among {found.size} values")
    return array


def _valid(values: np.ndarray, positive: bool) -> np.ndarray:
    return np.isfinite(values) & (values > 0.0) if positive else np.isfinite(values)


def _wanted(positive: bool, like: Array | None = None) -> str:
    """Say what a bound, or an entropy, must be; the invalid value follows."""
    if not positive:
        return "must be finite: no policy has an entropy of"
    return f"must be positive and finite{'' if like is None else f' as {dtype_name(like)}'}; got"


FLOAT32_RANGE = 7.1e-46, 3.4028235e38
"""Smaller numbers underflow to 0 in float32, larger ones overflow."""


def _as_stored(number: float, like: Array) -> float:
    """Convert the number to the policy's dtype, closely enough to detect underflow and overflow."""
    if like.dtype.itemsize == 4:
        lowest, highest = FLOAT32_RANGE
        return 0.0 if abs(number) < lowest else math.copysign(math.inf, number) if abs(number) > highest else number
    return number


def _as_array(name: str, value: Any, like: Array, batch: tuple[int, ...]) -> PerState:
    """Return an array of numbers per state, or one for all, in the policy's framework and dtype."""
    if is_symbolic_number(value):
        return value
    kind, policy = _kind_of(name, value), framework_of(like)
    if kind == "NumPy" != policy:
        value, kind = engine_of(like).asarray(value, like), policy
    if kind != policy:
        raise ValueError(f"{name} is a {kind} array and the policy's are {policy} arrays")
    if tuple(value.shape) not in ((), batch):
        raise ValueError(f"{name} must be a number or have the batch shape {batch}; got {tuple(value.shape)}")
    return value if value.dtype == like.dtype else engine_of(like).xp.astype(value, like.dtype)


def _kind_of(name: str, value: Any) -> str:
    """Return the framework of an array of floats; refuse anything else."""
    kind = framework_of(value)
    if kind is None:
        raise ValueError(f"{name} must be a number or an array, not {type(value).__name__}")
    if not is_floating(value):
        raise ValueError(f"{name} must be float32 or float64, not {dtype_name(value)}")
    return kind


def check_held(name: str, value: Any, *, positive: bool = True, parts: bool = False, check: bool = True) -> None:
    """Refuse, when a layer is made, a bound or entropy that is invalid whatever the policies.

    Args:
        name: The caller's name for it.
        value: A number, or an array with one for each state.
        positive: Whether it must be a positive number; an entropy may also be negative, or None.
        parts: Whether there may be a tuple with one for each part of a product.
        check: Whether the values of an array are looked at.
    """
    if parts and isinstance(value, tuple | list):
        for i, own in enumerate(value):
            check_held(f"{name}[{i}]", own, positive=positive, check=check)
        return
    if (value is None and not positive) or is_symbolic_number(value):
        return
    found: np.ndarray | None
    if is_number(value):
        found = np.asarray(as_float(value))
    else:
        _kind_of(name, value)
        found = values_of(value) if check else None
    if found is not None and not (good := _valid(found, positive)).all():
        raise ValueError(f"{name} {_wanted(positive)} {float(found[~good].ravel()[0]):g}")
