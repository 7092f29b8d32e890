"""Checks at the door, in the caller's words; inside nothing is checked twice.

Structure (types, shapes, dtypes) is always checked: it costs nothing and works under `jit` and `compile`. Values are checked when
they can be looked at and the layer's `check` is on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trpl.backend import has_values, is_array, is_jax, is_torch, namespace, reading
from trpl.errors import ConvergenceError
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian
from trpl.linalg import diagonal, lower_mask

Array = Any


def check_structure(predicted: Gaussian, old: Gaussian) -> None:
    """Types, dimensions, batch shapes and dtypes of a pair."""
    for name, p in (("predicted", predicted), ("old", old)):
        _check_one(name, p)
    if type(predicted) is not type(old):
        raise ValueError(
            f"predicted is a {type(predicted).__name__} and old a {type(old).__name__}; both must have the same structure"
        )
    if predicted.dim != old.dim:
        raise ValueError(f"old policy has {old.dim} action dimensions, predicted has {predicted.dim}")
    arrays = (predicted.mean, predicted.scale, old.mean, old.scale)
    if not (all(is_torch(x) for x in arrays) or all(is_jax(x) for x in arrays) or not any(map(_is_host, arrays))):
        kinds = ", ".join(sorted({type(x).__module__.split(".")[0] for x in arrays}))
        raise ValueError(f"predicted and old mix arrays of different frameworks: {kinds}")
    dtypes = {str(x.dtype).removeprefix("torch.") for x in arrays}
    if len(dtypes) > 1:
        raise ValueError(f"predicted and old mix dtypes: {', '.join(sorted(dtypes))}; convert them to one")
    try:
        np.broadcast_shapes(predicted.batch_shape, old.batch_shape)
    except ValueError:
        raise ValueError(
            f"batch shapes do not fit: predicted has {predicted.batch_shape}, old has {old.batch_shape}"
        ) from None


def _is_host(x: Array) -> bool:
    return is_torch(x) or is_jax(x)


def _check_one(name: str, p: Gaussian) -> None:
    if not isinstance(p, DiagGaussian | FullGaussian):
        raise ValueError(f"{name} must be a DiagGaussian or a FullGaussian, not {type(p).__name__}")
    field, core = _field(p), 1 if isinstance(p, DiagGaussian) else 2
    for label, x in (("mean", p.mean), (field, p.scale)):
        if not is_array(x):
            raise ValueError(f"{name}.{label} must be an array, not {type(x).__name__}")
        if not _is_floating(x):
            raise ValueError(f"{name}.{label} must be float32 or float64, not {str(x.dtype).removeprefix('torch.')}")
    if p.mean.ndim < 1 or p.scale.ndim < core:
        raise ValueError(
            f"{name}.mean needs 1 axis or more and {name}.{field} {core} or more; got shapes {tuple(p.mean.shape)} and "
            f"{tuple(p.scale.shape)}"
        )
    want = (p.dim,) * core
    if tuple(p.scale.shape[-core:]) != want:
        raise ValueError(
            f"{name}.{field} must end in {want} for a mean of {p.dim} dimensions; got {tuple(p.scale.shape)}"
        )
    batch = tuple(p.scale.shape[:-core])
    if batch not in ((), p.batch_shape):
        raise ValueError(
            f"{name}.{field} must have the batch shape of the mean, {p.batch_shape}, or none (one covariance for all); got {batch}"
        )


def _is_floating(x: Array) -> bool:
    return str(x.dtype).removeprefix("torch.") in ("float32", "float64")


def as_bound(name: str, bound: Array, like: Gaussian, *, check: bool) -> Array:
    """A bound as an array of the policy's dtype and device, refused if it is not positive and finite."""
    array = _as_array(name, bound, like)
    if check and has_values(array):
        with reading(array):
            xp = namespace(array)
            good = (
                0.0 < bound < math.inf
                if isinstance(bound, int | float)
                else bool(xp.all((array > 0.0) & xp.isfinite(array)))
            )
        if not good:
            raise ValueError(f"{name} must be positive and finite; got {_show(bound)}")
    return array


def as_entropy(name: str, target: Array | None, like: Gaussian, *, check: bool) -> Array | None:
    """An entropy target as an array of the policy's dtype and device, refused if it is not finite."""
    if target is None:
        return None
    array = _as_array(name, target, like)
    if check and has_values(array):
        with reading(array):
            good = bool(namespace(array).all(namespace(array).isfinite(array)))
        if not good:
            raise ValueError(f"{name} must be finite: no covariance has an entropy of {_show(target)}")
    return array


def _as_array(name: str, value: Array, like: Gaussian) -> Array:
    """A number or an array of numbers per state, in the policy's framework and dtype."""
    if is_array(value):
        if not _is_floating(value):
            raise ValueError(f"{name} must be a float, not {str(value.dtype).removeprefix('torch.')}")
        array = value if value.dtype == like.mean.dtype else namespace(like.mean).astype(value, like.mean.dtype)
    elif isinstance(value, int | float):
        array = _full_like(value, like.mean)
    else:
        raise ValueError(f"{name} must be a number or an array, not {type(value).__name__}")
    shape = tuple(array.shape)
    try:
        fits = np.broadcast_shapes(shape, like.batch_shape) == like.batch_shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must be a number or have the batch shape {like.batch_shape}; got {shape}")
    return array


def _full_like(value: float, like: Array) -> Array:
    """A Python number as a 0-d array of the same framework, dtype and device."""
    if is_torch(like):
        return like.new_tensor(value)
    return namespace(like).asarray(value, dtype=like.dtype)


def _show(value: Any) -> str:
    if isinstance(value, int | float):
        return repr(value)
    flat = np.asarray(value.detach().cpu() if is_torch(value) else value).ravel()
    bad = flat[~((flat > 0) & np.isfinite(flat))]
    return f"{(bad if bad.size else flat)[0]!r} among {flat.size} values"


def check_values(predicted: Gaussian, old: Gaussian) -> None:
    """Finite parameters, positive standard deviations, lower triangular factors with a positive diagonal."""
    if has_values(predicted.mean, predicted.scale, old.mean, old.scale):
        with reading(old.mean):
            for name, p in (("predicted", predicted), ("old", old)):
                _check_finite(name, p)
                _check_scale(name, p)


def _all_finite(p: Gaussian) -> bool:
    """One sum says whether all is finite; only if it is not, each entry is asked (finite entries may sum to infinity)."""
    xp = namespace(p.mean)
    if math.isfinite(xp.sum(p.mean) + xp.sum(p.scale)):
        return True
    return bool(xp.all(xp.isfinite(p.mean)) & xp.all(xp.isfinite(p.scale)))


def _check_finite(name: str, p: Gaussian) -> None:
    if _all_finite(p):
        return
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
        what = (
            "std must be positive" if isinstance(p, DiagGaussian) else "chol is singular: its diagonal must be positive"
        )
        raise ValueError(f"{name}.{what}; the smallest entry is {lowest:g}")
    if isinstance(p, FullGaussian) and bool(xp.any(p.chol * (1.0 - lower_mask(p.chol)) != 0.0)):
        raise ValueError(f"{name}.chol must be lower triangular; it has entries above the diagonal")


def _field(p: Gaussian) -> str:
    return "std" if isinstance(p, DiagGaussian) else "chol"


def check_result(projected: Gaussian) -> None:
    """A result that is not finite is an error, never handed on."""
    if has_values(projected.mean, projected.scale) and not _all_finite(projected):
        raise ConvergenceError(
            "the projection is not finite: the covariances are too ill-conditioned, or the entropy target too far, for "
            f"{str(projected.mean.dtype).removeprefix('torch.')}; use float64, a smaller bound, or better conditioned covariances"
        )
