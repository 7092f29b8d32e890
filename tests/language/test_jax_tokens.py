"""Kept ids from logits in JAX: the numbers of PyTorch's head, whose matrix is 1 here, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from trpl.jax.tokens import choose_kept, score_kept
from trpl.torch import head as of_torch

VOCABULARY = 20


def policy(batch=(3, 4), seed=0):
    """Logits and sampled tokens, as NumPy arrays."""
    draw = np.random.default_rng(seed)
    return 3.0 * draw.normal(size=(*batch, VOCABULARY)), draw.integers(VOCABULARY, size=batch)


def twin(logits):
    """The logits as hidden states of a head that leaves them as they are."""
    return torch.tensor(logits, requires_grad=True), of_torch.Head(torch.eye(VOCABULARY, dtype=torch.float64))


@pytest.mark.parametrize(("num", "mass"), [(8, 0.7), (VOCABULARY, 1.0)])
def test_the_same_ids_scores_and_gradients_as_in_pytorch(num, mass, x64):
    logits, sampled = policy()
    hidden, head = twin(logits)
    wanted = of_torch.choose_kept(hidden, head, torch.tensor(sampled), kept_tokens=num, kept_mass=mass).policy
    old = jax.jit(lambda x, y: choose_kept(x, y, kept_tokens=num, kept_mass=mass))(logits, sampled)
    width = wanted.ids.shape[-1]
    assert (old.ids[..., :width] == wanted.ids.numpy()).all()
    assert (old.ids[..., width:] == -1).all()
    np.testing.assert_allclose(old.log_probs[..., :width], wanted.log_probs[..., :-1])
    np.testing.assert_allclose(old.log_probs[..., -1], wanted.log_probs[..., -1])

    weights = np.random.default_rng(1).normal(size=old.log_probs.shape)
    weights = np.where(np.isfinite(old.log_probs), weights, 0.0)

    def total(x):
        scores = score_kept(x, old.ids).log_probs
        return jnp.sum(jnp.where(jnp.isfinite(scores), scores, 0.0) * weights)

    scores = of_torch.score_kept(hidden, head, torch.tensor(np.array(old.ids))).policy.log_probs
    torch.where(scores.isfinite(), scores * torch.tensor(weights), 0.0).sum().backward()
    np.testing.assert_allclose(jax.jit(jax.grad(total))(logits), hidden.grad, atol=1e-12)


def test_no_more_are_kept_than_are_allowed(x64):
    """The sampled token is not chosen a second time for want of others."""
    logits, sampled = policy()
    logits[..., 5:] = -np.inf
    old = choose_kept(jnp.asarray(logits), jnp.asarray(sampled % 5), kept_tokens=8)
    assert (np.sort(old.ids[..., :5]) == np.arange(5)).all()
    assert (old.ids[..., 5:] == -1).all()
    np.testing.assert_allclose(np.exp(old.log_probs).sum(-1), 1.0)


def test_a_rest_of_1e_30_keeps_its_digits():
    low = jnp.full((1, VOCABULARY), -69.0 - np.log(VOCABULARY - 1)).at[0, 3].set(0.0)
    found = choose_kept(low.astype(jnp.float32), jnp.array([3]), kept_tokens=1)
    assert found.log_probs[0, 1] == pytest.approx(-69.0)


def test_what_does_not_fit_is_said():
    logits, sampled = (jnp.asarray(x) for x in policy())
    for words, call in {
        "one sampled token": lambda: choose_kept(logits, sampled[0]),
        "kept_tokens": lambda: choose_kept(logits, sampled, kept_tokens=0),
        "kept_mass": lambda: choose_kept(logits, sampled, kept_mass=0.0),
        "twice for": lambda: score_kept(logits, jnp.stack((sampled, sampled), -1)),
        "outside 0…19": lambda: choose_kept(logits, sampled + VOCABULARY),
        "batch shape": lambda: score_kept(logits, sampled),
        "no id is kept": lambda: score_kept(logits, sampled[..., None][..., :0]),
        "integers": lambda: score_kept(logits, sampled[..., None] * 1.0),
    }.items():
        with pytest.raises(ValueError, match=words):
            call()
