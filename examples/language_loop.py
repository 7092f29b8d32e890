"""Trust regions for a language model in one PyTorch file: a small transformer learns sums from rewards.

python examples/language_loop.py [--batches 100] [--seed 0] [--bound 0.02]

The model is made from a configuration and nothing is downloaded. It first reads sums, most of them wrong; then it is
rewarded for right digits, with four optimiser steps per batch of answers. Copy the loop into yours: what it needs of a
model is its hidden states and its vocabulary matrix.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

from trpl import SparseCategorical
from trpl.torch.head import Head, choose_kept, score_kept
from trpl.torch.tokens import TokenLoss, trust_region_loss

WORDS = "0123456789+="
PLUS, EQUALS = 10, 11
KEPT_TOKENS, BOUND, CLIP, CLIP_HIGH = 4, 0.02, 0.1, 0.2
PRETRAINING_STEPS, SHARE_RIGHT = 300, 0.3
GROUP_SIZE, NUM_GROUPS, ITERATIONS, LEARNING_RATE = 16, 32, 4, 1e-3
MAX_NORM = 1.0  # of the gradient, as in trl


Loss = Callable[[SparseCategorical, SparseCategorical, Tensor], TokenLoss]


class History(NamedTuple):
    """The mean reward of each batch, the success at the end, and the KL of tokens to the policy that sampled them.

    `kl_mean` and `kl_max` are those of the network, `projected_kl_max` that of its projection, over all steps;
    `share_projected` is the share of tokens that were outside.
    """

    rewards: list[float]
    success: float
    kl_mean: float
    kl_max: float
    projected_kl_max: float
    share_projected: float


class Sums(NamedTuple):
    """Questions `a + b =`, and their answers of two digits."""

    questions: Tensor
    answers: Tensor


def sums(first: Tensor, second: Tensor) -> Sums:
    """Write sums of two digits as tokens."""
    total = first + second
    signs = torch.full_like(first, PLUS), torch.full_like(first, EQUALS)
    return Sums(torch.stack((first, signs[0], second, signs[1]), -1), torch.stack((total // 10, total % 10), -1))


def random_sums(num: int) -> Sums:
    return sums(*torch.randint(10, (2, num)))


def make_model() -> Qwen2ForCausalLM:
    """Make a transformer of two layers; any causal model of transformers will do."""
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=16,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def hidden_states(model: Qwen2ForCausalLM, ids: Tensor) -> Tensor:
    """Return the states that predict the two tokens of the answer; equal beginnings are computed once."""
    beginnings, places = ids[:, :5].unique(dim=0, return_inverse=True)
    return model.base_model(beginnings).last_hidden_state[places, 3:]


def read(model: Qwen2ForCausalLM, num_steps: int) -> None:
    """Train on given sums, of which some are right: the model learns their form."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(num_steps):
        questions, answers = random_sums(64)
        wrong = random_sums(64).answers
        answers = torch.where(torch.rand(64, 1) < SHARE_RIGHT, answers, wrong)
        logits = model(torch.cat((questions, answers), 1)).logits[:, 3:5]
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def sample(model: Qwen2ForCausalLM, questions: Tensor) -> Tensor:
    """Sample two tokens after each question; return both."""
    ids = questions
    for _ in range(2):
        beginnings, places = ids.unique(dim=0, return_inverse=True)
        probs = model(beginnings).logits[places, -1].softmax(-1)
        ids = torch.cat((ids, torch.multinomial(probs, 1)), 1)
    return ids


@torch.no_grad()
def success(model: Qwen2ForCausalLM) -> float:
    """Compute the exact probability of the right answer, averaged over all sums."""
    digits = torch.arange(10)
    questions, answers = sums(*(x.flatten() for x in torch.meshgrid(digits, digits, indexing="ij")))
    scores = model(torch.cat((questions, answers), 1)).logits[:, 3:5].log_softmax(-1)
    return float(scores.gather(-1, answers[..., None]).sum((1, 2)).exp().mean())


def pretrained(seed: int) -> Qwen2ForCausalLM:
    """Make a model that answers in the right form, and mostly wrongly."""
    torch.manual_seed(seed)
    model = make_model()
    read(model, PRETRAINING_STEPS)
    return model


def improve(
    model: Qwen2ForCausalLM, num_batches: int, loss: Loss, *, learning_rate: float = LEARNING_RATE, verbose: bool = True
) -> History:
    """Train the model on rewards, with several optimiser steps per batch of answers."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    rewards, steps = [], []
    for index in range(num_batches):
        questions, answers = random_sums(NUM_GROUPS)
        ids = sample(model, questions.repeat_interleave(GROUP_SIZE, 0))
        right = (ids[:, 4:] == answers.repeat_interleave(GROUP_SIZE, 0)).float()
        groups = right.mean(-1).view(NUM_GROUPS, GROUP_SIZE)  # the reward: the share of right digits
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        with torch.no_grad():  # what the old policy says of its tokens: a few ids each, and one number for the rest
            old = choose_kept(hidden_states(model, ids), head(model), ids[:, 4:], kept_tokens=KEPT_TOKENS).policy
        for _ in range(ITERATIONS):
            predicted = score_kept(hidden_states(model, ids), head(model), old.ids).policy
            found = loss(predicted, old, advantages.view(-1, 1))
            optimiser.zero_grad()
            found.loss.mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimiser.step()
            numbers = found.kl.mean(), found.kl.max(), found.projected_kl.max(), found.projected.float().mean()
            steps.append(torch.stack(numbers))
        rewards.append(float(groups.mean()))
        if verbose and (index + 1) % 20 == 0:
            mean, highest, projected, share = steps[-1].tolist()
            print(
                f"batch {index + 1:4}  reward {sum(rewards[-20:]) / 20:.2f}  success {success(model):.2f}  "
                f"KL {mean:.4f}, at most {highest:.3f}, projected {projected:.4f}  projected tokens {share:.2f}"
            )
    mean, highest, projected, share = torch.stack(steps).T
    return History(rewards, success(model), *map(float, (mean.mean(), highest.max(), projected.max(), share.mean())))


def train(num_batches: int = 100, *, seed: int = 0, bound: float = BOUND, verbose: bool = True) -> History:
    """Read sums, then learn from rewards with a clip, within a trust region around each token's policy."""
    options = {"regression_weight": 0.0, "pessimism": True, "clip": CLIP, "clip_high": CLIP_HIGH}
    loss = partial(trust_region_loss, bound=bound, **options)
    return improve(pretrained(seed), num_batches, loss, verbose=verbose)


def head(model: Qwen2ForCausalLM) -> Head:
    """Return the model's vocabulary matrix."""
    return Head(model.lm_head.weight)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bound", type=float, default=BOUND)
    args = parser.parse_args()
    train(args.batches, seed=args.seed, bound=args.bound)
