"""The bound on hard numbers, measured in extended precision; `stress/families.py` has 100,000 of each family."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "stress"))

from hard_families import DRAW, measured

from families.pairs import TYPES
from trpl.engines import NUMPY
from trpl.families import family_of
from trpl.implicit import Saved

BAR = 1e-8
SIZES = [("categorical", n, num) for n, num in ((2, 2000), (3, 2000), (10, 1000), (100, 200), (1000, 30), (50_000, 2))]


@pytest.mark.parametrize(("kind", "size", "num"), [*SIZES, ("bernoulli", 3, 1000), ("beta", 2, 60)])
def test_the_bound_is_held(kind, size, num):
    """To 1e-8 of it, or what one rounding of each stored number allows; and every gradient is finite."""
    hard = DRAW[kind](np.random.default_rng(size), num, size)
    p, q = TYPES[kind](*hard.predicted), TYPES[kind](*hard.old)
    family = family_of(p)
    with np.errstate(all="ignore"):
        inputs = (*p, *q, hard.bound)
        found = family.solve(NUMPY, inputs, "free", whole=True)
        weights = [np.random.default_rng(0).normal(size=x.shape) for x in found.outputs]
        every = (True,) * len(inputs)
        gradients = family.pullback(NUMPY, Saved(inputs, *found), weights, every, "free")
    assert all(np.isfinite(g).all() for g in gradients)
    kl, slope = measured([kind], [found.outputs], [hard.old])
    error, s = (kl / hard.bound - 1).astype(float), found.residuals[0]
    allowed = BAR + 4 * 1.1e-16 * slope / hard.bound
    assert (error <= allowed).all()
    assert (np.abs(error) <= allowed)[s < 1].all()
    assert (s < 1).mean() > 0.3
    assert all((np.isneginf(x) == np.isneginf(y)).all() for x, y in zip(found.outputs, hard.old, strict=True))


def test_a_long_step_that_is_corrected_to_a_short_one():
    """One in 10,000 of the hard pairs: all higher terms of the step together cancel it, far from the root."""
    p, q = np.array([[0.0025022, -0.00048115]]), np.array([[-151.502803, -172.62298758]])
    bound = np.array([2.2109605547020683])
    found = family_of(TYPES["categorical"](p)).solve(NUMPY, (p, q, bound), "free", whole=True)
    np.testing.assert_allclose(measured(["categorical"], [found.outputs], [(q,)])[0].astype(float), bound, rtol=BAR)
