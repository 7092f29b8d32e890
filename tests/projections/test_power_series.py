"""The power series for small bounds, by itself: the polishing step afterwards would hide its errors."""

import numpy as np
import pytest
import torch

from trpl import FullGaussian, kl_parts
from trpl.engines import NUMPY, torch_engine
from trpl.projections.kl.equation import LARGEST_NARROW as LARGEST_BOUND
from trpl.projections.kl.equation import any_root, power_traces, powers, series_root
from trpl.projections.kl.routes import NARROW, ORDINARY, ROUTES, WIDE, choose, route_for
from trpl.torch import KLProjection

RNG = np.random.default_rng(12)
E = torch_engine()


def symmetric(eigenvalues: np.ndarray) -> torch.Tensor:
    """Matrices with these eigenvalues and random axes."""
    rotation, _ = np.linalg.qr(RNG.normal(size=(*eigenvalues.shape, eigenvalues.shape[-1])))
    return torch.as_tensor((rotation * eigenvalues[..., None, :]) @ rotation.swapaxes(-1, -2))


@pytest.mark.parametrize("bound", [1e-8, 1e-4, 1e-3, LARGEST_BOUND])
@pytest.mark.parametrize("dim", [1, 2, 5, 17])
def test_against_the_eigenvalues(dim, bound):
    """x to 1e-7 at the largest bound; far better below it, where what is left out falls as a high power of √ε."""
    spread = np.exp(RNG.normal(size=(200, dim)) * RNG.uniform(0.1, 3.0, size=(200, 1)))
    eigenvalues = np.where(RNG.random((200, dim)) < 0.5, spread, -spread / (1.0 + spread))
    bounds = torch.full((200,), bound, dtype=torch.float64)
    excess = symmetric(eigenvalues)
    values = torch.linalg.eigvalsh(excess)
    kl = 0.5 * (torch.log1p(values) - values / (1.0 + values)).sum(-1)
    outside = kl > bounds
    found, expected = series_root(E, excess, bounds, outside), any_root(E, values, bounds, outside)
    assert bool(outside.any())
    assert bool((found[~outside] == 1.0).all())
    error = (found / expected - 1.0).abs().max()
    assert float(error) < (1e-7 if bound == LARGEST_BOUND else 1e-9 if bound == 1e-3 else 5e-12)


def test_traces_ofpowers():
    """Exact up to the eighth; the others as one eigenvalue alone would have them."""
    a = symmetric(RNG.uniform(-0.5, 0.5, size=(6, 4)))
    traces = power_traces(E, a)
    assert len(traces) == 11
    for k, trace in enumerate(traces[:7], start=2):
        expected = torch.linalg.matrix_power(a, k).diagonal(dim1=-2, dim2=-1).sum(-1)
        torch.testing.assert_close(trace, expected, rtol=1e-10, atol=1e-14)
    one = torch.tensor([[[-0.3]]], dtype=torch.float64)
    for k, trace in enumerate(power_traces(E, one), start=2):
        torch.testing.assert_close(trace, torch.tensor([(-0.3) ** k], dtype=torch.float64), rtol=1e-12, atol=0)


def testpowers():
    assert [float(power) for power in powers(torch.tensor(-2.0))] == [(-2.0) ** k for k in range(2, 13)]


def test_equal_policies_ask_for_nothing():
    none = torch.zeros(2, dtype=torch.bool)
    found = series_root(E, torch.zeros(2, 3, 3, dtype=torch.float64), torch.full((2,), 1e-3, dtype=torch.float64), none)
    assert found.tolist() == [1.0, 1.0]


def test_what_the_series_leaves_is_polished():
    """At the largest bound the series alone misses the KL by up to 1e-7 of it; the projection does not."""
    mean = torch.zeros(500, 2, dtype=torch.float64)
    predicted, old = (
        FullGaussian(mean, torch.linalg.cholesky(symmetric(10.0 ** RNG.uniform(-1.0, 1.0, size=(500, 2)))))
        for _ in range(2)
    )
    projected = KLProjection(1.0, LARGEST_BOUND)(predicted, old)
    assert bool((kl_parts(predicted, old).cov > LARGEST_BOUND).all())
    error = kl_parts(projected, old).cov / LARGEST_BOUND - 1.0
    assert float(error.abs().max()) < 2e-10


@pytest.mark.parametrize(
    ("largest", "width"),
    [(1e-3, "NARROW"), (LARGEST_BOUND, "NARROW"), (0.0051, "ORDINARY"), (3.0, "ORDINARY"), (3.01, "ANY")],
)
def test_route_of_a_bound(largest, width):
    route = {"NARROW": NARROW, "ORDINARY": ORDINARY, "ANY": WIDE}[width]
    assert route_for(largest) is route
    assert route_for(float("inf")) is route_for(float("nan")) is WIDE
    assert [r.up_to for r in ROUTES] == sorted(r.up_to for r in ROUTES)
    bounds = np.array([1e-6, largest])
    assert choose(NUMPY, None, bounds) is route  # by its largest value, where that can be looked at
    assert choose(torch_engine(concrete=False), None, torch.as_tensor(bounds)) is WIDE
    assert choose(NUMPY, NARROW, bounds) is NARROW


@pytest.mark.parametrize("bound", [1e-3, 0.1, 10.0])
def test_a_number_and_an_array_are_the_same_bound(bound):
    """A number leaves ways out before anything is looked at; values and gradients stay what they are."""
    mean = torch.zeros(50, 3, dtype=torch.float64)
    chols = [torch.linalg.cholesky(symmetric(10.0 ** RNG.uniform(-3.0, 3.0, size=(50, 3)))) for _ in range(3)]
    found = []
    for given in (bound, torch.full((50,), bound, dtype=torch.float64)):
        chol = chols[0].clone().requires_grad_()
        projected = KLProjection(1.0, given)(FullGaussian(mean, chol), FullGaussian(mean, chols[1]))
        (projected.chol * chols[2]).sum().backward()
        found.append((projected.chol.detach(), chol.grad))
    for number, array in zip(*found, strict=True):
        assert torch.equal(number, array)


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("bound", [1e-3, 0.1, 10.0])
def test_precisions_are_interpolated(bound, as_array):
    """Σ̃⁻¹ = xΣ⁻¹ + (1 − x)Σ_old⁻¹ with one x for each pair, in narrow, ordinary and wide regions."""
    mean = torch.zeros(40, 3, dtype=torch.float64)
    predicted, old = (
        FullGaussian(mean, torch.linalg.cholesky(symmetric(10.0 ** RNG.uniform(-2.0, 2.0, size=(40, 3)))))
        for _ in range(2)
    )
    given = torch.full((40,), bound, dtype=torch.float64) if as_array else bound
    layer = KLProjection(1.0, given)
    projected = layer(predicted, old)
    new, old_one, found = (torch.cholesky_inverse(p.chol) for p in (predicted, old, projected))
    way = (new - old_one).flatten(1)
    x = ((found - old_one).flatten(1) * way).sum(-1) / (way * way).sum(-1)
    outside = kl_parts(predicted, old).cov > bound
    assert bool(outside.any())
    assert bool((x[outside] < 1.0).all())
    rest = found - old_one - x[:, None, None] * (new - old_one)
    assert float((rest.flatten(1).norm(dim=-1) / found.flatten(1).norm(dim=-1)).max()) < 1e-9
    torch.testing.assert_close(kl_parts(projected, old).cov[outside], torch.full((40,), bound).double()[outside])
    multiplier = layer.audit(predicted, projected, old).cov_multiplier
    torch.testing.assert_close(multiplier[outside], 1.0 / x[outside] - 1.0, rtol=1e-5, atol=1e-8)
    assert not bool(multiplier[~outside].any())
