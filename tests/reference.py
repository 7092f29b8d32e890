"""The distances and entropies once more, from textbook formulas in NumPy and independent of the package.

They take covariances, not factors, and are accurate for ordinary policies only, which is what they are used for.
"""

from __future__ import annotations

import numpy as np

from generators import Pair


def covariances(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Σ and Σ_old as full matrices."""
    if pair.kind == "diag":
        return tuple(s[..., :, None] ** 2 * np.eye(pair.dim) for s in (pair.scale, pair.old_scale))
    return pair.scale @ pair.scale.swapaxes(-1, -2), pair.old_scale @ pair.old_scale.swapaxes(-1, -2)


def root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric square root."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values)[..., None, :]) @ vectors.swapaxes(-1, -2)


def trace(matrix: np.ndarray) -> np.ndarray:
    return np.trace(matrix, axis1=-2, axis2=-1)


def mahalanobis(pair: Pair) -> np.ndarray:
    _, old = covariances(pair)
    shift = pair.mean - pair.old_mean
    return np.einsum("...i,...i->...", shift, np.linalg.solve(old, shift[..., None])[..., 0])


def cov_part(metric: str, pair: Pair) -> np.ndarray:
    """The covariance part of a distance, by its name in the conformance list."""
    cov, old = covariances(pair)
    one = np.eye(pair.dim)
    if metric == "kl":
        log_det = np.linalg.slogdet(old)[1] - np.linalg.slogdet(cov)[1]
        return 0.5 * (trace(np.linalg.solve(old, cov)) - pair.dim + log_det)
    if metric == "w2":
        return trace(one + np.linalg.solve(old, cov) - 2.0 * np.linalg.solve(root(old), root(cov)))
    if metric == "w2-exact":
        half = np.linalg.inv(root(old))
        white = half @ cov @ half
        return trace(one + white - 2.0 * root(white))
    if metric == "frobenius":
        return np.sum((cov - old) ** 2, axis=(-2, -1))
    assert metric == "frobenius-whitened"
    half = np.linalg.inv(root(old))
    return np.sum((half @ (cov - old) @ half) ** 2, axis=(-2, -1))


def mean_part(metric: str, pair: Pair) -> np.ndarray:
    """The mean part: half of the Mahalanobis distance for the KL, the whole of it for the others."""
    return (0.5 if metric == "kl" else 1.0) * mahalanobis(pair)


def entropy(kind: str, scale: np.ndarray) -> np.ndarray:
    diag = scale if kind == "diag" else np.diagonal(scale, axis1=-2, axis2=-1)
    return np.sum(np.log(diag) + 0.5 * np.log(2.0 * np.pi * np.e), axis=-1)
