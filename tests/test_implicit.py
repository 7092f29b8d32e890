"""Solve, then attach a derivative by hand: what every framework gets of it, and what it costs."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frameworks import FRAMEWORKS, needs_torch, torch
from trpl.engines import NUMPY
from trpl.implicit import Like, Signature, Solved, attach
from trpl.implicit.problems import align, broadcast_shapes, sum_to

pytestmark = pytest.mark.usefixtures("x64")
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS[:2], ids=lambda f: f.name)
RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class Product:
    """x·y with a derivative that autodiff would not give: 10 times x̄, 100 times ȳ; x stays where all y are 1."""

    asked: list = field(default_factory=list, compare=False)
    check: ClassVar[bool] = True
    recover: ClassVar[None] = None
    signature: ClassVar[Signature] = Signature((1, 1), (Like((0, 1), ((0, -1),)),), (Like((0, 1), ((0, -1),)),))

    def admit(self, e, x, y):
        if e.any(x < -100.0):
            raise ValueError("x is too small")

    def accept(self, e, output):
        if not e.finite(output):
            raise ArithmeticError("not finite")

    def solve(self, e, x, y, whole=False):
        x, y = align((x, 1), (y, 1))
        if not whole and e.all(y == 1.0):
            return None
        return Solved((x * y,), (x + y,))

    def pullback(self, e, saved, cotangents, needed):
        inputs, outputs, residuals = saved
        x, y = align((inputs[0], 1), (inputs[1], 1))
        np.testing.assert_equal(residuals[0].shape, outputs[0].shape)
        self.asked.append(tuple(needed))
        (g,) = cotangents
        return 10.0 * g * y if needed[0] else None, 100.0 * g * x if needed[1] else None


def product(x, y):
    return attach(Product(), (x, y))[0]


def gradient(framework, function, *arrays):
    """Gradients of the sum of a function's result."""
    if framework.name == "jax":
        found = jax.grad(lambda *x: function(*x).sum(), argnums=tuple(range(len(arrays))))(*map(jnp.asarray, arrays))
    else:
        leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
        found = torch.autograd.grad(function(*leaves).sum(), leaves)
    return [np.asarray(x) for x in found]


@every_framework
def test_it_has_the_value_and_the_derivative_it_was_given(framework):
    x, y = RNG.normal(size=(2, 4, 3))
    np.testing.assert_array_equal(framework.numpy(product(framework.array(x), framework.array(y))), x * y)
    one, other = gradient(framework, product, x, y)
    np.testing.assert_allclose(one, 10.0 * y)
    np.testing.assert_allclose(other, 100.0 * x)


@every_framework
def test_it_sums_over_what_it_broadcast(framework):
    for shape in ((1, 3), (3,)):
        x, y = RNG.normal(size=(4, 3)), RNG.normal(size=shape)
        one, other = gradient(framework, product, x, y)
        assert (one.shape, other.shape) == (x.shape, y.shape)
        np.testing.assert_allclose(other, 100.0 * x.sum(0).reshape(shape))
        np.testing.assert_allclose(one, 10.0 * np.broadcast_to(y, x.shape))


def test_it_is_told_what_is_needed():
    problem = Product()
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    assert torch.autograd.grad(attach(problem, (x, y))[0].sum(), x)[0].tolist() == [20.0] * 3
    assert problem.asked == [(True, False)]


def test_what_stays_is_the_input_itself():
    x = torch.ones(3, requires_grad=True)
    assert product(x, torch.ones(3)) is x
    array = np.ones(3)
    assert product(array, np.ones(3)) is array
    assert product(array, np.full(3, 2.0)).tolist() == [2.0] * 3


@every_framework
def test_values_are_admitted_and_accepted(framework):
    with pytest.raises(ValueError, match="too small"):
        product(framework.array([-1e3]), framework.array([2.0]))
    with pytest.raises(ArithmeticError, match="not finite"):
        product(framework.array([np.inf]), framework.array([2.0]))


@every_framework
def test_a_second_derivative_is_an_error(framework):
    """Never a wrong number: also where only the cotangent depends on the first input."""
    words = "first derivatives only"
    if framework.name == "jax":
        first = jax.grad(lambda x: (product(x, x) * x).sum())
        assert float(first(2.0 * jnp.ones(1))[0]) > 0.0
        for second in (jax.jacrev(first), jax.hessian(lambda x: product(x, x).sum())):
            with pytest.raises(TypeError, match=words):
                second(jnp.ones(1))
    else:
        x = torch.full((2,), 2.0, requires_grad=True)
        (first,) = torch.autograd.grad((product(x, x) * x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=words):
            torch.autograd.grad(first.sum(), x)
        with pytest.raises(RuntimeError, match=words):
            torch.autograd.functional.hessian(lambda x: product(x, x).sum(), 2.0 * torch.ones(2))
        with pytest.raises(RuntimeError, match=words):
            torch.func.grad(lambda x: torch.func.grad(lambda x: product(x, x).sum())(x).sum())(x.detach())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch itself, in its own decompositions
def test_forward_mode_is_refused_in_words():
    x, t = torch.full((2,), 2.0), torch.ones(2)
    words = "reverse-mode derivatives only"
    with pytest.raises(NotImplementedError, match=words), torch.autograd.forward_ad.dual_level():
        product(torch.autograd.forward_ad.make_dual(x, t), x)
    with pytest.raises(NotImplementedError, match=words):
        torch.func.jvp(lambda x: product(x, x), (x,), (t,))
    with pytest.raises(NotImplementedError, match=words):
        torch.func.jacfwd(lambda x: product(x, x))(x)
    with torch.autograd.forward_ad.dual_level():  # what stays keeps its tangent
        dual = torch.autograd.forward_ad.make_dual(x, t)
        assert product(dual, torch.ones(2)) is dual
    with pytest.raises(TypeError, match=words):
        jax.jvp(lambda x: product(x, x), (jnp.ones(2),), (jnp.ones(2),))


@every_framework
def test_a_mapped_axis_is_part_of_the_batch(framework):
    """One axis more, at any place, of some inputs or of all; values and gradients."""
    x, y = framework.array(RNG.normal(size=(3, 2))), framework.array(RNG.normal(size=(2, 5, 3)))
    vmap, grad = (torch.func.vmap, torch.func.grad) if framework.name == "torch" else (jax.vmap, jax.grad)

    def slopes(x, y):
        return grad(lambda x: product(x, y).sum())(x)

    mapped = vmap(slopes, (None, 1))(x[:, 0], y)
    np.testing.assert_allclose(framework.numpy(mapped), 10.0 * framework.numpy(y).sum(0))
    mapped = vmap(product, (1, 0))(x, y)
    np.testing.assert_allclose(framework.numpy(mapped), framework.numpy(x).T[:, None, :] * framework.numpy(y))
    mapped = vmap(lambda y: product(x[:, 0], y), 1)(y)
    assert tuple(mapped.shape) == (5, 2, 3)
    both = vmap(vmap(product, (None, 0)), (1, 0))(x, y)
    np.testing.assert_allclose(framework.numpy(both), framework.numpy(x).T[:, None, :] * framework.numpy(y))


def test_a_mapped_axis_costs_one_solve():
    """`vmap` of the gradient calls the pullback once, on all of it."""
    problem = Product()
    x = torch.as_tensor(RNG.normal(size=(7, 3)))
    torch.func.vmap(torch.func.grad(lambda x: attach(problem, (x, 2.0 * x))[0].sum()))(x)
    assert len(problem.asked) == 1


def test_jacobians_of_pytorch():
    """Cotangents with a mapped axis: `jacrev`, vectorised Jacobians, batched gradients."""
    x, y = torch.as_tensor(RNG.normal(size=(2, 2, 3)))
    expected = torch.zeros(2, 3, 2, 3, dtype=torch.float64)
    for i in range(2):
        for j in range(3):
            expected[i, j, i, j] = 10.0 * y[i, j]
    torch.testing.assert_close(torch.func.jacrev(lambda x: product(x, y))(x), expected)
    found = torch.autograd.functional.jacobian(lambda x: product(x, y), x, vectorize=True)
    torch.testing.assert_close(found, expected)
    leaf = x.clone().requires_grad_()
    cotangents = torch.as_tensor(RNG.normal(size=(5, 2, 3)))
    (found,) = torch.autograd.grad(product(leaf, y), leaf, cotangents, is_grads_batched=True)
    torch.testing.assert_close(found, 10.0 * cotangents * y)


def test_a_cotangent_that_is_passed_on_stays_the_callers():
    """What is accumulated must not be the caller's memory, though NumPy and PyTorch share theirs."""

    class Passing(Product):
        def pullback(self, e, saved, cotangents, needed):
            return cotangents[0], None

    x, given = torch.ones(4, requires_grad=True), torch.ones(4)
    torch.autograd.backward((attach(Passing(), (x, torch.full((4,), 2.0)))[0],), (given,))
    assert torch.equal(x.grad, given)
    x.grad.mul_(2.0)
    assert torch.equal(given, torch.ones(4))


def test_jax_compiles_once(caplog):
    """Eager calls and eager gradients: after the first of a shape nothing is compiled any more."""
    x = jnp.asarray(RNG.normal(size=(4, 3)))
    call = jax.grad(lambda x: product(x, 2.0 * x).sum())
    call(x), product(x, 2.0 * x)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for _ in range(3):
            call(x), product(x, 2.0 * x)
        assert not [r for r in caplog.records if "ompil" in r.getMessage()]
        call(x[:2])
        assert [r for r in caplog.records if "ompil" in r.getMessage()]  # so the log tells


def test_shapes():
    assert broadcast_shapes((4, 1), (3,), ()) == (4, 3)
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shapes((2,), (3,))
    like = Like((0, 1), ((0, -1),))
    assert like.shape([(4, 1, 7), (5,)], (1, 0)) == (4, 5, 7)
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(sum_to(NUMPY, x, (3, 1)), x.sum((0, 2)).reshape(3, 1))
    assert sum_to(NUMPY, x, (2, 3, 4)) is x
    assert sum_to(NUMPY, x[:1], (3, 4)).shape == (3, 4)


COUNTING = """
import json, sys
import numpy as np, torch
from trpl import DiagGaussian, FullGaussian, engines
from trpl.layers import layer
from trpl.projections.frobenius import Frobenius
from trpl.projections.kl.region import KL
from trpl.projections.wasserstein import Wasserstein
from trpl.torch import KLProjection

rng = np.random.default_rng(0)
diag = [DiagGaussian(rng.normal(size=(32, 3)), rng.uniform(0.3, 1.3, size=(32, 3))) for _ in range(2)]
full = [FullGaussian(p.mean, p.std[..., None] * np.eye(3)) for p in diag]
asked = layer.Bounds(0.03, 1e-3), layer.FREE

def calls(region, pair):
    run = lambda: layer.project(region, *pair, *asked, entropy_first=False, check=True)
    run(), run()
    counted = []
    def profile(frame, event, _):
        if event == "call" and "/trpl/" in frame.f_code.co_filename:
            counted.append(frame.f_code.co_qualname)
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(counted)

found = {"diag": calls(KL(), diag), "full": calls(KL(), full), "w2": calls(Wasserstein(), diag),
         "frobenius": calls(Frobenius(), diag)}

crossings = []
for name in ("to_numpy", "to_torch"):
    def counting(*given, original=getattr(engines, name), name=name, **options):
        crossings.append(name)
        return original(*given, **options)
    setattr(engines, name, counting)
import trpl.implicit.for_torch as adapter
adapter.to_numpy, adapter.to_torch = engines.to_numpy, engines.to_torch
leaves = DiagGaussian(*(torch.from_numpy(x).requires_grad_() for x in diag[0]))
projected = KLProjection(0.03, 1e-3)(leaves, DiagGaussian(*map(torch.from_numpy, diag[1])))
nodes = {x.grad_fn for x in projected}
ends = {n for node in nodes for n, _ in node.next_functions if n is not None}
(projected.mean.sum() + projected.std.sum()).backward()
found |= {"crossings": len(crossings), "nodes": len(nodes), "ends": sorted(type(n).__name__ for n in ends)}
print(json.dumps(found))
"""


@needs_torch
def test_python_calls_crossings_and_nodes_are_few():
    """Counted in a process of its own, without the tests' checks of types."""
    done = subprocess.run([sys.executable, "-c", COUNTING], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["diag"] <= 130
    assert found["full"] <= 260
    assert found["w2"] <= 130
    assert found["frobenius"] <= 130
    assert found["crossings"] <= 4
    assert found["nodes"] == 1
    assert set(found["ends"]) == {"AccumulateGrad"}
