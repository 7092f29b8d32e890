"""Random and adversarial pairs of Gaussians over the whole range the layers are asked to stand.

Variances from 1e-12 to 1e12, condition numbers to 1e12, means up to 1e8 apart and up to 1e8 from the origin, bounds
from 1e-12 to 1e6. Covariances with equal and with clustered eigenvalues, factors that are nearly singular, predictions
that differ from the old policy in everything, in one direction, in scale, in the last digits, or not at all.
"""

from __future__ import annotations

import numpy as np

from generators import HardPairs, Pair, factor, rotations

SMALLEST, LARGEST = 1e-12, 1e12  # variances
CONDITION = 1e12
FARTHEST = 1e8  # means
BOUNDS = 1e-12, 1e6
STYLES = ("unrelated", "stretched", "turned", "near", "scaled", "one direction", "same covariance", "same")
STYLE_SHARES = (0.25, 0.15, 0.15, 0.15, 0.1, 0.12, 0.05, 0.03)


def log_uniform(rng: np.random.Generator, low: float, high: float, size: tuple[int, ...]) -> np.ndarray:
    """Numbers whose logarithm is uniform."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size=size))


def variances(rng: np.random.Generator, num: int, dim: int) -> np.ndarray:
    """Between 1e-12 and 1e12, their ratio up to 1e12; some rows all equal, some in two clusters of equal ones."""
    width = rng.uniform(0.0, np.log(CONDITION), size=(num, 1)) * (rng.random((num, 1)) > 0.1)
    low = np.log(SMALLEST) + rng.uniform(size=(num, 1)) * (np.log(LARGEST / SMALLEST) - width)
    share = rng.uniform(size=(num, dim))
    share = np.where(rng.random((num, 1)) < 0.15, np.round(share), share)
    share[:, 0] = 0.0
    share[:, -1] = float(dim > 1)
    return np.clip(np.exp(low + width * share), SMALLEST, LARGEST)


def hard_pairs(kind: str, num: int, dim: int, *, seed: int | list[int]) -> HardPairs:
    """`num` pairs of one dimension and a mean and a covariance bound for each."""
    rng = np.random.default_rng(seed)
    style = rng.choice(len(STYLES), p=STYLE_SHARES, size=(num, 1))

    def where(name: str, new: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        chosen = (style == STYLES.index(name)).reshape((num,) + (1,) * (otherwise.ndim - 1))
        return np.where(chosen, new, otherwise)

    old_variances = variances(rng, num, dim)
    change = log_uniform(rng, 1e-6, 10.0, (num, 1))
    stretched = old_variances * np.exp(change * rng.normal(size=(num, dim)))
    scaled = old_variances * log_uniform(rng, 1e-8, 1e8, (num, 1))
    one = old_variances * np.where(np.arange(dim) == dim - 1, log_uniform(rng, 1e-12, 1e12, (num, 1)), 1.0)
    new_variances = where("unrelated", variances(rng, num, dim), old_variances)
    new_variances = where("stretched", stretched, where("turned", stretched, new_variances))
    new_variances = where("scaled", scaled, where("one direction", one, new_variances))
    new_variances = np.clip(new_variances, SMALLEST, LARGEST)

    if kind == "diag":
        old_scale, scale = np.sqrt(old_variances), np.sqrt(new_variances)
    else:
        old_rotation, other = rotations(rng, num, dim), rotations(rng, num, dim)
        rotation = where("unrelated", other, where("turned", other, old_rotation))
        aligned = rng.random((num, 1, 1)) < 0.1  # full matrices that are diagonal all the same
        old_rotation, rotation = (np.where(aligned, np.eye(dim), r) for r in (old_rotation, rotation))
        old_scale, scale = factor(old_rotation, old_variances), factor(rotation, new_variances)
    noise = log_uniform(rng, 1e-16, 1e-2, (num,) + (1,) * (old_scale.ndim - 1)) * rng.normal(size=old_scale.shape)
    scale = where("near", old_scale * np.clip(1.0 + noise, 0.5, 2.0), scale)
    scale = where("same covariance", old_scale, where("same", old_scale, scale))

    old_mean = rng.normal(size=(num, dim)) * log_uniform(rng, 1e-6, FARTHEST, (num, 1))
    old_mean = np.where(rng.random((num, 1)) < 0.3, 0.0, old_mean)
    step = rng.normal(size=(num, dim)) * log_uniform(rng, 1e-7, 1e7, (num, 1))
    step = old_scale * step if kind == "diag" else (old_scale @ step[..., None])[..., 0]
    far = FARTHEST * rng.choice([-1.0, 1.0], size=(num, dim))
    step = np.where(rng.random((num, 1)) < 0.15, far, np.clip(step, -FARTHEST, FARTHEST))
    step = where("same", np.zeros_like(step), np.where(rng.random((num, 1)) < 0.1, 0.0, step))

    bounds = log_uniform(rng, *BOUNDS, (2, num))
    bounds = np.where(rng.random((2, num)) < 0.3, log_uniform(rng, 1e-4, 1.0, (2, num)), bounds)
    return HardPairs(Pair(kind, old_mean + step, scale, old_mean, old_scale), bounds[0], bounds[1])
