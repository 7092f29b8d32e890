"""The bound on hard numbers, measured in extended precision: 2 to 50,000 classes, probabilities to 1e-300, masks."""

import mpmath
import numpy as np
import pytest

from trpl import Bernoulli, Beta, Categorical
from trpl.engines import NUMPY
from trpl.families import family_of
from trpl.natural.beta import Curvature, Shape

BAR = 1e-8


def solved(p, q, bound):
    """The projected arrays, s, and all gradients of a random linear function."""
    family = family_of(p)
    with np.errstate(all="ignore"):
        found = family.solve(NUMPY, p, q, bound, None, "free", whole=True)
        weights = [np.random.default_rng(0).normal(size=x.shape) for x in found.outputs]
        inputs = (*p, *q, bound)
        gradients = family.pullback(
            NUMPY, inputs, found.outputs, found.residuals, weights, (True,) * len(inputs), "free"
        )
    assert all(np.isfinite(g).all() for g in gradients)
    return found.outputs, found.residuals[0]


def hard_logits(rng: np.random.Generator, num: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat, steep and nearly certain policies, related or not, a tenth of them masked; bounds from 1e-8 to 5."""

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
    bound = 10 ** rng.uniform(-8, np.log10(5), size=num)
    return np.where(mask, -np.inf, new), np.where(mask, -np.inf, old), bound


def extended_kl(logits: np.ndarray, old: np.ndarray) -> np.ndarray:
    def normalised(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.longdouble)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    log_p, log_q = normalised(logits), normalised(old)
    here = log_p > -np.inf
    log_p, log_q = np.where(here, log_p, 0), np.where(here, log_q, 0)
    return np.where(here, np.exp(log_p) * (log_p - log_q), 0).sum(-1)


@pytest.mark.parametrize(("classes", "num"), [(2, 2000), (3, 2000), (10, 1000), (100, 200), (1000, 30), (50_000, 2)])
def test_categorical(classes, num):
    predicted, old, bound = hard_logits(np.random.default_rng(classes), num, classes)
    (logits,), s = solved(Categorical(predicted), Categorical(old), bound)
    with np.errstate(all="ignore"):
        error = (extended_kl(logits, old) / bound - 1).astype(float)
    assert np.max(error) <= BAR
    assert np.max(np.abs(error[s < 1]), initial=0.0) <= BAR
    assert (~np.isfinite(logits) == ~np.isfinite(old)).all()


def beta_kl(p: np.ndarray, q: np.ndarray) -> mpmath.mpf:
    total = mpmath.mpf(0)
    for a, b, c, d in zip(*p, *q, strict=True):
        a, b, c, d = (mpmath.mpf(float(x)) for x in (a, b, c, d))
        log_b = [mpmath.loggamma(x) + mpmath.loggamma(y) - mpmath.loggamma(x + y) for x, y in ((c, d), (a, b))]
        total += log_b[0] - log_b[1] + (a - c) * mpmath.digamma(a) + (b - d) * mpmath.digamma(b)
        total += (c + d - a - b) * mpmath.digamma(a + b)
    return total


def test_beta():
    """α and β from 1e-3 to 1e6, against 40 digits."""
    rng, num = np.random.default_rng(1), 60
    old, other = np.exp(rng.uniform(np.log(1e-3), np.log(1e6), size=(2, 2, num, 2)))
    near = np.clip(old * np.exp(10 ** rng.uniform(-5, 1, size=(num, 1)) * rng.normal(size=old.shape)), 1e-3, 1e6)
    predicted = np.where(rng.integers(3, size=(num, 1)) == 0, other, near)
    bound = 10 ** rng.uniform(-8, np.log10(5), size=num)
    (alpha, beta), s = solved(Beta(*predicted), Beta(*old), bound)
    slope = Curvature.of(NUMPY, Shape(alpha, beta)).apply(Shape(alpha - old[0], beta - old[1]))
    rounding = 4 * 1.1e-16 * (np.abs(slope.alpha) * alpha + np.abs(slope.beta) * beta).sum(-1) / bound
    with mpmath.workdps(40):
        error = np.array([float(beta_kl((alpha[i], beta[i]), old[:, i]) / bound[i] - 1) for i in range(num)])
    assert (error <= BAR + rounding).all()
    assert (np.abs(error) <= BAR + rounding)[s < 1].all()
    assert (s < 1).mean() > 0.3


def test_bernoulli():
    """Logits to ±600, against 40 digits."""
    rng, num = np.random.default_rng(2), 100
    old, other = rng.uniform(-1, 1, size=(2, num, 3)) * 10 ** rng.uniform(-2, 2.8, size=(2, num, 1))
    near = old + 10 ** rng.uniform(-4, 2, size=(num, 1)) * rng.normal(size=old.shape)
    predicted = np.where(rng.integers(3, size=(num, 1)) == 0, other, near)
    bound = 10 ** rng.uniform(-8, np.log10(5), size=num)
    (logits,), s = solved(Bernoulli(predicted), Bernoulli(old), bound)

    def kl(p: np.ndarray, q: np.ndarray) -> mpmath.mpf:
        total = mpmath.mpf(0)
        for x, y in zip(p, q, strict=True):
            x, y = mpmath.mpf(float(x)), mpmath.mpf(float(y))
            one = 1 / (1 + mpmath.exp(-x))
            total += one * (mpmath.log1p(mpmath.exp(-y)) - mpmath.log1p(mpmath.exp(-x)))
            total += (1 - one) * (mpmath.log1p(mpmath.exp(y)) - mpmath.log1p(mpmath.exp(x)))
        return total

    with mpmath.workdps(40):
        error = np.array([float(kl(logits[i], old[i]) / bound[i] - 1) for i in range(num)])
    assert error.max() <= BAR
    assert np.abs(error[s < 1]).max() <= BAR
