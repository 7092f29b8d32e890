"""Roots and Lyapunov equations by products: against decompositions, on easy and on hard matrices."""

import jax.numpy as jnp
import numpy as np
import pytest

from generators import factor, rotations
from trpl.engines import NUMPY, jax_engine, mT, torch_engine
from trpl.matrix_roots import lyapunov, root_of_factor

NUM, DIM = 6, 5
ENGINES = {"numpy": (NUMPY, np.array), "jax": (jax_engine(), jnp.asarray)}
CONDITIONS = np.array([1.0, 1.5, 10.0, 1e3, 1e6, 1e10])  # of the covariances; the last two are decomposed


def factors(conditions: np.ndarray = CONDITIONS) -> np.ndarray:
    rng = np.random.default_rng(0)
    exponents = np.linspace(-0.5, 0.5, DIM)
    return factor(rotations(rng, NUM, DIM), conditions[:, None] ** exponents)


def expected_root(b: np.ndarray) -> np.ndarray:
    u, s, _ = np.linalg.svd(b)
    return (u * s[..., None, :]) @ mT(u)


def root(e, b):
    return root_of_factor(e, b, e.solve_triangular(b, e.eye(b)))


@pytest.mark.parametrize("engine", ENGINES)
def test_roots_are_those_of_a_decomposition(engine, x64):
    e, make = ENGINES[engine]
    b = factors()
    found, decomposed = map(np.asarray, root(e, make(b)))
    size = np.abs(b).max((-2, -1), keepdims=True)
    assert (np.abs(found - expected_root(b)) < 1e-13 * size).all()
    np.testing.assert_array_equal(found, mT(found))
    np.testing.assert_array_equal(decomposed, [False, False, False, False, True, True])


def test_a_state_keeps_its_bits_whatever_its_neighbours():
    """An easy state is done first, and waits."""
    b = factors()
    np.testing.assert_array_equal(root(NUMPY, b)[0][1:2], root(NUMPY, b[1:2])[0])


@pytest.mark.parametrize("batch", [(NUM,), (NUM, NUM)], ids=["alone", "several right-hand sides for each"])
@pytest.mark.parametrize("engine", ENGINES)
def test_lyapunov_equation(engine, batch, x64):
    e, make = ENGINES[engine]
    s = expected_root(factors())
    noise = np.random.default_rng(1).normal(size=(*batch, DIM, DIM))
    wanted = noise + mT(noise)
    found = np.asarray(lyapunov(e, make(s), make(s @ wanted + wanted @ s)))
    error = np.abs(found - wanted) / np.sqrt(CONDITIONS)[:, None, None]
    assert (error < 1e-13).all()


def test_float32_and_one_matrix():
    b = factors(np.full(NUM, 10.0))[0]
    found, decomposed = root(NUMPY, b.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected_root(b), atol=3e-6)
    assert not bool(decomposed)


def test_recompute_touches_only_bad_states():
    e, calls = NUMPY, []

    def careful(x):
        calls.append(x.shape)
        return (2.0 * x,)

    x, bad = np.arange(8.0).reshape(4, 2), np.array([False, True, False, True])
    (found,) = e.recompute(bad, careful, (x.copy(),), x)
    np.testing.assert_array_equal(found, np.where(bad[:, None], 2.0 * x, x))
    assert calls == [(2, 2)]
    for traced in (torch_engine(concrete=False), torch_engine()):
        tensor, mask = traced.torch.from_numpy(x), traced.torch.from_numpy(bad)
        (found,) = traced.recompute(mask, lambda x: (2.0 * x,), (tensor.clone(),), tensor)
        np.testing.assert_array_equal(found, np.where(bad[:, None], 2.0 * x, x))
