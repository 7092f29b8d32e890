"""What JAX users expect of the layers: pytrees, jit, vmap, grad, and float32 as it comes out of the box."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from cases import CASES, KINDS
from frameworks import QUICK, Jax, policies
from generators import gentle_pair
from trpl import DiagGaussian, FullGaussian
from trpl.jax import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

framework = Jax()
LAYERS = [
    KLProjection(0.03, 0.01),
    WassersteinProjection(0.03, 0.01, form="exact"),
    FrobeniusProjection(0.03, 0.01, whitened=True),
    JointKLProjection(0.03, min_entropy=-1.0),
]
every_layer = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_layer
def test_layers_are_pytrees_with_bounds_as_leaves(layer):
    leaves, structure = jax.tree.flatten(layer)
    assert sorted(leaves) == sorted([0.03, -1.0] if isinstance(layer, JointKLProjection) else [0.03, 0.01])
    assert jax.tree.unflatten(structure, leaves) == layer
    assert hash(structure) == hash(jax.tree.structure(layer))
    doubled = jax.tree.map(lambda x: 2 * x, layer)
    assert type(doubled) is type(layer)
    with pytest.raises(AttributeError):
        layer.check = False  # frozen


def test_options_are_static():
    assert jax.tree.structure(WassersteinProjection(1.0, 1.0)) != jax.tree.structure(
        WassersteinProjection(1.0, 1.0, form="exact")
    )
    assert jax.tree.structure(KLProjection(1.0, 1.0)) != jax.tree.structure(KLProjection(1.0, 1.0, entropy_first=True))


def test_gaussians_are_pytrees():
    for value in (DiagGaussian(jnp.zeros(2), jnp.ones(2)), FullGaussian(jnp.zeros(2), jnp.eye(2))):
        assert type(jax.tree.map(lambda x: x + 1, value)) is type(value)
        assert len(jax.tree.leaves(value)) == 2


@every_layer
@every_kind
def test_vmap_is_the_batch(layer, kind, x64):
    predicted, old = policies(framework, gentle_pair(kind))
    layer = jax.tree.map(jnp.asarray, layer)
    if isinstance(layer, JointKLProjection):
        layer = JointKLProjection(layer.bound)  # the target above is for two dimensions of other pairs
    expected = framework.project(layer, predicted, old)
    found = jax.jit(jax.vmap(layer), compiler_options=QUICK)(predicted, old)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=1e-11, atol=1e-13)


@every_kind
def test_gradient_to_a_bound_held_by_the_layer(kind, x64):
    """Bounds are leaves: `grad` with respect to the layer gives the gradient to them."""
    predicted, old = policies(framework, gentle_pair(kind))

    @jax.jit
    def total(layer):
        return layer(predicted, old).scale.sum()

    layer = KLProjection(jnp.asarray(0.03), jnp.asarray(0.01))
    found = jax.grad(total)(layer).cov_bound
    ahead, behind = (total(KLProjection(layer.mean_bound, jnp.asarray(0.01 + step))) for step in (1e-6, -1e-6))
    assert_allclose(found, (ahead - behind) / 2e-6, rtol=1e-6)


@every_kind
def test_eager_equals_compiled(kind, x64):
    predicted, old = policies(framework, gentle_pair(kind))
    layer = WassersteinProjection(0.03, 0.01)
    for one, other in zip(layer(predicted, old), framework.project(layer, predicted, old), strict=True):
        assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@every_layer
def test_weakly_typed_arrays_from_outside_of_x64_stay_float32(layer, request):
    """`jnp.full` with a Python number is weakly typed: beside another one it has the default dtype, here float64."""
    old = DiagGaussian(jnp.zeros((4, 3)), jnp.full((4, 3), 1.0))
    predicted = DiagGaussian(jnp.full((4, 3), 1.0), jnp.full((4, 3), 0.5))
    layer = jax.tree.map(jnp.asarray, layer)
    assert all(x.weak_type for x in (*predicted, *jax.tree.leaves(layer)))
    pullback = jax.jit(lambda p, layer: jax.vjp(lambda p, layer: layer(p, old), p, layer)[1](p))
    expected = *layer(predicted, old), *jax.tree.leaves(pullback(predicted, layer))
    request.getfixturevalue("x64")
    found = *layer(predicted, old), *jax.tree.leaves(pullback(predicted, layer))
    assert {str(x.dtype) for x in found} == {"float32"}
    for x, y in zip(found, expected, strict=True):
        assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@every_kind
def test_without_x64_everything_is_float32(kind):
    assert not jax.config.jax_enable_x64
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair, "float32")
    for layer in (KLProjection(0.03, 0.01), JointKLProjection(0.03)):
        projected = framework.project(layer, predicted, old)
        assert all(x.dtype == jnp.float32 for x in projected)
        assert all(bool(jnp.isfinite(x).all()) for x in projected)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("kl", "w2", "frobenius", "joint")], ids=str)
def test_second_derivatives_are_refused_or_right(case, mode, x64):
    predicted, old = policies(framework, gentle_pair("full", 1, 2))
    layer = case.make(framework, check=False)

    def first(scale):
        return jax.grad(lambda s: layer(predicted.with_scale(jnp.tril(s)), old).scale.sum())(scale)

    scale = predicted.scale
    direction = jnp.tril(jnp.cos(jnp.arange(scale.size, dtype=scale.dtype)).reshape(scale.shape))
    quick = jax.jit(first, compiler_options=QUICK)
    try:
        if mode == "reverse":
            found = jax.jit(jax.grad(lambda s: (first(s) * direction).sum()), compiler_options=QUICK)(scale)
        else:
            found = jax.jit(lambda s: jax.jvp(first, (s,), (direction,))[1], compiler_options=QUICK)(scale)
    except (TypeError, ValueError) as error:
        if "derivative" in str(error) or "differentiation" in str(error):
            return
        raise
    expected = (quick(scale + 1e-6 * direction) - quick(scale - 1e-6 * direction)) / 2e-6
    assert_allclose(np.tril(found), np.tril(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_gpu(cuda):
    devices = [d for d in jax.devices() if d.platform == "gpu"]
    if not devices:
        pytest.skip("JAX sees no GPU here")
    predicted, old = policies(framework, gentle_pair("full"), "float32")
    expected = framework.project(KLProjection(0.03, 0.01), predicted, old)
    moved = jax.device_put((predicted, old), devices[0])
    assert_allclose(framework.project(KLProjection(0.03, 0.01), *moved).chol, expected.chol, rtol=1e-4)
