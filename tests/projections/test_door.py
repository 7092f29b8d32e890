"""Bad input gets an error in the caller's words; never a silent NaN."""

import jax
import numpy as np
import pytest

from cases import CASES, KINDS, SEPARATE, policies
from frameworks import FRAMEWORKS, Jax, Torch, torch
from generators import gentle_pair
from trpl import ConvergenceError, DiagGaussian, FullGaussian, entropy

pytestmark = pytest.mark.usefixtures("x64")
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
JOINT, KL = next(c for c in CASES if c.joint), CASES[0]


def diag(framework, mean, std, dtype="float64"):
    return DiagGaussian(framework.array(mean, dtype), framework.array(std, dtype))


def full(framework, mean, chol, dtype="float64"):
    return FullGaussian(framework.array(mean, dtype), framework.array(chol, dtype))


def bad_pairs(framework):
    """(what, predicted, old, words of the message)."""
    good = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]])
    matrix = full(framework, [[0.0, 1.0]], [np.eye(2)])
    a = framework.array
    yield (
        "dimensions differ",
        diag(framework, [[0.0] * 3], [[1.0] * 3]),
        good,
        "old policy has 2 action dimensions, predicted has 3",
    )
    yield "structures differ", good, matrix, "same structure"
    yield "std of another size", diag(framework, [[0.0, 1.0]], [[1.0, 1.0, 1.0]]), good, r"predicted\.std must end in"
    yield "chol not square", good._replace(), full(framework, [[0.0, 1.0]], [[[1.0, 0.0]]]), r"old\.chol must end in"
    yield "chol without matrix", full(framework, [0.0, 1.0], [1.0, 2.0]), matrix, r"predicted\.chol"
    yield (
        "batches differ",
        diag(framework, np.zeros((3, 2)), np.ones((3, 2))),
        diag(framework, np.zeros((4, 2)), np.ones((4, 2))),
        "batch shapes",
    )
    yield (
        "std of another batch",
        diag(framework, np.zeros((3, 2)), np.ones((2, 2))),
        good,
        r"predicted\.std must have the mean's batch shape",
    )
    yield (
        "no dimensions",
        diag(framework, np.zeros((3, 0)), np.zeros((3, 0))),
        good,
        "predicted has no action dimensions",
    )
    yield (
        "integers",
        DiagGaussian(a([[0, 1]], "int32"), a([[1, 2]], "int32")),
        good,
        r"predicted\.mean must be float32 or float64, not int32",
    )
    yield "half precision", diag(framework, [[0.0, 1.0]], [[1.0, 2.0]], "float16"), good, "not float16"
    yield (
        "mixed in one",
        DiagGaussian(good.mean, a([[1.0, 2.0]], "float32")),
        good,
        r"predicted\.mean is float64 and predicted\.std float32",
    )
    yield (
        "mixed in the pair",
        good,
        diag(framework, [[0.0, 1.0]], [[1.0, 2.0]], "float32"),
        "predicted is float64 and old float32",
    )
    yield "not a Gaussian", (good.mean, good.std), good, "predicted must be"
    yield "not arrays", DiagGaussian([[0.0, 1.0]], [[1.0, 2.0]]), good, r"predicted\.mean must be an array, not list"


def bad_values(framework):
    good = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]])
    matrix = full(framework, [[0.0, 1.0]], [np.eye(2)])
    for value in (np.nan, np.inf, -np.inf):
        yield (
            f"mean {value}",
            diag(framework, [[0.0, value]], [[1.0, 2.0]]),
            good,
            r"predicted\.mean has 1 entries that are NaN or infinite",
        )
        yield f"old mean {value}", good, diag(framework, [[value, value]], [[1.0, 2.0]]), r"old\.mean has 2 entries"
        yield (
            f"chol {value}",
            full(framework, [[0.0, 1.0]], [[[1.0, 0.0], [value, 1.0]]]),
            matrix,
            r"predicted\.chol has 1 entries",
        )
    yield "std NaN", diag(framework, [[0.0, 1.0]], [[np.nan, 2.0]]), good, r"predicted\.std"
    yield "opposite infinities", diag(framework, [[np.inf, -np.inf]], [[1.0, 2.0]]), good, r"predicted\.mean has 2"
    yield (
        "std 0",
        diag(framework, [[0.0, 1.0]], [[1.0, 0.0]]),
        good,
        r"predicted\.std must be positive; the smallest entry is 0",
    )
    yield (
        "old std negative",
        good,
        diag(framework, [[0.0, 1.0]], [[1.0, -2.0]]),
        r"old\.std must be positive; the smallest entry is -2",
    )
    yield (
        "chol singular",
        full(framework, [[0.0, 1.0]], [[[1.0, 0.0], [1.0, 0.0]]]),
        matrix,
        r"predicted\.chol is singular",
    )
    yield (
        "old chol negative",
        matrix,
        full(framework, [[0.0, 1.0]], [[[1.0, 0.0], [1.0, -1.0]]]),
        r"old\.chol is singular",
    )
    yield (
        "chol not lower",
        full(framework, [[0.0, 1.0]], [[[1.0, 0.5], [0.5, 1.0]]]),
        matrix,
        r"predicted\.chol must be lower triangular",
    )


@every_framework
@pytest.mark.parametrize("case", [KL, JOINT], ids=str)
def test_bad_structure(case, framework):
    for check in (True, False):  # structure costs nothing and is always looked at
        layer = case.make(framework, check=check)
        for _what, predicted, old, words in bad_pairs(framework):
            with pytest.raises(ValueError, match=words):
                layer(predicted, old)


@every_framework
@pytest.mark.parametrize("case", [KL, JOINT], ids=str)
def test_bad_values(case, framework):
    layer = case.make(framework)
    for _what, predicted, old, words in bad_values(framework):
        with pytest.raises(ValueError, match=words):
            layer(predicted, old)


@every_framework
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_bounds(case, framework):
    good = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]])
    names = ["bound"] if case.joint else ["mean_bound", "cov_bound"]
    for name in names:
        for bound in (0.0, -1.0, np.nan, np.inf, 10**400, framework.array([0.0]), framework.array([np.nan])):
            with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
                case.make(framework)(good, good, **{name: bound})
        for bound in (framework.array([0.1, 0.2]), framework.array([[0.1]])):
            with pytest.raises(ValueError, match=f"{name} must be a number or have the batch shape"):
                case.make(framework)(good, good, **{name: bound})
        for bound, word in (("0.1", "str"), (True, "bool"), (np.True_, "bool")):
            with pytest.raises(ValueError, match=f"{name} must be a number or an array, not {word}"):
                case.make(framework)(good, good, **{name: bound})
        with pytest.raises(ValueError, match=f"{name} must be float32 or float64, not int"):
            case.make(framework)(good, good, **{name: framework.array([1], "int32")})
    with pytest.raises(ValueError, match="must be positive and finite"):
        case.make(framework, mean_bound=-0.1)(good, good)


@every_framework
def test_numpy_numbers_are_numbers(framework):
    good = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]])
    other = diag(framework, [[1.0, 1.0]], [[1.0, 3.0]])
    expected = KL.make(framework)(other, good, cov_bound=0.125)
    for bound in (np.float32(0.125), np.float64(0.125), np.array(0.125), np.array([0.125])):
        found = KL.make(framework)(other, good, cov_bound=bound)
        np.testing.assert_allclose(framework.numpy(found.std), framework.numpy(expected.std), rtol=1e-14)


@every_framework
def test_a_bound_below_the_smallest_float_is_refused(framework):
    single = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]], "float32")
    for name in ("mean_bound", "cov_bound"):
        with pytest.raises(ValueError, match=name):
            KL.make(framework)(single, single, **{name: 1e-60})


@every_framework
def test_bad_entropy(framework):
    predicted, old = policies(framework, gentle_pair("diag"))
    for case in (KL, JOINT):
        layer = case.make(framework)
        for name in ("min_entropy", "entropy"):
            for target in (np.nan, np.inf, -(10**400), framework.array(np.full(6, np.nan))):
                with pytest.raises(ValueError, match=f"{name} must be finite"):
                    layer(predicted, old, **{name: target})
            with pytest.raises(ValueError, match=f"{name} must be a number or have the batch shape"):
                layer(predicted, old, **{name: framework.array([0.0, 1.0])})
        with pytest.raises(ValueError, match=r"min_entropy .* or entropy .*, not both"):
            layer(predicted, old, min_entropy=0.0, entropy=0.0)


@every_framework
@pytest.mark.parametrize("kind", KINDS)
def test_entropy_that_no_covariance_within_the_bound_meets(framework, kind):
    predicted, old = policies(framework, gentle_pair(kind))
    layer = JOINT.make(framework)
    for name in ("min_entropy", "entropy"):
        with pytest.raises(ValueError, match=r"no policy within the bound .* at most"):
            layer(predicted, old, **{name: 100.0})
    with pytest.raises(ValueError, match=r"no policy within the bound .* at least"):
        layer(predicted, old, entropy=-100.0)
    layer(predicted, old, min_entropy=-100.0)  # an inequality that is met anyway


@every_framework
def test_an_entropy_too_far_is_an_error(framework):
    """Standard deviations that overflow: a ConvergenceError, not infinities."""
    predicted, old = policies(framework, gentle_pair("diag"), "float32")
    with pytest.raises(ConvergenceError, match="not finite"):
        KL.make(framework)(predicted, old, entropy=1e4)


@every_framework
@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_check_off_looks_at_no_values(case, framework):
    bad = diag(framework, [[0.0, np.nan]], [[1.0, 2.0]])
    good = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="predicted"):
        case.make(framework)(bad, good)
    found = case.make(framework, check=False)(bad, good)
    assert np.isnan(framework.numpy(found.mean)).any()


def test_checks_do_not_break_jit():
    """Inside `jit`, `grad` and `vmap` there are no values to look at; plain numbers are looked at all the same."""
    framework = Jax()
    predicted, old = policies(framework, gentle_pair("diag"))
    layer = CASES[1].make(framework, check=True)
    jax.jit(layer)(predicted, old)
    jax.jit(lambda p: layer(p, old))(predicted)
    jax.grad(lambda p: layer(p, old).std.sum())(predicted)
    jax.vmap(layer)(predicted, old)
    with pytest.raises(ValueError, match="cov_bound must be positive"):
        jax.jit(lambda p: layer(p, old, cov_bound=-1.0))(predicted)
    with pytest.raises(ValueError, match="batch shapes"):
        jax.jit(layer)(predicted, type(old)(old.mean[:4], old.std[:4]))


def test_frameworks_are_not_mixed():
    eager = Torch()
    one, _ = policies(eager, gentle_pair("diag"))
    other, _ = policies(Jax(), gentle_pair("diag"))
    with pytest.raises(ValueError, match=r"PyTorch.*JAX"):
        KL.make(eager)(one, other)
    with pytest.raises(ValueError, match=r"PyTorch array.*JAX array"):
        KL.make(eager)(DiagGaussian(one.mean, other.std), one)
    with pytest.raises(ValueError, match="cov_bound"):
        KL.make(eager)(one, one, cov_bound=other.std[:, 0])


def test_unknown_form():
    for framework in FRAMEWORKS:
        good = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]])
        with pytest.raises(ValueError, match="form must be 'commuting' or 'exact', not 'other'"):
            framework.layers.WassersteinProjection(0.1, 0.1, form="other")(good, good)


def test_inputs_are_read_only():
    """Nothing is changed in place, bounds included."""
    framework = Torch()
    for case in CASES:
        for kind in KINDS:
            pair = gentle_pair(kind)
            predicted, old = policies(framework, pair)
            options = case.call_options(framework, pair)
            copies = [x.clone() for x in (*predicted, *old, *options.values())]
            for _ in range(2):
                case.make(framework)(predicted, old, **options)
            for before, after in zip(copies, (*predicted, *old, *options.values()), strict=True):
                assert torch.equal(before, after)


@every_framework
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_prediction_too_narrow_to_be_projected_is_refused(case, framework):
    """Its precision overflows: KL layers returned it as it came, outside every bound."""
    old = diag(framework, [[0.0, 1.0]], [[1.0, 2.0]], "float32")
    narrow = diag(framework, [[0.0, 1.0]], [[1e-20, 1.0]], "float32")
    with pytest.raises(ValueError, match=r"predicted\.std is 1e-20 of the old policy's: float32"):
        case.make(framework)(narrow, old)


def test_an_excess_that_overflows_is_an_error():
    framework = Torch()
    predicted, old = (diag(framework, [[0.0, 1.0]], [[s, s]], "float32") for s in (1e-6, 1e15))
    with pytest.raises(ConvergenceError, match="not finite"):
        KL.make(framework)(predicted, old)


@pytest.mark.parametrize("bound", [0.05, 1e-4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [KL, JOINT], ids=str)
@every_framework
def test_a_narrow_prediction_in_float32_lands_on_the_bound_or_is_nan(case, kind, bound, framework):
    """The multiplier underflows: the search ended at the old policy, or up to 170 % above the bound."""
    stds = np.ones((8, 3))
    stds[:, 0] = [1e-6, 1e-11, 1e-15, 1e-17, 3e-18, 6e-19, 3e-19, 1e-20]
    make, scales = (diag, stds) if kind == "diag" else (full, stds[..., None] * np.eye(3))
    predicted = make(framework, np.zeros((8, 3)), scales, "float32")
    old = make(framework, np.zeros((8, 3)), scales**0 * (scales > 0), "float32")
    projected = framework.project(case.make(framework, bound, bound, check=False), predicted, old)
    found = framework.numpy(projected[1]).astype(np.float64)
    ratio = found if kind == "diag" else np.diagonal(found, axis1=-2, axis2=-1)
    kl = 0.5 * np.sum(ratio * ratio - 1.0 - 2.0 * np.log(ratio), axis=-1)
    assert np.isfinite(kl[0])
    assert np.all(np.isnan(kl) | (np.abs(kl / bound - 1.0) < 1e-3))


def test_a_prediction_whose_multiplier_underflows_is_an_error():
    framework = Torch()
    predicted, old = (full(framework, np.zeros((1, 2)), [np.diag([s, 1.0])], "float32") for s in (1e-15, 1.0))
    with pytest.raises(ConvergenceError, match=r"too ill-conditioned.*use float64"):
        KL.make(framework, 1e-4, 1e-4)(predicted, old)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES[:6], ids=str)
@every_framework
def test_a_bound_of_zero_that_is_not_checked_gives_the_old_policy(case, kind, framework):
    """As at the end of a schedule under jit; KL layers gave NaN."""
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    bounds = case.call_options(framework, pair, mean_bound=0.0, cov_bound=0.0)
    projected = framework.project(case.make(framework, check=False), predicted, old, **bounds)
    for found, wanted in zip(projected, old, strict=True):
        np.testing.assert_allclose(framework.numpy(found), framework.numpy(wanted), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("entry", [np.inf, np.nan])
@pytest.mark.parametrize("cov_bound", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_an_entry_that_is_not_finite_and_not_checked_gives_nan(case, cov_bound, entry):
    """In its state alone. An infinity stopped the program in LAPACK for ever, a NaN raised an error for all states."""
    predicted, old = policies(Torch(), gentle_pair("full"))
    predicted.chol[1, 0, 0] = entry
    found = case.make(Torch(), cov_bound, cov_bound, check=False)(predicted, old).chol
    assert found.isfinite().all((-1, -2)).tolist() == [i != 1 for i in range(len(found))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["min_entropy", "entropy"])
@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_an_entropy_that_is_nan_and_not_checked_gives_nan(case, name, kind):
    """In its state alone; a lower bound on the entropy was no bound there."""
    predicted, old = policies(Torch(), gentle_pair(kind))
    target = entropy(old)
    target[1] = np.nan
    found = case.make(Torch(), check=False)(predicted, old, **{name: target}).scale.flatten(1)
    assert found.isnan().any(-1).tolist() == target.isnan().tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SEPARATE, ids=str)
@every_framework
def test_a_bound_that_is_nan_and_not_checked_gives_nan(case, kind, framework):
    """In its state alone; layers returned the prediction there, outside every bound."""
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    is_nan = np.arange(len(pair.mean)) == 1
    mean_bound, cov_bound = np.where(is_nan, np.nan, 0.03), np.where(is_nan, np.nan, 1e-3)
    bounds = case.call_options(framework, pair, mean_bound=mean_bound, cov_bound=cov_bound)
    projected = framework.project(case.make(framework, check=False), predicted, old, **bounds)
    for part in projected:
        lost = np.isnan(framework.numpy(part)).reshape(len(is_nan), -1).any(-1)
        assert lost.tolist() == is_nan.tolist()


@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_numpy_arrays_may_be_in_reverse_order(case):
    """PyTorch, which decomposes NumPy's matrices, cannot view negative strides."""
    pair = gentle_pair("full")
    layer, found = case.make(Torch()), []
    for turned in (slice(None), slice(None, None, -1)):
        mean, chol, old_mean, old_chol = (x[turned] for x in pair[1:])
        projected = layer(FullGaussian(mean, chol), FullGaussian(old_mean, old_chol))
        found.append([x[turned] for x in projected])
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-12, atol=1e-14)
