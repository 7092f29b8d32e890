"""Worked examples on the other side of each clip, and at scales other than 1: what mutation testing found missing."""

import jax.numpy as jnp
import numpy as np
import pytest

from trpl.losses import clipped_squared_error, clipped_surrogate, normalised


def test_advantages_of_another_scale():
    """A deviation of 2, not 1: dividing by it is not multiplying."""
    assert normalised(jnp.array([2.0, 6.0])).tolist() == pytest.approx([-1.0, 1.0])


def test_advantages_that_hardly_differ_do_not_explode():
    """A deviation of 1e-8 is doubled by what is added to it."""
    assert normalised(jnp.array([-1e-8, 1e-8])).tolist() == pytest.approx([-0.5, 0.5], rel=1e-3)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(0.5, -3.0, 2.4), (0.5, 3.0, -1.5), (1.1, 3.0, -3.3), (1.1, -3.0, 3.3), (0.9, 2.0, -1.8)],
)
def test_the_clip_from_below(ratio, advantage, expected):
    """clip 0.2: a loss is charged at 0.8 or more, a gain is paid as it is; between the clips nothing is clipped."""
    found = clipped_surrogate(np.log([ratio]), jnp.array([advantage]), clip=0.2)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "target", "old", "expected"), [(-1.0, -1.0, 0.0, 0.64), (1.9, 1.9, 2.0, 0.0), (5.0, 5.0, 4.0, 0.64)]
)
def test_the_value_clip_goes_both_ways_from_the_old_value(value, target, old, expected):
    error = clipped_squared_error(jnp.array([value]), jnp.array([target]), old_values=jnp.array([old]), clip=0.2)
    assert error == pytest.approx(expected, rel=1e-5, abs=1e-12)
