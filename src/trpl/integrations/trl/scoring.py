"""Scoring of kept ids by a transformers model: an additional argument of its forward, and a proxy that passes it.

`trl` scores completions by `model(**inputs, labels=labels, fused_lm_head=True)`, through the forward, so that wrappers
for several devices and adapters see the call. A request for kept ids takes the same path.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from trpl.families.sparse import SparseCategorical
from trpl.torch.head import Head, Scores, choose_kept, score_kept

MULTIPLIERS = ("logit_scale", "output_multiplier", "lm_head_multiplier")  # configs' names for a factor on the logits
UNLABELLED = -100  # transformers' label of tokens that are not scored
LARGEST_DIFFERENCE = 0.05
"""Largest relative difference between two computations of the logits: ten times bfloat16's rounding."""


class Choose(NamedTuple):
    """A request to choose the kept ids: those of the sampled tokens, and the most likely others."""

    kept_tokens: int
    kept_mass: float
    num_last: int  # completion tokens at the end of each sequence

    def tokens(self, labels: Tensor) -> Tensor:
        """Return the mask of the completion tokens that have labels."""
        return (labels != UNLABELLED)[:, -self.num_last :]

    def score(self, hidden: Tensor, head: Head, labels: Tensor, mask: Tensor) -> Scores:
        """Choose and score ids at the hidden states of the tokens in the mask."""
        sampled = labels[:, -mask.shape[1] :].to(hidden.device)[mask]
        return choose_kept(hidden, head, sampled, kept_tokens=self.kept_tokens, kept_mass=self.kept_mass)


class Score(NamedTuple):
    """A request for the log-probabilities of the old policy's ids, at the tokens of the mask `[batch, time]`."""

    old: SparseCategorical[Tensor]
    mask: Tensor

    def rows(self, rows: slice) -> Score:
        """Return the request for some of the sequences."""
        return Score(SparseCategorical(*(x[rows] for x in self.old)), self.mask[rows])

    def tokens(self, labels: Tensor) -> Tensor:
        """Return the mask of the request's tokens that have labels."""
        return self.mask.bool() & (labels != UNLABELLED)[:, -self.mask.shape[1] :]

    def score(self, hidden: Tensor, head: Head, labels: Tensor, mask: Tensor) -> Scores:
        """Score the old policy's ids at the hidden states of the tokens in the mask."""
        return score_kept(hidden, head, self.old.ids.to(hidden.device)[mask])


class Scored(NamedTuple):
    """The forward's result: a sparse policy and the entropy of the tokens in the mask, flat."""

    mask: Tensor
    ids: Tensor
    log_probs: Tensor
    entropy: Tensor
    aux_loss: Tensor | None


class Answer(NamedTuple):
    """The fields that `trl` reads of a scored sequence."""

    log_probs: Tensor
    entropy: Tensor
    aux_loss: Tensor | None


Reader = Callable[[Scored, slice], Tensor]
"""Takes the scores of some sequences; returns for `trl` the log-probabilities of their tokens, of the mask's shape."""


def add_kept_scores(model: PreTrainedModel, *, temperature: float, float32_head: bool = False) -> None:
    """Make `model(..., labels=labels, kept=request)` return `Scored`; every other call is unchanged.

    Args:
        model: A causal language model, whose forward is replaced.
        temperature: The sampling temperature.
        float32_head: Whether the vocabulary head gets hidden states in float32.
    """
    unchanged, checked = model.forward, False

    @functools.wraps(type(model).forward)  # generation inspects the signature
    def forward(self: PreTrainedModel, *args: Any, kept: Choose | Score | None = None, **kwargs: Any) -> Any:
        nonlocal checked
        if kept is None:
            return unchanged(*args, **kwargs)
        if not checked:
            name = "input_ids" if "input_ids" in kwargs else "inputs_embeds"  # PEFT's virtual tokens have no ids
            check_head(self, unchanged, {name: kwargs[name]})
            checked = True
        labels = kwargs.pop("labels")
        kwargs.pop("fused_lm_head", None)
        states = self.base_model(*args, **kwargs, use_cache=False)
        head = head_of(self, temperature=temperature)
        mask = kept.tokens(labels).to(head.weight.device)
        before = states.last_hidden_state[:, -mask.shape[1] - 1 : -1]  # the hidden state before a token predicts it
        hidden = before.to(head.weight.device)[mask]
        hidden = hidden.float() if float32_head else _as_autocast(hidden)
        found = kept.score(hidden, head, labels, mask)
        aux_loss = _load_balance(self, states, kwargs) if kwargs.get("output_router_logits") else None
        return Scored(mask, found.policy.ids, found.policy.log_probs, found.entropy, aux_loss)

    model.forward = types.MethodType(forward, model)


def head_of(model: PreTrainedModel, *, temperature: float = 1.0) -> Head:
    """Return the vocabulary head of a causal language model, as its configuration describes it.

    Args:
        model: The model.
        temperature: The sampling temperature.

    Returns:
        The head.

    Raises:
        ValueError: A model without a vocabulary head, or with a matrix that DeepSpeed ZeRO-3 has partitioned.
    """
    output = model.get_output_embeddings()
    if output is None:
        raise ValueError(f"{type(model).__name__} has no output embeddings; it must be a causal language model")
    weight, bias = output.weight, getattr(output, "bias", None)
    if hasattr(weight, "ds_id"):
        raise ValueError("the output embedding is partitioned by DeepSpeed ZeRO-3, which is not supported")
    gather = getattr(weight, "full_tensor", None)
    if gather is not None:  # FSDP2 keeps parameters as distributed tensors
        weight, bias = gather(), None if bias is None else bias.full_tensor()
    config = model.config.get_text_config()
    return Head(
        weight,
        bias,
        scale=logit_scale(config),
        softcap=getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None),
        temperature=temperature,
    )


@torch.no_grad()
def check_head(model: PreTrainedModel, forward: Callable[..., Any], inputs: dict[str, Tensor]) -> None:
    """Compare the logits of `head_of` with the model's own, after two tokens; models may compute them in other ways.

    Args:
        model: The model.
        forward: Its own forward.
        inputs: `input_ids` or `inputs_embeds`; two tokens are used.

    Raises:
        ValueError: They differ by more than the rounding of bfloat16.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()  # dropout would differ between the two calls
    try:
        tokens = {name: x[:1, -2:] for name, x in inputs.items()}
        states = model.base_model(**tokens, use_cache=False).last_hidden_state[:, -1]
        theirs = forward(**tokens).logits[:, -1].float()
    finally:
        for module, mode in modes:
            module.training = mode
    head = head_of(model)
    every = torch.arange(head.weight.shape[0], device=head.weight.device)[None]
    ours = score_kept(states.to(head.weight), head, every).policy.log_probs[:, :-1].to(theirs)
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    off = float((ours - theirs).norm() / theirs.norm().clamp_min(1e-30))
    if not off <= LARGEST_DIFFERENCE:
        raise ValueError(
            f"{type(model).__name__} does not compute its logits as hidden states times output embedding, bias, scale "
            f"and soft cap of its configuration: those differ from its own by {off:.0%}, so its tokens cannot be scored"
        )


def logit_scale(config: PretrainedConfig) -> float:
    """Return the factor on the logits, under any of the names that models use for it."""
    for name in MULTIPLIERS:
        factor = getattr(config, name, None)
        if factor is not None:
            return float(factor)
    divisor = getattr(config, "logits_scaling", None)
    if divisor is None:
        return 1.0
    return float(divisor) if config.model_type == "hyperclovax" else 1.0 / float(divisor)  # hyperclovax multiplies


class Scorer:
    """A proxy of the model for `trl`'s scoring of completions, which records the scores."""

    def __init__(self, model: nn.Module, request: Choose | Score, read: Reader) -> None:
        self.model, self.request, self.read = model, request, read
        self.rows = 0

    def __call__(self, **inputs: Any) -> Answer:
        rows = slice(self.rows, self.rows + inputs["input_ids"].shape[0])  # trl may score a batch in parts
        self.rows = rows.stop
        request = self.request.rows(rows) if isinstance(self.request, Score) else self.request
        scored = self.model(**inputs, kept=request)
        return Answer(self.read(scored, rows), scatter(scored.entropy, scored.mask), scored.aux_loss)


class Chosen:
    """A reader that collects the old policy's kept ids and log-probabilities."""

    def __init__(self) -> None:
        self.parts: list[Scored] = []

    def __call__(self, scored: Scored, rows: slice) -> Tensor:
        self.parts.append(scored)
        return scatter(scored.log_probs[:, 0], scored.mask)

    def policy(self) -> SparseCategorical[Tensor]:
        """Return ids `[batch, time, K]`, −1 in unused places, and log-probabilities `[batch, time, K + 1]`."""
        width = max(part.ids.shape[1] for part in self.parts)
        ids, log_probs = [], []
        for mask, kept, scores, *_ in self.parts:
            places = kept.new_full((*mask.shape, width), -1, dtype=torch.int32)
            places[..., : kept.shape[1]][mask] = kept.int()
            values = scores.new_full((*mask.shape, width + 1), -torch.inf)
            values[..., : kept.shape[1]][mask] = scores[:, :-1]
            values[..., -1][mask] = scores[:, -1]
            ids.append(places)
            log_probs.append(values)
        return SparseCategorical(torch.cat(ids), torch.cat(log_probs))


def scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Scatter the values of the tokens in the mask to their places, 0 elsewhere; in the model's graph even if empty."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def _as_autocast(hidden: Tensor) -> Tensor:
    """Convert hidden states to autocast's precision on a GPU; a CPU multiplies in float32 anyway."""
    kind = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(kind)) if kind != "cpu" and torch.is_autocast_enabled(kind) else hidden


def _load_balance(model: PreTrainedModel, states: Any, inputs: dict[str, Any]) -> Tensor | None:
    """Return the load-balancing loss of a mixture of experts; None for a model without experts."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    config = model.config.get_text_config()
    loss = load_balancing_loss_func(
        states.router_logits, config.num_experts, config.num_experts_per_tok, inputs.get("attention_mask")
    )
    return loss if isinstance(loss, Tensor) else None
