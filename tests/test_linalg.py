"""Matrix functions: values against NumPy, gradients against finite differences, also at equal eigenvalues."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from generators import factor, rotations
from trpl.linalg import gram_factor, interpolated_factor, log_ratio, solve_vector, symmetric_root

RNG = np.random.default_rng(0)


def matrices(num=4, dim=3):
    return torch.as_tensor(factor(rotations(RNG, num, dim), np.exp(RNG.normal(size=(num, dim)))))


def test_symmetric_root():
    b = torch.as_tensor(RNG.normal(size=(5, 4, 4)))
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
    assert gradcheck(symmetric_root, b.clone().requires_grad_())


def test_symmetric_root_of_ill_conditioned_factors():
    """Small eigenvalues keep their digits: 1e-5 beside 1, not lost in the square."""
    rotation = torch.as_tensor(rotations(RNG, 1, 3)[0])
    values = torch.tensor([1.0, 1e-5, 1e-10], dtype=torch.float64)
    root = symmetric_root((rotation * values) @ torch.eye(3, dtype=torch.float64))
    found = torch.linalg.eigvalsh(root).flip(-1)
    torch.testing.assert_close(found, values, rtol=1e-4, atol=0)


def test_gram_factor():
    b = torch.as_tensor(RNG.normal(size=(5, 4, 4)))
    found = gram_factor(b)
    torch.testing.assert_close(found, torch.linalg.cholesky(b @ b.mT))
    assert gradcheck(gram_factor, b.clone().requires_grad_())


def test_interpolated_factor():
    p, q, weight = matrices(), matrices(), torch.tensor([0.0, 0.3, 0.9, 1.0], dtype=torch.float64)
    expected = torch.linalg.cholesky(weight[:, None, None] * p @ p.mT + (1 - weight[:, None, None]) * q @ q.mT)
    torch.testing.assert_close(interpolated_factor(weight, p, q), expected)
    weight = torch.tensor([0.1, 0.3, 0.9, 0.5], dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda w, p, q: interpolated_factor(w, p.tril(), q.tril()),
        (weight, p.clone().requires_grad_(), q.clone().requires_grad_()),
    )


def test_log_ratio_near_and_far():
    q = torch.tensor([1.0, 3.0, 1e-4], dtype=torch.float64)
    for step in (1e-14, 1e-3, 0.49, 0.51, 1e6):
        torch.testing.assert_close(
            log_ratio(q * (1 + step), q), torch.log1p((q * (1 + step) - q) / q), rtol=1e-12, atol=0
        )
    torch.testing.assert_close(log_ratio(q * 1e-9, q), torch.full_like(q, np.log(1e-9)), rtol=1e-12, atol=0)
    p = torch.tensor([1.0, 2.0, 1e-6, 5.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        log_ratio,
        (p, torch.tensor([1.0, 1.0, 1.0, 1e3], dtype=torch.float64, requires_grad=True)),
        eps=1e-9,
        atol=1e-4,
        rtol=1e-4,
    )


def test_solve_vector_with_one_factor_for_all():
    chol, v = matrices(1)[0], torch.as_tensor(RNG.normal(size=(2, 5, 3)))
    torch.testing.assert_close(chol @ solve_vector(chol, v)[..., None], v[..., None])
