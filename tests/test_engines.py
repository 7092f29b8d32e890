"""The engines: operations that each framework lacks, branches and loops, and when values can be looked at."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import trpl
from trpl import engines
from trpl.engines import (
    NUMPY,
    engine_of,
    framework_of,
    is_floating,
    is_number,
    jax_engine,
    mT,
    torch_engine,
    values_of,
)

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(5)
CONCRETE = {
    "numpy": (NUMPY, np.asarray),
    "torch": (torch_engine(), torch.as_tensor),
    "jax": (jax_engine(), jnp.asarray),
}
every_engine = pytest.mark.parametrize(("e", "array"), CONCRETE.values(), ids=CONCRETE)


def test_the_engine_of_arrays():
    """Numbers are ignored; arrays of no framework are refused."""
    assert engine_of(1.0, np.ones(2)) is NUMPY
    assert engine_of(np.float64(1.0)) is NUMPY
    assert engine_of(2, torch.ones(2)) is torch_engine()
    assert engine_of(0.5, jnp.ones(2)) is jax_engine()
    with pytest.raises(TypeError, match="no array among the 2 arguments"):
        engine_of("no array", 1.0)


def test_pytorchs_engine_is_made_inside_compiled_code():
    """Dynamo cannot trace the making; PyTorch is imported after `trpl`, which has made no engine yet."""
    program = """
import sys, trpl
assert "torch" not in sys.modules
import torch
p, q = (trpl.DiagGaussian(torch.full((2, 1), m), torch.ones(1)) for m in (1.0, 0.0))
assert torch.compile(trpl.kl, backend="eager", fullgraph=True)(p, q).tolist() == [0.5, 0.5]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_dynamo_calls_functions_marked_as_constant():
    """A canary: the engine's maker sets this private mark itself, so that PyTorch need not be imported."""
    assert vars(torch.compiler.assume_constant_result(lambda: None)) == {"_dynamo_marked_constant": True}


def test_what_is_an_array():
    assert [framework_of(x) for x in (np.ones(1), torch.ones(1), jnp.ones(1), [1.0], 1.0)] == [
        "NumPy", "PyTorch", "JAX", None, None,
    ]  # fmt: skip
    assert [is_floating(np.zeros(1, t)) for t in ("float32", "float64", "float16", "int64")] == [1, 1, 0, 0]
    assert [is_floating(torch.zeros(1, dtype=t)) for t in (torch.float32, torch.bfloat16)] == [True, False]
    assert [is_number(x) for x in (1, 1.0, np.float32(1.0), np.ones(1), "1", True)] == [True] * 3 + [False] * 3


def test_when_values_of_tensors_are_there():
    """Eagerly and inside `grad`; not inside `vmap` or `compile`, however nested, nor of meta or fake tensors."""
    x, seen = torch.ones(3), []

    def look(x):
        seen.append(engine_of(x).concrete)
        seen.append(values_of(x) is not None)
        return (x * x).sum()

    look(x)
    torch.func.grad(look)(x)
    torch.func.grad(lambda x: torch.func.grad(look)(x).sum())(x)
    torch.func.vmap(look)(x)
    torch.func.vmap(torch.func.grad(look))(x)
    look(x.to("meta"))
    with FakeTensorMode() as mode:
        look(mode.from_tensor(x))
    assert seen == [True] * 6 + [False] * 8
    compiled = torch.compile(lambda x: x + 1.0 if engine_of(x).concrete else x - 1.0, backend="eager", fullgraph=True)
    assert compiled(x).tolist() == [0.0] * 3


def test_when_values_of_jax_arrays_are_there():
    """A constant has values while something else is traced."""
    constant, seen = jnp.arange(3.0), []

    @jax.jit
    def look(x):
        seen.extend([engine_of(x).concrete, engine_of(constant).concrete, values_of(x) is None])
        seen.append(float(values_of(constant).sum()))
        return x

    look(jnp.ones(2))
    assert seen == [False, True, True, 3.0]


@every_engine
def test_operations_by_numpy(e, array):
    """Each against the plain formula."""
    x, y = RNG.normal(size=(2, 4, 3, 3))
    a, b = array(x), array(y)
    np.testing.assert_allclose(e.vecdot(a, b), (x * y).sum(-1), rtol=1e-13)
    np.testing.assert_allclose(e.matrix_dot(a, b), (x * y).sum((-2, -1)), rtol=1e-13)
    np.testing.assert_allclose(e.gram(a), x.swapaxes(-1, -2) @ x, rtol=1e-12, atol=1e-14)
    scaled = e.gram(a, array(np.arange(4.0)))
    np.testing.assert_allclose(scaled, np.arange(4.0)[:, None, None] * (x.swapaxes(-1, -2) @ x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(e.square(a + mT(a)), (x + mT(x)) @ (x + mT(x)), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(e.diagonal(a), np.diagonal(x, axis1=-2, axis2=-1))
    np.testing.assert_array_equal(mT(a), x.swapaxes(-1, -2))
    np.testing.assert_array_equal(e.eye(a), np.eye(3))
    np.testing.assert_array_equal(e.lower(a), np.tril(np.ones((3, 3))))
    np.testing.assert_allclose(abs(np.asarray(e.qr_r(a))), abs(np.linalg.qr(x)[1]), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(e.asarray(2.5, a), 2.5)
    assert e.asarray(2.5, a).dtype == a.dtype
    np.testing.assert_allclose(e.xp.sum(a, axis=-1), x.sum(-1), rtol=1e-13)
    np.testing.assert_array_equal(e.xp.clip(a, -0.5, 0.5), np.clip(x, -0.5, 0.5))
    np.testing.assert_array_equal(e.xp.clip(a, 0.0, None), np.maximum(x, 0.0))
    np.testing.assert_array_equal(e.xp.flip(a, axis=(-2, -1)), x[..., ::-1, ::-1])
    np.testing.assert_array_equal(e.xp.max(a, axis=-1), x.max(-1))
    np.testing.assert_allclose(e.xp.linalg.svdvals(a), np.linalg.svd(x, compute_uv=False), rtol=1e-12)


@every_engine
def test_solve_triangular(e, array):
    """Both sides, and batches that broadcast."""
    a, b = np.tril(RNG.normal(size=(4, 3, 3))) + 2.0 * np.eye(3), RNG.normal(size=(4, 3, 2))
    for transpose in (False, True):
        for factor in (a, a[0]):
            expected = np.linalg.solve(factor.swapaxes(-1, -2) if transpose else factor, b)
            found = e.solve_triangular(array(factor), array(b), transpose=transpose)
            np.testing.assert_allclose(found, expected, rtol=1e-10)


@every_engine
def test_cholesky_of_what_has_none_is_not_finite(e, array):
    """Only that matrix, and no exception; the others as ever."""
    a = np.stack([2.0 * np.eye(2), -np.eye(2), [[4.0, 2.0], [2.0, 3.0]]])
    found = np.asarray(e.cholesky(array(a)))
    np.testing.assert_allclose(found[[0, 2]], np.linalg.cholesky(a[[0, 2]]), rtol=1e-14)
    assert np.isnan(found[1]).any()


@every_engine
def test_finite_and_lower(e, array):
    good = np.tril(RNG.normal(size=(4, 3, 3)))
    assert e.finite(array(good), array(1e200 * good))  # though the sum of squares overflows
    assert e.is_lower(array(good))
    for value in (np.nan, np.inf, -np.inf):
        bad = good.copy()
        bad[2, 0, 1] = value
        assert not e.finite(array(good), array(bad))
    good[3, 0, 2] = 1e-300
    assert not e.is_lower(array(good))


@every_engine
def test_branch(e, array):
    for mask, expected in (([False, True], 5.0), ([False, False], -2.0), ([], -2.0)):
        found = e.branch(array(np.array(mask, bool)), lambda x: x + 3.0, lambda x: -x, array(np.array(2.0)))
        assert float(found) == expected
    assert e.any(array(np.array([False, True])))
    assert not e.all(array(np.array([False, True])))


def test_branch_where_values_are_not_known():
    """JAX decides later; PyTorch has no cheap branch there and always does the work."""
    e = jax_engine(concrete=False)
    call = jax.jit(lambda mask, x: e.branch(mask, lambda x: x + 3.0, lambda x: -x, x))
    assert [float(call(jnp.array([m]), jnp.array(2.0))) for m in (True, False)] == [5.0, -2.0]
    e = torch_engine(concrete=False)
    assert float(e.branch(torch.tensor([False]), lambda x: x + 3.0, lambda x: -x, torch.tensor(2.0))) == 5.0
    assert not e.branches
    for unknown in (e, jax_engine(concrete=False)):
        assert unknown.any(None)
        assert not unknown.all(None)


def halve(x, count):
    """Halves what is above 1; keeps the rest."""
    above = x > 1.0
    where = torch.where if isinstance(x, torch.Tensor) else jnp.where if isinstance(x, jax.Array) else np.where
    return where(above, 0.5 * x, x), count + where(above, 1, 0)


@pytest.mark.parametrize("mode", ["numpy", "torch", "jax", "torch compiled", "torch mapped", "jax compiled"])
def test_loop(mode):
    """As long as any entry is unfinished, but not longer than it may."""
    name, _, traced = mode.partition(" ")
    array = CONCRETE[name][1]
    e = {"torch": torch_engine, "jax": jax_engine}[name](concrete=False) if traced else CONCRETE[name][0]

    def loop(x, count, max_steps):
        return e.loop(lambda x, count: x > 1.0, halve, (x, count), max_steps=max_steps)

    for max_steps, expected in ((10, [0, 2, 3]), (2, [0, 2, 2]), (0, [0, 0, 0])):
        call = loop
        if mode == "torch compiled":
            torch._dynamo.reset()
            call = torch.compile(loop, backend="eager", fullgraph=True)
        elif mode == "jax compiled":
            call = jax.jit(loop, static_argnums=2)
        found, steps = call(array(np.array([0.5, 3.0, 8.0])), array(np.array([0, 0, 0])), max_steps)
        assert np.asarray(steps).tolist() == expected
        np.testing.assert_array_equal(np.asarray(found), [0.5, 3.0, 8.0] / 2.0 ** np.array(expected))


def test_an_eager_loop_stops_when_all_is_done():
    calls = []

    def body(x):
        calls.append(1)
        return (0.5 * x,)

    (found,) = NUMPY.loop(lambda x: x > 1.0, body, (np.array([4.0]),), max_steps=50)
    assert (found.tolist(), len(calls)) == ([1.0], 2)


def test_constants():
    x = torch.tensor([3.0], requires_grad=True)
    assert torch.autograd.grad((x * torch_engine().constant(x)).sum(), x)[0].tolist() == [3.0]
    assert jax.grad(lambda x: (x * jax_engine().constant(x)).sum())(jnp.array([3.0])).tolist() == [3.0]
    y = np.ones(2)
    assert NUMPY.constant(y) is y


PRIVATE = [
    "_C._are_functorch_transforms_active",
    "_C._get_tracing_state",
    "_C._len_torch_dispatch_stack",
    "_C._DisableFuncTorch",
    "_C._functorch.is_gradtrackingtensor",
    "_C._functorch.is_batchedtensor",
    "_C._functorch.get_unwrapped",
    "_C._functorch.is_legacy_batchedtensor",
    "_C._vmapmode_increment_nesting",
    "_C._vmapmode_decrement_nesting",
    "_remove_batch_dim",
    "_add_batch_dim",
    "_subclasses.fake_tensor.FakeTensor",
    "_subclasses.functional_tensor.FunctionalTensor",
    "autograd.forward_ad._current_level",
]
"""Names of PyTorch that are not public, by their place in `torch`."""


@pytest.mark.parametrize("name", PRIVATE)
def test_private_names_of_pytorch_are_still_there(name):
    """A canary for each: if one of them goes, this says so before anything else does."""
    found = torch
    for part in name.split("."):
        found = getattr(found, part)
    if name.endswith(("_active", "_stack")):
        assert not found()


def test_every_private_name_has_its_canary():
    source = Path(trpl.__file__).parent
    code = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py") if "torch" in path.read_text())
    used = set(re.findall(r"\b(?:torch|state|_state|functorch|_functorch|forward_ad)\.(_\w+)", code))
    watched = {part for name in PRIVATE for part in name.split(".")}
    assert {"_C", "_functorch", "_len_torch_dispatch_stack"} <= used <= watched


def test_private_names_of_pytorch_still_mean_what_they_did():
    """What they say inside a transformation, a mode, a trace and a dual level."""
    seen = []

    def look(x):
        seen.append(torch._C._are_functorch_transforms_active())
        seen.append(torch._C._functorch.is_batchedtensor(x))
        return x

    torch.func.vmap(look)(torch.ones(2))
    with FakeTensorMode():
        seen.append(torch._C._len_torch_dispatch_stack() > 0)
    with torch.autograd.forward_ad.dual_level():
        seen.append(torch.autograd.forward_ad._current_level >= 0)
    torch.func.grad(lambda x: (seen.append(torch._C._functorch.is_gradtrackingtensor(x)), x.sum())[1])(torch.ones(2))
    assert seen == [True] * 5
    assert torch.autograd.forward_ad._current_level < 0


@pytest.mark.parametrize(("threads", "size", "expected"), [(1, 2000, True), (2, 2000, False), (2, 100, True)])
def test_numpy_is_left_alone_where_pytorch_has_more_threads(threads, size, expected):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert (
            engines.suits_numpy([torch.zeros(size, 17, dtype=torch.float64), torch.zeros((), dtype=torch.float64)])
            is expected
        )
    finally:
        torch.set_num_threads(before)


ON_TWO_CORES = """
import time
import torch
from trpl import FullGaussian
from trpl.torch import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

torch.manual_seed(0)
torch.set_num_threads(1)
b = torch.randn(128, 10, 10, dtype=torch.float64)
old = FullGaussian(b[..., 0], torch.linalg.cholesky(b @ b.mT + torch.eye(10)))
mean, chol = (x.clone().requires_grad_() for x in (old.mean + 0.1, 1.1 * old.chol))
layers = [
    KLProjection(1e-3, 1e-3), KLProjection(1e-3, 0.02), JointKLProjection(0.02), FrobeniusProjection(1e-3, 1e-3),
    WassersteinProjection(1e-3, 1e-3), WassersteinProjection(1e-3, 1e-3, form="exact"),
]
for layer in layers:
    for repeat in range(6):
        if repeat == 1:  # after what is done once
            start, own = time.process_time(), time.thread_time()
        projected = layer(FullGaussian(mean, chol), old)
        torch.autograd.grad(sum(x.sum() for x in projected), (mean, chol))
    own = time.thread_time() - own
    print((time.process_time() - start - own) / own)
"""


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
def test_eager_layers_leave_the_other_cores_alone():
    """OpenBLAS would compute decompositions and long sums on every core, and wait for those that are busy."""
    threads = {name: "2" for name in os.environ if name.endswith("_NUM_THREADS")} | {"OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", ON_TWO_CORES]
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=True)
    assert max(map(float, done.stdout.split())) < 0.1


@every_engine
def test_a_loop_leaves_out_what_is_finished(e, array):
    """Each state counts up to its own number; the last ones go on by themselves, and nobody else moves."""
    ends, sizes = array(np.array([1.0, 1.0, 1.0, 6.0])), []

    def body(count, end):
        sizes.append(count.shape[0])
        return e.xp.where(count < end, count + 1.0, count), end

    found, _ = e.loop(lambda count, end: count < end, body, (0.0 * ends, ends + 0.0), max_steps=9, independent=True)
    np.testing.assert_array_equal(found, [1.0, 1.0, 1.0, 6.0])
    if e.concrete and e.name != "JAX":
        assert sizes == [4] + [1] * 5


@pytest.mark.parametrize("dim", [3, 40])
def test_products_of_a_matrix_with_itself(dim):
    """Half of the product where that is faster, the whole where not: the same numbers."""
    x = RNG.normal(size=(2, dim, dim))
    np.testing.assert_allclose(NUMPY.gram(x), np.einsum("bki,bkj->bij", x, x), rtol=1e-11, atol=1e-12)
    y = x + mT(x)
    np.testing.assert_allclose(NUMPY.square(y), np.einsum("bik,bkj->bij", y, y), rtol=1e-11, atol=1e-12)
