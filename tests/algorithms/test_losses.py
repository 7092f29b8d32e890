"""Worked examples one can check on paper."""

import jax.numpy as jnp
import numpy as np
import pytest

from trpl.losses import clipped_squared_error, clipped_surrogate, normalised, squared_error, surrogate

LOG2 = np.log([2.0])  # NumPy: importing this module computes nothing in JAX


def test_surrogate_is_the_mean_of_ratio_times_advantage():  # ratios 2 and 1, advantages 3 and -1
    assert surrogate(jnp.array([LOG2[0], 0.0]), jnp.array([3.0, -1.0])) == pytest.approx(-2.5)


def test_gain_stops_at_the_clip():  # ratio 2, advantage 3: paid as 1.2 · 3
    assert clipped_surrogate(LOG2, jnp.array([3.0]), clip=0.2) == pytest.approx(-3.6)


def test_loss_does_not_stop_at_the_clip():  # ratio 2, advantage -3: charged in full
    assert clipped_surrogate(LOG2, jnp.array([-3.0]), clip=0.2) == pytest.approx(6.0)


def test_advantages_are_normalised_by_the_population_deviation():
    assert normalised(jnp.array([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])


def test_equal_advantages_become_zero():
    assert normalised(jnp.array([2.0, 2.0])).tolist() == [0.0, 0.0]


def test_squared_error():
    assert squared_error(jnp.array([1.0, 2.0]), jnp.array([3.0, 2.0])) == pytest.approx(2.0)


def test_value_clip_pays_no_more_than_a_step_of_its_size():
    """From 0 to 1 towards a return of 1, clip 0.2: charged as if at 0.2."""
    error = clipped_squared_error(jnp.array([1.0]), jnp.array([1.0]), old_values=jnp.array([0.0]), clip=0.2)
    assert error == pytest.approx(0.64)


def test_value_clip_charges_a_step_the_wrong_way_in_full():
    error = clipped_squared_error(jnp.array([-1.0]), jnp.array([1.0]), old_values=jnp.array([0.0]), clip=0.2)
    assert error == pytest.approx(4.0)
