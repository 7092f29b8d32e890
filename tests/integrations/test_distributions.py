"""Other libraries' distributions, squashed ones included, through the layers."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose as assert_close

import trpl.jax
import trpl.torch
from trpl import Beta, Categorical, DiagGaussian, FullGaussian
from trpl.integrations.distributions import penalty, project, split

with warnings.catch_warnings():  # both use names that newer versions of JAX deprecate
    warnings.simplefilter("ignore", DeprecationWarning)
    import distrax
    from tensorflow_probability.substrates import jax as tfp

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore:.*dtype")]
LAYER = trpl.jax.KLProjection(0.03, 1e-3)
SQUASH = torch.distributions.transforms.TanhTransform(cache_size=1)


def diag(seed):
    rng = np.random.default_rng(seed)
    return DiagGaussian(*(jnp.asarray(x, jnp.float32) for x in (rng.normal(size=(6, 3)), rng.uniform(0.5, 2, (6, 3)))))


def full(seed):
    rng = np.random.default_rng(seed)
    chol = np.tril(rng.normal(size=(6, 3, 3)) * 0.3, -1) + np.eye(3) * rng.uniform(0.5, 2, (6, 1, 3))
    return FullGaussian(jnp.asarray(rng.normal(size=(6, 3)), jnp.float32), jnp.asarray(chol, jnp.float32))


def tfp_squashed(p):
    base = tfp.distributions.MultivariateNormalDiag(p.mean, p.std)
    return tfp.distributions.TransformedDistribution(distribution=base, bijector=tfp.bijectors.Tanh())


MAKERS = {
    "distrax diagonal": (diag, lambda p: distrax.MultivariateNormalDiag(p.mean, p.std)),
    "distrax full": (full, lambda p: distrax.MultivariateNormalTri(p.mean, p.chol)),
    "distrax independent": (diag, lambda p: distrax.Independent(distrax.Normal(p.mean, p.std), 1)),
    "distrax squashed": (
        diag,
        lambda p: distrax.Transformed(
            distribution=distrax.MultivariateNormalDiag(p.mean, p.std), bijector=distrax.Block(distrax.Tanh(), 1)
        ),
    ),
    "tfp diagonal": (diag, lambda p: tfp.distributions.MultivariateNormalDiag(p.mean, p.std)),
    "tfp full": (full, lambda p: tfp.distributions.MultivariateNormalTriL(p.mean, p.chol)),
    "tfp independent": (diag, lambda p: tfp.distributions.Independent(tfp.distributions.Normal(p.mean, p.std), 1)),
    "tfp squashed": (diag, tfp_squashed),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_gaussian_inside_is_projected_and_put_back(name):
    values, make = MAKERS[name]
    predicted, old = values(0), values(1)
    wanted = LAYER(predicted, old)
    found = project(LAYER, make(predicted), make(old))
    assert type(found) is type(make(predicted))
    for a, b in zip(split(found).policy, wanted, strict=True):
        assert_close(a, b, atol=1e-6)
    assert jnp.all(jnp.isfinite(found.log_prob(jnp.full((6, 3), 0.1))))
    assert_close(penalty(LAYER, make(predicted), found), LAYER.penalty(predicted, wanted), rtol=1e-4)
    raised = project(LAYER, make(predicted), make(old), min_entropy=9.0)
    assert_close(trpl.entropy(split(raised).policy), 9.0, atol=1e-4)


@pytest.mark.parametrize("name", MAKERS)
def test_gradients_pass(name):
    values, make = MAKERS[name]
    predicted, old = values(0), values(1)

    def total(mean, through):
        return split(through(predicted._replace(mean=mean))).policy.mean.sum()

    direct = jax.grad(lambda mean: total(mean, lambda p: LAYER(p, old)))(predicted.mean)
    wrapped = jax.grad(lambda mean: total(mean, lambda p: project(LAYER, make(p), make(old))))(predicted.mean)
    assert_close(wrapped, direct, atol=1e-5)


def logits(seed):
    return Categorical(jnp.asarray(np.random.default_rng(seed).normal(size=(6, 4)), jnp.float32))


def shapes(seed):
    return Beta(*jnp.asarray(np.exp(np.random.default_rng(seed).normal(size=(2, 6, 3))), jnp.float32))


td = tfp.distributions
OTHERS = {
    "distrax categorical": (logits, lambda p: distrax.Categorical(logits=p.logits)),
    "distrax one-hot": (logits, lambda p: distrax.OneHotCategorical(logits=p.logits)),
    "distrax bernoulli": (logits, lambda p: distrax.Independent(distrax.Bernoulli(logits=p.logits), 1)),
    "distrax beta": (shapes, lambda p: distrax.Independent(distrax.Beta(*p), 1)),
    "tfp categorical": (logits, lambda p: td.Categorical(logits=p.logits)),
    "tfp one-hot": (logits, lambda p: td.OneHotCategorical(logits=p.logits)),
    "tfp bernoulli": (logits, lambda p: td.Independent(td.Bernoulli(logits=p.logits), 1)),
    "tfp beta": (shapes, lambda p: td.Independent(td.Beta(*p), 1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_policies_that_are_not_gaussian(name):
    """Through a stand-in for a layer, so that nothing is compiled: what is asked is what goes in and comes out."""
    values, make = OTHERS[name]
    seen = []

    def halfway(predicted, old):
        seen.append((predicted, old))
        return type(predicted)(*(0.5 * (x + y) for x, y in zip(predicted, old, strict=True)))

    found = project(halfway, make(values(0)), make(values(1)))
    assert type(found) is type(make(values(0)))
    (p, q), middle = seen[0], split(found).policy
    for x, y, between, given in zip(p, q, middle, values(0), strict=True):
        offset = (x - given)[..., :1]  # Distrax normalises logits
        assert_close(x, given + offset, atol=1e-6)
        between = between - (between - 0.5 * (x + y))[..., :1] if isinstance(p, Categorical) else between
        assert_close(between, 0.5 * (x + y), atol=1e-6)


@pytest.mark.parametrize("library", [distrax, td])
def test_the_dtype_of_actions_stays(library):
    def policies(seed):
        given = logits(seed).logits
        yield library.Categorical(logits=given, dtype=jnp.int8)
        yield library.OneHotCategorical(logits=given, dtype=jnp.float32)
        yield library.Independent(library.Bernoulli(logits=given, dtype=jnp.float32), 1)

    for predicted, old in zip(policies(0), policies(1), strict=True):
        assert project(lambda p, q: q, predicted, old).dtype == predicted.dtype


def torch_squashed(mean, std):
    base = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    return torch.distributions.TransformedDistribution(base, [SQUASH])


def test_squashing_leaves_the_kl_as_it_is_by_quadrature():
    """KL of two tanh-squashed Gaussians, integrated over (−1, 1), is that of the Gaussians, and so is the bound."""
    old = torch_squashed(torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([[0.6]], dtype=torch.float64))
    predicted = torch_squashed(torch.tensor([[1.5]], dtype=torch.float64), torch.tensor([[1.1]], dtype=torch.float64))
    projected = project(trpl.torch.KLProjection(0.03, 1e-3), predicted, old)
    assert isinstance(projected, torch.distributions.TransformedDistribution)
    x = torch.linspace(-8, 8, 40_001, dtype=torch.float64)
    y = torch.tanh(x)[:, None, None]
    inside = (y.abs() < 1 - 1e-12)[:, 0, 0]
    for p, wanted in ((projected, 0.031), (predicted, None)):
        log_p, log_q = p.log_prob(y[inside])[:, 0], old.log_prob(y[inside])[:, 0]
        kl = torch.trapezoid(log_p.exp() * (log_p - log_q), y[inside, 0, 0]).item()
        parts = trpl.kl_parts(split(p).policy, split(old).policy)
        assert kl == pytest.approx((parts.mean + parts.cov).item(), rel=1e-4)
        if wanted is not None:
            assert kl == pytest.approx(wanted, rel=1e-4)


def test_squashing_leaves_the_kl_as_it_is_by_sampling():
    torch.manual_seed(0)
    old = torch_squashed(torch.tensor([0.4, -0.2]), torch.tensor([0.6, 0.9]))
    predicted = torch_squashed(torch.tensor([0.9, -0.8]), torch.tensor([0.8, 0.7]))
    projected = project(trpl.torch.KLProjection(0.1, 0.05), predicted, old)
    samples = projected.sample((200_000,))
    difference = (projected.log_prob(samples) - old.log_prob(samples)).mean().item()
    assert difference == pytest.approx(0.15, abs=0.01)


def test_torch_distributions_without_squashing():
    normal = torch.distributions.Independent(torch.distributions.Normal(torch.ones(4, 2), 1.0), 1)
    old = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(4, 2), 1.0), 1)
    layer = trpl.torch.KLProjection(0.03, 1e-3)
    assert torch.equal(project(layer, normal, old).mean, layer(normal, old).mean)


def test_transforms_within_a_composition_are_compared():
    """TorchRL composes tanh and the range of the actions: policies with different ranges are not comparable."""

    def composed(*parts):
        base = torch.distributions.Independent(torch.distributions.Normal(torch.ones(4, 2), 1.0), 1)
        return torch.distributions.TransformedDistribution(base, torch.distributions.ComposeTransform([*parts]))

    layer, affine = trpl.torch.KLProjection(0.03, 1e-3), torch.distributions.AffineTransform
    wide, same, narrow = (composed(SQUASH, affine(0.0, torch.full((2,), scale))) for scale in (2.0, 2.0, 1.0))
    assert torch.equal(project(layer, wide, same).base_dist.mean, wide.base_dist.mean)
    for other in (narrow, composed(torch.distributions.SigmoidTransform(), affine(0.0, 2.0)), composed(SQUASH)):
        with pytest.raises(ValueError, match="transformed alike"):
            project(layer, wide, other)


def test_what_does_not_fit_is_refused():
    base = distrax.MultivariateNormalDiag(jnp.zeros((2, 3)), jnp.ones((2, 3)))
    squashed = distrax.Transformed(distribution=base, bijector=distrax.Block(distrax.Tanh(), 1))
    with pytest.raises(ValueError, match=r"transformed alike.*Block and none"):
        project(LAYER, squashed, base)
    with pytest.raises(ValueError, match=r"cannot find a policy.*Gumbel"):
        split(distrax.Gumbel(jnp.zeros(3), jnp.ones(3)))
    with pytest.raises(ValueError, match="one event dimension"):
        split(distrax.Independent(distrax.Laplace(jnp.zeros(3), jnp.ones(3)), 1))
    wide = jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.ones((2, 3, 1))  # a covariance of which the diagonal is a part only
    for library in (distrax, td):
        with pytest.raises(ValueError, match=r"cannot find a policy.*DiagPlusLowRank"):
            split(library.MultivariateNormalDiagPlusLowRank(*wide))
        with pytest.raises(ValueError, match=r"cannot find a policy.*FullCovariance"):
            split(library.MultivariateNormalFullCovariance(jnp.zeros((2, 3)), jnp.eye(3)))
