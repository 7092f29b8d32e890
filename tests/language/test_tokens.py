"""Trust regions token by token: the bound holds on hard tokens, gradients are right, the rest keeps its promise."""

import math

import pytest
import torch

from trpl.families.sparse import SparseCategorical
from trpl.torch.tokens import project_tokens, trust_region_loss

BOUND = 0.05


def policies(log_probs, old, ids=None):
    """Two policies over the same ids, from unnormalised log-probabilities of ids and rest."""
    ids = torch.arange(old.shape[-1] - 1).expand(*old.shape[:-1], -1) if ids is None else ids
    return tuple(SparseCategorical(ids, x.log_softmax(-1)) for x in (log_probs, old))


def random_policies(num=200, classes=9, *, scale=1.0, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    old = 3.0 * torch.randn(num, classes, dtype=dtype)
    return policies(old + scale * torch.randn(num, classes, dtype=dtype), old)


def kl(p, q):
    """Σ p log p/q, where p has no probability nothing."""
    return torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum(-1)


HARD = {
    "all mass on one id": ([0.0, -200.0, -200.0, -200.0], [0.0, -20.0, -20.0, -20.0]),
    "mass leaves the one id": ([-20.0, 0.0, -20.0, -20.0], [0.0, -20.0, -20.0, -20.0]),
    "the sampled id was unlikely": ([0.0, -1.0, -2.0, -3.0], [-15.0, 0.0, -1.0, -2.0]),
    "a rest of 1e-30": ([0.0, -1.0, -2.0, -69.0], [-3.0, 0.0, -1.0, -69.5]),
    "a rest that grows from 1e-30": ([0.0, -1.0, -2.0, -3.0], [0.0, -1.0, -2.0, -69.0]),
    "an unused place": ([0.0, -math.inf, -2.0, -3.0], [-4.0, -math.inf, -1.0, -1.0]),
    "no rest at all": ([0.0, -5.0, -2.0, -math.inf], [-4.0, 0.0, -1.0, -math.inf]),
    "one id and the rest": ([0.0, -3.0], [-3.0, 0.0]),
}
hard_tokens = pytest.mark.parametrize("name", HARD)


def hard(name, dtype):
    new, old = (torch.tensor([x], dtype=dtype) for x in HARD[name])
    ids = torch.where(old[:, :-1] > -torch.inf, torch.arange(old.shape[-1] - 1), -1)
    return policies(new, old, ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@hard_tokens
def test_hard_tokens_stay_finite_and_inside(name, dtype):
    predicted, old = hard(name, dtype)
    log_probs = predicted.log_probs.requires_grad_()
    found = trust_region_loss(predicted, old, torch.tensor([1.0], dtype=dtype), bound=BOUND)
    (gradient,) = torch.autograd.grad(found.loss.sum(), log_probs)
    assert torch.isfinite(gradient).all()
    assert all(torch.isfinite(x).all() for x in found)
    assert float(found.projected_kl) <= BOUND * (1.0 + 1e-4)
    assert bool(found.projected) == (float(found.kl) > BOUND)


@hard_tokens
def test_gradients_of_hard_tokens_by_finite_differences(name):
    predicted, old = hard(name, torch.float64)
    used = torch.isfinite(old.log_probs)
    start = predicted.log_probs[used]

    def scores(values):
        given = torch.full_like(old.log_probs, -torch.inf).masked_scatter(used, values.log_softmax(-1))
        return project_tokens(SparseCategorical(old.ids, given), old, bound=BOUND).policy.log_probs[used]

    assert torch.autograd.gradcheck(scores, start.requires_grad_(), atol=1e-6)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_gradients_by_finite_differences(scale):
    predicted, old = random_policies(20, scale=scale)

    def scores(values):
        return project_tokens(SparseCategorical(old.ids, values.log_softmax(-1)), old, bound=BOUND).policy.log_probs

    assert torch.autograd.gradcheck(scores, predicted.log_probs.requires_grad_())


def test_the_regression_pulls_the_network_alone():
    """KL(π‖π̃) with π̃ a constant: its gradient is that of a cross entropy to fixed targets."""
    predicted, old = random_policies(20)
    logits = predicted.log_probs.requires_grad_()
    found = project_tokens(SparseCategorical(old.ids, logits.log_softmax(-1)), old, bound=BOUND)
    (gradient,) = torch.autograd.grad(found.regression.sum(), logits)
    target = found.policy.log_probs.detach()
    (wanted,) = torch.autograd.grad(kl(logits.log_softmax(-1), target).sum(), logits)
    torch.testing.assert_close(gradient, wanted)
    inside = ~found.projected
    assert inside.any()
    torch.testing.assert_close(found.regression[inside], torch.zeros_like(found.regression[inside]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [1e-4, 0.05, 1.0])
def test_outside_lands_on_the_bound_and_inside_nothing_moves(bound, dtype):
    predicted, old = random_policies(scale=0.5, dtype=dtype)
    found = project_tokens(predicted, old, bound=bound)
    exact = [p.log_probs.double().log_softmax(-1) for p in (predicted, old)]  # rounded, they do not sum to 1
    torch.testing.assert_close(found.kl, kl(*exact).to(dtype), rtol=1e-4, atol=1e-7)
    outside = found.projected
    assert (found.projected_kl <= bound * (1.0 + 1e-4)).all()
    torch.testing.assert_close(
        found.projected_kl[outside], torch.full_like(found.kl[outside], bound), rtol=1e-4, atol=0
    )
    assert torch.equal(found.policy.log_probs[~outside], predicted.log_probs[~outside])
    torch.testing.assert_close(found.policy.log_probs.exp().sum(-1), torch.ones(len(old.ids), dtype=dtype))


def test_what_the_rest_promises():
    """Masses of the projection on the kept ids, the rest shared out as old does: the full KL is the lumped one."""
    torch.manual_seed(0)
    old_full = (4.0 * torch.randn(50, 40, dtype=torch.float64)).log_softmax(-1)
    new_full = (old_full + torch.randn(50, 40, dtype=torch.float64)).log_softmax(-1)
    ids = old_full.topk(6).indices
    kept = torch.zeros(50, 40, dtype=torch.bool).scatter(1, ids, True)

    def lump(x):
        rest = x.masked_fill(kept, -torch.inf).logsumexp(-1, keepdim=True)
        return SparseCategorical(ids, torch.cat((x.gather(1, ids), rest), -1))

    old = lump(old_full)
    found = project_tokens(lump(new_full), old, bound=BOUND)
    share = old_full + (found.policy.log_probs - old.log_probs)[:, -1:]
    whole = torch.where(kept, old_full.scatter(1, ids, found.policy.log_probs[:, :-1]), share)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close(kl(whole, old_full), found.projected_kl)
    assert found.projected.sum() > 25


def test_loss_on_paper():
    """Two classes, ½ each, moved to 0.9: a bound of 0.1 lets p go to where 0.1 = p log 2p + (1 − p) log 2(1 − p)."""
    predicted, old = policies(torch.tensor([[0.9, 0.1]]).double().log(), torch.tensor([[0.5, 0.5]]).double().log())
    found = trust_region_loss(predicted, old, torch.tensor([2.0]), bound=0.1, regression_weight=3.0)
    p = 0.71979  # by bisection on paper
    assert p * math.log(2 * p) + (1 - p) * math.log(2 - 2 * p) == pytest.approx(0.1, abs=1e-5)
    regression = 0.9 * math.log(0.9 / p) + 0.1 * math.log(0.1 / (1 - p))
    assert float(found.ratio) == pytest.approx(2 * p, abs=1e-3)
    assert float(found.regression) == pytest.approx(regression, abs=1e-3)
    assert float(found.loss) == pytest.approx(-2.0 * 2 * p + 3.0 * regression, abs=5e-3)


def test_pessimism_takes_the_smaller_gain_and_leads_tokens_back():
    predicted, old = random_policies(scale=2.0)
    logits = predicted.log_probs.clone().requires_grad_()
    predicted = SparseCategorical(predicted.ids, logits.log_softmax(-1))
    advantages = torch.randn(len(old.ids), dtype=torch.float64)
    plain = trust_region_loss(predicted, old, advantages, bound=BOUND, regression_weight=0.0)
    careful = trust_region_loss(predicted, old, advantages, bound=BOUND, regression_weight=0.0, pessimism=True)
    free = -advantages * (predicted.log_probs - old.log_probs)[:, 0].exp()
    torch.testing.assert_close(careful.loss, torch.maximum(plain.loss, free))
    assert torch.equal(careful.projected_kl, plain.projected_kl)
    against = free > plain.loss
    assert 20 < against.sum() < plain.projected.sum()
    found, wanted = (
        torch.autograd.grad(loss[against].sum(), logits, retain_graph=True)[0] for loss in (careful.loss, free)
    )
    torch.testing.assert_close(found, wanted)


def test_without_pessimism_two_classes_on_the_bound_have_no_gradient():
    logits = torch.tensor([[0.9, 0.1]]).double().log().requires_grad_()
    predicted, old = policies(logits, torch.tensor([[0.5, 0.5]]).double().log())
    for pessimism, slope in ((False, 0.0), (True, 2.0 * 0.9 * 0.1)):  # of p/½ in its logit: 2 p (1 − p)
        found = trust_region_loss(
            predicted, old, -torch.ones(1).double(), bound=0.1, regression_weight=0.0, pessimism=pessimism
        )
        (gradient,) = torch.autograd.grad(found.loss.sum(), logits, retain_graph=True)
        assert gradient[0].tolist() == pytest.approx([slope, -slope], abs=1e-7)


def test_a_clip_counts_no_gain_beyond_it_and_leaves_the_region_alone():
    predicted, old = random_policies(scale=1.0)
    logits = predicted.log_probs.clone().requires_grad_()
    predicted = SparseCategorical(predicted.ids, logits.log_softmax(-1))
    advantages = torch.randn(len(old.ids), dtype=torch.float64)
    options = {"bound": BOUND, "regression_weight": 0.5, "pessimism": True}
    free = trust_region_loss(predicted, old, advantages, **options)
    held = trust_region_loss(predicted, old, advantages, clip=0.1, clip_high=0.2, **options)
    assert torch.equal(held.projected_kl, free.projected_kl)
    assert torch.equal(held.ratio, free.ratio)
    beyond = torch.where(advantages > 0.0, free.ratio > 1.2, free.ratio < 0.9)
    assert 20 < beyond.sum() < len(beyond) - 20
    limit = torch.where(advantages > 0.0, 1.2, 0.9)
    wanted = torch.where(beyond, 0.5 * free.regression - limit * advantages, free.loss)
    torch.testing.assert_close(held.loss, wanted)
    (gradient,) = torch.autograd.grad(held.loss[beyond & ~free.projected].sum(), logits)
    assert not gradient.any()  # inside the region there is no regression either


def test_a_clip_without_a_bound_is_ppos_loss():
    """Ratios of 1.8 and 0.2 with advantages of 2 and −2 are paid as 1.2 and 0.9, the other way round in full."""
    predicted, old = policies(torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double().log().repeat(2, 1), torch.zeros(4, 2))
    advantages = torch.tensor([2.0, -2.0, -2.0, 2.0])
    found = trust_region_loss(
        predicted, old, advantages, bound=math.inf, regression_weight=0.0, clip=0.1, clip_high=0.2
    )
    assert found.loss.tolist() == pytest.approx([-2.4, 1.8, 3.6, -0.4])
    even = trust_region_loss(predicted, old, advantages, bound=math.inf, regression_weight=0.0, clip=0.1)
    assert even.loss.tolist() == pytest.approx([-2.2, 1.8, 3.6, -0.4])


def test_without_a_bound_it_is_the_plain_ratio():
    predicted, old = random_policies(scale=3.0)
    advantages = torch.randn(len(old.ids), dtype=torch.float64)
    found = trust_region_loss(predicted, old, advantages, bound=math.inf)
    ratio = (predicted.log_probs - old.log_probs)[:, 0].exp()
    torch.testing.assert_close(found.loss, -ratio * advantages)
    assert not found.projected.any()


def test_masked_tokens_may_hold_anything():
    predicted, old = random_policies(12, scale=2.0)
    shape = (3, 4)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    predicted, old = (SparseCategorical(*(x.reshape(*shape, -1) for x in p)) for p in (predicted, old))
    wanted = trust_region_loss(predicted, old, torch.ones(3, 1, dtype=torch.float64))
    broken = predicted.log_probs.masked_fill(~mask.bool()[..., None], torch.nan).requires_grad_()
    found = trust_region_loss(SparseCategorical(old.ids, broken), old, torch.ones(3, 1), mask=mask)
    for ours, full in zip(found, wanted, strict=True):
        kept = torch.where(mask.bool(), full.detach(), torch.zeros_like(full))
        torch.testing.assert_close(ours, kept, rtol=1e-13, atol=1e-15)  # sums of other batches: other last digits
    found.loss.sum().backward()
    assert (broken.grad[~mask.bool()] == 0.0).all()
    assert torch.isfinite(broken.grad).all()


@pytest.mark.parametrize("shape", [(0,), (2, 3)])
def test_no_tokens_and_all_masked(shape):
    predicted, old = random_policies(math.prod(shape))
    predicted, old = (SparseCategorical(*(x.reshape(*shape, x.shape[-1]) for x in p)) for p in (predicted, old))
    scores = predicted.log_probs.requires_grad_()
    found = trust_region_loss(predicted, old, torch.ones(shape), mask=torch.zeros(shape))
    assert all(x.shape == shape and (x == 0).all() for x in found)
    found.loss.sum().backward()
    assert (scores.grad == 0.0).all()


def test_what_does_not_fit_is_said():
    predicted, old = random_policies(4)
    other = SparseCategorical(old.ids.flip(-1), old.log_probs)
    for words, call in {
        "same places": lambda: project_tokens(predicted, other, bound=BOUND),
        "bound": lambda: project_tokens(predicted, old, bound=0.0),
        "bound must be positive": lambda: project_tokens(predicted, old, bound=-math.inf),
        "in the same places": lambda: trust_region_loss(predicted, other, torch.ones(4), bound=math.inf),
        "clip must not be negative": lambda: trust_region_loss(predicted, old, torch.ones(4), clip=-0.1),
        "mask": lambda: trust_region_loss(predicted, old, torch.ones(4), mask=torch.ones(3)),
    }.items():
        with pytest.raises(ValueError, match=words):
            call()


def test_advantages_of_sequences_need_an_axis_for_their_tokens():
    """[B] was expanded along the tokens where there are as many of them as sequences."""
    predicted, old = (
        SparseCategorical(torch.arange(1).expand(3, 3, 1), torch.full((3, 3, 2), 0.5).log()) for _ in range(2)
    )
    advantages = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"advantages of shape \(3,\) for tokens \(3, 3\).*advantages\[:, None\]"):
        trust_region_loss(predicted, old, advantages)
    loss = trust_region_loss(predicted, old, advantages[:, None]).loss
    torch.testing.assert_close(loss, -advantages[:, None].expand(3, 3))
