"""One bad number in any array of any family is refused in words that name array, part and count."""

import contextlib
import math
import re

import numpy as np
import pytest
import torch
from scipy import stats

import trpl
import trpl.torch
from frameworks import without_numpy
from trpl.engines import NUMPY, torch_engine
from trpl.families import family_of

ENGINES = {"numpy": (NUMPY, np.array), "torch": (torch_engine(), torch.tensor)}
every_engine = pytest.mark.parametrize(("e", "array"), ENGINES.values(), ids=ENGINES)
LAYER = trpl.torch.JointKLProjection(0.1)


def good(kind: str, batch: int = 2) -> list[list[np.ndarray]]:
    """Predicted and old arrays."""
    rng = np.random.default_rng(0)
    if kind == "Beta":
        return [[np.exp(rng.normal(size=(batch, 3))) for _ in range(2)] for _ in range(2)]
    return [[rng.normal(size=(batch, 3))] for _ in range(2)]


def make(kind: str, arrays, array=torch.tensor):
    return getattr(trpl, kind)(*map(array, arrays))


BAD = {
    "Categorical": {np.nan: "1 entries that are NaN or +inf", np.inf: "1 entries that are NaN or +inf"},
    "Bernoulli": dict.fromkeys((np.nan, np.inf, -np.inf), "1 entries that are NaN or infinite"),
    "Beta": dict.fromkeys((np.nan, np.inf, -np.inf), "1 entries that are NaN or infinite")
    | {0.0: "must be positive; the smallest entry is 0", -0.5: "must be positive; the smallest entry is -0.5"},
}


@every_engine
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("batch", [1, 2])
def test_one_bad_number(e, array, kind, batch):
    family = family_of(make(kind, good(kind)[0]))
    family.admit(e, *(make(kind, arrays, array) for arrays in good(kind, batch)))
    for side, name in enumerate(("predicted", "old")):
        for place, field in enumerate(family.policy._fields):
            for value, words in BAD[kind].items():
                arrays = good(kind, batch)
                arrays[side][place][-1, 1] = value
                with pytest.raises(ValueError, match=rf"{name}\.{field if 'NaN' in words else ''}") as caught:
                    family.admit(e, *(make(kind, own, array) for own in arrays))
                assert words in str(caught.value)
                product = family_of(trpl.Product((make(kind, arrays[0]),) * 2))
                clean, spoilt = ([make(kind, own, array) for own in both] for both in (good(kind, batch), arrays))
                pairs = [trpl.Product(pair) for pair in zip(clean, spoilt, strict=True)]
                with pytest.raises(ValueError, match=rf"part 1: {name}\."):
                    product.admit(e, *pairs)


@every_engine
def test_masks(e, array):
    """Forbidden classes pass where both policies have them, or old alone; never every class."""
    family, inf = family_of(trpl.Categorical(np.zeros((1, 3)))), math.inf

    def admit(predicted, old):
        family.admit(e, trpl.Categorical(array(np.array(predicted))), trpl.Categorical(array(np.array(old))))

    masked, free = [[0.0, -inf, 1.0], [-inf, 0.0, 1.0]], np.zeros((2, 3))
    admit(masked, masked)
    admit(free, masked)
    with pytest.raises(ValueError, match="predicted forbids classes that old allows in 2 states"):
        admit(masked, free)
    with pytest.raises(ValueError, match="predicted forbids classes that old allows in 1 state,"):
        admit([[0.0, -inf, 0.0], [0.0, 0.0, 0.0]], free)
    nothing = [[0.0, 0.0, 0.0], [-inf, -inf, -inf]]
    with pytest.raises(ValueError, match=r"predicted\.logits forbids every class in 1 state$"):
        admit(nothing, free)
    with pytest.raises(ValueError, match=r"old\.logits forbids every class in 1 state$"):
        admit(free, nothing)
    admit(np.zeros((0, 3)), np.full((0, 3), -inf))


@every_engine
@pytest.mark.parametrize("kind", BAD)
def test_a_solution_that_is_none_is_refused(e, array, kind):
    arrays = good(kind)[0]
    family = family_of(make(kind, arrays))
    family.accept(e, [array(x) for x in arrays])
    family.accept(e, [None for _ in arrays])
    family.accept(e, [array(x[:0]) for x in arrays])
    for place in range(len(arrays)):
        for value in [np.nan] + ([np.inf] if kind != "Categorical" else []) + ([0.0] if kind == "Beta" else []):
            bad = [x.copy() for x in arrays]
            bad[place][1, 2] = value
            with pytest.raises(trpl.ConvergenceError, match="project"):
                family.accept(e, list(map(array, bad)))
            product = family_of(trpl.Product((make(kind, arrays),) * 2))
            with pytest.raises(trpl.ConvergenceError, match="project"):
                product.accept(e, list(map(array, [*arrays, *bad])))
    if kind == "Categorical":
        family.accept(e, [array(np.array([[0.0, -np.inf]]))])


def test_parts_that_do_not_fit():
    """Of another dtype, framework, batch or kind, in any place; the words say which."""
    p = trpl.Bernoulli(torch.zeros(2, 3))
    others = {
        "float64": trpl.Bernoulli(torch.zeros(2, 3, dtype=torch.float64)),
        "NumPy": trpl.Bernoulli(np.zeros((2, 3), "float32")),
        r"batch shape \(2,\) and predicted.parts\[2\] \(3,\)": trpl.Bernoulli(torch.zeros(3, 3)),
    }
    for words, other in others.items():
        with pytest.raises(ValueError, match=rf"predicted\.parts\[0\] has .*{words}"):
            LAYER(trpl.Product((p, p, other)), trpl.Product((p, p, p)))
    with pytest.raises(ValueError, match=r"got Bernoulli, int"):
        LAYER(trpl.Product((p, 3)), trpl.Product((p, p)))
    for parts in ([p, p], ()):
        with pytest.raises(ValueError, match=r"predicted\.parts must be a tuple of policies"):
            LAYER(trpl.Product(parts), trpl.Product(parts))
    with pytest.raises(ValueError, match="predicted has the parts Bernoulli, Bernoulli and old Bernoulli;"):
        LAYER(trpl.Product((p, p)), trpl.Product((p,)))
    with pytest.raises(ValueError, match=r"old policy has 2 components, predicted\.parts\[1\] has 3"):
        LAYER(trpl.Product((p, p)), trpl.Product((p, trpl.Bernoulli(torch.zeros(2, 2)))))
    with pytest.raises(ValueError, match="1 actions for 2 parts"):
        trpl.log_prob(trpl.Product((p, p)), (torch.zeros(2, 3),))


def test_arrays_that_do_not_fit():
    half, single, double = (np.zeros((2, 3), f"float{bits}") for bits in (16, 32, 64))
    family = family_of(trpl.Beta(single, single))
    for arrays, words in (
        ((half, half), r"p\.alpha must be float32 or float64, not float16"),
        ((single, double), r"p\.alpha is float32 and p\.beta float64; convert"),
        ((single, torch.zeros(2, 3)), r"p\.alpha is a NumPy array and p\.beta a PyTorch array"),
        ((single, 1.0), r"p\.beta must be an array, not float"),
        ((single[0, 0], single[0, 0]), r"p\.alpha must be an array, not float32"),
        ((single[:, :0], single[:, :0]), r"p\.alpha needs a last axis with the components; got shape \(2, 0\)"),
        ((single, single[:1]), r"p\.alpha and p\.beta must have one shape; got \(2, 3\) and \(1, 3\)"),
    ):
        with pytest.raises(ValueError, match=words):
            family.check_one("p", trpl.Beta(*arrays))


@every_engine
def test_divergences_and_entropies_by_scipy(e, array):
    """Ordinary shapes, far ones, and classes without a probability."""
    rng = np.random.default_rng(1)
    (a, b), (c, d) = np.exp(rng.normal(size=(2, 2, 5, 1)) * 1.5)
    p, q = trpl.Beta(array(a), array(b)), trpl.Beta(array(c), array(d))
    for row in range(5):
        one, two = (stats.beta(float(x[row, 0]), float(y[row, 0])) for x, y in ((a, b), (c, d)))
        assert float(trpl.entropy(p)[row]) == pytest.approx(one.entropy(), rel=1e-9, abs=1e-10)
        integral = one.expect(lambda x, one=one, two=two: one.logpdf(x) - two.logpdf(x))
        assert float(trpl.kl(p, q)[row]) == pytest.approx(integral, rel=1e-5)
    x, y = rng.normal(size=(2, 4, 3)) * 3.0
    with np.errstate(divide="ignore"):
        log_p, log_q = (np.log(z / z.sum(-1, keepdims=True)) for z in (np.exp(x), np.exp(y)))
    expected = stats.entropy(np.exp(log_p), np.exp(log_q), axis=-1)
    found = trpl.kl(trpl.Categorical(array(x)), trpl.Categorical(array(y)))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)
    one, none = array(np.array([0.0, -math.inf, 0.0])), array(np.array([0.0, 0.0, 0.0]))
    assert float(trpl.kl(trpl.Categorical(one), trpl.Categorical(none))) == pytest.approx(math.log(1.5), rel=1e-13)
    assert float(trpl.kl(trpl.Categorical(none), trpl.Categorical(one))) == math.inf
    assert float(trpl.kl(trpl.Categorical(one), trpl.Categorical(one))) == 0.0
    assert float(trpl.entropy(trpl.Categorical(one))) == pytest.approx(math.log(2.0), rel=1e-14)
    rare = np.array([0.0, -90.0])  # log p/q is 90 for the second class: q e^t in logarithms
    found = trpl.kl(trpl.Categorical(array(rare[::-1].copy())), trpl.Categorical(array(rare)))
    assert float(found) == pytest.approx(90.0, rel=1e-13)


@pytest.mark.parametrize("framework", ["NumPy", "PyTorch"])
@pytest.mark.parametrize("action", [-1, 3])
def test_actions_that_are_no_class_are_refused(framework, action):
    array = np.asarray if framework == "NumPy" else torch.tensor
    with pytest.raises(ValueError, match=f"classes are 0 to 2; the actions are .*{action}"):
        trpl.log_prob(trpl.Categorical(array([[1.0, 2.0, 3.0]])), array([action]))


def test_distances_between_different_policies_are_refused():
    """With as many states as actions a diagonal and a full covariance broadcast, and so does a single class."""
    diagonal, full = (
        trpl.DiagGaussian(np.zeros((3, 3)), np.ones((3, 3))),
        trpl.FullGaussian(np.zeros((3, 3)), np.eye(3)),
    )
    for distance in (trpl.kl, trpl.kl_parts, trpl.wasserstein_parts, trpl.frobenius_parts, trpl.gaussians.kl_cov):
        for pair in ((diagonal, full), (full, diagonal)):
            with pytest.raises(ValueError, match=r"the new policy is a .*Gaussian and the old one a .*Gaussian"):
                distance(*pair)
    with pytest.raises(ValueError, match="old policy has 1 classes, new policy has 3"):
        trpl.kl(trpl.Categorical(np.zeros((2, 3))), trpl.Categorical(np.zeros((2, 1))))
    with pytest.raises(ValueError, match="has the parts DiagGaussian and old DiagGaussian, FullGaussian"):
        trpl.kl(trpl.Product((diagonal,)), trpl.Product((diagonal, full)))


@pytest.mark.parametrize("framework", ["NumPy", "PyTorch"])
def test_actions_between_two_classes_are_refused(framework):
    array = np.asarray if framework == "NumPy" else torch.tensor
    policy = trpl.Categorical(array([[1.0, 2.0, 3.0]]))
    assert trpl.log_prob(policy, array([1.0])) == trpl.log_prob(policy, array([1]))
    with pytest.raises(ValueError, match=r"classes are whole numbers; an action is 1\.5"):
        trpl.log_prob(policy, array([1.5]))


@pytest.mark.parametrize("action", [2.0, 0.5, math.nan])
def test_actions_of_a_bernoulli_that_are_not_0_or_1_are_refused(action):
    policy = trpl.Bernoulli(torch.tensor([0.3, -0.2]))
    assert trpl.log_prob(policy, torch.tensor([True, False])) == trpl.log_prob(policy, torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match=f"actions are 0 or 1; one is {action:g}"):
        trpl.log_prob(policy, torch.tensor([1.0, action]))


@pytest.mark.parametrize("action", [-0.1, 1.5, math.nan])
def test_actions_outside_of_the_interval_of_a_beta_are_refused(action):
    """Where values are not concrete the density is NaN; it was that of an end, +inf for α below 1."""
    shapes = [2.0, 0.5], [1.0, 2.0]
    policy, x = trpl.Beta(*map(torch.tensor, shapes)), torch.tensor([0.5, action])
    with pytest.raises(ValueError, match="between 0 and 1"):
        trpl.log_prob(policy, x)
    assert torch.func.vmap(lambda x: trpl.log_prob(policy, x))(x[None]).isnan().all()


@pytest.mark.parametrize("shape", [(4,), (), (4, 2)])
@pytest.mark.parametrize("kind", ["DiagGaussian", "FullGaussian", "Bernoulli", "Beta"])
def test_actions_without_the_axis_of_components_are_refused(kind, shape):
    """[4] for [4, 1], as from an environment with one action, would broadcast to [4, 4] and be summed over states."""
    ones = torch.ones(4, 1)
    arrays = {"FullGaussian": (ones, ones[..., None]), "Bernoulli": (ones,)}.get(kind, (ones, ones))
    policy = getattr(trpl, kind)(*arrays)
    with pytest.raises(ValueError, match=re.escape(f"a {kind} must end in (1,), a number per component; got {shape}")):
        trpl.log_prob(policy, torch.ones(shape))
    assert trpl.log_prob(policy, torch.ones(3, 4, 1)).shape == (3, 4)


def test_classes_that_are_not_one_per_state_are_refused():
    policy = trpl.Categorical(torch.zeros(2, 4))
    for shape in ((2, 1), (3,), ()):
        with pytest.raises(ValueError, match=re.escape(f"one class per state of (2,); got shape {shape}")):
            trpl.log_prob(policy, torch.zeros(shape, dtype=torch.int64))
    assert trpl.log_prob(policy, torch.zeros(3, 2, dtype=torch.int64)).shape == (3, 2)


def test_an_action_with_too_few_numbers_for_a_product():
    policy = trpl.Product((trpl.Bernoulli(torch.zeros(2, 3)), trpl.Categorical(torch.zeros(2, 4))))
    with pytest.raises(ValueError, match="an action has 3 numbers, fewer than the parts need"):
        trpl.log_prob(policy, torch.zeros(2, 3))


def test_density_of_a_beta_at_the_ends_of_its_interval():
    shapes = [(2.0, 1.0), (1.0, 1.0), (2.0, 3.0), (0.5, 2.0)]
    for x in (0.0, 1.0):
        for alpha, beta in shapes:
            alpha, beta = torch.tensor([[alpha]]), torch.tensor([[beta]])
            wanted = torch.distributions.Beta(alpha, beta).log_prob(torch.tensor([[x]]))[:, 0]
            torch.testing.assert_close(trpl.log_prob(trpl.Beta(alpha, beta), torch.tensor([[x]])), wanted)


def test_an_independent_categorical_without_event_dimensions():
    made = torch.distributions.Independent(torch.distributions.Categorical(logits=torch.tensor([[1.0, 0.0]])), 0)
    old = torch.distributions.Independent(torch.distributions.Categorical(logits=torch.zeros(1, 2)), 0)
    projected = trpl.torch.JointKLProjection(0.01)(made, old)
    assert torch.distributions.kl_divergence(projected.base_dist, old.base_dist) == pytest.approx(0.01, rel=1e-5)


@every_engine
def test_policies_of_two_families_have_no_kl(e, array):
    """Logits of both kinds have one shape, and the KL was a number."""
    logits = array([[0.1, 0.2]])
    with pytest.raises(ValueError, match="the new policy is a Categorical and the old one a Bernoulli"):
        trpl.kl(trpl.Categorical(logits), trpl.Bernoulli(logits))


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("given", ["bound", "min_entropy", "entropy"])
def test_a_bound_or_an_entropy_that_is_nan_gives_nan_where_values_are_not_checked(kind, given):
    """In its own state alone; it was the old policy for a NaN bound, any policy within the bound for a NaN entropy."""
    predicted, old = (make(kind, arrays) for arrays in good(kind))
    layer, here = trpl.torch.JointKLProjection(1e-3, check=False), trpl.entropy(old)
    options = {"bound": torch.full_like(here, 1e-3)} if given == "bound" else {given: here.clone()}
    expected = layer(predicted, old, **options).arrays
    options[given][1] = math.nan
    for context in (contextlib.nullcontext(), without_numpy()):
        with context:
            found = layer(predicted, old, **options).arrays
        for x, y in zip(found, expected, strict=True):
            assert x[1].isnan().any()
            torch.testing.assert_close(x[[0]], y[[0]], rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("whose", ["predicted", "old"])
def test_nan_gives_nan_where_values_are_not_checked(kind, whose):
    """In its own state alone. A NaN among logits once forbade its class; the rest looked like a policy."""
    predicted, old = good(kind)
    layer = trpl.torch.JointKLProjection(1e-3, check=False)
    expected = layer(make(kind, predicted), make(kind, old)).arrays
    (predicted if whose == "predicted" else old)[0][1, 2] = math.nan
    for context in (contextlib.nullcontext(), without_numpy()):
        with context:
            found = layer(make(kind, predicted), make(kind, old)).arrays
        for x, y in zip(found, expected, strict=True):
            assert x[1].isnan().any()
            torch.testing.assert_close(x[[0]], y[[0]], rtol=1e-12, atol=0.0)
