"""The path between two policies by itself: derivatives by differences, and the order of the quick steps along it.

The search that follows would hide a wrong slope or a step of lower order: it only takes longer.
"""

import mpmath
import numpy as np
import pytest

from families.pairs import KINDS
from trpl.engines import NUMPY as E
from trpl.families import family_of
from trpl.natural.categorical import Cumulants, Quick, tilt

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
S, TAU = np.array([0.2, 0.5, 0.9]), np.array([0.6, 1.05, 0.9])


def pair(kind, num=3):
    """Family, predicted and old arrays, and their path."""
    predicted, old = (kind.make(kind.draw(num, seed=seed)) for seed in (1, 2))
    family = family_of(predicted)
    arrays = [[np.asarray(x) for x in kind.arrays(p)] for p in (predicted, old)]
    return family, *arrays, family.between(E, *arrays)


def slope(function, x):
    """Central difference of fourth order."""
    near, far = (np.asarray(function(x + h)) - np.asarray(function(x - h)) for h in (1e-3, 2e-3))
    return (8.0 * near - far) / 12e-3


@every_kind
def test_derivatives_along_the_path(kind):
    """∂KL/∂s = τ(sV + (τ − 1)X), ∂KL/∂τ = (τ − 1)W + sX, ∂H/∂s = −τ²X, ∂H/∂τ = −τW."""
    *_, path = pair(kind)
    _, _, v, x, w = path.moments(E, S, TAU)
    by_s, by_tau = (TAU * (S * v + (TAU - 1.0) * x), -TAU * TAU * x), ((TAU - 1.0) * w + S * x, -TAU * w)
    np.testing.assert_allclose(slope(lambda s: path.moments(E, s, TAU)[:2], S), by_s, rtol=1e-7)
    np.testing.assert_allclose(slope(lambda t: path.moments(E, S, t)[:2], TAU), by_tau, rtol=1e-7)
    assert (v > 0.0).all()


@every_kind
def test_one_path_in_several_words(kind):
    """KL and entropy are those of the policies on it; at τ = 1 the short forms say the same."""
    family, _, old, path = pair(kind)
    one = np.ones_like(S)
    for tau in (TAU, one):
        found, here = path.moments(E, S, tau), family.make(path.at(E, S, tau))
        np.testing.assert_allclose(found.kl, family.kl(E, here, family.make(old)), rtol=1e-10)
        np.testing.assert_allclose(found.entropy, family.entropy(E, here), rtol=1e-10, atol=1e-12)
    for one_way, other in zip(path.at(E, S, None), path.at(E, S, one), strict=True):
        np.testing.assert_allclose(one_way, other, rtol=1e-13)
    kl, change = path.along(E, S)
    at_one = path.moments(E, S, one)
    np.testing.assert_allclose(kl + path.floor, at_one.kl, rtol=1e-12)
    np.testing.assert_allclose(change, at_one.change, rtol=1e-12)
    np.testing.assert_allclose(path.spread(E), path.moments(E, 0.0 * one, one).change, rtol=1e-12)
    assert (path.moments(E, 0.0 * one, one).kl == 0.0).all()


@every_kind
@pytest.mark.parametrize("warm", [True, False])
def test_linear_is_the_derivative_of_the_arrays(kind, warm):
    """τ⟨h, Δ⟩ and ⟨h, w⟩ are those of the arrays by s and τ; the products are those of the moments."""
    _, predicted, _, path = pair(kind)
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=x.shape) for x in predicted]
    tau = TAU if warm else np.ones_like(S)
    linear, found = path.linear(E, S, tau if warm else None, weights), path.moments(E, S, tau)

    def total(s, tau):
        arrays = path.at(E, s, tau)
        return sum((g * x).reshape(len(s), -1).sum(-1) for g, x in zip(weights, arrays, strict=True))

    np.testing.assert_allclose(tau * linear.pull_change, slope(lambda s: total(s, tau), S), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(linear.change, found.change, rtol=1e-11)
    if warm:
        np.testing.assert_allclose(linear.pull_warmth, slope(lambda t: total(S, t), tau), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(linear.cross, found.cross, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(linear.warmth, found.warmth, rtol=1e-10)


def classes(num=4, size=6):
    """Weights of old policies and u, centred under them."""
    rng = np.random.default_rng(3)
    weight, u = np.exp(rng.normal(size=(num, size))), rng.normal(size=(num, size))
    return weight, u - (weight * u).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)


def test_cumulants():
    """Derivatives of log Σ w e^(su), by mpmath's."""
    weight, u = classes()
    u = u + 0.3
    found = Cumulants.of(E, weight, u)
    np.testing.assert_allclose(found.total, weight.sum(-1))
    with mpmath.workdps(40):
        for row, (own, x) in enumerate(zip(weight, u, strict=True)):
            pairs = list(zip(map(mpmath.mpf, own), map(mpmath.mpf, x), strict=True))
            log_total = lambda s, pairs=pairs: mpmath.log(sum(w * mpmath.exp(s * x) for w, x in pairs))  # noqa: E731
            for k, coefficient in enumerate(mpmath.taylor(log_total, 0, 5)[1:], start=1):
                np.testing.assert_allclose(found[k][row], float(coefficient * mpmath.factorial(k)), rtol=1e-10)


def exact_root(weight, u, room):
    """s at which KL = room, to 30 digits."""
    with mpmath.workdps(30):
        pairs = [(mpmath.mpf(w), mpmath.mpf(x)) for w, x in zip(weight, u, strict=True)]
        whole = sum(w for w, _ in pairs)

        def excess(s):
            grown = [w * mpmath.exp(s * x) for w, x in pairs]
            mean = sum(g * x for g, (_, x) in zip(grown, pairs, strict=True)) / sum(grown)
            return s * mean - mpmath.log(sum(grown) / whole) - room

        return float(mpmath.findroot(excess, (mpmath.mpf("0.001"), mpmath.mpf(1)), solver="anderson", tol=1e-25))


def test_the_start_is_of_fourth_order():
    """An error of s⁴ relative to s: a bound four times smaller, s half as large, an error sixteen times smaller."""
    weight, u = classes()
    errors = []
    for room in (4e-4, 1e-4):
        exact = np.array([exact_root(w, x, room) for w, x in zip(weight, u, strict=True)])
        quick = Quick(weight, u, np.abs(u).max(-1), np.full(len(u), room), Cumulants.of(E, weight, u))
        errors.append(np.abs(quick.start(E) / exact - 1.0))
    ratio = errors[0] / errors[1]
    assert ((ratio > 13.0) & (ratio < 20.0)).all(), ratio


@pytest.mark.parametrize("room", [0.003, 0.08])
def test_a_step_is_of_fifth_order(room):
    """From a start twice as far the error is 32 times as large; exponents small and large."""
    weight, u = classes()
    u = 8.0 * u  # all roots are below 1
    exact = np.array([exact_root(w, x, room) for w, x in zip(weight, u, strict=True)])
    quick = Quick(weight, u, np.abs(u).max(-1), np.full(len(u), room), Cumulants.of(E, weight, u))
    for side in (-1.0, 1.0):
        errors = [np.abs(np.log(quick.step(E, exact * np.exp(side * d))[0] / exact)) for d in (0.1, 0.05)]
        ratio = errors[0] / errors[1]
        assert (ratio > 24.0).all(), ratio  # 16, were it of fourth order


def test_a_class_that_outgrows_the_others():
    """e^x alone would overflow; its product with a tiny probability is ordinary."""
    q = np.array([1e-320, 0.25, 0.75])
    log_q = np.log(q)
    for first in (40.0, 600.0, 740.0, 800.0):
        x = np.array([first, 0.3, -0.1])
        found = tilt(E, q, log_q, x)
        log_total = np.logaddexp.reduce(log_q + x)
        np.testing.assert_allclose(found.log_total, log_total, rtol=1e-13, atol=1e-16)
        np.testing.assert_allclose(found.weight / found.total, np.exp(log_q + x - log_total), rtol=1e-12, atol=1e-300)
