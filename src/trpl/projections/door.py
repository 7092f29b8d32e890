"""Checks at the door, in the caller's words; inside nothing is checked twice.

Structure (types, shapes, dtypes) is always checked: it costs nothing and works under `jit` and `compile`. Values are
checked when they can be looked at and the layer's `check` is on.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from trpl.backend import (
    alongside,
    has_values,
    is_array,
    is_floating,
    is_jax,
    is_number,
    is_torch,
    is_varying_number,
    namespace,
    reading,
)
from trpl.errors import ConvergenceError
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian, Pair
from trpl.linalg import diagonal, is_lower

Array = Any


def check_structure(predicted: Gaussian, old: Gaussian) -> None:
    """Types, dimensions, batch shapes and dtypes of a pair."""
    _check_one("predicted", predicted)
    _check_one("old", old)
    if type(predicted) is not type(old):
        raise ValueError(
            f"predicted is a {type(predicted).__name__} and old a {type(old).__name__}; "
            "they must have the same structure"
        )
    if predicted.dim != old.dim:
        raise ValueError(f"old policy has {old.dim} action dimensions, predicted has {predicted.dim}")
    if is_torch(predicted.mean) != is_torch(old.mean) or is_jax(predicted.mean) != is_jax(old.mean):
        raise ValueError(f"predicted has {_framework(predicted.mean)} arrays and old {_framework(old.mean)} arrays")
    if predicted.mean.dtype != old.mean.dtype:
        raise ValueError(
            f"predicted is {_dtype(predicted.mean)} and old {_dtype(old.mean)}; convert them to one floating-point type"
        )
    if predicted.batch_shape != old.batch_shape and not _broadcasts(predicted.batch_shape, old.batch_shape):
        raise ValueError(f"batch shapes do not fit: predicted has {predicted.batch_shape}, old has {old.batch_shape}")


def _framework(x: Array) -> str:
    return "PyTorch" if is_torch(x) else "JAX" if is_jax(x) else "NumPy"


def _dtype(x: Array) -> str:
    return str(x.dtype).removeprefix("torch.")


def _broadcasts(*shapes: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _check_one(name: str, p: Gaussian) -> None:
    if not isinstance(p, DiagGaussian | FullGaussian):
        raise ValueError(f"{name} must be a DiagGaussian or a FullGaussian, not {type(p).__name__}")
    field, core = _field(p), 1 if isinstance(p, DiagGaussian) else 2
    mean, scale = p
    for label, x in (("mean", mean), (field, scale)):
        if not is_array(x):
            raise ValueError(f"{name}.{label} must be an array, not {type(x).__name__}")
        if not is_floating(x):
            raise ValueError(f"{name}.{label} must be float32 or float64, not {_dtype(x)}")
    if is_torch(mean) != is_torch(scale) or is_jax(mean) != is_jax(scale):
        raise ValueError(f"{name}.mean is a {_framework(mean)} array and {name}.{field} a {_framework(scale)} array")
    if mean.dtype != scale.dtype:
        raise ValueError(f"{name}.mean is {_dtype(mean)} and {name}.{field} {_dtype(scale)}; convert them to one")
    shape, scale_shape = tuple(mean.shape), tuple(scale.shape)
    if len(shape) < 1 or len(scale_shape) < core:
        raise ValueError(
            f"{name}.mean needs 1 axis or more and {name}.{field} {core} or more; got shapes {shape} and {scale_shape}"
        )
    if scale_shape[-core:] != shape[-1:] * core:
        raise ValueError(
            f"{name}.{field} must end in {shape[-1:] * core} for a mean of {shape[-1]} dimensions; got {scale_shape}"
        )
    if shape[-1] == 0:
        raise ValueError(f"{name} has no action dimensions: its mean has shape {shape}")
    if scale_shape[:-core] not in ((), shape[:-1]):
        raise ValueError(
            f"{name}.{field} must have the mean's batch shape {shape[:-1]}, or none (one covariance for all); "
            f"got {scale_shape[:-core]}"
        )


def as_bound(name: str, bound: Array, like: Gaussian, *, check: bool) -> Array:
    """A bound as an array of the policy's dtype and device, refused if it is not positive and finite there."""
    array = _as_array(name, bound, like)
    if check and not _holds(lambda xp, x: (x > 0.0) & xp.isfinite(x), bound, array):
        raise ValueError(f"{name} must be positive and finite as {_dtype(array)}; got {_show(bound)}")
    return array


def known_limit(bound: Array) -> float:
    """What a bound is known not to exceed, whatever is traced: itself if it is a number."""
    return float(bound) if is_number(bound) else math.inf


def as_entropy(name: str, target: Array | None, like: Gaussian, *, check: bool) -> Array | None:
    """An entropy target as an array of the policy's dtype and device, refused if it is not finite."""
    if target is None:
        return None
    array = _as_array(name, target, like)
    if check and not _holds(lambda xp, x: xp.isfinite(x), target, array):
        raise ValueError(f"{name} must be finite: no covariance has an entropy of {_show(target)}")
    return array


FLOAT32_RANGE = 7.1e-46, 3.4028235e38  # what is smaller becomes 0 there, what is larger infinite


def _holds(condition: Callable[[Any, Array], Array], given: Array, array: Array) -> bool:
    """Whether all of `array` meets the condition, as far as one can see: an array may be traced, a number is not."""
    if is_number(given):
        number = float(given)
        if array.dtype.itemsize == 4:
            lowest, highest = FLOAT32_RANGE
            number = (
                0.0 if abs(number) < lowest else math.copysign(math.inf, number) if abs(number) > highest else number
            )
        return bool(condition(math, number))
    if not has_values(array):
        return True
    with reading(array):
        xp = namespace(array)
        return bool(xp.all(condition(xp, array)))


def _as_array(name: str, value: Array, like: Gaussian) -> Array:
    """A number or an array of numbers per state, in the policy's framework and dtype."""
    if is_number(value):
        return _full_like(float(value), like.mean)
    if is_varying_number(value):
        return _full_like(value, like.mean)
    if not is_array(value):
        raise ValueError(f"{name} must be a number or an array, not {type(value).__name__}")
    if not is_floating(value):
        raise ValueError(f"{name} must be a float, not {_dtype(value)}")
    if isinstance(value, np.ndarray):
        value = _full_like(value, like.mean)
    if is_torch(value) != is_torch(like.mean) or is_jax(value) != is_jax(like.mean):
        raise ValueError(f"{name} is a {_framework(value)} array and the policy's are {_framework(like.mean)} arrays")
    if tuple(value.shape) not in ((), like.batch_shape):
        raise ValueError(
            f"{name} must be a number or have the batch shape {like.batch_shape}; got {tuple(value.shape)}"
        )
    return value if value.dtype == like.mean.dtype else namespace(like.mean).astype(value, like.mean.dtype)


def _full_like(value: Any, like: Array) -> Array:
    """A number, or NumPy's, as an array of the same framework, dtype and device."""
    if is_torch(like):
        return like.new_full((), value) if is_varying_number(value) else like.new_tensor(value)
    return namespace(like).asarray(value, dtype=like.dtype)


def _show(value: Any) -> str:
    if isinstance(value, int | float):
        return repr(value)
    flat = np.asarray(value.detach().cpu() if is_torch(value) else value).ravel()
    bad = flat[~((flat > 0) & np.isfinite(flat))]
    return f"{(bad if bad.size else flat)[0]!r} among {flat.size} values"


def check_values(pair: Pair) -> None:
    """Finite parameters, positive standard deviations, lower triangular factors with a positive diagonal.

    Few numbers say whether all is well: one sum of everything, the smallest scale. Only then one looks for what is not.
    """
    _, _, p, q = pair
    if not has_values(*p, *q):
        return
    xp = namespace(q.mean)
    with reading(q.mean):
        if not math.isfinite(_total(p, q)):
            _check_finite("predicted", p)
            _check_finite("old", q)
        if isinstance(p, DiagGaussian):
            both = xp.minimum(p.std, q.scale)
            if 0 not in both.shape and xp.min(both) > 0.0:
                return
        _check_scale("predicted", p)
        _check_scale("old", q)


def _total(*gaussians: Gaussian) -> Array:
    """A number that is finite only if all entries are; it may overflow, and then one must look again."""
    arrays = [x for p in gaussians for x in p]
    if type(arrays[0]) is np.ndarray:
        return sum(np.vdot(x, x) for x in arrays)
    xp = namespace(*arrays)
    if isinstance(gaussians[0], DiagGaussian):
        return xp.sum(functools.reduce(operator.add, arrays))  # few operations, where each is small
    return sum(xp.sum(x) for x in arrays)


def _check_finite(name: str, p: Gaussian) -> None:
    xp = namespace(p.mean)
    for label, x in (("mean", p.mean), (_field(p), p.scale)):
        count = int(xp.sum(~xp.isfinite(x)))
        if count:
            raise ValueError(f"{name}.{label} has {count} entries that are NaN or infinite")


def _check_scale(name: str, p: Gaussian) -> None:
    xp = namespace(p.scale)
    diag = p.scale if isinstance(p, DiagGaussian) else diagonal(p.scale)
    if 0 in diag.shape:
        return
    lowest = float(xp.min(diag))
    if not lowest > 0.0:
        diag_words, full_words = "std must be positive", "chol is singular: its diagonal must be positive"
        what = diag_words if isinstance(p, DiagGaussian) else full_words
        raise ValueError(f"{name}.{what}; the smallest entry is {lowest:g}")
    if isinstance(p, FullGaussian) and not is_lower(p.chol):
        raise ValueError(f"{name}.chol must be lower triangular; it has entries above the diagonal")


def _field(p: Gaussian) -> str:
    return "std" if isinstance(p, DiagGaussian) else "chol"


def check_result(projected: Gaussian, pair: Pair) -> None:
    """A result that is not finite, or a scale that is not positive, is an error, never handed on."""
    if not has_values(projected.mean, projected.scale) or 0 in projected.mean.shape:
        return
    p = type(projected)(*alongside(pair.p.mean, *projected))
    with reading(p.mean):
        xp = namespace(p.mean)
        diag = isinstance(p, DiagGaussian)
        smallest = xp.min(p.scale if diag else diagonal(p.scale))
        if smallest > 0.0 and math.isfinite(_total(p)):
            return
        sound = bool((smallest > 0.0) & xp.all(xp.isfinite(p.mean)) & xp.all(xp.isfinite(p.scale)))
    if not sound:
        raise ConvergenceError(
            "the projection is not finite, or its covariance singular: the covariances are too ill-conditioned, or the "
            f"entropy target too far, for {_dtype(p.mean)}; use float64, a smaller bound, or better conditioned "
            "covariances"
        )
