"""The chunked head: the same numbers as full logits, to the digits of a rest of 1e-30, and never all logits at once."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trpl.torch import head as module
from trpl.torch.head import Head, choose_kept, score_kept
from trpl.torch.tokens import trust_region_loss

VOCABULARY, WIDTH = 50, 8
HEADS = {
    "plain": {},
    "bias": {"bias": True},
    "scaled": {"scale": 0.25, "temperature": 0.7},
    "capped": {"bias": True, "scale": 1.7, "softcap": 3.0, "temperature": 0.8},
}
every_head = pytest.mark.parametrize("kind", HEADS)
every_mass = pytest.mark.parametrize("mass", [1.0, 0.8])


def make(kind, *, dtype=torch.float64, batch=(3, 4), seed=0):
    """Hidden states, a head, and sampled tokens."""
    torch.manual_seed(seed)
    settings = dict(HEADS[kind])
    bias = torch.randn(VOCABULARY, dtype=dtype) if settings.pop("bias", False) else None
    head = Head(torch.randn(VOCABULARY, WIDTH, dtype=dtype), bias, **settings)
    return torch.randn(*batch, WIDTH, dtype=dtype), head, torch.randint(VOCABULARY, batch)


def dense(hidden, head, ids):
    """Kept log-probabilities, that of the rest, and the entropy, from all logits."""
    logits = hidden @ head.weight.T
    logits = (logits if head.bias is None else logits + head.bias) * head.scale
    logits = logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
    scores = (logits / head.temperature).log_softmax(-1)
    used = ids >= 0
    kept = torch.where(used, scores.gather(-1, ids.clamp(min=0)), -torch.inf)
    one_hot = torch.nn.functional.one_hot(ids.clamp(min=0), scores.shape[-1]) * used[..., None]
    rest = scores.masked_fill(one_hot.sum(-2) > 0, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat((kept, rest), -1), -(scores.exp() * scores).sum(-1)


@every_mass
@every_head
def test_the_same_numbers_as_from_all_logits(kind, mass):
    hidden, head, sampled = make(kind)
    chosen = choose_kept(hidden, head, sampled, kept_tokens=7, kept_mass=mass)
    scored = score_kept(hidden, head, chosen.policy.ids)
    wanted, entropy = dense(hidden, head, chosen.policy.ids)
    for found in (chosen, scored):
        torch.testing.assert_close(found.policy.log_probs, wanted)
        torch.testing.assert_close(found.entropy, entropy)


@every_head
def test_kept_are_the_sampled_token_and_the_most_likely_others(kind):
    hidden, head, sampled = make(kind)
    ids = choose_kept(hidden, head, sampled, kept_tokens=7).policy.ids
    scores, _ = dense(hidden, head, torch.arange(VOCABULARY).expand(*sampled.shape, VOCABULARY))
    for row in itertools.product(*map(range, sampled.shape)):
        others = scores[row][:-1].scatter(0, sampled[row], -torch.inf).topk(6).indices
        assert ids[row].tolist() == [int(sampled[row]), *others.tolist()]


@pytest.mark.parametrize("mass", [1.0, 0.8])
def test_a_sampled_token_outside_the_most_likely_is_held_with_its_gradient(mass):
    hidden, head, _ = make("plain", batch=(6,))
    sampled = (hidden @ head.weight.T).argmin(-1)  # the least likely of all
    old = choose_kept(hidden, head, sampled, kept_tokens=5, kept_mass=mass).policy
    assert (old.ids[:, 0] == sampled).all()
    torch.manual_seed(1)
    moved = (hidden + torch.randn_like(hidden)).requires_grad_()
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(3)

    def loss(moved):
        predicted = score_kept(moved, head, old.ids).policy
        return trust_region_loss(predicted, old, advantages, bound=0.05, regression_weight=0.0)  # it stops a gradient

    found = loss(moved)
    assert found.projected.all()
    assert (found.projected_kl <= 0.05 * (1.0 + 1e-4)).all()
    assert torch.autograd.gradcheck(lambda x: loss(x).loss, moved)


def test_only_as_many_are_kept_as_hold_the_mass():
    hidden, head, sampled = make("plain")
    full = choose_kept(hidden, head, sampled, kept_tokens=20).policy
    part = choose_kept(hidden, head, sampled, kept_tokens=20, kept_mass=0.8).policy
    probs = full.log_probs[..., :-1].exp()
    for row in itertools.product(*map(range, sampled.shape)):
        needed = int((probs[row].cumsum(0) < 0.8).sum()) + 1
        assert part.ids[row].tolist() == full.ids[row].tolist()[:needed] + [-1] * (part.ids.shape[-1] - needed)
    assert (part.ids[..., -1] >= 0).any()  # as wide as some token needs, and no wider
    torch.testing.assert_close(part.log_probs.exp().sum(-1), torch.ones_like(part.log_probs[..., 0]))


@every_mass
@every_head
def test_gradients_by_finite_differences(kind, mass):
    hidden, head, sampled = make(kind, batch=(3,))
    ids = choose_kept(hidden, head, sampled, kept_tokens=5, kept_mass=mass).policy.ids
    used = torch.cat((ids >= 0, torch.ones_like(ids[:, :1], dtype=torch.bool)), -1)
    leaves = [x.requires_grad_() for x in (hidden, head.weight, head.bias) if x is not None]

    def scores(hidden, weight, bias=None):
        found = score_kept(hidden, head._replace(weight=weight, bias=bias), ids)
        return found.policy.log_probs[used], found.entropy

    assert torch.autograd.gradcheck(scores, leaves)


@pytest.mark.parametrize("output", [0, 1])
def test_gradient_of_one_output_alone(output):
    hidden, head, sampled = make("capped")
    leaves = [x.requires_grad_() for x in (hidden, head.weight, head.bias)]
    ids = choose_kept(hidden, head, sampled, kept_tokens=5).policy.ids
    found = score_kept(hidden, head, ids)
    pairs = zip((found.policy.log_probs, found.entropy), dense(hidden, head, ids), strict=True)
    ours, wanted = (torch.autograd.grad(x.square().sum(), leaves) for x in list(pairs)[output])
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_a_rest_of_1e_30_keeps_its_digits():
    """One logit 0, the others −69 − log 49 and thereabouts: a sum of all less the kept would be 0."""
    low = -69.0 - torch.rand(VOCABULARY, dtype=torch.float64)
    low[3] = 0.0
    hidden, ids = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[3, 7]])
    results = []
    for dtype in (torch.float64, torch.float32):
        weight = low[:, None].to(dtype).requires_grad_()
        found = score_kept(hidden.to(dtype), Head(weight), ids).policy.log_probs
        (gradient,) = torch.autograd.grad(found[0, 2], weight)
        results.append((found.detach().double(), gradient.double()))
    assert float(results[0][0][0, 2].exp()) == pytest.approx(48 * 1e-30, rel=0.5)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_everything_kept_leaves_an_empty_rest():
    hidden, head, sampled = make("capped", dtype=torch.float32)
    hidden.requires_grad_()
    ids = choose_kept(hidden, head, sampled, kept_tokens=1000).policy.ids
    assert ids.shape[-1] == VOCABULARY
    found = score_kept(hidden, head, ids)
    assert (found.policy.log_probs[..., -1] == -torch.inf).all()
    weights = torch.randn(VOCABULARY)
    (gradient,) = torch.autograd.grad((found.policy.log_probs[..., :-1] * weights).sum(), hidden, retain_graph=True)
    (wanted,) = torch.autograd.grad((dense(hidden, head, ids)[0][..., :-1] * weights).sum(), hidden)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_kept", [5, 45])  # of 40 allowed tokens
def test_forbidden_tokens_are_as_if_they_were_not_there(num_kept):
    hidden, head, _ = make("bias")
    sampled, allowed = torch.randint(40, hidden.shape[:-1]), torch.arange(VOCABULARY) < 40
    hidden.requires_grad_()
    forbidding = head._replace(bias=head.bias.masked_fill(~allowed, -torch.inf))
    smaller = head._replace(weight=head.weight[allowed], bias=head.bias[allowed])
    ids = choose_kept(hidden, smaller, sampled, kept_tokens=num_kept).policy.ids
    more = torch.arange(40, 45).expand(*ids.shape[:-1], 5)[..., : num_kept - ids.shape[-1]]  # forbidden ones too
    wanted, found = score_kept(hidden, smaller, ids), score_kept(hidden, forbidding, torch.cat((ids, more), -1))
    kept = [*range(ids.shape[-1]), -1]
    torch.testing.assert_close(found.policy.log_probs[..., kept], wanted.policy.log_probs)
    torch.testing.assert_close(found.entropy, wanted.entropy)
    for a, b in ((found.entropy, wanted.entropy), (found.policy.log_probs[..., 0], wanted.policy.log_probs[..., 0])):
        (gradient,), (other,) = (torch.autograd.grad(x.sum(), hidden, retain_graph=True) for x in (a, b))
        torch.testing.assert_close(gradient, other)


@every_mass
def test_no_more_are_kept_than_are_allowed(mass):
    """The sampled token is not chosen a second time for want of others."""
    hidden, head, _ = make("bias")
    sampled, allowed = torch.randint(5, hidden.shape[:-1]), torch.arange(VOCABULARY) < 5
    forbidding = head._replace(bias=head.bias.masked_fill(~allowed, -torch.inf))
    smaller = head._replace(weight=head.weight[allowed], bias=head.bias[allowed])
    wanted = choose_kept(hidden, smaller, sampled, kept_tokens=8, kept_mass=mass)
    found = choose_kept(hidden, forbidding, sampled, kept_tokens=8, kept_mass=mass)
    width = wanted.policy.ids.shape[-1]
    assert torch.equal(found.policy.ids[..., :width], wanted.policy.ids)
    assert (found.policy.ids[..., width:] == -1).all()
    torch.testing.assert_close(found.policy.log_probs[..., [*range(width), -1]], wanted.policy.log_probs)
    torch.testing.assert_close(found.entropy, wanted.entropy)


def test_half_precision_weights_are_summed_in_float32():
    hidden, head, sampled = make("bias", dtype=torch.bfloat16)
    wide = Head(head.weight.float(), head.bias.float())
    ids = choose_kept(hidden, head, sampled, kept_tokens=5).policy.ids
    results = []
    for h, given in ((hidden, head), (hidden.float(), wide)):
        leaves = [x.detach().requires_grad_() for x in (h, given.weight, given.bias)]
        found = score_kept(leaves[0], Head(*leaves[1:]), ids)
        results.append((found.policy.log_probs, torch.autograd.grad(found.policy.log_probs.sum(), leaves)))
    (scores, gradients), (exact, exact_gradients) = results
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, exact, rtol=1e-6, atol=1e-6)
    for a, b in zip(gradients, exact_gradients, strict=True):
        torch.testing.assert_close(a, b.bfloat16())


def test_a_tied_embedding_gets_both_gradients():
    _, head, sampled = make("plain")
    weight, ids = head.weight.requires_grad_(), torch.randint(VOCABULARY, (3, 4))
    kept = torch.stack((sampled, (sampled + 1) % VOCABULARY), -1)
    ours = score_kept(weight[ids], Head(weight), kept).policy.log_probs.square().sum()
    wanted = dense(weight[ids], Head(weight), kept)[0].square().sum()
    torch.testing.assert_close(*(torch.autograd.grad(x, weight)[0] for x in (ours, wanted)))


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returned."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.size = max([self.size, *sizes])
        return result


def test_logits_of_all_tokens_never_exist_at_once(monkeypatch):
    """Chunks give the numbers of a whole; nothing is as large as [tokens, vocabulary], forward or backward."""
    hidden, head, sampled = make("capped", batch=(100,), dtype=torch.float32)
    whole = choose_kept(hidden, head, sampled, kept_tokens=3)
    monkeypatch.setattr(module, "CPU_LOGITS", 7 * VOCABULARY)
    leaves = [x.requires_grad_() for x in (hidden, head.weight, head.bias)]
    with Largest() as largest:
        chosen = choose_kept(hidden, head, sampled, kept_tokens=3)
        scored = score_kept(hidden, head, chosen.policy.ids)
        (scored.policy.log_probs.sum() + scored.entropy.sum()).backward()
    assert largest.size == hidden.numel() < 100 * VOCABULARY
    for found in (chosen, scored):
        torch.testing.assert_close(found.policy.log_probs, whole.policy.log_probs)
    assert all(x.grad is not None for x in leaves)


def test_no_tokens():
    hidden, head, _ = make("bias", batch=(0,))
    head.weight.requires_grad_()
    chosen = choose_kept(hidden, head, torch.empty(0, dtype=torch.long), kept_tokens=4, kept_mass=0.9)
    found = score_kept(hidden, head, chosen.policy.ids)
    assert found.policy.log_probs.shape == (0, 5)
    (gradient,) = torch.autograd.grad(found.policy.log_probs.sum(), head.weight)
    assert (gradient == 0.0).all()


def test_autocast_changes_nothing_on_a_cpu():
    hidden, head, sampled = make("plain", dtype=torch.float32)
    plain = choose_kept(hidden, head, sampled, kept_tokens=5)
    with torch.autocast("cpu", torch.bfloat16):
        same = score_kept(hidden, head, plain.policy.ids)
    torch.testing.assert_close(same.policy.log_probs, plain.policy.log_probs)


def test_what_does_not_fit_is_said():
    hidden, head, sampled = make("bias")
    ids = sampled[..., None]
    for words, call in {
        "hidden states": lambda: score_kept(hidden[..., :-1], head, ids),
        "bias": lambda: score_kept(hidden, head._replace(bias=head.bias[1:]), ids),
        "batch shape": lambda: score_kept(hidden, head, ids[1:]),
        "no id is kept": lambda: score_kept(hidden, head, ids[..., :0]),
        "outside 0…49": lambda: choose_kept(hidden, head, sampled + VOCABULARY),
        "outside -1…49": lambda: score_kept(hidden, head, torch.cat((ids, ids - 60), -1)),
        "twice for": lambda: score_kept(hidden, head, torch.cat((ids, ids[..., :1]), -1)),
        "outside 0…": lambda: score_kept(hidden, head, torch.full_like(ids, -1)),
        "integers": lambda: choose_kept(hidden, head, sampled.double()),
        "one sampled token": lambda: choose_kept(hidden, head, sampled[0]),
        "kept_tokens": lambda: choose_kept(hidden, head, sampled, kept_tokens=0),
        "kept_mass": lambda: choose_kept(hidden, head, sampled, kept_mass=1.5),
        "temperature": lambda: choose_kept(hidden, head._replace(temperature=0.0), sampled),
        "softcap": lambda: choose_kept(hidden, head._replace(softcap=-1.0), sampled),
    }.items():
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.gpu
def test_on_a_gpu_as_on_a_cpu(cuda):
    """From bfloat16, where products are made by another operator."""
    hidden, head, sampled = make("capped", dtype=torch.bfloat16)
    results = []
    for device in ("cpu", cuda):
        leaves = [x.detach().to(device).requires_grad_() for x in (hidden, head.weight, head.bias)]
        given = head._replace(weight=leaves[1], bias=leaves[2])
        ids = choose_kept(leaves[0], given, sampled.to(device), kept_tokens=5).policy.ids
        found = score_kept(leaves[0], given, ids)
        gradients = torch.autograd.grad(found.policy.log_probs.sum() + found.entropy.sum(), leaves)
        results.append([x.float().cpu() for x in (found.policy.log_probs, *gradients)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
