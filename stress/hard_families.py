"""Hard pairs of policies that are not Gaussians, and their KL in more digits than the package has.

Categoricals of 2 to 50,000 classes with probabilities to 1e-300 and masks, Bernoulli logits to ±600, α and β of Betas
from 1e-3 to 1e6, bounds from 1e-8 to 5; flat, steep and nearly certain policies, related or not.
"""

from __future__ import annotations

from typing import NamedTuple

import mpmath
import numpy as np

DIGITS = 40
Arrays = tuple[np.ndarray, ...]


class Hard(NamedTuple):
    """The arrays of a predicted and an old policy, and a bound for each state."""

    predicted: Arrays
    old: Arrays
    bound: np.ndarray


def bounds(rng: np.random.Generator, num: int) -> np.ndarray:
    """From 1e-8 to 5, even on a logarithmic scale."""
    return 10 ** rng.uniform(-8, np.log10(5), size=num)


def categorical(rng: np.random.Generator, num: int, classes: int) -> Hard:
    """A third of the pairs unrelated, a tenth masked."""

    def policy() -> np.ndarray:
        style, scale = rng.integers(4, size=(num, 1)), 10 ** rng.uniform(-3, 2.2, size=(num, 1))
        normal = rng.normal(size=(num, classes)) * scale
        steep = rng.uniform(-690, 0, size=(num, classes))
        certain = np.where(rng.random((num, classes)) < 1 / classes, 0, -rng.uniform(0, 690, size=(num, 1)))
        return np.choose(style, [normal, steep, certain, 0.1 * normal])

    old = policy()
    step = 10 ** rng.uniform(-6, 1.5, size=(num, 1)) * rng.normal(size=(num, classes))
    new = np.where(rng.integers(3, size=(num, 1)) == 0, policy(), old + step)
    mask = (rng.random((num, classes)) < 0.3) & (rng.random((num, 1)) < 0.3)
    mask[:, 0] = False
    return Hard((np.where(mask, -np.inf, new),), (np.where(mask, -np.inf, old),), bounds(rng, num))


def bernoulli(rng: np.random.Generator, num: int, dim: int) -> Hard:
    """Logits to ±630."""
    old, other = rng.uniform(-1, 1, size=(2, num, dim)) * 10 ** rng.uniform(-2, 2.8, size=(2, num, 1))
    near = old + 10 ** rng.uniform(-4, 2, size=(num, 1)) * rng.normal(size=old.shape)
    return Hard((np.where(rng.integers(3, size=(num, 1)) == 0, other, near),), (old,), bounds(rng, num))


def beta(rng: np.random.Generator, num: int, dim: int) -> Hard:
    """α and β from 1e-3 to 1e6."""
    old, other = np.exp(rng.uniform(np.log(1e-3), np.log(1e6), size=(2, 2, num, dim)))
    near = np.clip(old * np.exp(10 ** rng.uniform(-5, 1, size=(num, 1)) * rng.normal(size=old.shape)), 1e-3, 1e6)
    predicted = np.where(rng.integers(3, size=(num, 1)) == 0, other, near)
    return Hard(tuple(predicted), tuple(old), bounds(rng, num))


def diag(rng: np.random.Generator, num: int, dim: int) -> Hard:
    """Standard deviations from 1e-4 to 1e4, means up to 100 of them apart."""
    std = np.exp(rng.uniform(np.log(1e-4), np.log(1e4), size=(num, dim)))
    change = 10 ** rng.uniform(-5, 0.7, size=(num, 1))
    shift = 10 ** rng.uniform(-5, 2, size=(num, 1)) * rng.normal(size=(num, dim))
    new_std = std * np.exp(change * rng.normal(size=(num, dim)))
    return Hard((std * shift, new_std), (np.zeros((num, dim)), std), bounds(rng, num))


DRAW = {"categorical": categorical, "bernoulli": bernoulli, "beta": beta, "diag": diag}


# KLs in extended precision, and how much one rounding of the stored policy changes them ------------------------------


def categorical_kl(p: Arrays, q: Arrays) -> tuple[np.ndarray, np.ndarray]:
    def normalised(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.longdouble)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    log_p, log_q = normalised(p[0]), normalised(q[0])
    here = log_p > -np.inf
    log_p, log_q = np.where(here, log_p, 0), np.where(here, log_q, 0)
    weight, ratio = np.where(here, np.exp(log_p), 0), log_p - log_q
    kl = (weight * ratio).sum(-1)
    slope = weight * np.abs(ratio - kl[:, None])
    return kl, (slope * np.abs(np.where(here, p[0], 0))).sum(-1)


def bernoulli_kl(p: Arrays, q: Arrays) -> tuple[np.ndarray, np.ndarray]:
    x, y = (z[0].astype(np.longdouble) for z in (p, q))

    def softplus(z: np.ndarray) -> np.ndarray:
        return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))

    one, zero = np.exp(-softplus(-x)), np.exp(-softplus(x))
    kl = one * (softplus(-y) - softplus(-x)) + zero * (softplus(y) - softplus(x))
    return kl.sum(-1), (one * zero * np.abs(x - y) * np.abs(x)).sum(-1)


def beta_kl(p: Arrays, q: Arrays) -> tuple[np.ndarray, np.ndarray]:
    kls, slopes = [], []
    with mpmath.workdps(DIGITS):
        for i in range(len(p[0])):
            kl = slope = mpmath.mpf(0)
            for own in zip(p[0][i], p[1][i], q[0][i], q[1][i], strict=True):
                a, b, c, d = (mpmath.mpf(float(x)) for x in own)
                log_b = [mpmath.loggamma(x) + mpmath.loggamma(y) - mpmath.loggamma(x + y) for x, y in ((c, d), (a, b))]
                kl += log_b[0] - log_b[1] + (a - c) * mpmath.digamma(a) + (b - d) * mpmath.digamma(b)
                kl += (c + d - a - b) * mpmath.digamma(a + b)
                total = mpmath.psi(1, a + b) * (a + b - c - d)
                slope += a * abs(mpmath.psi(1, a) * (a - c) - total) + b * abs(mpmath.psi(1, b) * (b - d) - total)
            kls.append(np.longdouble(mpmath.nstr(kl, 25)))
            slopes.append(float(slope))
    return np.array(kls, dtype=np.longdouble), np.array(slopes)


def diag_kl(p: Arrays, q: Arrays) -> tuple[np.ndarray, np.ndarray]:
    (mean, std), (old_mean, old_std) = ([x.astype(np.longdouble) for x in z] for z in (p, q))
    shift, ratio = (mean - old_mean) / old_std, (std - old_std) / old_std
    kl = (0.5 * shift**2 + 0.5 * ratio * (2 + ratio) - np.log1p(ratio)).sum(-1)
    return kl, (np.abs(shift * mean / old_std) + np.abs(ratio * (2 + ratio))).sum(-1)


MEASURE = {"categorical": categorical_kl, "bernoulli": bernoulli_kl, "beta": beta_kl, "diag": diag_kl}


def measured(kinds: list[str], p: list[Arrays], q: list[Arrays]) -> tuple[np.ndarray, np.ndarray]:
    """KL(p‖q) of a product, and Σ |∂KL/∂θ| |θ| over its stored numbers θ: times ε, what rounding them may change."""
    with np.errstate(all="ignore"):
        parts = [MEASURE[kind](own, other) for kind, own, other in zip(kinds, p, q, strict=True)]
    return sum(kl for kl, _ in parts), sum(slope.astype(np.float64) for _, slope in parts)  # pyright: ignore[reportReturnType]
