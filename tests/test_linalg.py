"""Matrix functions: values against NumPy, gradients against finite differences, also at equal eigenvalues."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from generators import factor, rotations
from trpl.engines import NUMPY, torch_engine
from trpl.linalg import (
    gram_factor,
    gram_factor_pullback,
    gram_pullback,
    interpolated_factor,
    mixed_factor,
    reversed_lower,
    solve_vector,
)
from trpl.matrix_roots import symmetric_root

RNG = np.random.default_rng(0)
E = torch_engine()


def matrices(num=4, dim=3):
    return torch.as_tensor(factor(rotations(RNG, num, dim), np.exp(RNG.normal(size=(num, dim)))))


def test_symmetric_root():
    b = torch.as_tensor(RNG.normal(size=(5, 4, 4))).tril()
    root = symmetric_root(b)
    torch.testing.assert_close(root @ root, b @ b.mT)
    torch.testing.assert_close(root, root.mT)
    assert (torch.linalg.eigvalsh(root) > 0).all()


@pytest.mark.parametrize("where", ["random", "identity", "two equal"])
def test_symmetric_root_gradient(where):
    b = {
        "random": matrices(),
        "identity": torch.eye(3, dtype=torch.float64)[None],
        "two equal": torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))[None],
    }[where]
    assert gradcheck(lambda b: symmetric_root(b.tril()), b.clone().requires_grad_())


def test_symmetric_root_of_ill_conditioned_factors():
    """Small eigenvalues keep their digits: 1e-5 beside 1, not lost in the square."""
    rotation = torch.as_tensor(rotations(RNG, 1, 3)[0])
    values = torch.tensor([1.0, 1e-5, 1e-10], dtype=torch.float64)
    root = symmetric_root(gram_factor(E, rotation * values))
    found = torch.linalg.eigvalsh(root).flip(-1)
    torch.testing.assert_close(found, values, rtol=1e-4, atol=0)


def assert_pullback(function, pullback, *inputs):
    """A cotangent by hand against a small step along a random direction, matrix by matrix."""
    weight = torch.as_tensor(RNG.normal(size=function(*inputs).shape))
    found = pullback(*inputs, function(*inputs), weight)
    for i, (x, gradient) in enumerate(zip(inputs, found, strict=True)):
        direction = torch.as_tensor(RNG.normal(size=x.shape))
        above, below = (
            (weight * function(*inputs[:i], x + step * direction, *inputs[i + 1 :])).sum() for step in (1e-6, -1e-6)
        )
        torch.testing.assert_close((gradient * direction).sum(), (above - below) / 2e-6, rtol=1e-6, atol=1e-7)


def test_gram_factor():
    b = torch.as_tensor(RNG.normal(size=(5, 4, 4)))
    torch.testing.assert_close(gram_factor(E, b), torch.linalg.cholesky(b @ b.mT))
    assert_pullback(lambda b: gram_factor(E, b), lambda b, f, w: (gram_factor_pullback(E, b, f, w.tril()),), b)


def test_gram_pullback():
    """The cotangent of K = LLᵀ, which is symmetric."""
    k = matrices() @ matrices().mT + torch.eye(3, dtype=torch.float64)
    k = k @ k.mT
    assert_pullback(
        lambda k: torch.linalg.cholesky(0.5 * (k + k.mT)), lambda k, f, w: (gram_pullback(E, f, w.tril()),), k
    )


def test_interpolated_factor():
    p, q, weight = matrices(), matrices(), torch.tensor([0.0, 0.3, 0.9, 1.0], dtype=torch.float64)
    expected = torch.linalg.cholesky(weight[:, None, None] * p @ p.mT + (1 - weight[:, None, None]) * q @ q.mT)
    torch.testing.assert_close(interpolated_factor(E, weight, p, q), expected)


@pytest.mark.parametrize("whitened", [False, True])
def test_mixed_factor_and_its_inverse(whitened):
    """Well and ill-conditioned matrices, which go different ways, in one batch; weights as at both ends of the way."""
    p, q = matrices(6), matrices(6)
    p[3:] = p[3:] @ torch.diag(torch.tensor([1.0, 1e-3, 1e-6], dtype=torch.float64))
    q[4] = q[4] @ torch.diag(torch.tensor([1e-5, 1.0, 1.0], dtype=torch.float64))
    weight = torch.tensor([0.0, 0.3, 1.0, 0.5, 0.999, 1.0 - 1e-9], dtype=torch.float64)
    white = torch.linalg.solve_triangular(q, p, upper=False)
    seen = white @ white.mT - torch.eye(3, dtype=torch.float64) if whitened else None
    factor, inverse = mixed_factor(E, weight, p, q, seen=seen)
    expected = interpolated_factor(E, weight, p, q)
    assert torch.equal(factor, factor.tril())
    white = torch.linalg.solve_triangular(expected, factor, upper=False)
    torch.testing.assert_close(white, torch.eye(3, dtype=torch.float64).expand(6, 3, 3), rtol=0, atol=1e-10)
    torch.testing.assert_close(inverse @ factor, torch.eye(3, dtype=torch.float64).expand(6, 3, 3), rtol=0, atol=1e-10)


def test_a_reversed_factor_is_lower_triangular():
    p = matrices()
    precision = p @ p.mT
    w = reversed_lower(E, torch.linalg.cholesky(precision.flip(-2, -1)))
    torch.testing.assert_close(w @ w.mT, torch.linalg.inv(precision))
    assert torch.equal(w, w.tril())


def test_log_ratio_near_and_far():
    q = torch.tensor([1.0, 3.0, 1e-4], dtype=torch.float64)
    for step in (1e-14, 1e-3, 0.49, 0.51, 1e6):
        torch.testing.assert_close(
            E.log_ratio(q * (1 + step), q), torch.log1p((q * (1 + step) - q) / q), rtol=1e-12, atol=0
        )
    torch.testing.assert_close(E.log_ratio(q * 1e-9, q), torch.full_like(q, np.log(1e-9)), rtol=1e-12, atol=0)
    p = torch.tensor([1.0, 2.0, 1e-6, 5.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        E.log_ratio,
        (p, torch.tensor([1.0, 1.0, 1.0, 1e3], dtype=torch.float64, requires_grad=True)),
        eps=1e-9,
        atol=1e-4,
        rtol=1e-4,
    )


def test_log_ratio_of_numpy_is_the_same():
    p, q = np.exp(RNG.normal(size=(2, 50)) * 5.0)
    expected = E.log_ratio(torch.as_tensor(p), torch.as_tensor(q))
    np.testing.assert_allclose(NUMPY.log_ratio(p, q), expected, rtol=1e-13)


def test_solve_vector_with_one_factor_for_all():
    chol, v = matrices(1)[0], torch.as_tensor(RNG.normal(size=(2, 5, 3)))
    torch.testing.assert_close(chol @ solve_vector(E, chol, v)[..., None], v[..., None])
