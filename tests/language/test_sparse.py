"""The layer on sparse categoricals, in PyTorch and JAX: the categorical projection over kept ids and rest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import trpl
import trpl.jax
import trpl.torch
from trpl import Categorical, SparseCategorical

BOUND = 0.05


def logits(num=64, classes=12, *, seed=0, scale=1.0):
    """Log-probabilities of a new and an old policy over a vocabulary, in float64."""
    draw = np.random.default_rng(seed)
    old = 3.0 * draw.normal(size=(num, classes))
    return [torch.tensor(x).log_softmax(-1) for x in (old + scale * draw.normal(size=old.shape), old)]


def lump(log_probs, ids):
    """The sparse policy at these ids."""
    kept = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, ids, True)
    rest = log_probs.masked_fill(kept, -torch.inf).logsumexp(-1, keepdim=True)
    return SparseCategorical(ids, torch.cat((log_probs.gather(-1, ids), rest), -1))


def pair(num_kept, **options):
    new, old = logits(**options)
    ids = old.topk(num_kept).indices
    return lump(new, ids), lump(old, ids)


def to_jax(p):
    return SparseCategorical(*(jnp.asarray(x.numpy()) for x in p))


def test_the_dense_layer_where_everything_is_kept():
    leaves = [x.requires_grad_() for x in logits()]
    new, old = (x.log_softmax(-1) for x in leaves)
    ids = old.topk(old.shape[-1]).indices
    layer = trpl.torch.JointKLProjection(BOUND)
    dense = layer(Categorical(new), Categorical(old)).logits.log_softmax(-1)
    sparse = layer(lump(new, ids), lump(old, ids)).log_probs
    assert (sparse[:, -1] == -torch.inf).all()
    torch.testing.assert_close(sparse[:, :-1], dense.gather(-1, ids), rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(dense)
    ours = torch.autograd.grad((sparse[:, :-1] * weights.gather(-1, ids)).sum(), leaves, retain_graph=True)
    wanted = torch.autograd.grad((dense * weights).sum(), leaves)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("batch", [(), (1,)])
def test_one_prediction_around_several_old_policies(batch):
    predicted, old = pair(4)
    one = SparseCategorical(*(x[0].expand(*batch, x.shape[-1]) for x in predicted))
    old = old._replace(ids=one.ids.expand_as(old.ids))
    found = trpl.torch.JointKLProjection(BOUND)(one, old)
    assert found.ids.shape == (64, 4)
    assert found.log_probs.shape == (64, 5)
    assert (found.ids == old.ids).all()


def test_both_frameworks_agree(x64):
    predicted, old = pair(4)
    layer, twin = trpl.torch.JointKLProjection(BOUND), trpl.jax.JointKLProjection(BOUND)
    scores = predicted.log_probs.requires_grad_()
    projected = layer(predicted, old)
    (gradient,) = torch.autograd.grad(projected.log_probs.square().sum(), scores)
    given, held = to_jax(predicted._replace(log_probs=scores.detach())), to_jax(old)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(log_probs):
        new = given._replace(log_probs=log_probs)
        found = twin(new, held)
        return jnp.sum(found.log_probs**2), (found, twin.penalty(new, found))

    (_, (found, penalty)), slope = jax.jit(loss)(given.log_probs)
    assert (found.ids == given.ids).all()
    np.testing.assert_allclose(found.log_probs, projected.log_probs.detach(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(slope, gradient, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(penalty, layer.penalty(predicted, projected).detach(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 2.0])
def test_gradients_to_prediction_old_policy_and_bound_by_finite_differences(scale):
    predicted, old = pair(4, num=6, scale=scale)
    layer = trpl.torch.JointKLProjection(BOUND)

    def project(new, before, bound):
        new, before = (SparseCategorical(old.ids, x.log_softmax(-1)) for x in (new, before))
        return layer(new, before, bound=bound).log_probs

    bounds = torch.full((6,), BOUND, dtype=torch.float64)
    leaves = [x.detach().requires_grad_() for x in (predicted.log_probs, old.log_probs, bounds)]
    assert torch.autograd.gradcheck(project, leaves)


def test_entropy_is_held_as_for_any_categorical():
    predicted, old = pair(4)
    layer = trpl.torch.JointKLProjection(0.5)
    target = trpl.entropy(old)
    projected = layer(predicted, old, min_entropy=target)
    dense = layer(Categorical(predicted.log_probs), Categorical(old.log_probs), min_entropy=target)
    torch.testing.assert_close(projected.log_probs, dense.logits.log_softmax(-1))
    assert (trpl.entropy(projected) >= target - 1e-9).all()
    torch.testing.assert_close(projected.log_probs.exp().sum(-1), torch.ones(64, dtype=torch.float64))


def test_inside_nothing_moves_and_the_audit_says_who_was_outside():
    predicted, old = pair(4, scale=0.5)
    layer = trpl.torch.JointKLProjection(BOUND)
    projected = layer(predicted, old)
    audit = layer.audit(predicted, projected, old)
    outside = trpl.kl(predicted, old) > BOUND
    assert 0 < outside.sum() < 64
    assert torch.equal(audit.mean_projected, outside)
    assert torch.equal(projected.log_probs[~outside], predicted.log_probs[~outside])
    torch.testing.assert_close(audit.after.mean[outside], torch.full_like(audit.after.mean[outside], BOUND))
    near = layer(old._replace(log_probs=old.log_probs + 1e-9), old)
    assert near.ids is old.ids


def test_log_probability_of_kept_tokens_alone():
    predicted, _ = pair(4)
    torch.testing.assert_close(trpl.log_prob(predicted, predicted.ids[:, 2]), predicted.log_probs[:, 2])
    with pytest.raises(ValueError, match="64 tokens are not among the kept ids"):
        trpl.log_prob(predicted, torch.full((64,), 99))
    predicted.ids[:, 3] = -1  # an unused place
    with pytest.raises(ValueError, match="64 tokens are not among the kept ids"):
        trpl.log_prob(predicted, torch.full((64,), -1))


def test_what_does_not_fit_is_said():
    predicted, old = pair(4)
    layer = trpl.torch.JointKLProjection(BOUND)
    for words, given in {
        "keeps 3": SparseCategorical(predicted.ids[:, 1:], predicted.log_probs[:, 1:]),
        "same places": SparseCategorical(predicted.ids.flip(-1), predicted.log_probs),
        r"expected .*K \+ 1": SparseCategorical(predicted.ids[:, 1:], predicted.log_probs),
        "NaN": SparseCategorical(predicted.ids, predicted.log_probs * torch.nan),
        "predicted, kept ids and rest, do not sum to 1 in 64 states": predicted._replace(
            log_probs=predicted.log_probs + 0.1
        ),
    }.items():
        with pytest.raises(ValueError, match=words):
            layer(given, old)
