"""Which full covariances are outside, decided by the size of A alone where that is enough."""

import numpy as np
import pytest

from trpl import FullGaussian, kl_parts
from trpl.engines import NUMPY
from trpl.projections.kl import full
from trpl.projections.kl.equation import kl_range
from trpl.projections.kl.routes import NARROW

RNG = np.random.default_rng(8)


@pytest.mark.parametrize("dim", [1, 2, 7])
def test_the_range_holds_every_kl_and_single_eigenvalues_are_its_ends(dim):
    eigenvalues = RNG.normal(size=(5000, dim)) * 10.0 ** RNG.uniform(-3, 1, size=(5000, 1))
    eigenvalues = np.where(eigenvalues > -1.0, eigenvalues, -eigenvalues)
    twice = np.sum(np.log1p(eigenvalues) - eigenvalues / (1.0 + eigenvalues), axis=-1)
    with np.errstate(invalid="ignore"):
        least, most = kl_range(NUMPY, np.linalg.norm(eigenvalues, axis=-1))
    assert (least <= twice + 1e-12).all()
    known = ~np.isnan(most)
    assert known.any()
    assert (twice <= most + 1e-12)[known].all()
    if dim == 1:
        np.testing.assert_allclose(np.where(eigenvalues[:, 0] > 0.0, least, most), twice, rtol=1e-6, atol=1e-14)


def pair_at(sizes):
    """Predictions at given steps from one old policy."""
    q = np.linalg.cholesky(np.cov(RNG.normal(size=(4, 40))))
    direction = np.tril(RNG.uniform(0.5, 1.0, size=(len(sizes), 4, 4)))
    direction /= np.linalg.norm(direction, axis=(-2, -1), keepdims=True)
    return q @ (np.eye(4) + np.asarray(sizes)[:, None, None] * direction), np.broadcast_to(q, (len(sizes), 4, 4)).copy()


@pytest.mark.parametrize(
    ("sizes", "needs_kl"),
    [([0.2] * 6, False), ([1e-3] * 6, False), ([0.2, 1e-3] * 3, False), ([0.04] * 6, True), ([0.2, 3.0], True)],
    ids=["outside", "inside", "some of each", "near the bound", "wide"],
)
def test_the_kl_is_computed_only_where_it_is_needed(sizes, needs_kl, monkeypatch):
    p, q = pair_at(sizes)
    bound, asked = np.full(len(p), 1e-3), []
    original = full.kl_of_scales

    def counting(*given, **options):
        asked.append(1)
        return original(*given, **options)

    monkeypatch.setattr(full, "kl_of_scales", counting)
    with np.errstate(all="ignore"):
        solved = full.solve(NUMPY, p, q, bound, NARROW, whole=False)
    assert bool(asked) == needs_kl
    zero = np.zeros(p.shape[:-1])
    kl = kl_parts(FullGaussian(zero, p), FullGaussian(zero, q)).cov
    found = p if solved is None else solved.outputs[0]
    np.testing.assert_array_equal((found != p).any((-2, -1)), kl > bound)
    after = kl_parts(FullGaussian(zero, found), FullGaussian(zero, q)).cov
    np.testing.assert_allclose(after, np.minimum(kl, bound), rtol=1e-9)
