"""What every projection does, in both frameworks: values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import reference
from cases import CASES, KINDS, SEPARATE, as_pair, by_name, entropy_room, policies, run
from frameworks import FRAMEWORKS, needs_torch
from generators import Pair, close_pair, gentle_pair

pytestmark = pytest.mark.usefixtures("x64")
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
every_dtype = pytest.mark.parametrize("dtype", ["float64", "float32"])
RELATIVE = {"float64": 1e-9, "float32": 1e-2}


def mixed_pair(kind: str, dtype: str = "float64") -> tuple[Pair, np.ndarray]:
    """Outside in the even rows, inside in the odd ones; and which are outside."""
    far, near = gentle_pair(kind), close_pair(kind)
    outside = np.arange(far.mean.shape[0]) % 2 == 0
    arrays = (np.where(outside.reshape(-1, *[1] * (f.ndim - 1)), f, n) for f, n in zip(far[1:], near[1:], strict=True))
    return Pair(kind, *arrays).astype(dtype), outside


@every_dtype
@every_framework
@every_kind
@every_case
def test_inside_the_region_nothing_moves(case, kind, framework, dtype):
    pair = close_pair(kind).astype(dtype)
    if case.entropy == "entropy":  # an equality always moves something; unless the entropy is already the one wanted
        pytest.skip("an entropy equality leaves no policy where it is, to the last bit")
    offset = {"offset": -0.5} if case.entropy else {}
    projected = run(case, framework, pair, dtype, **offset)
    assert_array_equal(projected.mean, pair.mean)
    assert_array_equal(projected.scale, pair.scale)


@every_dtype
@every_framework
@every_kind
@every_case
def test_outside_it_lands_on_the_bound_and_the_rest_stays(case, kind, framework, dtype):
    pair, outside = mixed_pair(kind, dtype)
    projected = run(case, framework, pair, dtype)
    exact = pair.astype(np.float64)._replace(mean=projected.mean, scale=projected.scale)
    for excess in case.excess(exact):
        assert_allclose(excess[outside], 0.0, atol=RELATIVE[dtype])
    if case.entropy is None:
        assert_array_equal(projected.mean[~outside], pair.mean[~outside])
        assert_array_equal(projected.scale[~outside], pair.scale[~outside])
    if kind == "full":
        assert_array_equal(projected.scale, np.tril(projected.scale))
    diag = projected.scale if kind == "diag" else np.diagonal(projected.scale, axis1=-2, axis2=-1)
    assert (diag > 0).all()


@every_framework
@every_kind
@every_case
def test_twice_is_once(case, kind, framework):
    pair = gentle_pair(kind)
    once = run(case, framework, pair)
    twice = run(case, framework, once)
    assert_allclose(twice.mean, once.mean, rtol=1e-10, atol=1e-12)
    assert_allclose(twice.scale, once.scale, rtol=1e-9, atol=1e-11)


@every_framework
@every_kind
@every_case
def test_rows_do_not_mix(case, kind, framework):
    pair, _ = mixed_pair(kind)
    other = gentle_pair(kind, seed=5)
    changed = pair._replace(mean=pair.mean.copy(), scale=pair.scale.copy())
    changed.mean[0], changed.scale[0] = other.mean[0], other.scale[0]
    before, after = run(case, framework, pair), run(case, framework, changed)
    assert (before.scale[0] != after.scale[0]).any()
    assert_array_equal(after.mean[1:], before.mean[1:])
    assert_allclose(after.scale[1:], before.scale[1:], rtol=1e-13, atol=1e-15)


def shapes_to_try():
    """In PyTorch every projection and shape; JAX compiles each anew, so one shape for each and all shapes for one."""
    for case in CASES:
        for shape in [(), (1,), (2, 3), (0,), (0, 3)]:
            yield pytest.param("torch", case, shape, id=f"torch-{case}-{shape}")
        yield pytest.param("jax", case, (2, 3), id=f"jax-{case}-(2, 3)")
    for shape in [(), (1,), (0,)]:
        yield pytest.param("jax", CASES[0], shape, id=f"jax-kl-{shape}")


@every_kind
@pytest.mark.parametrize(("name", "case", "shape"), list(shapes_to_try()))
def test_batch_shapes(case, kind, name, shape):
    pair = gentle_pair(kind)
    num = int(np.prod(shape))
    expected = run(case, by_name("torch"), pair)
    found = run(case, by_name(name), pair.rows(slice(0, num)).reshaped(*shape))
    assert found.mean.shape == (*shape, 3)
    assert found.scale.shape == (*shape, *pair.scale.shape[1:])
    assert_allclose(found.mean.reshape(num, 3), expected.mean[:num], rtol=1e-10, atol=1e-13)
    assert_allclose(found.scale.reshape(num, *pair.scale.shape[1:]), expected.scale[:num], rtol=1e-10, atol=1e-13)


@every_framework
@every_kind
@every_case
def test_shared_covariance_equals_expanded(case, kind, framework):
    if framework.name == "jax" and case.entropy:
        pytest.skip("covered by the joint projection without entropy; compiling takes seconds")
    pair = gentle_pair(kind)
    shared = pair._replace(scale=pair.scale[0], old_scale=pair.old_scale[0])
    batch = pair.mean.shape[:1]
    expanded = shared._replace(
        scale=np.broadcast_to(shared.scale, (*batch, *shared.scale.shape)),
        old_scale=np.broadcast_to(shared.old_scale, (*batch, *shared.old_scale.shape)),
    )
    predicted, old = policies(framework, shared)
    layer = case.make(framework)
    options = {}
    if case.entropy:
        target = reference.entropy(kind, shared.old_scale) + 0.5 * entropy_room(0.03, 3)
        options[case.entropy] = framework.array(target, "float64")
    found = as_pair(framework, framework.project(layer, predicted, old, **options), shared)
    expected = run(case, framework, expanded)
    if not case.joint:
        assert found.scale.shape == shared.scale.shape  # solved once
    assert_allclose(np.broadcast_to(found.scale, expected.scale.shape), expected.scale, rtol=1e-10, atol=1e-13)
    assert_allclose(found.mean, expected.mean, rtol=1e-10, atol=1e-13)


@every_kind
@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_one_side_shared(case, kind):
    """A shared prediction against old policies of their own, and the other way round."""
    framework, pair = by_name("torch"), gentle_pair(kind)
    for field in ("scale", "old_scale"):
        one = pair._replace(**{field: getattr(pair, field)[0]})
        many = pair._replace(**{field: np.broadcast_to(one._asdict()[field], getattr(pair, field).shape)})
        found, expected = run(case, framework, one), run(case, framework, many)
        assert_allclose(found.scale, expected.scale, rtol=1e-12, atol=1e-14)


@every_framework
@every_kind
@every_case
def test_float32_agrees_with_float64(case, kind, framework):
    pair = gentle_pair(kind).astype(np.float32)
    single, double = run(case, framework, pair, "float32"), run(case, framework, pair, "float64")
    assert_allclose(single.mean, double.mean, rtol=2e-4, atol=2e-5)
    assert_allclose(single.scale, double.scale, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("field", ["mean_bound", "cov_bound"])
@every_framework
@every_kind
@every_case
def test_bounds_per_state_and_per_call(case, kind, framework, field):
    if case.joint and field == "cov_bound":
        pytest.skip("the joint projection has one bound")
    pair = gentle_pair(kind)
    bounds = np.geomspace(1e-4, 0.1, 6)
    found = run(case, framework, pair, **{field: bounds})
    kept = found.mean if field == "mean_bound" and not case.joint else found.scale
    for excess in case.excess(found, **{field: bounds}):
        assert_allclose(excess, 0.0, atol=1e-9)
    last = run(case, framework, pair, **{field: bounds[-1]})
    moved = last.mean if field == "mean_bound" and not case.joint else last.scale
    assert_allclose(kept[-1], moved[-1], rtol=1e-10, atol=1e-13)
    assert np.abs(kept[0] - moved[0]).max() > 1e-4


@needs_torch
@every_kind
@every_case
def test_frameworks_agree(case, kind):
    for pair in (gentle_pair(kind), gentle_pair(kind, seed=11), mixed_pair(kind)[0]):
        one, *others = (run(case, framework, pair) for framework in FRAMEWORKS)
        for other in others:
            assert_allclose(one.mean, other.mean, rtol=1e-10, atol=1e-12)
            assert_allclose(one.scale, other.scale, rtol=1e-10, atol=1e-12)


@every_framework
@every_kind
@pytest.mark.parametrize("entropy", ["min_entropy", "entropy"])
def test_joint_projection_meets_its_entropy(kind, framework, entropy):
    case = next(c for c in CASES if c.entropy == entropy)
    pair, outside = mixed_pair(kind)
    target = framework.numpy(case.call_options(framework, pair)[entropy])
    found = reference.entropy(kind, run(case, framework, pair).scale)
    if entropy == "entropy":
        assert_allclose(found, target, atol=1e-12)
    else:
        assert (found >= target - 1e-12).all()
        assert np.abs(found[~outside] - target[~outside]).max() < 1e-12  # their own entropy is lower: lifted


def with_entropy():
    """PyTorch with every region; JAX, which compiles each anew, with one: all have the same code around them."""
    for framework in FRAMEWORKS:
        for case in SEPARATE if framework.name != "jax" else SEPARATE[:1]:
            yield pytest.param(framework, case, id=f"{framework.name}-{case}")


@every_kind
@pytest.mark.parametrize(("framework", "case"), list(with_entropy()))
def test_entropy_control(case, kind, framework):
    """H = β exactly as an equality, H ≥ β as an inequality; the standard deviation is scaled, never the mean."""
    pair, _ = mixed_pair(kind)
    predicted, old = policies(framework, pair)
    layer = case.make(framework)
    free = as_pair(framework, framework.project(layer, predicted, old), pair)
    present = reference.entropy(kind, free.scale)
    target = present + np.array([0.3, -0.3, 0.0, 1.0, -1.0, 0.2])
    for name in ("entropy", "min_entropy"):
        held = as_pair(framework, framework.project(layer, predicted, old, **{name: framework.array(target)}), pair)
        wanted = target if name == "entropy" else np.maximum(target, present)
        assert_allclose(reference.entropy(kind, held.scale), wanted, atol=1e-12)
        assert_array_equal(held.mean, free.mean)
        ratio = np.exp((wanted - present) / pair.dim).reshape(-1, *[1] * (free.scale.ndim - 1))
        assert_allclose(held.scale, free.scale * ratio, rtol=1e-12, atol=1e-15)
        if name == "min_entropy":
            assert_array_equal(held.scale[[1, 4]], free.scale[[1, 4]])


@every_kind
@pytest.mark.parametrize(("framework", "case"), list(with_entropy()))
def test_entropy_first(case, kind, framework):
    """First lifted, then projected: the bound has the last word; and the option has an effect."""
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    target = float(reference.entropy(kind, pair.old_scale).max()) + 0.5
    first = case.make(framework, entropy_first=True)
    found = as_pair(framework, framework.project(first, predicted, old, entropy=framework.array(target)), pair)
    lifted = reference.entropy(kind, pair.scale)
    ratio = np.exp((target - lifted) / pair.dim).reshape(-1, *[1] * (pair.scale.ndim - 1))
    expected = run(case, framework, pair._replace(scale=pair.scale * ratio))
    assert_allclose(found.scale, expected.scale, rtol=1e-10, atol=1e-13)
    assert_allclose(case.excess(found)[1], 0.0, atol=1e-9)
    last = case.make(framework)
    other = as_pair(framework, framework.project(last, predicted, old, entropy=framework.array(target)), pair)
    assert_allclose(reference.entropy(kind, other.scale), target, atol=1e-12)
