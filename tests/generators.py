"""Pairs of Gaussians for the tests, as NumPy arrays: repeatable, and the ordinary ones made once for all."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

Kind = str  # "diag" or "full"


class Pair(NamedTuple):
    """A predicted and an old policy; scales are standard deviations or Cholesky factors."""

    kind: Kind
    mean: np.ndarray
    scale: np.ndarray
    old_mean: np.ndarray
    old_scale: np.ndarray

    @property
    def dim(self) -> int:
        return self.mean.shape[-1]

    def rows(self, index) -> Pair:
        """Some of the states."""
        return Pair(self.kind, *(x[index] for x in self[1:]))

    def astype(self, dtype) -> Pair:
        return Pair(self.kind, *(x.astype(dtype) for x in self[1:]))

    def reshaped(self, *batch: int) -> Pair:
        """The same states in another batch shape."""
        core = {"mean": 1, "old_mean": 1, "scale": self.core, "old_scale": self.core}
        return self._replace(
            **{k: getattr(self, k).reshape(*batch, *getattr(self, k).shape[-c:]) for k, c in core.items()}
        )

    @property
    def core(self) -> int:
        return 1 if self.kind == "diag" else 2


def rotations(rng: np.random.Generator, num: int, dim: int) -> np.ndarray:
    """Random orthogonal matrices."""
    return np.linalg.qr(rng.normal(size=(num, dim, dim)))[0]


def factor(rotation: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The Cholesky factor of R diag(v) Rᵀ, from a QR decomposition so that ill-conditioned ones come out well."""
    upper = np.linalg.qr(np.sqrt(variances)[..., :, None] * rotation.swapaxes(-1, -2), mode="r")
    diag = np.diagonal(upper, axis1=-2, axis2=-1)
    return np.tril((upper * np.where(diag < 0, -1.0, 1.0)[..., :, None]).swapaxes(-1, -2))


@cache
def gentle_pair(kind: Kind, num: int = 6, dim: int = 3, *, seed: int = 0) -> Pair:
    """Ordinary policies, clearly different from each other."""
    rng = np.random.default_rng([seed, num, dim])
    mean, old_mean = rng.normal(size=(2, num, dim))
    std, old_std = np.exp(0.6 * rng.normal(size=(2, num, dim)))
    if kind == "diag":
        return Pair(kind, mean, std, old_mean, old_std)
    scale, old_scale = (factor(rotations(rng, num, dim), s * s) for s in (std, old_std))
    return Pair(kind, mean, scale, old_mean, old_scale)


@cache
def close_pair(kind: Kind, num: int = 6, dim: int = 3, *, change: float = 1e-4, seed: int = 1) -> Pair:
    """Policies that differ by about a part in `1/change`, so that they are inside of ordinary bounds."""
    base = gentle_pair(kind, num, dim, seed=seed)
    rng = np.random.default_rng([seed, num, dim, 7])
    noise = change * rng.normal(size=base.old_scale.shape)
    scale = base.old_scale * (1.0 + noise)  # keeps zeros above the diagonal
    return base._replace(mean=base.old_mean + change * rng.normal(size=base.mean.shape), scale=scale)


class HardPairs(NamedTuple):
    """Pairs over the whole range of the requirements, with bounds for each state."""

    pair: Pair
    mean_bound: np.ndarray
    cov_bound: np.ndarray


DIMENSIONS = {1: 0.15, 2: 0.20, 3: 0.20, 4: 0.15, 6: 0.10, 8: 0.08, 12: 0.05, 17: 0.04, 24: 0.02, 32: 0.01}
"""Shares of the dimensions among hard pairs; small ones are cheap, so there are more of them."""


def hard_pairs(
    kind: Kind, num: int, dim: int, *, seed: int, condition: float = 1e10, smallest_bound: float = 1e-6
) -> HardPairs:
    """Variances from 1e-8 to 1e4, condition numbers to 1e10, bounds from 1e-6 to 10, means far and near.

    A third of the predictions has nothing to do with the old policy, a third is a moderate change of it, a third a
    small one. A tenth of the covariances has equal eigenvalues.
    """
    rng = np.random.default_rng([seed, num, dim, ord(kind[0])])
    variances, old_variances = (_variances(rng, num, dim, condition) for _ in range(2))
    size = np.exp(rng.uniform(np.log(1e-3), np.log(3.0), size=(num, 1)))
    style = rng.integers(3, size=(num, 1))
    related = np.clip(old_variances * np.exp(size * rng.normal(size=(num, dim))), 1e-8, 1e4)
    variances = np.where(style == 0, variances, related)
    if kind == "diag":
        scale, old_scale = np.sqrt(variances), np.sqrt(old_variances)
    else:
        old_rotation, other = rotations(rng, num, dim), rotations(rng, num, dim)
        turned = rng.integers(2, size=(num, 1, 1)) == 1  # related ones with the same axes, or with others
        rotation = np.where((style[..., None] == 0) | turned, other, old_rotation)
        scale, old_scale = factor(rotation, variances), factor(old_rotation, old_variances)
        near = old_scale + (scale - old_scale) * np.minimum(size, 1.0)[..., None] * 0.1
        scale = np.where(style[..., None] == 2, near, scale)
    old_mean = rng.normal(size=(num, dim)) * np.exp(rng.uniform(-3, 3, size=(num, 1)))
    distance = np.exp(rng.uniform(np.log(1e-4), np.log(1e3), size=(num, 1)))
    step = distance * rng.normal(size=(num, dim))
    step = old_scale * step if kind == "diag" else (old_scale @ step[..., None])[..., 0]
    bounds = np.exp(rng.uniform(np.log(smallest_bound), np.log(10.0), size=(2, num)))
    return HardPairs(Pair(kind, old_mean + step, scale, old_mean, old_scale), bounds[0], bounds[1])


def _variances(rng: np.random.Generator, num: int, dim: int, condition: float) -> np.ndarray:
    """Between 1e-8 and 1e4, their ratio up to `condition`; some rows with equal entries."""
    width = rng.uniform(0.0, np.log(condition), size=(num, 1)) * (rng.random((num, 1)) > 0.1)
    low = np.log(1e-8) + rng.uniform(size=(num, 1)) * (np.log(1e12) - width)
    share = rng.uniform(size=(num, dim))
    share[:, 0] = 0.0
    share[:, -1] = 1.0 if dim > 1 else 0.0
    return np.clip(np.exp(low + width * share), 1e-8, 1e4)
