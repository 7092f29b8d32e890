"""What is done once is not done again, and a good start needs few steps: what no result shows."""

import numpy as np
import pytest

from families.pairs import BY_NAME
from trpl import DiagGaussian
from trpl.engines import NUMPY as E
from trpl.engines import mT
from trpl.families import family_of
from trpl.families.gaussian import GaussianFamily
from trpl.layers.door import check_structure
from trpl.matrix_roots import root_of_factor
from trpl.natural.solver import Entropy, find


def test_what_was_in_order_once_is_not_looked_at_again(monkeypatch):
    seen, check_one = [], GaussianFamily.check_one
    monkeypatch.setattr(
        GaussianFamily, "check_one", lambda self, name, p: seen.append(name) or check_one(self, name, p)
    )
    p = DiagGaussian(np.zeros((7, 11)), np.ones(11))
    for _ in range(3):
        assert check_structure(p, p) is family_of(p)
    assert seen == ["predicted", "old"]
    check_structure(p, DiagGaussian(np.zeros((7, 11)), np.ones((7, 11))))
    assert len(seen) == 4


class Counting:
    """A path that counts what is asked of it."""

    def __init__(self, path):
        self.path, self.calls = path, 0

    def __getattr__(self, name):
        found = getattr(self.path, name)
        if name not in ("along", "moments"):
            return found

        def counted(*arguments):
            self.calls += 1
            return found(*arguments)

        return counted


@pytest.mark.parametrize(("name", "bound"), [("bernoulli", 1e-6), ("beta", 1e-6), ("bernoulli", 1e-3), ("beta", 1e-3)])
def test_evaluations_of_a_search(name, bound):
    """The KL's leading term is a good start where the bound is small."""
    kind = BY_NAME[name]
    p, q = ([np.asarray(x) for x in kind.arrays(kind.make(kind.draw(20, seed=seed)))] for seed in (1, 2))
    family = family_of(kind.make(kind.draw(20, seed=1)))
    path = Counting(family.between(E, p, q))
    find(E, path, np.full(20, bound))
    assert path.calls <= (3 if bound < 1e-4 else 4)
    path = Counting(family.between(E, p, q))
    entropy = family.entropy(E, family.make(q))
    find(E, path, np.full(20, bound), Entropy(entropy, False))
    assert path.calls < 60


@pytest.mark.parametrize("dim", [20, 30])
def test_a_root_with_one_singular_value_far_from_the_others(dim):
    """Outside of what is likely for so many: repaired by steps of Newton's, not decomposed."""
    rng = np.random.default_rng(dim)
    values = np.ones((3, dim))
    values[:, 0] = 1.5, 1.8, 0.6
    turn, _ = np.linalg.qr(rng.normal(size=(3, dim, dim)))
    b = np.linalg.cholesky((turn * values[:, None, :] ** 2) @ mT(turn))
    found, decomposed = root_of_factor(E, b, E.solve_triangular(b, np.eye(dim)))
    np.testing.assert_allclose(found, (turn * values[:, None, :]) @ mT(turn), atol=1e-13)
    assert not decomposed.any()
