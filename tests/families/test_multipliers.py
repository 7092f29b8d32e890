"""Multipliers are slopes of the objective: what a wider bound, or a lower entropy, would gain (envelope theorem)."""

import numpy as np
import pytest

from families.pairs import BY_NAME
from trpl.engines import NUMPY as E
from trpl.families import family_of
from trpl.implicit.problems import broadcast_shapes


@pytest.mark.parametrize("held", ["free", "minimum", "equal"])
@pytest.mark.parametrize("name", ["categorical", "bernoulli", "beta", "hybrid", "everything"])
def test_slopes_of_the_objective(name, held):
    kind = BY_NAME[name]
    p, q = (kind.make(kind.draw(3, seed=seed)) for seed in (1, 2))
    family = family_of(p)
    bound = np.full(3, 0.05)
    _, high = family.entropy_range(E, q, bound)
    here = family.entropy(E, family.make(family.solve(E, (*p.arrays, *q.arrays, bound), "free", whole=True).outputs))
    target = None if held == "free" else here + 0.3 * (family.entropy(E, q) + high - here)

    def inputs(bound, target):
        return (*p.arrays, *q.arrays, bound, *(() if target is None else (target,)))

    def objective(bound, target):
        found = family.solve(E, inputs(bound, target), held, whole=True)
        return family.kl(E, family.make(found.outputs), p)

    eta, omega = family.multipliers(E, inputs(bound, target), held)
    h = 1e-5
    slope = (objective(bound + h, target) - objective(bound - h, target)) / (2.0 * h)
    np.testing.assert_allclose(eta, -slope, rtol=1e-4, atol=1e-6)
    if target is None:
        assert (omega == 0.0).all()
    else:
        slope = (objective(bound, target + h) - objective(bound, target - h)) / (2.0 * h)
        np.testing.assert_allclose(omega, slope, rtol=1e-4, atol=1e-6)
        assert (omega > 0.0).any()


def test_shapes_that_broadcast():
    assert broadcast_shapes() == ()
    assert broadcast_shapes((), (3, 1), (2,)) == (3, 2)
    with pytest.raises(ValueError):
        broadcast_shapes((3,), (2,))
