"""The map from a network's raw outputs to a covariance and back, for NumPy, JAX and PyTorch.

A standard deviation is softplus(raw + shift) + 1e-5, equal to 1 at raw = 0. A full covariance is given by its Cholesky
factor: `raw` holds the diagonal, which is mapped likewise, then the rest of the lower triangle row by row.
"""

from __future__ import annotations

import math

import numpy as np
from array_api_compat import array_namespace

from trpl.engines import framework_of
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian
from trpl.types import A, Array

MIN_STD = 1e-5
STD_SHIFT = math.log(math.expm1(1.0 - MIN_STD))  # softplus(STD_SHIFT) + MIN_STD = 1: the initial deviation is 1


def spread_size(covariance: str, dim: int) -> int:
    """Count the raw numbers that describe one covariance, "diagonal" or "full"."""
    return dim if covariance == "diagonal" else dim * (dim + 1) // 2


def gaussian(mean: A, raw: A, covariance: str) -> Gaussian[A]:
    """Build the Gaussian with this mean whose covariance `raw` describes."""
    if covariance == "diagonal":
        return DiagGaussian(mean, positive(raw))
    return FullGaussian(mean, cholesky_from_raw(raw, mean.shape[-1]))


def raw_from(p: Gaussian[A]) -> A:
    """Invert `gaussian`: the raw numbers that describe the covariance of `p`."""
    return raw_from_positive(p.std) if isinstance(p, DiagGaussian) else raw_from_cholesky(p.chol)


def positive(raw: A) -> A:
    """Map raw numbers to standard deviations: softplus(raw + shift) + 1e-5."""
    shifted = raw + STD_SHIFT
    xp = array_namespace(raw)
    return xp.logaddexp(shifted, xp.zeros_like(shifted)) + MIN_STD


def raw_from_positive(std: A) -> A:
    """Invert `positive`: log(exp(y) − 1) = y + log(1 − exp(−y)) with y = std − 1e-5."""
    xp = array_namespace(std)
    y = xp.clip(std - MIN_STD, min=1e-9)
    return y + xp.log(-xp.expm1(-y)) - STD_SHIFT


def cholesky_from_raw(raw: A, dim: int) -> A:
    """Build the lower-triangular factor from raw numbers [..., dim (dim + 1)/2]."""
    xp = array_namespace(raw)
    numbers = xp.concat([positive(raw[..., :dim]), raw[..., dim:], xp.zeros_like(raw[..., :1])], axis=-1)
    places = xp.asarray(_indices(dim), **_device_of(raw))
    return xp.reshape(xp.take(numbers, places, axis=-1), (*raw.shape[:-1], dim, dim))


def raw_from_cholesky(chol: A) -> A:
    """Invert `cholesky_from_raw`."""
    xp, dim = array_namespace(chol), chol.shape[-1]
    rows, columns = np.tril_indices(dim, -1)
    order = np.concatenate([np.arange(dim) * (dim + 1), rows * dim + columns])
    flat = xp.take(xp.reshape(chol, (*chol.shape[:-2], dim * dim)), xp.asarray(order, **_device_of(chol)), axis=-1)
    return xp.concat([raw_from_positive(flat[..., :dim]), flat[..., dim:]], axis=-1)


def share_covariance(p: Gaussian[A]) -> Gaussian[A]:
    """Reduce contextual covariances to one for all states; return `p` unchanged if its covariance is shared.

    The joint projection makes shared covariances contextual. The result is the mean of the Cholesky factors over the
    batch, with the geometric mean on the diagonal, which preserves the mean entropy.
    """
    if p.shares_covariance:
        return p
    xp = array_namespace(p.scale)
    if isinstance(p, DiagGaussian):
        return p.with_scale(xp.exp(xp.mean(xp.log(p.std), axis=0)))
    geometric = xp.exp(xp.mean(xp.log(xp.linalg.diagonal(p.chol)), axis=0))
    identity = xp.eye(p.dim, dtype=p.chol.dtype, **_device_of(p.chol))
    return p.with_scale(xp.tril(xp.mean(p.chol, axis=0), k=-1) + geometric * identity)


def _indices(dim: int) -> np.ndarray:
    """Return the index of the raw number of each entry, row by row; above the diagonal that of an appended zero."""
    places = np.full((dim, dim), dim * (dim + 1) // 2)
    np.fill_diagonal(places, np.arange(dim))
    places[np.tril_indices(dim, -1)] = np.arange(dim, dim * (dim + 1) // 2)
    return places.ravel()


def _device_of(x: Array) -> dict[str, object]:
    """Return the device argument for an array to be combined with `x`; NumPy and JAX need none."""
    return {"device": getattr(x, "device", None)} if framework_of(x) == "PyTorch" else {}
