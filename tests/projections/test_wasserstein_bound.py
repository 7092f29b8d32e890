"""The distance is at most twice the KL, so most covariances inside need no square root."""

import numpy as np
import pytest

from generators import factor, rotations
from trpl.engines import NUMPY
from trpl.gaussians import FullGaussian, kl_cov, wasserstein_parts
from trpl.projections import wasserstein

FORMS = ("commuting", "exact")


def pairs(step: float, num: int = 200, dim: int = 4) -> tuple[FullGaussian, FullGaussian]:
    """Old covariances with conditions up to 1e4, predicted ones a step away as the old policies see it."""
    rng = np.random.default_rng(0)
    q = factor(rotations(rng, num, dim), 10 ** rng.uniform(-2, 2, size=(num, dim)))
    p = q @ (np.eye(dim) + step * np.tril(rng.uniform(-0.5, 0.5, size=q.shape)))
    mean = np.zeros((num, dim))
    return FullGaussian(mean, p), FullGaussian(mean, q)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1e-3, 0.1, 1.0, 1.9])
def test_distance_is_at_most_twice_the_kl(form, step):
    p, q = pairs(step)
    share = wasserstein_parts(p, q, form=form).cov / (2.0 * kl_cov(p, q))
    assert (share <= 1.0 + 1e-9).all()
    assert (share >= 0.1).all()


@pytest.mark.parametrize("form", FORMS)
def test_no_root_is_computed_for_policies_that_are_surely_inside(form, monkeypatch):
    p, q = pairs(0.1)
    bound = 2.1 * kl_cov(p, q).max()

    def refused(*_):
        raise AssertionError("a root was computed")

    monkeypatch.setattr(wasserstein, "root_of_factor", refused)
    assert wasserstein.solve_full(NUMPY, p.chol, q.chol, bound, form, whole=False) is None
    with pytest.raises(AssertionError, match="root"):
        wasserstein.solve_full(NUMPY, p.chol, q.chol, 0.1 * bound, form, whole=False)


@pytest.mark.parametrize("form", FORMS)
def test_between_the_distance_and_twice_the_kl_nothing_moves(form):
    """There the roots decide."""
    p, q = pairs(0.1)
    bound = wasserstein_parts(p, q, form=form).cov * (1.0 + 1e-6)
    assert wasserstein.solve_full(NUMPY, p.chol, q.chol, bound, form, whole=False) is None
    found = wasserstein.solve_full(NUMPY, p.chol, q.chol, bound, form, whole=True)
    assert found is not None
    np.testing.assert_array_equal(found.outputs[0], p.chol)
