"""The vocabulary head of a language model in chunks: hidden states in, a sparse policy over tokens out.

With x = h·Wᵀ + b a token's logits are z = c·tanh(a·x / c) / T (or a·x / T), and with the kept ids k and the rest r

    log p_k = z_k − log Z,    log p_rest = log Σ_{j∈r} e^{z_j} − log Z,    log Z = log Σ_j e^{z_j}.

The sum over the rest excludes the kept logits instead of subtracting them, so that a rest of 1e-30 does not cancel.
Logits are computed for a few tokens at a time, in float32 for any weights; the backward pass recomputes them.
For cotangents G of log p_k, g of log p_rest and e of the entropy H, with S = ΣG + g,

    ∂/∂z_j = G_j − p_j S              for kept j
           = q_j (g − p_rest S)       for j in the rest, where q_j = p_j / p_rest is computed from the rest alone
             − e p_j (log p_j + H)    for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trpl.families.sparse import SparseCategorical
from trpl.implicit.operators import without_autocast

CPU_LOGITS, DEVICE_LOGITS = 1 << 22, 1 << 26  # logits held at once: 16 MB in float32 on a CPU, 256 MB elsewhere
BLOCK = 4096  # rows of a half-precision vocabulary matrix that are converted at once


class Head(NamedTuple):
    """The map from hidden states to logits of a language model.

    Attributes:
        weight: Vocabulary matrix `[vocabulary, hidden]`; the embedding itself if the two are tied.
        bias: `[vocabulary]`, or None; −inf forbids a token.
        scale: Factor on the logits.
        softcap: Bound c of a soft cap c·tanh(·/c) on the scaled logits, or None.
        temperature: Divisor of the final logits, the sampling temperature.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0


class Scores(NamedTuple):
    """Scores of a batch of tokens.

    Attributes:
        policy: The sparse policy: log-probabilities of the kept tokens and of the rest.
        entropy: The entropy over the whole vocabulary, per token.
    """

    policy: SparseCategorical[Tensor]
    entropy: Tensor


class _Folded(NamedTuple):
    """The statistics of a chunk of logits: log-probabilities, and log-sums of the rest and of all."""

    log_probs: Tensor
    log_rest: Tensor
    log_total: Tensor
    entropy: Tensor


@torch.no_grad()
def choose_kept(
    hidden: Tensor, head: Head, sampled: Tensor, *, kept_tokens: int = 64, kept_mass: float = 1.0
) -> Scores:
    """Choose the ids to keep, the sampled one and the most likely others, and score them without a gradient.

    Args:
        hidden: Hidden states `[*batch, hidden]`, each the one that predicts its token.
        head: The model's vocabulary head.
        sampled: The sampled tokens `[*batch]`; they are kept, in place 0.
        kept_tokens: Number of ids kept per token, including the sampled one.
        kept_mass: Keep only as many ids as hold this probability, at most `kept_tokens`; places that no token of the
            batch uses are cut off, other unused places have id −1 and log-probability −inf.

    Returns:
        The policy over the kept ids and the rest, and the entropy.

    Raises:
        ValueError: Inconsistent shapes, an id outside the vocabulary, or a number out of range.
    """
    vocabulary = _check(hidden, head)
    if sampled.shape != hidden.shape[:-1]:
        raise ValueError(
            f"needs one sampled token per hidden state, got {tuple(sampled.shape)} for {tuple(hidden.shape)}"
        )
    if kept_tokens < 1:
        raise ValueError(f"kept_tokens must be at least 1, not {kept_tokens}")
    if not 0.0 < kept_mass <= 1.0:
        raise ValueError(f"kept_mass must be in (0, 1], not {kept_mass}")
    _check_ids(sampled, vocabulary, lowest=0)
    flat, tokens = hidden.reshape(-1, hidden.shape[-1]), sampled.reshape(-1, 1).long()
    num_kept = min(kept_tokens, vocabulary)
    ids = tokens.new_empty((len(flat), num_kept))
    found = _empty(flat, num_kept)
    with without_autocast(hidden):
        for part, logits in _chunks(flat, head):
            ids[part] = _most_likely(logits, tokens[part], num_kept, kept_mass)
            _store(found, part, _fold(logits, ids[part]))
    if kept_mass < 1.0 and len(flat):
        used = int((ids >= 0).sum(-1).max())
        ids = ids[:, :used]
        found = found._replace(log_probs=torch.cat((found.log_probs[:, :used], found.log_probs[:, -1:]), -1))
    return _as_scores(ids, found.log_probs, found.entropy, sampled.shape)


def score_kept(hidden: Tensor, head: Head, ids: Tensor) -> Scores:
    """Score given ids and the rest; differentiable in hidden states, weight and bias.

    Args:
        hidden: Hidden states `[*batch, hidden]`.
        head: The model's vocabulary head.
        ids: The kept ids `[*batch, K]`, distinct, the sampled token in place 0; −1 marks an unused place.

    Returns:
        The policy over the kept ids and the rest, and the entropy.

    Raises:
        ValueError: Inconsistent shapes, no ids, an id outside the vocabulary, or one that a token keeps twice.
    """
    vocabulary = _check(hidden, head)
    if ids.shape[:-1] != hidden.shape[:-1]:
        raise ValueError(f"ids {tuple(ids.shape)} must have the batch shape of hidden states {tuple(hidden.shape)}")
    if not ids.shape[-1]:
        raise ValueError("no id is kept; the sampled token is in place 0")
    _check_ids(ids, vocabulary, lowest=-1)
    _check_ids(ids[..., :1], vocabulary, lowest=0)
    _check_distinct(ids)
    flat = hidden.reshape(-1, hidden.shape[-1])
    places = ids.reshape(-1, ids.shape[-1]).long()
    log_probs, entropy = _Head.apply(flat, head.weight, head.bias, places, head)  # type: ignore[misc]
    return _as_scores(places, log_probs, entropy, hidden.shape[:-1])


class _Head(torch.autograd.Function):
    """Log-probabilities at the kept ids and of the rest, and the entropy."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, head: Head):
        ctx.set_materialize_grads(False)
        head = head._replace(weight=weight, bias=bias)
        found = _empty(hidden, ids.shape[-1])
        with without_autocast(hidden):
            for part, logits in _chunks(hidden, head):
                _store(found, part, _fold(logits, ids[part]))
        ctx.save_for_backward(hidden, weight, bias, ids, *found)
        ctx.head = head._replace(weight=weight.new_empty(0), bias=None)
        return found.log_probs, found.entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, *cotangents: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, weight, bias, ids, *found = ctx.saved_tensors
        head = ctx.head._replace(weight=weight, bias=bias)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        wide = _wide(hidden)
        to_hidden = torch.zeros(hidden.shape, dtype=wide, device=hidden.device) if wants_hidden else None
        to_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if wants_weight else None
        to_bias = torch.zeros(weight.shape[:1], dtype=wide, device=weight.device) if wants_bias else None
        with without_autocast(hidden):
            for part, logits in _chunks(hidden, head):
                folded = _Folded(*(value[part] for value in found))
                pulled = [None if g is None else g[part].to(wide) for g in cotangents]
                gradient = _pull_scaling(logits, ids[part], folded, pulled, head)
                if to_bias is not None:
                    to_bias += gradient.sum(0)
                rows = hidden[part]
                for block in _blocks(weight, hidden):
                    if to_hidden is not None:
                        _add_product(to_hidden[part], gradient[:, block], weight[block], _factor(hidden))
                    if to_weight is not None:
                        _add_product(to_weight[block], gradient[:, block].t(), rows, _factor(hidden))
        return (
            None if to_hidden is None else to_hidden.to(hidden.dtype),
            None if to_weight is None else to_weight.to(weight.dtype),
            None if to_bias is None else to_bias.to(bias.dtype),
            None,
            None,
        )


def _fold(logits: Tensor, ids: Tensor) -> _Folded:
    """Compute the statistics of full rows of logits, overwriting the logits."""
    unused, places = ids < 0, torch.where(ids < 0, ids[:, :1], ids)
    kept = logits.gather(1, places).masked_fill_(unused, -torch.inf)
    logits.scatter_(1, places, -torch.inf)
    highest = logits.amax(1)
    highest = torch.where(highest == -torch.inf, 0.0, highest)  # the rest is empty
    shifted = logits.sub_(highest[:, None])
    weights = shifted.exp()
    total = weights.sum(1)
    shifted.clamp_min_(torch.finfo(logits.dtype).min)  # where a weight is 0: 0 · (−inf) would be NaN
    mean = torch.linalg.vecdot(weights, shifted) / torch.where(total > 0.0, total, 1.0)
    log_rest = highest + total.log()
    log_total = torch.logaddexp(kept.logsumexp(1), log_rest)
    log_probs = torch.cat((kept, log_rest[:, None]), 1).sub_(log_total[:, None])
    probs = log_probs.exp()
    each = torch.where(unused, 0.0, probs[:, :-1] * log_probs[:, :-1].clamp_min(torch.finfo(logits.dtype).min))
    entropy = -each.sum(1) - probs[:, -1] * (highest + mean - log_total)
    return _Folded(log_probs, log_rest, log_total, entropy)


def _pull(logits: Tensor, ids: Tensor, folded: _Folded, kept: Tensor | None, entropy: Tensor | None) -> Tensor:
    """Compute the cotangent of the logits, overwriting them."""
    places, lowest = torch.where(ids < 0, ids[:, :1], ids), torch.finfo(logits.dtype).min
    to_entropy = None
    if entropy is not None:  # −e p (log p + H)
        log_p = (logits - folded.log_total[:, None]).clamp_min_(lowest)
        to_entropy = log_p.exp().mul_(log_p.add_(folded.entropy[:, None])).mul_(-entropy[:, None])
    if kept is None:
        return logits.zero_() if to_entropy is None else to_entropy
    kept = torch.where(torch.isfinite(folded.log_probs), kept, 0.0)  # an empty place, or an empty rest
    probs, total = folded.log_probs.exp(), kept.sum(1, keepdim=True)
    at_kept, at_rest = (kept - probs * total).split((ids.shape[1], 1), 1)
    logits.sub_(folded.log_rest.clamp_min(lowest)[:, None]).exp_().mul_(at_rest)  # the rest may have no mass
    logits.scatter_(1, places, torch.where(ids < 0, at_kept[:, :1], at_kept))
    return logits if to_entropy is None else logits.add_(to_entropy)


def _pull_scaling(
    logits: Tensor, ids: Tensor, folded: _Folded, cotangents: Sequence[Tensor | None], head: Head
) -> Tensor:
    """Compute the cotangent of h·Wᵀ + b, before scale, soft cap and temperature; overwrites the logits."""
    slope = _slope_of_cap(logits, head)  # before `_pull` overwrites the logits
    gradient = _pull(logits, ids, folded, *cotangents)
    if slope is not None:
        gradient.mul_(slope)
    if head.scale != head.temperature:
        gradient.mul_(head.scale / head.temperature)
    return gradient


def _most_likely(logits: Tensor, sampled: Tensor, num_kept: int, mass: float) -> Tensor:
    """Return the sampled token and the most likely others, as many as are allowed and hold the mass, then −1."""
    first = logits.gather(1, sampled)
    others = logits.scatter(1, sampled, -torch.inf).topk(num_kept - 1, dim=1)
    allowed = torch.where(others.values > -torch.inf, others.indices, -1)  # else the sampled token again, among others
    ids = torch.cat((sampled, allowed), 1)
    if mass == 1.0:
        return ids
    probs = (torch.cat((first, others.values), 1) - logits.logsumexp(1, keepdim=True)).exp()
    before = probs.cumsum(1) - probs
    needed = before < mass
    needed[:, 0] = True
    return torch.where(needed, ids, -1)


def _chunks(hidden: Tensor, head: Head) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of tokens and their logits, as many as fit at once; the caller may overwrite the logits."""
    held = CPU_LOGITS if hidden.device.type == "cpu" else DEVICE_LOGITS
    vocabulary = head.weight.shape[0]
    size = max(1, min(held // vocabulary, len(hidden)))
    buffer = torch.empty((size, vocabulary), dtype=_wide(hidden), device=hidden.device)
    for start in range(0, len(hidden), size):
        part = slice(start, min(start + size, len(hidden)))
        rows = hidden[part]
        logits = buffer[: len(rows)]
        for block in _blocks(head.weight, hidden):
            _product(rows, head.weight[block].t(), _factor(hidden), out=logits[:, block])
        if head.bias is not None:
            logits += head.bias
        if head.softcap is not None:
            logits.mul_(head.scale / head.softcap).tanh_().mul_(head.softcap / head.temperature)
        elif head.scale != head.temperature:
            logits.mul_(head.scale / head.temperature)
        yield part, logits


def _slope_of_cap(logits: Tensor, head: Head) -> Tensor | None:
    """Compute 1 − tanh², the derivative of the soft cap, from the capped logits."""
    if head.softcap is None:
        return None
    return 1.0 - (logits * (head.temperature / head.softcap)).square_()


def _blocks(weight: Tensor, hidden: Tensor) -> Iterator[slice]:
    """Yield slices of the vocabulary: all of it, or blocks if it must be converted."""
    size = weight.shape[0] if weight.dtype == _factor(hidden) else BLOCK
    for start in range(0, weight.shape[0], size):
        yield slice(start, start + size)


def _factor(hidden: Tensor) -> torch.dtype:
    """Return the dtype of a product's factors: on a GPU that of the hidden states, since it accumulates in float32."""
    return hidden.dtype if hidden.is_cuda else _wide(hidden)


def _product(a: Tensor, b: Tensor, factor: torch.dtype, *, out: Tensor) -> None:
    """Compute out = a·b from factors of this dtype, without rounding the result to it."""
    if factor == out.dtype:
        torch.mm(a.to(factor), b.to(factor), out=out)
    else:
        torch.mm(a.to(factor), b.to(factor), out_dtype=out.dtype, out=out)  # type: ignore[call-overload]


def _add_product(total: Tensor, a: Tensor, b: Tensor, factor: torch.dtype) -> None:
    """Compute total += a·b from factors of this dtype, without rounding the product to it."""
    if factor == total.dtype:
        total.addmm_(a.to(factor), b.to(factor))
    else:
        total += torch.mm(a.to(factor), b.to(factor), out_dtype=total.dtype)  # type: ignore[call-overload]


def _wide(x: Tensor) -> torch.dtype:
    """Return the dtype of logits and sums: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def _empty(hidden: Tensor, num_kept: int) -> _Folded:
    """Allocate the statistics of all tokens."""
    make = {"dtype": _wide(hidden), "device": hidden.device}
    size = len(hidden)
    return _Folded(torch.empty((size, num_kept + 1), **make), *(torch.empty(size, **make) for _ in range(3)))


def _store(found: _Folded, part: slice, folded: _Folded) -> None:
    for all_tokens, these in zip(found, folded, strict=True):
        all_tokens[part] = these


def _as_scores(ids: Tensor, log_probs: Tensor, entropy: Tensor, shape: torch.Size) -> Scores:
    policy = SparseCategorical(ids.reshape(*shape, ids.shape[-1]), log_probs.reshape(*shape, log_probs.shape[-1]))
    return Scores(policy, entropy.reshape(shape))


def _check(hidden: Tensor, head: Head) -> int:
    """Check that hidden states and head fit together; return the size of the vocabulary."""
    if head.weight.ndim != 2 or hidden.ndim < 1 or hidden.shape[-1] != head.weight.shape[1]:
        raise ValueError(
            f"hidden states {tuple(hidden.shape)} do not fit a vocabulary matrix {tuple(head.weight.shape)}: "
            "expected [..., hidden] and [vocabulary, hidden]"
        )
    vocabulary = head.weight.shape[0]
    if head.bias is not None and head.bias.shape != (vocabulary,):
        raise ValueError(f"bias {tuple(head.bias.shape)} must be [{vocabulary}]")
    for name, value in (("temperature", head.temperature), ("softcap", head.softcap)):
        if value is not None and not value > 0.0:
            raise ValueError(f"{name} must be positive, not {value}")
    return vocabulary


def _check_ids(ids: Tensor, vocabulary: int, *, lowest: int) -> None:
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"token ids must be integers, not {ids.dtype}")
    if ids.numel() and not bool(((ids >= lowest) & (ids < vocabulary)).all()):
        raise ValueError(f"a token id is outside {lowest}…{vocabulary - 1}: {int(ids.min())} to {int(ids.max())}")


def _check_distinct(ids: Tensor) -> None:
    ordered = ids.sort(-1).values
    twice = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(-1)
    if bool(twice.any()):
        raise ValueError(f"an id is kept twice for {int(twice.sum())} tokens; its probability would count twice")
