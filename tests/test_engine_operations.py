"""What the maths asks of an engine, operation by operation, against NumPy's own functions: shapes, dtypes, values."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from trpl.engines import NUMPY, jax_engine, torch_engine
from trpl.engines import for_numpy as numpy_engine

pytestmark = pytest.mark.usefixtures("x64")
CONCRETE = {
    "numpy": (NUMPY, np.array),
    "torch": (torch_engine(), torch.tensor),
    "jax": (jax_engine(), jnp.asarray),
}
every_engine = pytest.mark.parametrize(("e", "array"), CONCRETE.values(), ids=CONCRETE)
not_jax = pytest.mark.parametrize(("e", "array"), [CONCRETE["numpy"], CONCRETE["torch"]], ids=["numpy", "torch"])
"""For functions of the namespace, where JAX's is JAX's own."""
LONG = 3 * numpy_engine.MIN_SIZE_FOR_TORCH
"""More entries than NumPy keeps to itself where PyTorch is loaded."""


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


def same(found, expected, **tolerance) -> None:
    """Equal to rounding, with shape and dtype."""
    found = np.asarray(found)
    assert (found.shape, found.dtype) == (np.shape(expected), np.asarray(expected).dtype)
    np.testing.assert_allclose(found, expected, **{"rtol": 1e-12, "atol": 1e-14, **tolerance})


@not_jax
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums(e, array, dtype):
    x = random(2, 3, 4).astype(dtype)
    near = {"rtol": 1e-5, "atol": 1e-6} if dtype == "float32" else {}
    for axis in (-1, -2, 0):
        same(e.xp.sum(array(x), axis=axis), x.sum(axis), **near)
    same(e.xp.sum(array(x), axis=(-2, -1)), x.sum((-2, -1)), **near)
    mask = x > 0.0
    assert np.asarray(e.xp.sum(array(mask), axis=-1)).tolist() == mask.sum(-1).tolist()  # counts, not a truth value


@pytest.mark.parametrize("axis", [-1, -2, None])
def test_sums_of_numpy_keep_axes(axis):
    x = random(2, 3, 4)
    same(NUMPY.xp.sum(x, axis=axis, keepdims=True), x.sum(axis=axis, keepdims=True))


@not_jax
def test_clipping(e, array):
    x = random(3, 4)
    for low, high in ((None, 0.1), (-0.2, None), (-0.2, 0.1)):
        same(e.xp.clip(array(x), low, high), np.clip(x, low, high))


@not_jax
@pytest.mark.parametrize("shape", [(5, 3), (LONG // 8, 8)])
def test_extremes_and_exponentials(e, array, shape):
    """NumPy leaves long ones to PyTorch: the same numbers, also of arrays that are read-only or not contiguous."""
    x = random(*shape)
    same(e.xp.min(array(x), axis=-1), x.min(-1))
    same(e.xp.max(array(x), axis=-1), x.max(-1))
    same(e.xp.max(array(x), axis=0), x.max(0))
    same(e.exp(array(x)), np.exp(x))
    same(e.expm1(array(1e-9 * x)), np.expm1(1e-9 * x), atol=0.0)
    if e is NUMPY:
        fixed = np.broadcast_to(x[0], x.shape)
        same(e.xp.max(fixed, axis=-1), fixed.max(-1))
        same(e.xp.min(x > 0.0, axis=-1), (x > 0.0).min(-1))
        same(e.exp(x.T), np.exp(x.T))
        assert float(e.xp.max(x)) == x.max()


@every_engine
def test_sums_of_powers(e, array):
    for size in (4, 300):  # XLA has another way for long rows
        w, x = random(2, 3, size)
        before = w.copy()
        found = e.power_sums(array(w), array(x), 3)
        assert len(found) == 4
        for k, sums in enumerate(found):
            same(sums, (w * x**k).sum(-1), rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(w, before)


@every_engine
def test_diagonals(e, array):
    x, value = random(2, 3, 3), np.array([0.5, -2.0])
    same(e.plus_diagonal(array(x), array(value)), x + value[:, None, None] * np.eye(3))
    same(e.eye(array(x[0, :1])), np.eye(3))
    same(e.lower(array(x)), np.tril(np.ones((3, 3))))
    same(e.eye(array(x.astype("float32"))), np.eye(3, dtype="float32"))
    same(e.lower(array(x.astype("float32"))), np.tril(np.ones((3, 3), "float32")))


@every_engine
def test_logarithms_of_ratios_keep_their_digits(e, array):
    q = np.array([1.0, 2.0, 3.0, 5.0, 7.0])
    p = np.array([1.0 + 1e-13, 2.0 - 1e-13, 3.0, 5e-9, 7e9])
    near = np.log1p((p - q)[:3] / q[:3])
    same(e.log_ratio(array(p), array(q)), [*near, -np.log(1e9), np.log(1e9)], atol=0.0)


@not_jax
@pytest.mark.parametrize("leading", [(), (2,)])
def test_decompositions(e, array, leading):
    a = random(*leading, 3, 3)
    positive = a @ a.swapaxes(-1, -2) + np.eye(3)
    values, basis = map(np.asarray, e.xp.linalg.eigh(array(positive)))
    same(values, np.linalg.eigvalsh(positive))
    same(basis * values[..., None, :] @ basis.swapaxes(-1, -2), positive)
    same(e.xp.linalg.eigvalsh(array(positive)), np.linalg.eigvalsh(positive))
    same(e.xp.linalg.svdvals(array(a)), np.linalg.svd(a, compute_uv=False))
    same(e.xp.linalg.solve(array(positive), array(a)), np.linalg.solve(positive, a), rtol=1e-9)


@every_engine
@pytest.mark.parametrize("entry", [np.inf, np.nan])
def test_decompositions_of_what_is_not_finite_are_nan(e, array, entry):
    """In its own state alone. LAPACK raised an error for all of them and, at an infinity, did not return."""
    a = random(3, 2, 2)
    positive = a @ a.swapaxes(-1, -2) + np.eye(2)
    broken = positive.copy()
    broken[1, 0, 0] = entry
    for decompose in (e.svd, lambda x: (e.svdvals(x),), e.eigh, lambda x: (e.eigvalsh(x),)):
        for found, expected in zip(decompose(array(broken)), decompose(array(positive)), strict=True):
            assert np.isnan(np.asarray(found)[1]).all()
            same(np.asarray(found)[[0, 2]], np.asarray(expected)[[0, 2]])


def test_broadcast_arrays_of_numpy_can_be_looked_at():
    """Those of NumPy's own function warn where the flags are read, as before a triangular solve."""
    one, other = NUMPY.xp.broadcast_arrays(random(2, 1), random(3))
    assert one.shape == other.shape == (2, 3)
    assert not one.flags.writeable
    assert not other.flags.writeable


@every_engine
def test_products_and_factors(e, array):
    a = random(2, 3, 3)
    positive = a @ a.swapaxes(-1, -2) + np.eye(3)
    same(e.cholesky(array(positive)), np.linalg.cholesky(positive))
    same(e.matrix_dot(array(a), array(positive)), (a * positive).sum((-2, -1)))
    same(e.vecdot(array(a), array(positive)), (a * positive).sum(-1))
    r = np.asarray(e.qr_r(array(a)))
    same(r.swapaxes(-1, -2) @ r, a.swapaxes(-1, -2) @ a)
    assert not np.tril(r, -1).any()


def test_one_right_hand_side_for_many_matrices():
    """A matrix, though it has an axis less, as a stack of vectors has."""
    a, b = random(3, 3, 3) + 3.0 * np.eye(3), random(3, 3)
    same(NUMPY.xp.linalg.solve(a, b), np.stack([np.linalg.solve(x, b) for x in a]), rtol=1e-9)


@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_systems_without_pytorch(monkeypatch, transpose):
    """NumPy has no such solver; what it has gives the same."""
    a, b = np.tril(random(2, 3, 3)) + 2.0 * np.eye(3), random(2, 3, 2)
    expected = np.linalg.solve(a.swapaxes(-1, -2) if transpose else a, b)
    same(NUMPY.solve_triangular(a, b, transpose=transpose), expected, rtol=1e-9)
    b.flags.writeable = False
    same(NUMPY.solve_triangular(a, b, transpose=transpose), expected, rtol=1e-9)
    monkeypatch.delitem(numpy_engine.sys.modules, "torch")
    same(NUMPY.solve_triangular(a, b, transpose=transpose), expected, rtol=1e-9)
    x = random(LONG // 8, 8)
    same(NUMPY.exp(x), np.exp(x))
    same(NUMPY.xp.max(x, axis=-1), x.max(-1))


@pytest.mark.parametrize("size", [39, 40, 63, 97])
def test_triangular_inverses_by_halves(size):
    """From 40 rows on; what stands above the diagonal is not looked at."""
    a = 0.1 * random(2, size, size) + 3.0 * np.eye(size)
    found = NUMPY.solve_triangular(a, NUMPY.eye(a))
    same(found, np.linalg.inv(np.tril(a)), rtol=1e-9, atol=1e-12)
    assert not np.triu(found, 1).any()


@every_engine
@pytest.mark.parametrize("size", [3, 40, 63])
def test_triangular_matrices_by_halves(e, array, size):
    """NumPy's engine splits matrices of 40 rows and more; batches broadcast, and inputs are left as they are."""
    a = 0.1 * np.tril(random(2, 1, size, size)) + 3.0 * np.eye(size)
    b, full = np.tril(random(3, size, size)), random(3, size, size)
    before = a.copy(), b.copy(), full.copy()
    first, second, third = map(array, (a, b, full))
    for found, expected in (
        (e.solve_triangular(first, second, lower=True), np.linalg.inv(a) @ b),
        (e.solve_triangular(first, third), np.linalg.inv(a) @ full),
        (e.solve_triangular(first, third, transpose=True), np.linalg.inv(a).swapaxes(-1, -2) @ full),
        (e.lower_product(first, second), a @ b),
        (e.lower_product(second, first[0, 0]), b @ a[0, 0]),
    ):
        same(found, expected, rtol=1e-9, atol=1e-12)
    assert all((x == y).all() for x, y in zip((a, b, full), before, strict=True))


@every_engine
def test_joining_and_converting(e, array):
    x, y = random(2, 2, 3)
    same(e.xp.concat([array(x), array(y)], axis=-1), np.concatenate([x, y], -1))
    same(e.xp.astype(array(x), array(np.zeros(1, "float32")).dtype), x.astype("float32"))
    flipped = e.xp.flip(array(x), axis=-1)
    same(flipped, x[:, ::-1])
    single = array(np.zeros(1, "float32"))
    for value in (2.5, np.array([2.5, 3.0])):
        same(e.asarray(value, single), np.asarray(value, "float32"))
    same(e.barrier(array(x)), x)


@every_engine
def test_all_and_any(e, array):
    for mask in ([True, True], [True, False], [False, False]):
        assert e.all(array(np.array(mask))) is all(mask)
        assert e.any(array(np.array(mask))) is any(mask)


@every_engine
def test_recomputing(e, array):
    """Bad states by the careful way, the others as found; each array of the solution has axes of its own."""
    x, y, bad = random(3, 2), random(3), np.array([True, False, True])
    careful = lambda x, y: (x + 1.0, -y)  # noqa: E731
    for mask in (bad, ~bad & bad):
        found = e.recompute(array(mask), careful, (array(x), array(y)), array(x), array(y))
        same(found[0], np.where(mask[:, None], x + 1.0, x))
        same(found[1], np.where(mask, -y, y))
    traced = torch_engine(concrete=False)
    found = traced.recompute(
        *(torch.tensor(bad), careful, (torch.tensor(x), torch.tensor(y)), torch.tensor(x), torch.tensor(y))
    )
    same(found[0], np.where(bad[:, None], x + 1.0, x))
    same(found[1], np.where(bad, -y, y))


@pytest.mark.parametrize("bad", [True, False])
def test_recomputing_a_single_state(bad):
    """NumPy's arithmetic makes a scalar of an array without axes; it was a TypeError about item assignment."""
    number, row = np.array(2.0) * 1.0, random(3)
    careful = lambda number, row: (number + 1.0, -row)  # noqa: E731
    found = NUMPY.recompute(np.asarray(bad), careful, (number, row), number, row)
    same(found[0], 3.0 if bad else 2.0)
    same(found[1], -row if bad else row)


def test_eager_loops_count_steps_also_of_independent_states():
    """The few that go on by themselves get what is left of the steps, not all of them again."""
    count, ends = np.zeros(6), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 9.0])
    body = lambda count, end: (np.where(count < end, count + 1.0, count), end)  # noqa: E731
    found, _ = NUMPY.loop(lambda count, end: count < end, body, (count, ends), max_steps=4, independent=True)
    assert found.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 4.0]
