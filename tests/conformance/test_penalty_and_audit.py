"""The regression penalty and the audit, recomputed by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import reference
from cases import CASES, KINDS, SEPARATE, as_pair, by_name, policies, run
from frameworks import FRAMEWORKS, torch
from generators import close_pair, gentle_pair
from trpl import kl_parts

pytestmark = pytest.mark.usefixtures("x64")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
one_of_each = pytest.mark.parametrize("case", CASES[:6], ids=str)


def with_old(pair, mean, scale):
    """The pair with another policy in the old one's place."""
    return pair._replace(old_mean=mean, old_scale=scale)


@every_framework
@every_kind
@one_of_each
def test_penalty_is_the_distance_to_the_projected(case, kind, framework):
    """Distance of the prediction from the projected (never the old) policy, scaled by the projected one, both parts."""
    pair = gentle_pair(kind)
    projected = run(case, framework, pair)
    predicted, target = policies(framework, with_old(pair, projected.mean, projected.scale))
    found = framework.numpy(case.make(framework).penalty(predicted, target))
    towards = with_old(pair, projected.mean, projected.scale)
    expected = reference.mean_part(case.metric, towards) + reference.cov_part(case.metric, towards)
    assert found.shape == (6,)
    assert_allclose(found, expected, rtol=1e-8)


@every_framework
@every_kind
@one_of_each
def test_penalty_of_a_shared_covariance_is_of_the_mean_alone(case, kind, framework):
    pair = gentle_pair(kind)
    shared = pair._replace(scale=pair.scale[0], old_scale=pair.old_scale[0])
    predicted, target = policies(framework, shared)
    found = framework.numpy(case.make(framework).penalty(predicted, target))
    each = pair._replace(old_scale=np.broadcast_to(pair.old_scale[0], pair.scale.shape))
    assert_allclose(found, reference.mean_part(case.metric, each), rtol=1e-10)


@every_kind
@one_of_each
def test_penalty_moves_the_prediction_only(case, kind):
    framework = by_name("torch")
    predicted, target = policies(framework, gentle_pair(kind))
    leaves = [x.clone().requires_grad_() for x in (*predicted, *target)]
    penalty = case.make(framework).penalty(type(predicted)(*leaves[:2]), type(target)(*leaves[2:]))
    found = torch.autograd.grad(penalty.sum(), leaves, allow_unused=True)
    assert found[2] is None
    assert found[3] is None
    assert all(float(g.abs().max()) > 0 for g in found[:2])
    leaves = [x.clone().requires_grad_() for x in predicted]  # and at the target itself it is 0 with gradient 0
    penalty = case.make(framework).penalty(type(predicted)(*leaves), predicted)
    assert float(penalty.detach().abs().max()) < 1e-20
    for gradient in torch.autograd.grad(penalty.sum(), leaves):
        assert float(gradient.abs().max()) < 1e-10


def test_penalty_in_jax_moves_the_prediction_only():
    import jax

    framework = by_name("jax")
    predicted, target = policies(framework, gentle_pair("diag"))
    layer = CASES[0].make(framework)
    found = jax.jit(jax.grad(lambda p, q: layer.penalty(p, q).sum(), argnums=(0, 1)))(predicted, target)
    assert all(float(abs(g).max()) > 0 for g in found[0])
    assert all(float(abs(g).max()) == 0 for g in found[1])


@every_framework
@every_kind
@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_audit(case, kind, framework):
    """Distances before and after; multipliers that rebuild the projection; who was projected."""
    far, near = gentle_pair(kind), close_pair(kind)
    outside = np.arange(6) % 3 != 0
    mask = outside.reshape(6, *[1] * (far.scale.ndim - 1))
    pair = far._replace(
        mean=np.where(outside[:, None], far.mean, near.mean),
        scale=np.where(mask, far.scale, near.scale),
        old_mean=np.where(outside[:, None], far.old_mean, near.old_mean),
        old_scale=np.where(mask, far.old_scale, near.old_scale),
    )
    layer = case.make(framework)
    predicted, old = policies(framework, pair)
    projected = framework.project(layer, predicted, old)
    audit = layer.audit(predicted, projected, old)
    result = as_pair(framework, projected, pair)
    for parts, state in ((audit.before, pair), (audit.after, result)):
        assert_allclose(framework.numpy(parts.mean), reference.mean_part(case.metric, state), rtol=1e-8, atol=1e-12)
        assert_allclose(framework.numpy(parts.cov), reference.cov_part(case.metric, state), rtol=1e-7, atol=1e-12)
    assert_array_equal(framework.numpy(audit.mean_projected), outside)
    assert_array_equal(framework.numpy(audit.cov_projected), outside)
    assert int(audit.num_mean_projected) == int(audit.num_cov_projected) == 4
    assert audit.entropy_multiplier is None
    omega, eta = framework.numpy(audit.mean_multiplier), framework.numpy(audit.cov_multiplier)
    assert_array_equal(omega[~outside], 0.0)
    assert_array_equal(eta[~outside], 0.0)
    assert_allclose(
        result.mean, (pair.mean + omega[:, None] * pair.old_mean) / (1.0 + omega[:, None]), rtol=1e-9, atol=1e-12
    )
    new, old_cov = reference.covariances(pair)
    found, _ = reference.covariances(result)
    eta = eta[:, None, None]
    if case.metric == "kl":
        expected = np.linalg.inv((np.linalg.inv(new) + eta * np.linalg.inv(old_cov)) / (1.0 + eta))
    elif case.metric == "w2":
        expected = np.linalg.matrix_power((reference.root(new) + eta * reference.root(old_cov)) / (1.0 + eta), 2)
    elif case.metric == "w2-exact":
        chol = np.linalg.cholesky(old_cov)
        inverse = np.linalg.inv(chol)
        root = (reference.root(inverse @ new @ inverse.swapaxes(-1, -2)) + eta * np.eye(3)) / (1.0 + eta)
        expected = chol @ root @ root @ chol.swapaxes(-1, -2)
    else:
        expected = (new + eta * old_cov) / (1.0 + eta)
    assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@every_framework
@every_kind
@pytest.mark.parametrize("entropy", ["min_entropy", "entropy"])
def test_joint_audit(kind, framework, entropy):
    """One multiplier η for mean and covariance, and ω for the entropy: (1 + η + ω)Σ̃⁻¹ = Σ⁻¹ + ηΣ_old⁻¹."""
    case = next(c for c in CASES if c.entropy == entropy)
    pair = gentle_pair(kind)
    layer = case.make(framework)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    projected = framework.project(layer, predicted, old, **options)
    audit = layer.audit(predicted, projected, old, **options)
    eta, omega = (framework.numpy(x)[:, None, None] for x in (audit.mean_multiplier, audit.entropy_multiplier))
    assert (eta > 0).all()
    assert entropy == "entropy" or (omega >= 0).all()
    assert framework.numpy(audit.mean_projected).all()
    assert framework.numpy(audit.cov_projected).all()
    assert_allclose(framework.numpy(audit.cov_multiplier), eta[:, 0, 0], rtol=0, atol=0)
    before = kl_parts(predicted, old)
    assert_allclose(framework.numpy(audit.before.mean), framework.numpy(before.mean), rtol=1e-12)
    assert_allclose(framework.numpy(audit.before.cov), framework.numpy(before.cov), rtol=1e-12)
    new, old_cov = reference.covariances(pair)
    found, _ = reference.covariances(as_pair(framework, projected, pair))
    precision = (np.linalg.inv(new) + eta * np.linalg.inv(old_cov)) / (1.0 + eta + omega)
    assert_allclose(found, np.linalg.inv(precision), rtol=1e-7, atol=1e-9)
    assert_allclose(framework.numpy(audit.after.mean + audit.after.cov), 0.03, rtol=1e-9)
