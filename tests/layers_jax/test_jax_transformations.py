"""JAX's transformations in any nesting give what one compiled call on the batch gives, and cost no more."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_allclose

from cases import CASES, KINDS
from frameworks import QUICK, Jax, Torch, policies, torch
from generators import close_pair, gentle_pair
from trpl.jax import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

pytestmark = pytest.mark.usefixtures("x64", "compiled_in_haste")
framework = Jax()
every_kind = pytest.mark.parametrize("kind", KINDS)


def one(layer, predicted, old, options):
    """A function of single states whose sum over a batch is a function of the batch."""
    return sum(jnp.sin(x).sum() for x in layer(predicted, old, **options))


TRANSFORMATIONS = {
    "eager": lambda f: jax.grad(f, argnums=(0, 1, 2)),
    "vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f, argnums=(0, 1, 2))), compiler_options=QUICK),
    "grad of vmap": lambda f: jax.jit(
        jax.grad(lambda *x: jax.vmap(f)(*x).sum(), argnums=(0, 1, 2)), compiler_options=QUICK
    ),
    "grad of scan": lambda f: jax.jit(
        jax.grad(lambda *x: lax.scan(lambda c, y: (c + f(*y), None), 0.0, x)[0], argnums=(0, 1, 2)),
        compiler_options=QUICK,
    ),
}


NESTINGS = [
    *((name, kind, "eager") for name in ("kl", "w2", "frobenius", "joint-min-entropy") for kind in KINDS),
    *(("kl", kind, how) for kind in KINDS for how in ("vmap of grad", "grad of vmap")),
    ("kl", "full", "grad of scan"),
    ("joint-min-entropy", "diag", "vmap of grad"),
    ("w2", "full", "grad of vmap"),
    ("frobenius", "diag", "grad of scan"),
]


@pytest.mark.parametrize(("name", "kind", "how"), NESTINGS)
def test_gradients_in_any_nesting(name, kind, how):
    """Eager, mapped inside and outside, scanned: to prediction, old policy and bounds, as PyTorch has them."""
    case, pair = next(c for c in CASES if c.name == name), gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    layer = case.make(framework)
    found = TRANSFORMATIONS[how](lambda *x: one(layer, *x))(predicted, old, options)

    torch_framework = Torch()
    leaves = [x.requires_grad_() for p in policies(torch_framework, pair) for x in p]
    bounds = {k: v.requires_grad_() for k, v in case.call_options(torch_framework, pair).items()}
    make = type(predicted)
    projected = case.make(torch_framework)(make(*leaves[:2]), make(*leaves[2:]), **bounds)
    expected = torch.autograd.grad(sum(x.sin().sum() for x in projected), [*leaves, *bounds.values()])
    named = (*found[0], *found[1], *(found[2][k] for k in bounds))
    for x, y in zip(named, expected, strict=True):
        assert_allclose(x, y, rtol=1e-10, atol=1e-12)


@every_kind
def test_an_axis_of_some_inputs(kind):
    """One old policy for all, mapped predictions; and cotangents alone (`jacrev`)."""
    predicted, old = policies(framework, gentle_pair(kind))
    first = jax.tree.map(lambda x: x[0], old)
    layer = KLProjection(0.03, 1e-3)
    found = jax.jit(jax.vmap(layer, (0, None)), compiler_options=QUICK)(predicted, first)
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x[0], x.shape), old)
    for x, y in zip(found, framework.project(layer, predicted, repeated), strict=True):
        assert_allclose(x, y, rtol=1e-12, atol=1e-14)
    rows = jax.tree.map(lambda x: x[:2], (predicted, old))

    def scales(scale):
        return layer(rows[0].with_scale(scale), rows[1]).scale

    jacobian = jax.jit(jax.jacrev(scales), compiler_options=QUICK)(rows[0].scale)
    for i in np.ndindex(*scales(rows[0].scale).shape):
        gradient = jax.grad(lambda s, i=i: scales(s)[i])(rows[0].scale)
        assert_allclose(jacobian[i], gradient, rtol=1e-10, atol=1e-12)


@every_kind
@pytest.mark.parametrize("layer", [KLProjection(0.03, 1e-3), WassersteinProjection(0.03, 1e-3)])
def test_eager_calls_compile_once(kind, layer, caplog):
    """Neither a call nor a gradient compiles anything the second time, whatever the values of the bound."""
    predicted, old = policies(framework, gentle_pair(kind))
    gradient = jax.grad(lambda p, layer: one(layer, p, old, {}))
    other = jax.tree.map(lambda x: 1.1 * x, layer)
    layer(predicted, old), gradient(predicted, layer)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for _ in range(2):
            layer(predicted, old), gradient(predicted, layer), gradient(predicted, other)
    assert not [r for r in caplog.records if "ompil" in r.getMessage()]


def test_forward_mode_is_refused():
    predicted, old = policies(framework, gentle_pair("diag"))
    for layer in (KLProjection(0.03, 1e-3), FrobeniusProjection(0.03, 0.01)):
        for call in (
            lambda layer=layer: jax.jvp(lambda p: layer(p, old), (predicted,), (predicted,)),
            lambda layer=layer: jax.jacfwd(lambda s: layer(predicted.with_scale(s), old).scale)(predicted.scale),
        ):
            with pytest.raises(TypeError, match="reverse-mode derivatives only"):
                call()


def test_layers_with_array_bounds_compare_and_hash_by_content():
    one, same = (KLProjection(jnp.array([0.1, 0.2]), 0.01) for _ in range(2))
    other = KLProjection(jnp.array([0.1, 0.3]), 0.01)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != WassersteinProjection(jnp.array([0.1, 0.2]), 0.01)
    assert one != KLProjection(jnp.array([0.1, 0.2]), 0.01, check=False)
    assert KLProjection(0.1, np.array(0.2)) == KLProjection(0.1, jnp.array(0.2))
    assert len({one, same, other}) == 2
    assert len({JointKLProjection((0.1, jnp.array(0.2))), JointKLProjection((0.1, jnp.array(0.2)))}) == 1
    assert jax.jit(lambda layer, x: x + layer.cov_bound, static_argnums=0)(one, 1.0) == pytest.approx(1.01)
    jax.jit(lambda layer: hash(layer) and layer.mean_bound)(one)  # a tracer is itself alone


def test_bounds_are_checked_when_a_layer_is_made():
    for wrong in (0.0, -1.0, np.inf, np.nan):
        for make in (KLProjection, WassersteinProjection, FrobeniusProjection):
            with pytest.raises(ValueError, match="cov_bound must be positive and finite"):
                make(0.1, wrong)
        with pytest.raises(ValueError, match="bound must be positive and finite"):
            JointKLProjection(wrong)
    with pytest.raises(ValueError, match="min_entropy must be finite"):
        JointKLProjection(0.1, min_entropy=np.nan)
    arrays = [(jnp.array([0.1, -0.5]), "positive and finite; got -0.5"), (jnp.array(1), "float32 or float64, not int")]
    for wrong, words in [*WRONG_BOUNDS, *arrays]:
        with pytest.raises(ValueError, match=f"mean_bound must be {words}"):
            KLProjection(wrong, 0.1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"bound\[1\] must be positive and finite; got -2"):
        JointKLProjection((0.1, jnp.array(-2.0)))
    KLProjection(jnp.array(-1.0), 0.1, check=False)  # no value is looked at
    jax.jit(lambda bound: KLProjection(bound, 0.1).mean_bound)(0.1)  # nor where there is none


WRONG_BOUNDS = [
    (np.array(np.nan), "positive and finite; got nan"),
    ("0.1", "a number or an array, not str"),
    (None, "a number or an array, not NoneType"),
    (True, "a number or an array, not bool"),
    ([0.1, 0.2], "a number or an array, not list"),
]


def test_anything_may_stand_in_the_place_of_a_layers_leaves():
    """JAX rebuilds pytrees with axes, None, gradients: these are no bounds, and none of them is checked."""
    layers = KLProjection(jnp.array([0.1, 0.2]), jnp.array([0.01, 0.02]))
    axes = jax.tree.map(lambda _: 0, layers)
    predicted, old = policies(framework, gentle_pair("diag"))
    both = jax.vmap(lambda layer: layer(predicted, old).mean, in_axes=(axes,))(layers)
    for i in range(2):
        alone = KLProjection(layers.mean_bound[i], layers.cov_bound[i])(predicted, old)
        assert_allclose(both[i], alone.mean, rtol=1e-12)
    assert jax.tree.map(lambda bound: -bound, KLProjection(0.1, 0.2)).cov_bound == -0.2
    assert jax.tree_util.tree_leaves_with_path(layers)[0][0] == (jax.tree_util.GetAttrKey("mean_bound"),)


@every_kind
def test_nothing_outside_is_the_identity_in_every_nesting(kind):
    predicted, old = policies(framework, close_pair(kind))
    layer = KLProjection(0.03, 1e-3)
    for call in (layer, jax.jit(layer), jax.vmap(layer)):
        for x, y in zip(call(predicted, old), predicted, strict=True):
            np.testing.assert_array_equal(x, y)


SHARDED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
import sys; sys.path.insert(0, {tests!r})
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from jax.sharding import AxisType, PartitionSpec as P
from cases import CASES
from frameworks import Jax, policies
from generators import gentle_pair

mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))
for case in CASES:
    for kind in ("diag", "full"):
        if (case.name, kind) not in {chosen!r}:
            continue
        pair = gentle_pair(kind)
        predicted, old = policies(Jax(), pair)
        layer, bound = case.make(Jax()), jnp.asarray(0.02)
        name = "bound" if case.joint else "cov_bound"

        def total(p, q, b):
            return sum(jnp.sin(x).sum() for x in layer(p, q, **{{name: b}}))

        def sharded(p, q, b):
            mapped = jax.shard_map(
                lambda *x: jax.lax.psum(total(*x), "devices"),
                mesh=mesh, in_specs=(P("devices"), P("devices"), P()), out_specs=P(),
            )
            return mapped(p, q, b)

        found, expected = (jax.jit(jax.grad(f, argnums=(0, 1, 2)))(predicted, old, bound) for f in (sharded, total))
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)
"""


@pytest.mark.slow
def test_shard_map_over_the_batch():
    """On two devices, with a bound that all share: its gradient is the sum over both."""
    chosen = {("kl", "diag"), ("frobenius", "full")}
    code = SHARDED.format(tests=str(Path(__file__).parents[1]), chosen=chosen)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
