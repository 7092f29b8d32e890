"""The exact KL of an update against closed forms computed apart, and for every kind of policy."""

import numpy as np
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import TanhTransform

from trpl import Categorical, DiagGaussian, SparseCategorical, kl
from trpl.integrations.audit import exact_kl, read


def gaussians(seed=0):
    torch.manual_seed(seed)
    return [Independent(Normal(torch.randn(40, 3), 0.5 + torch.rand(40, 3)), 1) for _ in range(2)]


def test_against_pytorchs_own_divergence():
    new, old = gaussians()
    wanted = kl_divergence(new, old)
    found = exact_kl(new, read(old), bound=1.0)
    assert found.states == pytest.approx(wanted.numpy(), rel=1e-5)
    assert found.mean == pytest.approx(wanted.mean().item(), rel=1e-5)
    assert found.max == pytest.approx(wanted.max().item(), rel=1e-5)
    assert found.share_above == pytest.approx((wanted > 1.0).float().mean().item())
    assert found.estimate is None
    words = f"mean {found.mean:.4g}, largest {found.max:.4g}, {found.share_above:.1%} above the bound"
    assert str(found) == f"exact KL in 40 states: {words}"
    assert found.figures("ppo/").keys() == {"ppo/kl", "ppo/kl_max", "ppo/kl_above"}


def test_squashing_changes_nothing():
    new, old = gaussians()
    squashed = [TransformedDistribution(p, [TanhTransform()]) for p in (new, old)]
    assert exact_kl(*squashed).states == pytest.approx(exact_kl(new, old).states)


def test_full_covariances():
    chol = torch.linalg.cholesky(torch.tensor([[2.0, 0.3], [0.3, 1.0]]))
    new = MultivariateNormal(torch.ones(5, 2), scale_tril=chol.expand(5, 2, 2))
    old = MultivariateNormal(torch.zeros(5, 2), scale_tril=torch.eye(2).expand(5, 2, 2))
    assert exact_kl(new, old).mean == pytest.approx(kl_divergence(new, old).mean().item(), rel=1e-5)


def test_what_is_read_does_not_follow_the_network():
    parameter = torch.zeros(4, 2, requires_grad=True)
    old = read(DiagGaussian(parameter, torch.ones(2)))
    with torch.no_grad():
        parameter += 1.0
    assert exact_kl(DiagGaussian(parameter, torch.ones(2)), old).mean == pytest.approx(1.0)


def test_the_estimate_of_ppo():
    """The mean of (ratio − 1) − log ratio over many actions of the old policy tends to KL(old ‖ new)."""
    generator = np.random.default_rng(0)
    old, new = DiagGaussian(np.zeros((200_000, 1)), np.ones(1)), DiagGaussian(np.full((200_000, 1), 0.3), np.ones(1))
    found = exact_kl(new, old, actions=generator.normal(size=(200_000, 1)))
    assert found.mean == pytest.approx(0.045)
    assert found.estimate == pytest.approx(0.045, rel=0.05)


def test_actions_that_are_not_one_for_each_state():
    """[5] minus [5, 1] would be every action in every state."""
    old, new = (DiagGaussian(np.full((5, 1), mean), np.ones(1)) for mean in (0.0, 0.3))
    for actions in (np.zeros(5), np.zeros((4, 1))):
        with pytest.raises(ValueError, match=r"for states \(5,\): needs one per state, and each is a vector"):
            exact_kl(new, old, actions=actions)
    with pytest.raises(ValueError, match="each is a whole number"):
        exact_kl(Categorical(np.zeros((5, 3))), Categorical(np.zeros((5, 3))), actions=np.zeros((5, 1)))


def test_padding_is_left_out():
    old, new = DiagGaussian(np.zeros((3, 1)), np.ones(1)), DiagGaussian(np.array([[1.0], [1.0], [9.0]]), np.ones(1))
    found = exact_kl(new, old, weights=[1, 1, 0], actions=np.zeros((3, 1)))
    assert found.max == pytest.approx(0.5)
    assert len(found.states) == 2


def test_policies_that_do_not_belong_together():
    with pytest.raises(ValueError, match="old policy has 3 action dimensions, new has 2"):
        exact_kl(DiagGaussian(np.zeros((3, 2)), np.ones(2)), DiagGaussian(np.zeros((3, 3)), np.ones(3)))
    with pytest.raises(ValueError, match="new is a Categorical and old a DiagGaussian"):
        exact_kl(Categorical(np.zeros((3, 2))), DiagGaussian(np.zeros((3, 2)), np.ones(2)))


def test_a_squashed_policy_against_an_unsquashed_one():
    """Their divergence is not that of the Gaussians inside; what `read` returned is inside, whatever was around it."""
    inside = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(3, 2), torch.ones(3, 2)), 1)
    squashed = torch.distributions.TransformedDistribution(inside, [torch.distributions.TanhTransform()])
    for new, old in ((squashed, inside), (inside, squashed)):
        with pytest.raises(
            ValueError, match="new and old must be transformed alike, by the same numbers; the bijections are"
        ):
            exact_kl(new, old)
    assert exact_kl(squashed, squashed).max == exact_kl(squashed, read(squashed)).max == 0.0
    moved = [
        torch.distributions.TransformedDistribution(
            inside, [torch.distributions.AffineTransform(torch.ones(3, 2), scale)]
        )
        for scale in (0.5, 1.0)
    ]
    assert exact_kl(moved[0], moved[0]).max == 0.0
    with pytest.raises(ValueError, match=r"AffineTransform\(\) and AffineTransform\(\)"):
        exact_kl(*moved)


def test_policies_that_are_not_gaussian():
    new, old = (torch.distributions.Categorical(logits=torch.randn(30, 4)) for _ in range(2))
    found = exact_kl(new, read(old), actions=torch.zeros(30, dtype=torch.long))
    assert found.states == pytest.approx(kl_divergence(new, old).numpy(), rel=1e-5)
    log_ratio = (new.logits - old.logits)[:, 0]
    assert found.estimate == pytest.approx((log_ratio.exp() - 1 - log_ratio).mean().item(), rel=1e-5)


def test_sparse_policies_keep_their_ids():
    ids = torch.tensor([[3, 1], [2, 0]])
    new, old = (SparseCategorical(ids, torch.randn(2, 3).log_softmax(-1)) for _ in range(2))
    found = exact_kl(new, read(old), actions=ids[:, 0])
    assert found.states == pytest.approx(kl(new, old).numpy(), rel=1e-5)
    assert found.estimate is not None
    with pytest.raises(ValueError, match="must keep the old policy's ids"):
        exact_kl(new._replace(ids=ids.flip(0)), old)


def test_bfloat16():
    logits = torch.randn(2, 8, 5).bfloat16()
    found, wanted = (
        exact_kl(*(Categorical(x) for x in kind), actions=torch.zeros(8)) for kind in (logits, logits.double())
    )
    assert found.mean == pytest.approx(wanted.mean)
    assert found.estimate == pytest.approx(wanted.estimate)
