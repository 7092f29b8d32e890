"""Scalar functions against 50 digits: relative errors of a few roundings, also where the textbook formula cancels."""

import mpmath
import numpy as np
import pytest
import torch

from trpl import special
from trpl.engines import NUMPY, torch_engine

ARGUMENTS = np.concatenate([np.logspace(-6, 7, 40), [0.5, 1.0, 2.0, 7.9, 7.999999, 8.0, 8.000001, 9.0]])
CHANGES = np.array([-0.9, -0.5, -0.34, -0.3, -1e-4, -1e-9, 0.0, 1e-12, 1e-6, 0.1, 0.49, 0.51, 3.0, 1e3])
ENGINES = {"numpy": (NUMPY, np.asarray), "torch": (torch_engine(), torch.as_tensor)}
every_engine = pytest.mark.parametrize(("e", "array"), ENGINES.values(), ids=ENGINES)


def exactly(function, *arguments):
    """The function of each row of arguments, worked out with 50 digits."""
    with mpmath.workdps(50):
        rows = zip(*map(np.ravel, np.broadcast_arrays(*arguments)), strict=True)
        return np.array([float(function(*map(mpmath.mpf, map(float, row)))) for row in rows])


def rest(x):
    return mpmath.loggamma(x) - x * mpmath.log(x) + x


@every_engine
@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("gamma_rest", rest),
        ("digamma_rest", lambda x: mpmath.digamma(x) - mpmath.log(x)),
        ("trigamma_rest", lambda x: mpmath.polygamma(1, x) - 1 / x),
        ("softplus", lambda x: mpmath.log1p(mpmath.exp(x))),
        ("sigmoid", lambda x: 1 / (1 + mpmath.exp(-x))),
    ],
)
def test_functions_of_one_number(e, array, name, exact):
    x = ARGUMENTS if name.endswith("rest") else np.concatenate([-ARGUMENTS[ARGUMENTS < 700], ARGUMENTS])
    expected = exactly(exact, x)
    found = np.asarray(getattr(special, name)(e, array(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=3e-15 if name == "gamma_rest" else 0.0)


def test_stirling():
    x = ARGUMENTS[ARGUMENTS >= 8]
    expected = exactly(lambda x: rest(x) + mpmath.log(x / (2 * mpmath.pi)) / 2, x)
    slopes = exactly(lambda x: mpmath.digamma(x) - mpmath.log(x) + 1 / (2 * x), x)
    np.testing.assert_allclose(special.j_value(x), expected, rtol=1e-13)
    np.testing.assert_allclose(special.j_slope(x), slopes, rtol=1e-13, atol=2e-16)  # rounding of log x


@every_engine
def test_the_excess_over_a_logarithm(e, array):
    expected = exactly(lambda r: r - mpmath.log1p(r), CHANGES)
    found = special.log1p_excess(e, array(CHANGES), array(np.log1p(CHANGES)))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@every_engine
def test_differences_of_softplus(e, array):
    x, gap = np.meshgrid([-40.0, -3.0, -0.2, 0.0, 0.7, 5.0, 50.0], [0.0, 1e-13, 1e-5, 0.3, 0.99, 1.01, 2.0, 20.0])
    for first, second in ((x, x + gap), (x + gap, x)):
        expected = exactly(lambda x, y: mpmath.log1p(mpmath.exp(x)) - mpmath.log1p(mpmath.exp(y)), first, second)
        found = np.asarray(special.softplus_difference(e, array(first), array(second)))
        np.testing.assert_allclose(found.ravel(), expected, rtol=2e-14)


@every_engine
@pytest.mark.parametrize("low", [True, False])
def test_bregman_divergence_of_the_gamma_function(e, array, low):
    """Below 8, where the argument is lifted, and above alone; y near x and far from it."""
    x, share = np.meshgrid([0.01, 0.7, 3.0, 7.9] if low else [90.0, 5e3, 1e6], CHANGES)
    change = share * x
    y = x + change

    def exact(x, change):
        slope = mpmath.digamma(x) - mpmath.log(x)
        return rest(x + change) - rest(x) - slope * change

    expected = exactly(exact, x, change)
    found = np.asarray(special.gamma_rest_bregman(e, array(x), array(y), array(change)))
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-11, atol=2e-17)  # rounding of J, about 0.01
