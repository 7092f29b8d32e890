"""The bracketed Newton, on functions that are easy and on functions made to break it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trpl.engines import NUMPY, torch_engine
from trpl.projections.kl.equation import LARGEST_NARROW, any_root, twice_kl_of_excess
from trpl.projections.kl.equation import narrow_root_outside as narrow_root
from trpl.roots import increasing_root, one_step

E = torch_engine()


def solve(function, slope, target, start):
    x = torch.as_tensor(start, dtype=torch.float64)
    return increasing_root(
        E,
        lambda x: (function(x), x * slope(x)),
        torch.as_tensor(target, dtype=torch.float64),
        start=x,
        active=torch.ones_like(x, dtype=torch.bool),
    )


@pytest.mark.parametrize("start", [1e-6, 1e-3, 0.1, 0.5, 1.0])
def test_powers(start):
    for power in (1.0, 2.0, 4.0, 9.0):
        targets = torch.logspace(-8, -0.01, 30, dtype=torch.float64)
        found = solve(lambda x, p=power: x**p, lambda x, p=power: p * x ** (p - 1), targets, torch.full((30,), start))
        torch.testing.assert_close(found, targets ** (1 / power), rtol=1e-11, atol=0)


def test_a_function_that_throws_newton_out_of_its_bracket():
    """Flat, then steep: bare Newton from the flat part lands far outside."""
    found = solve(
        lambda x: x**2 + torch.expm1(200 * (x - 0.9)).clamp_min(0),
        lambda x: 2 * x + torch.where(x > 0.9, 200 * torch.exp(200 * (x - 0.9)), 0.0),
        torch.tensor([0.5, 100.0]),
        torch.tensor([1e-5, 1e-5]),
    )
    torch.testing.assert_close(found[0], torch.tensor(0.5, dtype=torch.float64).sqrt())
    assert 0.9 < found[1] < 1.0


def test_a_mirror_root_below_zero_is_not_taken():
    """f = 0.2 + x² + x/1000 is nearly even: the other root of f = 0.21 lies at −0.1005."""
    target = torch.tensor([0.21], dtype=torch.float64)
    expected = -0.0005 + torch.sqrt(torch.tensor([0.01 + 0.0005**2], dtype=torch.float64))
    for start in (1e-4, 1e-3, 2e-3, 0.01, 0.5, 1.0):
        found = solve(lambda x: 0.2 + x * x + 0.001 * x, lambda x: 2 * x + 0.001, target, torch.tensor([start]))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_two_steps_that_end_on_the_mirror_root_go_on():
    """x²/(x² + 0.01) is even and flat at the end: from one start the first step lands on −0.1 to the last digit."""

    def evaluate(x):
        whole = x * x + 0.01
        return x * x / whole, 0.02 * x * x / (whole * whole)

    def first_step(x):
        value, slope = evaluate(x)
        return x + 2.0 * x * value.sqrt() * (target.sqrt() - value.sqrt()) / slope

    target = torch.tensor([0.5], dtype=torch.float64)
    near, far = torch.tensor([0.1], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    for _ in range(80):
        start = 0.5 * (near + far)
        near, far = (start, far) if first_step(start) > -0.1 else (near, start)
    torch.testing.assert_close(first_step(start), torch.full_like(start, -0.1), rtol=1e-9, atol=0.0)
    found = increasing_root(E, evaluate, target, start=start, active=torch.tensor([True]))
    torch.testing.assert_close(found, torch.tensor([0.1], dtype=torch.float64), rtol=1e-9, atol=0.0)


def test_entries_that_are_not_active_stay():
    start = torch.tensor([0.3, 0.7], dtype=torch.float64)
    found = increasing_root(
        E,
        lambda x: (x * x, 2 * x * x),
        torch.tensor([0.25, 0.25], dtype=torch.float64),
        start=start,
        active=torch.tensor([True, False]),
    )
    assert found[1] == start[1]
    torch.testing.assert_close(found[0], torch.tensor(0.5, dtype=torch.float64))


def test_inactive_entries_cost_no_steps():
    """Samples inside must not keep the loop going."""
    calls = []

    def evaluate(x):
        calls.append(1)
        return x * x, 2 * x * x

    target = torch.tensor([0.25, 4.0], dtype=torch.float64)
    increasing_root(
        E, evaluate, target, start=torch.tensor([0.45, 1.0], dtype=torch.float64), active=torch.tensor([True, False])
    )
    assert len(calls) <= 5


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-0.999999, 1e10), min_size=1, max_size=8),
    st.floats(1e-6, 10.0),
)
def test_kl_root_from_any_eigenvalues(eigenvalues, bound):
    values = torch.tensor([eigenvalues], dtype=torch.float64)
    limit = torch.tensor([bound], dtype=torch.float64)
    outside = twice_kl_of_excess(E, values)[0] > 2 * limit * (1 + 1e-6)
    x = any_root(E, values, limit, outside)
    if outside:
        assert 0 < float(x) <= 1
        u = np.array(eigenvalues) * x.item()
        reached = 0.5 * np.sum(np.log1p(u) - u / (1 + u))
        # x has one rounding, which u = −1 + δ magnifies by 1/δ
        assert reached == pytest.approx(bound, rel=1e-9 + 1e-15 * float(np.max(1 / (1 + u))) ** 2 / bound)
    else:
        assert float(x) == 1.0


def spectra(rng, num, dim):
    """Excess precisions of every size and both signs: alone, equal, or spread over twelve decades."""
    top, spread = rng.uniform(-6, 30, size=(num, 1)), rng.choice([0.0, 1.0, 12.0], size=(num, 1))
    size = 10 ** (top - spread * rng.random((num, dim)))
    positive = rng.random((num, dim)) < rng.choice([0.0, 0.5, 1.0], size=(num, 1))
    return np.where(positive, size, -size / (1.0 + size))


@pytest.mark.parametrize(("dtype", "smallest", "tolerance"), [("float64", 1e-8, 1e-9), ("float32", 5e-5, 2e-4)])
@pytest.mark.parametrize("dim", [1, 2, 17, 64])
def test_narrow_regions_need_no_bracket(dim, dtype, smallest, tolerance):
    """Four bare steps do, whatever the eigenvalues: compiled code makes no others."""
    rng = np.random.default_rng(dim)
    kind = getattr(torch, dtype)
    values = torch.as_tensor(spectra(rng, 20_000, dim), dtype=kind).clip(-1.0 + torch.finfo(kind).eps)
    bounds = torch.as_tensor(np.geomspace(smallest, LARGEST_NARROW, len(values)), dtype=kind)
    outside = twice_kl_of_excess(E, values)[0] > 2 * bounds * (1 + 1e-3)
    x = narrow_root(E, values, bounds, outside)
    assert bool(((x > 0) & (x <= 1)).all())
    assert bool((x[~outside] == 1.0).all())
    reached = 0.5 * twice_kl_of_excess(E, x.double()[:, None] * values.double())[0]
    assert float((reached / bounds.double() - 1.0)[outside].abs().max()) < tolerance


def test_a_bound_too_small_for_its_type_stays_at_the_start():
    """In float32 the KL of 1e-12 is all rounding; the first guess is the best there is."""
    values = torch.tensor([[3.0, -0.5], [1e20, 2.0]])
    bounds = torch.full((2,), 1e-12)
    x = narrow_root(E, values, bounds, torch.ones(2, dtype=torch.bool))
    expected = 2e-6 / torch.tensor([np.hypot(3.0, 0.5), 1e20], dtype=torch.float64)
    np.testing.assert_allclose(x.double(), expected, rtol=0.5)


@pytest.mark.parametrize("bound", [3.0, 30.0, 3e3, 3e5, 1e6])
def test_wide_regions_have_a_root_too(bound):
    """A prediction a million times wider than the old policy, in one direction or in one of three."""
    values = torch.tensor([[-1.0 + 1e-13] * 3, [-1.0 + 1e-13, 5.0, 1e6]], dtype=torch.float64)
    limit = torch.full((2,), bound, dtype=torch.float64)
    x = any_root(E, values, limit, torch.ones(2, dtype=torch.bool))
    found = twice_kl_of_excess(E, x[:, None] * values)[0]
    assert torch.allclose(found, 2 * limit, rtol=1e-8, atol=0.0)


def polynomial_in_logs(t):
    """f = exp(2t + 0.8t² − 0.5t³), t = log x, and its first three derivatives by t."""
    f = np.exp(2.0 * t + 0.8 * t**2 - 0.5 * t**3)
    one, two, three = 2.0 + 1.6 * t - 1.5 * t**2, 1.6 - 3.0 * t, -3.0
    return f, f * one, f * (two + one**2), f * (three + 3.0 * one * two + one**3)


@pytest.mark.parametrize("root", [-0.3, 0.0, 0.4])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_one_step_is_of_fourth_order(root, side):
    """Half the distance leaves a sixteenth of the error; a wrong coefficient would leave an eighth or more."""
    distances = side * np.array([0.02, 0.01, 0.005])
    target = polynomial_in_logs(np.array(root))[0]
    starts = root + distances
    found = starts + np.log(one_step(NUMPY, target, *polynomial_in_logs(starts)))
    error = np.abs(found - root)
    assert error[0] < 2e-6
    np.testing.assert_allclose(error[:-1] / error[1:], 16.0, rtol=0.1)


def test_one_step_stays_where_its_start_is_bad_or_f_only_rounding():
    f = np.array([1.0, 0.0, -1e-30, np.nan])
    target = np.array([1.2, 1e-12, 1e-12, 1e-12])  # the first would grow by a tenth
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(one_step(NUMPY, target, f, 2.0 * f, 4.0 * f, 8.0 * f), 1.0)
    assert one_step(NUMPY, np.array([1.05]), *(k * np.ones(1) for k in (1.0, 2.0, 4.0, 8.0))) == pytest.approx(
        1.05**0.5
    )
