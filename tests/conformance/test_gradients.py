"""What every projection does, in both frameworks: gradients."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cases import CASES, KINDS, SEPARATE, by_name, gradients, policies, run
from frameworks import FRAMEWORKS, TYPES, needs_torch, torch
from generators import close_pair, gentle_pair

pytestmark = pytest.mark.usefixtures("x64")
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
every_dtype = pytest.mark.parametrize("dtype", ["float64", "float32"])


def lower(kind: str, scale):
    """Factors stay lower triangular while finite differences are taken."""
    if kind != "full":
        return scale
    return jax.numpy.tril(scale) if isinstance(scale, jax.Array) else scale.tril()


def inputs(case, framework, pair):
    predicted, old = policies(framework, pair)
    return (*predicted, *old), case.call_options(framework, pair)


def function(case, framework, kind, options):
    """(mean, scale, old mean, old scale, *bounds) ↦ the projected mean and scale."""
    layer, make = case.make(framework, check=False), TYPES[kind]

    def call(mean, scale, old_mean, old_scale, *bounds):
        named = dict(zip(options, bounds, strict=True))
        projected = layer(make(mean, lower(kind, scale)), make(old_mean, lower(kind, old_scale)), **named)
        return tuple(projected)

    return call


@every_kind
@every_case
def test_finite_differences_in_torch(case, kind):
    """To the prediction, to the old policy and to the bounds."""
    framework = by_name("torch")
    for seed in (0, 3):
        arrays, options = inputs(case, framework, gentle_pair(kind, 3, 3, seed=seed))
        leaves = [x.clone().requires_grad_() for x in (*arrays, *options.values())]
        assert torch.autograd.gradcheck(function(case, framework, kind, options), leaves, rtol=1e-4, atol=1e-6)


@every_kind
@every_case
def test_finite_differences_in_jax(case, kind):
    """The slope of a random linear function along a random direction of all inputs, by compiled code that is shared."""
    framework, pair, step = by_name("jax"), gentle_pair(kind), 1e-5
    arrays, options = inputs(case, framework, pair)
    leaves, rng = [np.asarray(x) for x in (*arrays, *options.values())], np.random.default_rng(0)
    ways = [rng.normal(size=x.shape) * (0.1 * x if x.ndim == 1 else 1.0) for x in leaves]  # bounds stay positive
    ways = [np.tril(x) if x.ndim == 3 else x for x in ways]
    weights = tuple(rng.normal(size=x.shape) for x in leaves[:2])
    layer, make = case.make(framework), TYPES[kind]

    def value(length):
        moved = [framework.array(x + length * way) for x, way in zip(leaves, ways, strict=True)]
        named = dict(zip(options, moved[4:], strict=True))
        projected = framework.project(layer, make(*moved[:2]), make(*moved[2:4]), **named)
        return sum((w * np.asarray(x)).sum() for w, x in zip(weights, projected, strict=True))

    found = gradients(case, framework, pair, weights=weights)
    slope = sum((found[name] * way).sum() for name, way in zip(found, ways, strict=True))
    assert slope == pytest.approx((value(step) - value(-step)) / (2 * step), rel=1e-5, abs=1e-6)


@needs_torch
@every_kind
@every_case
def test_frameworks_agree(case, kind):
    for pair in (gentle_pair(kind), gentle_pair(kind, seed=11)):
        one, *others = (gradients(case, framework, pair) for framework in FRAMEWORKS)
        for name, expected in one.items():
            scale = max(1.0, np.abs(expected).max())
            for other in others:
                assert_allclose(other[name], expected, rtol=1e-10, atol=1e-10 * scale, err_msg=name)


@every_framework
@every_kind
@every_case
def test_float32_agrees_with_float64(case, kind, framework):
    pair = gentle_pair(kind).astype(np.float32)
    single, double = (gradients(case, framework, pair, dtype) for dtype in ("float32", "float64"))
    for name, expected in double.items():
        assert_allclose(single[name], expected, rtol=2e-2, atol=5e-3 * np.abs(expected).max(), err_msg=name)


@every_framework
@every_kind
@every_case
def test_inside_the_gradient_is_the_identity(case, kind, framework):
    if case.entropy == "entropy":
        pytest.skip("an entropy equality leaves no policy where it is")
    pair = close_pair(kind)
    found = gradients(case, framework, pair, seed=4, **({"offset": -0.5} if case.entropy else {}))
    rng = np.random.default_rng(4)
    assert_array_equal(found.pop("mean"), rng.normal(size=pair.mean.shape))
    weight = rng.normal(size=pair.scale.shape)
    assert_array_equal(found.pop("scale"), np.tril(weight) if kind == "full" else weight)
    for name, gradient in found.items():
        assert_array_equal(gradient, np.zeros_like(gradient), err_msg=name)


def touchy_pairs(kind):
    """Places where a derivative easily breaks: equality, equal eigenvalues, multiples, only the mean apart."""
    pair = gentle_pair(kind)
    ones = np.ones((6, 3)) if kind == "diag" else np.broadcast_to(np.eye(3), (6, 3, 3)).copy()
    yield "equal", pair._replace(mean=pair.old_mean, scale=pair.old_scale)
    yield "both round", pair._replace(scale=2.0 * ones, old_scale=ones)
    yield "prediction round", pair._replace(scale=ones)
    yield "old round", pair._replace(old_scale=0.3 * ones)
    yield "multiple", pair._replace(scale=3.0 * pair.old_scale)
    yield "same covariance", pair._replace(scale=pair.old_scale)
    yield "same mean", pair._replace(mean=pair.old_mean)


@every_dtype
@every_framework
@every_kind
@every_case
def test_finite_everywhere(case, kind, framework, dtype):
    for place, pair in touchy_pairs(kind):
        for name, gradient in gradients(case, framework, pair, dtype).items():
            assert np.isfinite(gradient).all(), f"{place}: gradient to {name}"


@every_dtype
@every_framework
@every_kind
@every_case
def test_finite_on_the_boundary(case, kind, framework, dtype):
    """A projected policy projected again lies on the bound to rounding: both sides of it."""
    pair = gentle_pair(kind)
    once = run(case, framework, pair.astype(dtype), dtype)
    for shrink in (1.0, 1.0 - 1e-6, 1.0 + 1e-6):
        found = gradients(case, framework, once, dtype, mean_bound=0.03 * shrink, cov_bound=0.01 * shrink)
        for name, gradient in found.items():
            assert np.isfinite(gradient).all(), f"gradient to {name}"
            assert np.abs(gradient).max() < 1e4, f"gradient to {name}"


@every_kind
@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_negative_components_survive(case, kind):
    """Neither sign of the gradient is lost: that of −f is minus that of f (a port clipped one side)."""
    framework, pair = by_name("torch"), gentle_pair(kind)
    predicted, old = policies(framework, pair)
    found = []
    for sign in (1.0, -1.0):
        weights = tuple(sign * torch.ones_like(x) for x in predicted)
        found.append(framework.pullback(case.make(framework), predicted, old, {}, weights))
    for plus, minus in zip(*found, strict=True):
        assert_allclose(plus.numpy(), -minus.numpy(), rtol=1e-12, atol=1e-14)
    assert (found[0][1] < 0).any()
    assert (found[0][1] > 0).any()


@every_framework
@every_kind
@every_case
def test_shared_covariance_gradient_is_the_sum(case, kind, framework):
    """The gradient to one covariance for all is the sum over the states of that to one for each."""
    if case.entropy:
        pytest.skip("covered by the joint projection without entropy")
    if framework.name == "jax" and case.name not in ("kl", "joint"):
        pytest.skip("compiling two more programs takes seconds, and how inputs are broadcast is the same for all")
    pair = gentle_pair(kind)
    batch = pair.mean.shape[:1]
    shared = pair._replace(scale=pair.scale[0], old_scale=pair.old_scale[0])
    expanded = pair._replace(
        **{
            k: np.broadcast_to(getattr(shared, k), (*batch, *getattr(shared, k).shape)).copy()
            for k in ("scale", "old_scale")
        }
    )
    layer = case.make(framework)
    one, many = policies(framework, shared), policies(framework, expanded)
    projected = framework.project(layer, *one)
    rng = np.random.default_rng(2)
    mean_weight, scale_weight = rng.normal(size=pair.mean.shape), rng.normal(size=projected.scale.shape)
    each = scale_weight if case.joint else np.broadcast_to(scale_weight / 6.0, expanded.scale.shape)
    found = framework.pullback(layer, *one, {}, (framework.array(mean_weight), framework.array(scale_weight)))
    full = framework.pullback(layer, *many, {}, (framework.array(mean_weight), framework.array(each.copy())))
    for got, expected in zip(found, full, strict=True):
        got, expected = framework.numpy(got), framework.numpy(expected)
        expected = expected.sum(0) if expected.ndim > got.ndim else expected
        if kind == "full" and got.ndim == 2 and got.shape == (3, 3):
            got, expected = np.tril(got), np.tril(expected)
        assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
