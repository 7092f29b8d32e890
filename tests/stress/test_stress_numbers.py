"""Hard numbers, the short version: hypothesis chooses a projection and a kind of pair, and shrinks what fails.

`python stress/numerics.py` is the long one, with a million samples for each projection.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2] / "stress"))

import hard_gaussians
import measuring
import numerics
import trials

from cases import CASES, KINDS
from generators import Pair
from trpl import ConvergenceError
from trpl.engines import NUMPY

pytestmark = pytest.mark.usefixtures("x64")
BATCH = 32
quick = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(setting: trials.Setting, num: int, seed: int) -> None:
    """One batch of hard pairs holds the bar of the long run."""
    pair, options = trials.draw(setting, num, [seed])
    tally = numerics.Tally()
    with np.errstate(all="ignore"):
        tally.add(trials.run(setting, pair, options, seed=[seed]), str(setting))
    assert tally.samples == num
    assert not tally.misses(setting.dtype), tally


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
@quick
@given(dim=st.sampled_from([1, 2, 3, 5, 8]), num=st.sampled_from([0, 1, BATCH]), seed=st.integers(0, 1000))
def test_hard_pairs_in_torch(case, kind, dim, num, seed):
    check(trials.Setting(case, kind, "torch", "float64", dim), num, seed)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hard_pairs_in_jax(case):
    """Compiled once for each projection; the two frameworks share the maths, and each has its own linear algebra."""
    for seed in range(4):
        check(trials.Setting(case, "full", "jax", "float64", 2), BATCH, seed)


@pytest.mark.parametrize("control", numerics.CONTROLS)
@pytest.mark.parametrize("case", [c for c in CASES if not c.joint], ids=str)
def test_entropy_control_on_top(case, control):
    for kind in KINDS:
        check(trials.Setting(case, kind, "torch", "float64", 3, control), BATCH, 5)


def test_values_of_float32_are_never_silently_not_finite():
    for case in CASES:
        check(trials.Setting(case, "diag", "torch", "float32", 3), BATCH, 3)


def test_a_wide_prediction_held_to_an_entropy():
    """The multiplier of a prediction 1e5 times as wide is 1e-10: 1/(1 + η) would keep six digits of it."""
    case = next(c for c in CASES if c.entropy == "entropy")
    rng = np.random.default_rng(0)
    old = np.exp(0.3 * rng.normal(size=(64, 3)))
    pair = Pair("diag", rng.normal(size=(64, 3)), 1e5 * old * np.exp(0.3 * rng.normal(size=(64, 3))), 0.0 * old, old)
    setting = trials.Setting(case, "diag", "torch", "float64", 3)
    bound = np.full(64, 0.05)
    target = measuring.entropy(pair._replace(scale=old)) + 0.05
    rows = trials.run(setting, pair, {"bound": bound, "entropy": target}, seed=[0])
    assert rows.violation.max() < 1e-12
    assert rows.entropy_error.max() < 1e-12


@pytest.mark.parametrize("failures", [1, 2])
def test_a_singular_value_decomposition_that_gives_up(monkeypatch, failures):
    """LAPACK gives up on one in a million of the pairs; what it says has no meaning to a caller."""
    case = next(c for c in CASES if c.entropy == "entropy")
    setting = trials.Setting(case, "full", "torch", "float64", 3)
    pair, options = trials.draw(setting, BATCH, [7])
    weights = tuple(np.ones_like(x) for x in (pair.mean, pair.scale))
    expected, _ = trials.value_and_gradients(setting, pair, options, weights, check=True)
    calls, svd = [], NUMPY.xp.linalg.svd

    def gives_up(matrix, **how):
        calls.append(matrix)
        if len(calls) <= failures:
            raise np.linalg.LinAlgError("SVD did not converge")
        return svd(matrix, **how)

    monkeypatch.setattr(NUMPY.xp.linalg, "svd", gives_up)
    if failures == 2:
        with pytest.raises(ConvergenceError, match="singular value"):
            trials.value_and_gradients(setting, pair, options, weights, check=True)
        return
    found, _ = trials.value_and_gradients(setting, pair, options, weights, check=True)
    assert len(calls) == 2
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-12)


def test_the_pairs_are_as_hard_as_they_are_said_to_be():
    pair = hard_gaussians.hard_pairs("full", 4000, 5, seed=0).pair
    values = np.linalg.svd(np.concatenate([pair.scale, pair.old_scale]), compute_uv=False) ** 2
    assert values.min() < 3e-12
    assert values.max() > 3e11
    assert (values[:, 0] / values[:, -1]).max() > 1e11
    assert abs(pair.mean - pair.old_mean).max() >= 1e8
    assert (pair.mean == pair.old_mean).all(axis=1).any()
    assert (pair.scale == pair.old_scale).all(axis=(1, 2)).any()


@pytest.mark.parametrize("metric", ["kl", "w2", "w2-exact", "frobenius", "frobenius-whitened"])
def test_the_measure_is_right(metric):
    """Against 60 digits, on hard pairs: within what float64's rounding allows by a factor of 100, or 1e-10."""
    mp = pytest.importorskip("mpmath").mp
    pair = hard_gaussians.hard_pairs("full", 12, 2, seed=4).pair
    found = measuring.distances(metric, measuring.extended(pair))
    allowed = measuring.limits(metric, pair, found, eps=2.0**-52).cov
    with mp.workdps(60):
        for i in range(12):
            exact = exact_distance(mp, metric, mp.matrix(pair.scale[i].tolist()), mp.matrix(pair.old_scale[i].tolist()))
            error = abs(mp.mpf(str(found.cov[i])) - exact)
            assert error <= 0.01 * allowed[i] + 1e-10 * exact, (i, float(error), float(exact))


def exact_distance(mp, metric, new, old):
    """The textbook formulas, in as many digits as `mp` has."""

    def root(matrix):
        values, vectors = mp.eigsy(matrix)
        return vectors * mp.diag([mp.sqrt(abs(v)) for v in values]) * vectors.T

    def squared(matrix):
        return mp.fsum(x * x for x in matrix)

    one, cov, old_cov = mp.eye(new.rows), new * new.T, old * old.T
    seen = old**-1 * cov * (old**-1).T
    if metric == "kl":
        return (mp.fsum(seen[i, i] for i in range(new.rows)) - new.rows - mp.log(mp.det(seen))) / 2
    if metric == "w2":
        return squared(root(old_cov) ** -1 * root(cov) - one)
    if metric == "w2-exact":
        return squared(root(seen) - one)
    return squared(cov - old_cov if metric == "frobenius" else seen - one)
