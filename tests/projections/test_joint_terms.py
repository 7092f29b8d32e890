"""The two ways to the pieces of the joint projection: on ordinary pairs they are one, and each is right by itself."""

import math

import numpy as np
import pytest
import torch

from trpl import FullGaussian, entropy, kl_parts
from trpl.engines import torch_engine
from trpl.projections.joint_kl import newton
from trpl.projections.joint_kl.solution import entropy_range
from trpl.projections.joint_kl.terms import FINE, Target, Terms, evaluator
from trpl.projections.joint_kl.terms import LONGEST_CORRECTION as LONGEST
from trpl.torch import JointKLProjection

NUM, DIM = 20, 3
E = torch_engine()
TARGETS = {
    "none": Target(None, equality=False),
    "at least": Target(torch.linspace(-0.3, 0.6, NUM, dtype=torch.float64), equality=False),
    "equal": Target(torch.linspace(-0.6, 0.6, NUM, dtype=torch.float64), equality=True),
}


def numbers(seed, *shape):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


def factors(seed, spread=0.4):
    lower = torch.tril(spread * numbers(seed, NUM, DIM, DIM), -1)
    return lower + torch.diag_embed(torch.exp(spread * numbers(seed + 1, NUM, DIM)))


@pytest.fixture
def pair():
    """V − I and the whitened shift of ordinary policies."""
    return FINE.change(E, factors(0), factors(2)), numbers(4, NUM, DIM)


def solution_at(method, t, pair, target):
    unit = method.spectrum(E, *pair).unit(E, target)
    return method.terms(E, t, unit, *pair, target)


def newton_pencil(pair, target):
    of = newton.pencil(E, *pair)
    return newton.rescaled(E, of, FINE.spectrum(E, *pair).unit(E, target)) if target.equality else of


def newton_point(t, pair, target):
    return newton.point(E, t, newton_pencil(pair, target), target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_singular_values_and_decompositions_say_the_same(pair, target):
    t = torch.linspace(0.05, 1.0, NUM, dtype=torch.float64)
    spectrum = FINE.spectrum(E, *pair)
    spectrum = spectrum.rescaled(E, spectrum.unit(E, target)) if target.equality else spectrum
    value, slope = evaluator(E, spectrum, target)(t)
    found = newton_point(t, pair, target)
    torch.testing.assert_close(found.kl, value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.first, slope, rtol=1e-10, atol=1e-12)
    sums = 1.0 + t[:, None] * spectrum.excess
    ratio = newton.condition(E, t, newton_pencil(pair, target), found) * sums.amin(-1) / sums.amax(-1)
    assert bool(((ratio >= 1.0) & (ratio <= DIM * DIM)).all())


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_derivatives_by_the_logarithm(pair, target):
    """Each against differences of the one before."""
    t, step = torch.linspace(0.05, 0.9, NUM, dtype=torch.float64), 1e-5
    found, above, below = (newton_point(t * math.exp(sign * step), pair, target) for sign in (0.0, 1.0, -1.0))
    same = (above.held == found.held) & (below.held == found.held)
    assert bool(same.sum() >= NUM - 2)
    for k in range(3):
        difference = (above[k] - below[k]) / (2.0 * step)
        torch.testing.assert_close(found[k + 1][same], difference[same], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_start_is_good_to_the_fourth_order(pair, target):
    """With policies that differ by h in everything, the start is h³ from the root of the KL."""
    errors = []
    for size in (0.1, 0.05):
        change, shift = size * pair[0], size * pair[1]
        log_scale = None if target.log_scale is None else size * target.log_scale
        scaled = Target(log_scale, target.equality)
        of, t = newton.pencil(E, change, shift), torch.full((NUM,), 0.5, dtype=torch.float64)
        found = newton.point(E, t, of, scaled)
        begin = newton.start(E, of, found.kl, torch.full_like(t, 0.9), scaled)
        errors.append((begin / 0.5 - 1.0).abs())
    assert float(errors[0].median()) < 1e-3
    assert float((errors[1] / errors[0]).median()) < 0.16  # h³ halves to an eighth; h² would to a quarter


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_spectrum_has_the_kl_of_the_terms(pair, target):
    """The function whose root is sought, and the factor and mean that are returned, by their own KL."""
    t = torch.linspace(0.05, 1.0, NUM, dtype=torch.float64)
    spectrum = FINE.spectrum(E, *pair)
    unit = spectrum.unit(E, target)
    spectrum = spectrum.rescaled(E, unit) if target.equality else spectrum
    value, slope = evaluator(E, spectrum, target)(t)
    terms = solution_at(FINE, t, pair, target)
    torch.testing.assert_close(terms.kl, value, rtol=1e-10, atol=1e-13)
    whitened = terms.factor @ terms.factor.mT
    direct = torch.linalg.matrix_norm(terms.factor) ** 2 - DIM - torch.logdet(whitened) + (terms.mean**2).sum(-1)
    torch.testing.assert_close(terms.kl, 0.5 * direct, rtol=1e-9, atol=1e-12)
    step = 1e-6
    above, below = (evaluator(E, spectrum, target)(t * (1.0 + sign * step))[0] for sign in (1.0, -1.0))
    torch.testing.assert_close(slope, (above - below) / (2.0 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("largest", [1e-4, 1.0])
def test_qr_and_cholesky_give_the_same_terms(pair, target, largest):
    """With small t, where the mean is pulled, and with large ones, where it is what is left."""
    t = torch.linspace(0.1 * largest, largest, NUM, dtype=torch.float64)
    found, terms = newton_point(t, pair, target), solution_at(FINE, t, pair, target)
    torch.testing.assert_close(terms.factor, torch.flip(found.inverse.mT, (-2, -1)), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(terms.mean, torch.flip(found.mean, (-1,)), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(terms.log_k, found.log_k, rtol=1e-8, atol=1e-9)
    assert torch.equal(terms.held, found.held)
    torch.testing.assert_close(terms[1], torch.tril(terms[1]), rtol=0.0, atol=0.0)
    assert bool((E.diagonal(terms[1]) > 0.0).all())


def test_a_singular_decomposition_that_fails_is_tried_on_the_transpose(pair, monkeypatch):
    """LAPACK gives up on some matrices, but not on their transposes."""
    expected = evaluator(E, FINE.spectrum(E, *pair), TARGETS["none"])(torch.full((NUM,), 0.5, dtype=torch.float64))
    xp, calls = E.xp, []
    svd = xp.linalg.svd

    def failing(matrix, **options):
        calls.append(matrix)
        if len(calls) == 1:
            raise RuntimeError("did not converge")
        return svd(matrix, **options)

    monkeypatch.setattr(xp.linalg, "svd", failing)
    found = evaluator(E, FINE.spectrum(E, *pair), TARGETS["none"])(torch.full((NUM,), 0.5, dtype=torch.float64))
    assert len(calls) == 2
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("miss", [-1e-4, 1e-4])
def test_what_is_left_of_the_bound_is_settled_on_the_result(held, miss):
    factor = factors(11, spread=0.2)
    mean = numbers(13, NUM, DIM)
    kl = joint_kl_of(factor, mean)
    terms = Terms(kl, factor, mean, torch.zeros(NUM), torch.full((NUM,), held))
    limit = kl * (1.0 + miss)
    settled = FINE.correct(E, terms, limit)
    torch.testing.assert_close(settled.kl, limit, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(joint_kl_of(settled.factor, settled.mean), limit, rtol=1e-9, atol=0.0)
    assert torch.equal(settled.factor, factor) is held
    assert bool((torch.sign(settled.mean.norm(dim=-1) - mean.norm(dim=-1)) == math.copysign(1.0, miss)).all())
    shrunk = E.diagonal(factor) < 1.0
    assert torch.equal(E.diagonal(settled.factor)[shrunk], E.diagonal(factor)[shrunk])


def joint_kl_of(factor, mean):
    log_det = 2.0 * torch.log(E.diagonal(factor)).sum(-1)
    return 0.5 * (factor.square().sum((-2, -1)) - DIM - log_det + mean.square().sum(-1))


def test_settling_goes_no_further_than_a_hair():
    factor, mean = factors(15, spread=0.2), numbers(17, NUM, DIM)
    terms = Terms(joint_kl_of(factor, mean), factor, mean, torch.zeros(NUM), torch.ones(NUM, dtype=torch.bool))
    settled = FINE.correct(E, terms, 100.0 * terms.kl)
    torch.testing.assert_close(settled.mean, (1.0 + LONGEST) ** 2 * mean, rtol=1e-12, atol=0.0)
    nothing = Terms(torch.zeros(NUM), torch.eye(DIM).expand(NUM, DIM, DIM), torch.zeros(NUM, DIM), *terms[3:])
    still = FINE.correct(E, nothing, torch.ones(NUM))
    assert not bool(still.mean.any())
    assert torch.equal(still.factor, nothing.factor)


@pytest.mark.parametrize("constraint", ["none", "min_entropy", "entropy"])
def test_needles_and_plates_against_finite_differences(constraint):
    """Predictions a hundred thousand times narrower in one direction than in another go the finer way."""
    rotation = torch.linalg.qr(numbers(19, NUM, DIM, DIM))[0]
    scales = 10.0 ** torch.as_tensor(np.random.default_rng(20).uniform(-3.0, 3.0, size=(NUM, DIM)))
    chol = torch.linalg.cholesky((rotation * scales[:, None] ** 2) @ rotation.mT)
    old = FullGaussian(numbers(21, NUM, DIM), factors(22))
    mean = old.mean + numbers(24, NUM, DIM)
    bounds = torch.linspace(0.5, 5.0, NUM, dtype=torch.float64)
    options = {} if constraint == "none" else {constraint: entropy(old) + torch.linspace(-0.2, 0.4, NUM).double()}
    direction = torch.tril(numbers(26, NUM, DIM, DIM)) * chol.abs(), numbers(27, NUM, DIM)
    weights = numbers(28, NUM, DIM, DIM), numbers(29, NUM, DIM)

    def total(step):
        moved = FullGaussian(mean + step[..., 0] * direction[1], chol + step * direction[0])
        projected = JointKLProjection(bounds)(moved, old, **options)
        return projected, (weights[0] * projected.chol).sum((-2, -1)) + (weights[1] * projected.mean).sum(-1)

    step = torch.zeros(NUM, 1, 1, dtype=torch.float64, requires_grad=True)
    projected, value = total(step)
    (gradient,) = torch.autograd.grad(value.sum(), step)
    h = torch.full_like(step, 1e-5)
    difference = (total(h)[1] - total(-h)[1]) / (2.0 * h[:, 0, 0])
    torch.testing.assert_close(gradient[:, 0, 0], difference, rtol=1e-5, atol=1e-6)
    parts = kl_parts(projected, old)
    excess = ((parts.mean + parts.cov) / bounds - 1.0).detach()
    assert float(excess.max()) < 1e-9
    assert int((excess.abs() < 1e-9).sum()) >= NUM - 1  # one of those with a given entropy is inside
    if constraint == "entropy":
        torch.testing.assert_close(entropy(projected), options["entropy"], rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 3, 17])
def test_the_range_of_entropies_within_a_bound(dim):
    """Both ends scale the old covariance by c with (d/2)(c − 1 − log c) = ε."""
    bounds = torch.as_tensor(np.geomspace(1e-8, 1e3, 40))
    least, greatest = entropy_range(E, bounds, dim)
    for change in (least, greatest):
        log_c = 2.0 * change / dim
        torch.testing.assert_close(0.5 * dim * (torch.expm1(log_c) - log_c), bounds, rtol=1e-6, atol=0.0)
    assert bool((least < 0.0).all())
    assert bool((greatest > 0.0).all())


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_two_batch_axes_are_one(pair, target):
    t = torch.linspace(0.05, 1.0, NUM, dtype=torch.float64)
    flat = solution_at(FINE, t, pair, target)
    shape = (4, NUM // 4)
    wide = target if target.log_scale is None else target._replace(log_scale=target.log_scale.reshape(shape))
    folded = tuple(x.reshape(*shape, *x.shape[1:]) for x in pair)
    found = solution_at(FINE, t.reshape(shape), folded, wide)
    settled, flat_settled = FINE.correct(E, found, 1.001 * found.kl), FINE.correct(E, flat, 1.001 * flat.kl)
    for one, two in zip(flat_settled, settled, strict=True):
        torch.testing.assert_close(two.reshape(one.shape), one, rtol=1e-12, atol=1e-14)
