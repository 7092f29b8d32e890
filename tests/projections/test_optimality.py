"""Projections are the nearest points: against SciPy, and by the conditions of Karush, Kuhn and Tucker.

The optimiser knows two-dimensional covariances by three numbers, the entries of a lower triangular factor, and textbook
formulas in plain arithmetic; nothing of the package.
"""

from math import log, sqrt

import numpy as np
import pytest
from scipy.optimize import minimize

from cases import CASES, SEPARATE, entropy_room, run
from frameworks import Torch
from generators import Pair, gentle_pair

NUM_PAIRS = 500  # and a fifth of them in `make test`
CLOSE = 1e-6


def kl(a, b, c, p, q, r):
    """½(tr Σ₂⁻¹Σ₁ − 2 + log|Σ₂|/|Σ₁|) for factors [[a, 0], [b, c]] and [[p, 0], [q, r]]."""
    low = (b - q * a / p) / r
    return 0.5 * ((a / p) ** 2 + low * low + (c / r) ** 2 - 2.0) + log(p * r / (a * c))


def gram(a, b, c):
    """The covariance's three numbers."""
    return a * a, a * b, b * b + c * c


def root(x, y, z):
    """The symmetric root of [[x, y], [y, z]], by Cayley and Hamilton."""
    det = sqrt(max(x * z - y * y, 0.0))
    scale = 1.0 / sqrt(x + z + 2.0 * det)
    return (x + det) * scale, y * scale, (z + det) * scale


def whitened(factor, old):
    """L_q⁻¹L as the three numbers of its gram matrix."""
    a, b, c = factor
    p, q, r = old
    return gram(a / p, (b - q * a / p) / r, c / r)


def frobenius(one, two):
    return (one[0] - two[0]) ** 2 + 2.0 * (one[1] - two[1]) ** 2 + (one[2] - two[2]) ** 2


def commuting(one, two, old):
    """‖S_old⁻¹(S₁ − S₂)‖²."""
    s, t, m = root(*gram(*one)), root(*gram(*two)), root(*gram(*old))
    x, y, z = (i - j for i, j in zip(s, t, strict=True))
    det = m[0] * m[2] - m[1] ** 2
    rows = ((m[2] * x - m[1] * y, m[2] * y - m[1] * z), (m[0] * y - m[1] * x, m[0] * z - m[1] * y))
    return sum(v * v for row in rows for v in row) / det**2


def transport(one, two):
    """The squared Wasserstein-2 distance of two covariances: tr A + tr B − 2√(tr AB + 2√|AB|)."""
    cross = one[0] * two[0] + 2.0 * one[1] * two[1] + one[2] * two[2]
    dets = max(one[0] * one[2] - one[1] ** 2, 0.0) * max(two[0] * two[2] - two[1] ** 2, 0.0)
    return one[0] + one[2] + two[0] + two[2] - 2.0 * sqrt(cross + 2.0 * sqrt(dets))


def cov_distance(metric, one, two, old):
    """The distance of two factors in the metric of the projection, which is scaled by the old policy."""
    if metric == "kl":
        return kl(*one, *two)
    if metric == "frobenius":
        return frobenius(gram(*one), gram(*two))
    if metric == "frobenius-whitened":
        return frobenius(whitened(one, old), whitened(two, old))
    if metric == "w2":
        return commuting(one, two, old)
    return transport(whitened(one, old), whitened(two, old))


def entries(scale):
    return float(scale[0, 0]), float(scale[1, 0]), float(scale[1, 1])


def optimum(objective, slacks, start):
    """The least value that SciPy finds where every slack is at least 0, and by how much one is below 0."""
    constraints = [{"type": kind, "fun": fun} for kind, fun in slacks]
    found = minimize(objective, start, method="SLSQP", constraints=constraints, options={"ftol": 1e-9, "maxiter": 100})
    return found.fun, max(abs(fun(found.x)) if kind == "eq" else max(0.0, -fun(found.x)) for kind, fun in slacks)


def assert_optimal(ours: list[float], theirs: list[tuple[float, float]]):
    """SciPy never finds a nearer point, and it nearly always finds one as near."""
    ours, (values, violations) = np.array(ours), np.array(theirs).T
    feasible = violations <= 1e-7
    tolerance = CLOSE * np.maximum(1.0, np.abs(ours))
    assert feasible.mean() > 0.97, "the optimiser itself failed too often"
    assert (ours <= values + tolerance)[feasible].all(), "SciPy found a nearer point"
    assert (np.abs(ours - values) <= tolerance).mean() > 0.97, "the optimiser stopped elsewhere too often"


def optimality_pair(num: int) -> tuple[Pair, np.ndarray]:
    return gentle_pair("full", num, 2, seed=9), np.geomspace(1e-3, 0.5, num)


some_and_all = pytest.mark.parametrize("num", [NUM_PAIRS // 5, pytest.param(NUM_PAIRS, marks=pytest.mark.stress)])


@some_and_all
@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_covariance_is_the_nearest(case, num):
    pair, bounds = optimality_pair(num)
    projected = run(case, Torch(), pair, cov_bound=bounds)
    ours, theirs = [], []
    for scale, new, old, bound in zip(projected.scale, pair.scale, pair.old_scale, bounds, strict=True):
        target, centre = entries(new), entries(old)

        def objective(x, target=target, centre=centre):
            return cov_distance(case.metric, (x[0], x[1], x[2]), target, centre)

        def slack(x, centre=centre, bound=bound):
            return 1.0 - cov_distance(case.metric, (x[0], x[1], x[2]), centre, centre) / bound

        positive = [("ineq", lambda x: x[0] - 1e-3), ("ineq", lambda x: x[2] - 1e-3)]
        start = 0.98 * np.array(centre) + 0.02 * np.array(target)
        theirs.append(optimum(objective, [("ineq", slack), *positive], start))
        ours.append(objective(entries(scale)))
    assert_optimal(ours, theirs)


@some_and_all
@pytest.mark.parametrize("case", SEPARATE[:1], ids=str)
def test_mean_is_the_nearest(case, num):
    pair, bounds = optimality_pair(num)
    factor = 0.5 if case.metric == "kl" else 1.0
    projected = run(case, Torch(), pair, mean_bound=bounds)
    ours, theirs = [], []
    for i in range(num):
        precision = np.linalg.inv(pair.old_scale[i] @ pair.old_scale[i].T)

        def distance(x, centre, precision=precision):
            return factor * (x - centre) @ precision @ (x - centre)

        def slack(x, i=i, distance=distance):
            return 1.0 - distance(x, pair.old_mean[i]) / bounds[i]

        def objective(x, i=i, distance=distance):
            return distance(x, pair.mean[i])

        theirs.append(optimum(objective, [("ineq", slack)], pair.old_mean[i]))
        ours.append(objective(projected.mean[i]))
    assert_optimal(ours, theirs)


@some_and_all
@pytest.mark.parametrize("case", [c for c in CASES if c.joint], ids=str)
def test_joint_projection_is_the_nearest(case, num):
    pair, bounds = optimality_pair(num)
    pair = pair._replace(mean=pair.old_mean + 0.3 * (pair.mean - pair.old_mean))
    projected = run(case, Torch(), pair, mean_bound=bounds)
    ours, theirs = [], []
    for i in range(num):
        target, centre = entries(pair.scale[i]), entries(pair.old_scale[i])
        lowest = log(centre[0] * centre[2]) + 0.5 * entropy_room(bounds[i], 2)

        def divergence(x, mean, factor):
            first = (x[0] - mean[0]) / factor[0]
            second = (x[1] - mean[1] - factor[1] * first) / factor[2]
            return 0.5 * (first * first + second * second) + kl(x[2], x[3], x[4], *factor)

        def objective(x, i=i, target=target):
            return divergence(x, pair.mean[i], target)

        def slack(x, i=i, centre=centre):
            return 1.0 - divergence(x, pair.old_mean[i], centre) / bounds[i]

        def surplus(x, lowest=lowest):
            return log(x[2] * x[4]) - lowest

        slacks = [("ineq", slack), ("ineq", lambda x: x[2] - 1e-3), ("ineq", lambda x: x[4] - 1e-3)]
        growth = 1.0
        if case.entropy is not None:
            slacks.append(("ineq" if case.entropy == "min_entropy" else "eq", surplus))
            growth = np.exp(0.25 * entropy_room(bounds[i], 2))
        theirs.append(optimum(objective, slacks, np.array([*pair.old_mean[i], *(growth * np.array(centre))])))
        ours.append(objective([*projected.mean[i], *entries(projected.scale[i])]))
    assert_optimal(ours, theirs)


@pytest.mark.parametrize("dim", [3, 9])
def test_kl_stationarity(dim):
    """(1 + η) Σ̃⁻¹ = Σ⁻¹ + η Σ_old⁻¹ with η ≥ 0, in any dimension: for a convex problem that is optimal."""
    pair = gentle_pair("full", NUM_PAIRS, dim, seed=10)
    projected = run(CASES[0], Torch(), pair)
    new, old, result = (np.linalg.inv(s @ s.swapaxes(-1, -2)) for s in (pair.scale, pair.old_scale, projected.scale))
    step, whole = result - old, new - old  # result = old + x (new − old)
    x = np.sum(step * whole, axis=(-2, -1)) / np.sum(whole * whole, axis=(-2, -1))
    assert ((x > 0) & (x < 1)).all()
    error = np.abs(step - x[:, None, None] * whole).max(axis=(-2, -1))
    assert (error <= 1e-9 * np.abs(old).max(axis=(-2, -1)) + 1e-9 * np.abs(whole).max(axis=(-2, -1))).all()
