"""Token-level trust regions: kept log-probabilities in, loss and diagnostics out, for any training loop.

Per token, with π the network, π_old the policy that sampled and π̃ the projection of π, all over the kept ids and the
rest (Becker, Freymuth, Thilges, Otto, Neumann: "TROLL", 2025):

    loss = −π̃(a)/π_old(a) · A + α KL(π ‖ stop-gradient(π̃)),    KL(π̃ ‖ π_old) ≤ ε.

On the bound π̃ stays where it is when π moves straight in or out, so a token that other tokens have pushed against its
own advantage gets no gradient back. The pessimistic loss gives it one, as PPO's minimum does for a clipped ratio:

    loss = −min(π̃(a) A, π(a) A)/π_old(a) + α KL(π ‖ stop-gradient(π̃)).

A KL ball lets an unlikely token grow many times over and holds a likely one back. With a clip as well, the ratio r of
either loss is PPO's, and the projected policy is inside its region as before:

    loss = −min(r A, clip(r, 1 − c, 1 + c_high) A) + α KL(π ‖ stop-gradient(π̃)).
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor

from trpl.families import kl as kl_of
from trpl.families.sparse import SparseCategorical
from trpl.torch.layers import JointKLProjection


class ProjectedTokens(NamedTuple):
    """Tokens inside their trust regions; every field but the policy has one number per token.

    Attributes:
        policy: The projected policy π̃.
        regression: KL(π‖π̃) with π̃ a constant: the penalty that pulls the network back into the region.
        kl: KL(π‖π_old), a constant.
        projected_kl: KL(π̃‖π_old), a constant, at most the bound.
        projected: Whether the token was outside.
    """

    policy: SparseCategorical[Tensor]
    regression: Tensor
    kl: Tensor
    projected_kl: Tensor
    projected: Tensor


class TokenLoss(NamedTuple):
    """The loss and diagnostics; one number per token, 0 outside of the mask.

    Attributes:
        loss: −π̃(a)/π_old(a) · A + α KL(π‖π̃), or as `pessimism` and `clip` change it.
        ratio: π̃(a)/π_old(a) before clipping, a constant; with pessimism π(a)/π_old(a) where that promises less.
        regression: KL(π‖π̃), a constant.
        kl: KL(π‖π_old), a constant.
        projected_kl: KL(π̃‖π_old), a constant, at most the bound.
        projected: Whether the token was outside.
    """

    loss: Tensor
    ratio: Tensor
    regression: Tensor
    kl: Tensor
    projected_kl: Tensor
    projected: Tensor


def project_tokens(
    predicted: SparseCategorical[Tensor], old: SparseCategorical[Tensor], *, bound: float
) -> ProjectedTokens:
    """Project each token's policy into the trust region around the old one.

    Args:
        predicted: The network's policy, scored at the old policy's ids.
        old: The policy that sampled the tokens, a constant.
        bound: ε, the largest KL(π̃‖π_old) over kept ids and rest; `inf` changes nothing.

    Returns:
        The projected policy and its distances.

    Raises:
        ValueError: Inconsistent policies, or a bound that is not positive.
    """
    if not bound > 0.0:
        raise ValueError(f"the bound must be positive, not {bound!r}")
    old, constant = old.detached(), predicted.detached()
    kl = cast(Tensor, kl_of(constant, old))
    if math.isinf(bound) or not kl.numel():  # nothing to project
        none = torch.zeros_like(kl)
        return ProjectedTokens(predicted, none, kl, kl, torch.zeros_like(kl, dtype=torch.bool))
    layer = JointKLProjection(bound)
    projected = layer(predicted, old)
    after = cast(Tensor, kl_of(projected.detached(), old))
    return ProjectedTokens(projected, layer.penalty(predicted, projected), kl, after, kl > bound)


def pessimistic(projected: Tensor, predicted: Tensor, advantages: Tensor) -> Tensor:
    """Choose between the two log-probabilities of each sampled token the one that promises less.

    Args:
        projected: log π̃(a).
        predicted: log π(a).
        advantages: One per token.

    Returns:
        log π(a) of the tokens that the network moved beyond the bound against their advantage, log π̃(a) of all others.
    """
    return torch.where((predicted - projected) * advantages < 0.0, predicted, projected)


def trust_region_loss(
    predicted: SparseCategorical[Tensor],
    old: SparseCategorical[Tensor],
    advantages: Tensor,
    *,
    bound: float = 0.05,
    regression_weight: float = 1.0,
    pessimism: bool = False,
    clip: float = math.inf,
    clip_high: float | None = None,
    mask: Tensor | None = None,
) -> TokenLoss:
    """Compute the loss of each token, for the training loop to average.

    Args:
        predicted: The network's policy `[*batch]`, scored at the old policy's ids; the sampled token in place 0.
        old: The policy that sampled the tokens, with the same ids.
        advantages: One per token `[*batch]`, one per sequence `[..., 1]`, or a single number `[]`.
        bound: ε.
        regression_weight: α.
        pessimism: Whether to take the smaller of π̃(a) A and π(a) A, which leads back the tokens that moved against
            their advantage.
        clip: c, the largest gain or loss of the ratio that counts, as in PPO; with `bound=inf` this is PPO's loss.
        clip_high: c_high, for ratios above 1; `clip` unless given.
        mask: `[*batch]`, whether to train on a token; other tokens may hold anything and get 0.

    Returns:
        The loss and diagnostics.

    Raises:
        ValueError: Inconsistent policies or shapes, a bound that is not positive, or a negative weight or clip.
    """
    for name, value in (("regression_weight", regression_weight), ("clip", clip), ("clip_high", clip_high)):
        if value is not None and not value >= 0.0:
            raise ValueError(f"{name} must not be negative, not {value!r}")
    shape = predicted.log_probs.shape[:-1]
    chosen = torch.ones(shape, dtype=torch.bool, device=predicted.log_probs.device) if mask is None else mask.bool()
    if chosen.shape != shape:
        raise ValueError(f"the mask has shape {tuple(chosen.shape)}, the tokens have {tuple(shape)}")
    if advantages.ndim not in (0, len(shape)):  # [B] would be expanded along the tokens of [B, T] where B = T
        raise ValueError(
            f"advantages of shape {tuple(advantages.shape)} for tokens {tuple(shape)}: give one per token, or one per"
            " sequence with a last axis of length 1, advantages[:, None]"
        )
    advantages = advantages.expand(shape)[chosen]
    predicted, old = (SparseCategorical(p.ids[chosen], p.log_probs[chosen]) for p in (predicted, old))
    found = project_tokens(predicted, old, bound=bound)
    sampled = found.policy.log_probs[:, 0]
    if pessimism:
        sampled = pessimistic(sampled, predicted.log_probs[:, 0], advantages)
    ratio = (sampled - old.log_probs[:, 0].detach()).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + (clip if clip_high is None else clip_high))
    loss = regression_weight * found.regression - torch.minimum(ratio * advantages, clipped * advantages)
    values = (loss, ratio.detach(), found.regression.detach(), found.kl, found.projected_kl)
    spread = [value.new_zeros(shape).masked_scatter(chosen, value) for value in values]
    return TokenLoss(*spread, projected=chosen.masked_scatter(chosen, found.projected))
