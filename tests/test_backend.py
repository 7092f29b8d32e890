"""What each framework lacks: rules with derivatives by hand, branches and loops, and when values can be looked at."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from frameworks import FRAMEWORKS
from trpl import backend, rules
from trpl.backend import cholesky, has_values, namespace, reading, solve_triangular, stop_gradient
from trpl.rules import Rule

pytestmark = pytest.mark.usefixtures("x64")
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS[:2], ids=lambda f: f.name)
RNG = np.random.default_rng(5)


def make_rule():
    """x·y with a derivative that autodiff would not give: 10 times x̄, 100 times ȳ; kept out of the list of all."""
    asked = []

    def backward(inputs, outputs, cotangent, needed):
        x, y = inputs
        asked.append((tuple(needed), len(outputs)))
        return 10.0 * cotangent * y if needed[0] else None, 100.0 * cotangent * x if needed[1] else None

    rule = Rule(lambda x, y: (x * y, x + y), backward)
    Rule.every.remove(rule)
    return rule, asked


def gradient(framework, function, *arrays):
    """Gradients of the sum of a function's result."""
    if framework.name == "jax":
        found = jax.grad(lambda *x: function(*x).sum(), argnums=tuple(range(len(arrays))))(*map(jnp.asarray, arrays))
    else:
        leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
        found = torch.autograd.grad(function(*leaves).sum(), leaves)
    return [np.asarray(x) for x in found]


@every_framework
def test_a_rule_has_the_value_and_the_derivative_it_was_given(framework):
    rule, _ = make_rule()
    x, y = RNG.normal(size=(2, 4, 3))
    np.testing.assert_array_equal(framework.numpy(rule(framework.array(x), framework.array(y))), x * y)
    one, other = gradient(framework, rule, x, y)
    np.testing.assert_allclose(one, 10.0 * y)
    np.testing.assert_allclose(other, 100.0 * x)


@every_framework
def test_a_rule_sums_over_what_it_broadcast(framework):
    rule, _ = make_rule()
    x, y = RNG.normal(size=(4, 3)), RNG.normal(size=(1, 3))
    one, other = gradient(framework, rule, x, y)
    assert (one.shape, other.shape) == (x.shape, y.shape)
    np.testing.assert_allclose(other, 100.0 * x.sum(0, keepdims=True))
    np.testing.assert_allclose(one, 10.0 * np.broadcast_to(y, x.shape))


def test_a_rule_is_told_what_is_needed():
    rule, asked = make_rule()
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    assert torch.autograd.grad(rule(x, y).sum(), x)[0].tolist() == [10.0] * 3
    assert asked == [((True, False), 2)]


def test_a_rule_of_numpy_arrays_is_its_value():
    rule, _ = make_rule()
    assert rule(np.array([2.0]), np.array([3.0])).tolist() == [6.0]


@every_framework
def test_a_second_derivative_is_an_error(framework):
    """Never a wrong number: also where only the cotangent depends on the first input."""
    rule, _ = make_rule()
    words = "first derivatives only"
    if framework.name == "jax":
        first = jax.grad(lambda x: rule(x, x) * x)
        assert first(2.0 * jnp.ones(())) > 0.0
        with pytest.raises(TypeError, match=words):
            jax.grad(first)(jnp.ones(()))
        with pytest.raises(TypeError, match=words):
            jax.hessian(lambda x: rule(x, x).sum())(jnp.ones(2))
    else:
        x = torch.ones(2, requires_grad=True)
        (first,) = torch.autograd.grad((rule(x, x) * x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=words):
            torch.autograd.grad(first.sum(), x)
        with pytest.raises(RuntimeError, match=words):
            torch.autograd.functional.hessian(lambda x: rule(x, x).sum(), torch.ones(2))


@every_framework
def test_a_rule_under_vmap_is_a_batch(framework):
    """One axis more, at any place, of some inputs or of all; values and gradients."""
    rule, _ = make_rule()
    x, y = framework.array(RNG.normal(size=(3, 2))), framework.array(RNG.normal(size=(2, 5, 3)))
    vmap, grad = (torch.func.vmap, torch.func.grad) if framework.name == "torch" else (jax.vmap, jax.grad)

    def slopes(x, y):
        return grad(lambda x: rule(x[None], y).sum())(x)

    mapped = vmap(slopes, (None, 1))(x[:, 0], y)
    np.testing.assert_allclose(framework.numpy(mapped), 10.0 * framework.numpy(y).sum(0))
    mapped = vmap(lambda x, y: rule(x[None], y), (1, 0))(x, y)
    np.testing.assert_allclose(framework.numpy(mapped), framework.numpy(x).T[:, None, :] * framework.numpy(y))
    mapped = vmap(lambda y: rule(x[:, 0][None], y), 1)(y)
    assert tuple(mapped.shape) == (5, 2, 3)


def test_first_order_is_the_identity_once():
    x = torch.tensor([2.0, -1.0], requires_grad=True)
    assert rules.first_order(x).tolist() == x.tolist()
    (first,) = torch.autograd.grad(rules.first_order(x * x).sum(), x, create_graph=True)
    assert first.tolist() == [4.0, -2.0]
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), x)


def test_prepare_torch_builds_every_rule():
    """What cannot be defined while compiling is there beforehand, and built once more it is still right."""
    assert len(Rule.every) >= 4
    assert all(rule.for_torch is not None for rule in Rule.every)
    rules.prepare_torch()
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rules.first_order, x)


FIRST_CALL = """
import warnings
import torch
from trpl import DiagGaussian, FullGaussian
from trpl.torch import JointKLProjection, KLProjection

warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
torch.manual_seed(0)
mean, std = torch.randn(4, 2, dtype=torch.float64), 0.5 + torch.rand(4, 2, dtype=torch.float64)
scale = std if {kind} is DiagGaussian else torch.diag_embed(std)
old, new = {kind}(mean, scale), {kind}(mean + 1.0, (2.0 * scale).requires_grad_())
layer = {layer}
with torch.set_grad_enabled({grad}):
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(new, old)
    for one, other in zip(found, layer(new, old), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
"""


@pytest.mark.parametrize(
    ("kind", "layer", "grad"),
    [
        ("DiagGaussian", "KLProjection(0.03, 0.01)", False),
        ("FullGaussian", "KLProjection(0.03, 0.01)", True),
        ("FullGaussian", "JointKLProjection(0.03)", True),
    ],
)
def test_compiling_is_the_first_thing_a_process_does(kind, layer, grad):
    """One graph without an eager call before it: nothing is defined or imported on the way."""
    code = FIRST_CALL.format(kind=kind, layer=layer, grad=grad)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_namespaces():
    """Numbers are ignored; arrays of no framework are refused."""
    for number, array in ((1.0, torch.ones(2)), (2, jnp.ones(2)), (0.5, np.ones(2))):
        assert type(namespace(number, array).sum(array, axis=-1, keepdims=True)) is type(array)
    with pytest.raises(TypeError):
        namespace("no array")


def test_what_is_an_array():
    for x in (np.ones(1), torch.ones(1), jnp.ones(1)):
        assert backend.is_array(x)
    assert not backend.is_array([1.0])
    assert [backend.is_floating(np.zeros(1, t)) for t in ("float32", "float64", "float16", "int64")] == [1, 1, 0, 0]
    assert [backend.is_floating(torch.zeros(1, dtype=t)) for t in (torch.float32, torch.bfloat16)] == [True, False]


def test_has_values_in_torch():
    """Values are there eagerly and inside `grad`; not inside `vmap` or `compile`, however they are nested."""
    x, seen = torch.ones(3), []

    def look(x):
        seen.append(has_values(np.ones(1), x))
        return (x * x).sum()

    look(x)
    torch.func.grad(look)(x)
    torch.func.grad(lambda x: torch.func.grad(look)(x).sum())(x)
    torch.func.vmap(look)(x)
    torch.func.vmap(torch.func.grad(look))(x)
    assert seen == [True, True, True, False, False]
    compiled = torch.compile(lambda x: x + 1.0 if has_values(x) else x - 1.0, backend="eager", fullgraph=True)
    assert compiled(x).tolist() == [0.0] * 3


def test_has_values_and_reading_in_jax():
    """A constant has values while something else is traced, if one reads it."""
    constant, seen = jnp.arange(3.0), []

    @jax.jit
    def look(x):
        seen.append(has_values(x))
        seen.append(has_values(constant))
        with reading(constant):
            seen.append(has_values(constant + 1.0))
            seen.append(float((constant + 1.0).sum()))
        return x

    look(jnp.ones(2))
    assert seen == [False, True, True, 6.0]
    with reading(np.ones(1)), reading(torch.ones(1)):
        assert has_values(jnp.ones(1))


@every_framework
def test_stop_gradient(framework):
    (found,) = gradient(framework, lambda x: x * stop_gradient(x), np.array([3.0]))
    assert found.tolist() == [3.0]


def test_stop_gradient_of_numpy_is_itself():
    x = np.ones(2)
    assert stop_gradient(x) is x


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor, jnp.asarray], ids=["numpy", "torch", "jax"])
def test_solve_triangular(array):
    """Both sides, and batches that broadcast."""
    a, b = np.tril(RNG.normal(size=(4, 3, 3))) + 2.0 * np.eye(3), RNG.normal(size=(4, 3, 2))
    for transpose in (False, True):
        expected = np.linalg.solve(a.mT if transpose else a, b)
        np.testing.assert_allclose(solve_triangular(array(a), array(b), transpose=transpose), expected, rtol=1e-10)
        expected = np.linalg.solve(a[0].T if transpose else a[0], b)
        np.testing.assert_allclose(solve_triangular(array(a[0]), array(b), transpose=transpose), expected, rtol=1e-10)


@every_framework
def test_cholesky_of_what_has_none_is_not_finite(framework):
    """Only that matrix, and no exception; the others as ever."""
    a = np.stack([2.0 * np.eye(2), -np.eye(2), [[4.0, 2.0], [2.0, 3.0]]])
    found = framework.numpy(cholesky(framework.array(a)))
    np.testing.assert_allclose(found[[0, 2]], np.linalg.cholesky(a[[0, 2]]), rtol=1e-14)
    assert np.isnan(found[1]).any()


def test_cholesky_of_numpy():
    np.testing.assert_allclose(cholesky(np.array([[4.0]])), [[2.0]])


@every_framework
def test_when_any(framework):
    for mask, expected in (([False, True], 5.0), ([False, False], -2.0), ([], -2.0)):
        found = backend.when_any(
            framework.array(mask, bool), lambda x: x + 3.0, lambda x: -x, framework.array(2.0, "float64")
        )
        assert float(found) == expected


def test_when_any_does_no_work_that_is_not_due():
    def work(x):
        raise AssertionError("not due")

    assert backend.when_any(torch.tensor([False]), work, lambda x: x, 1.0) == 1.0
    compiled = torch.compile(
        lambda mask, x: backend.when_any(mask, lambda x: x + 1.0, lambda x: x, x), backend="eager", fullgraph=True
    )
    assert compiled(torch.tensor([False]), torch.ones(1)).tolist() == [2.0]  # no cheap branch there: always works


def halve(x, count):
    """Halves what is above 1; keeps the rest."""
    above = x > 1.0
    where = torch.where if isinstance(x, torch.Tensor) else jnp.where
    return where(above, 0.5 * x, x), count + where(above, 1, 0)


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@every_framework
def test_while_loop(framework, compiled, unroll):
    """As long as any entry is unfinished, but not longer than it may."""

    def loop(x, count, max_steps):
        return backend.while_loop(lambda x, count: x > 1.0, halve, (x, count), max_steps=max_steps, unroll=unroll)

    x, count = framework.array([0.5, 3.0, 8.0]), framework.array([0, 0, 0])
    for max_steps, expected in ((10, [0, 2, 3]), (2, [0, 2, 2]), (0, [0, 0, 0])):
        call = loop
        if compiled and framework.name == "torch":
            torch._dynamo.reset()
            call = torch.compile(loop, backend="eager", fullgraph=True)
        elif compiled:
            call = jax.jit(loop, static_argnums=2)
        found, steps = call(x, count, max_steps)
        assert framework.numpy(steps).tolist() == expected
        np.testing.assert_array_equal(framework.numpy(found), [0.5, 3.0, 8.0] / 2.0 ** np.array(expected))


def test_an_eager_loop_stops_when_all_is_done():
    calls = []

    def body(x):
        calls.append(1)
        return (0.5 * x,)

    (found,) = backend.while_loop(lambda x: x > 1.0, body, (np.array([4.0]),), max_steps=50)
    assert (found.tolist(), len(calls)) == ([1.0], 2)


def test_any_true():
    assert backend.any_true(torch.tensor([False, True]))
    assert not backend.any_true(np.array([False]))
    assert jax.jit(lambda mask: jnp.asarray(backend.any_true(mask)))(jnp.array([False]))  # not known yet: True


def test_a_cotangent_that_is_passed_on_stays_the_callers():
    """What is accumulated must not be the caller's memory, though NumPy and PyTorch share theirs."""
    x, given = torch.ones(4, requires_grad=True), torch.ones(4)
    torch.autograd.backward((rules.first_order(x),), (given,))
    assert torch.equal(x.grad, given)
    x.grad.mul_(2.0)
    assert torch.equal(given, torch.ones(4))
