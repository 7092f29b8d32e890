"""`TrustRegionGRPOTrainer`: trl's GRPO with projected log-probabilities in place of a clipped ratio.

When trl scores fresh completions, the old policy's kept ids and log-probabilities are recorded and stored with the
batch. When trl computes the loss, it gets the log-probabilities of the projected policy; ratio, importance-sampling
level, masks, normalisation and the other terms of the loss are trl's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from trl.trainer.grpo_trainer import GRPOTrainer

from trpl.families.sparse import SparseCategorical
from trpl.integrations.trl.config import TrustRegionGRPOConfig
from trpl.integrations.trl.scoring import Choose, Chosen, Score, Scored, Scorer, add_kept_scores, scatter
from trpl.integrations.trl.watching import Watch
from trpl.torch.tokens import ProjectedTokens, pessimistic, project_tokens

if TYPE_CHECKING:
    from peft import PeftModel

OLD, IDS, LOG_PROBS = "old_per_token_logps", "old_kept_ids", "old_kept_log_probs"


class TrustRegionGRPOTrainer(GRPOTrainer):
    """GRPO with an exact KL trust region around each token's old policy in place of the clip.

    It takes the arguments of `GRPOTrainer`, with a `TrustRegionGRPOConfig`. As long as the trained policy is the one
    that sampled, in the single optimiser step per batch of `num_iterations=1`, there is nothing to project and it is
    GRPO.

    Args:
        model: A model, or its name; see `GRPOTrainer`.
        reward_funcs: Reward functions or models.
        args: The settings.
        others: Further arguments of `GRPOTrainer`.

    Raises:
        TypeError: Settings that are not a `TrustRegionGRPOConfig`.
    """

    args: TrustRegionGRPOConfig  # type: ignore[assignment]
    model: nn.Module
    _tag_names = ["trl", "grpo", "trust-region"]  # noqa: RUF012
    _name = "GRPO with a trust region"
    _paper = {  # noqa: RUF012
        "title": "TROLL: Trust Regions improve Reinforcement Learning for Large Language Models",
        "id": "2510.03817",
        "citation": (
            "@article{becker2025troll,\n"
            "    title  = {{TROLL: Trust Regions improve Reinforcement Learning for Large Language Models}},\n"
            "    author = {Becker, Philipp and Freymuth, Niklas and Thilges, Serge and Otto, Fabian and "
            "Neumann, Gerhard},\n"
            "    year   = 2025,\n"
            "    eprint = {arXiv:2510.03817},\n"
            "}"
        ),
    }

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        reward_funcs: Any = None,
        args: TrustRegionGRPOConfig | None = None,
        *others: Any,
        **options: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else base_model(model).config._name_or_path
            args = TrustRegionGRPOConfig(f"{name.split('/')[-1]}-TrustRegionGRPO")
        if not isinstance(args, TrustRegionGRPOConfig):
            raise TypeError(f"args must be a TrustRegionGRPOConfig, not a {type(args).__name__}")
        self._next_scorer: Callable[[nn.Module, int], Scorer] | None = None
        super().__init__(model, reward_funcs, args, *others, **options)
        add_kept_scores(base_model(self.model), temperature=self.temperature, float32_head=args.cast_lm_head_to_fp32)
        self._watch = Watch(self.accelerator)

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *rest: Any,
        **inputs: Any,
    ) -> Any:
        make, self._next_scorer = self._next_scorer, None
        if make is not None and model is not self.ref_model:
            model = make(model, logits_to_keep)  # type: ignore[assignment]
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *rest, **inputs
        )

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        chosen, args = Chosen(), self.args
        self._next_scorer = lambda model, num: Scorer(model, Choose(args.kept_tokens, args.kept_mass, num), chosen)
        output = super()._generate_and_score_completions(inputs)
        self._next_scorer = None
        if OLD in output:  # absent if the trained policy is the one that sampled
            old = chosen.policy()
            mask = old.ids[..., 0] >= 0
            if not torch.equal(old.log_probs[..., 0][mask], output[OLD][mask]):
                raise RuntimeError(
                    "trl's old log-probabilities are not those of the first scoring pass after generation: this "
                    "version of trl scores in another order than the versions trpl was tested with"
                )
            output[IDS], output[LOG_PROBS] = old
        elif args.gradient_accumulation_steps % ((args.steps_per_generation or 1) * args.num_iterations) != 0:
            raise RuntimeError(
                f"trl returned no {OLD!r} for a batch of several optimiser steps, so there is nothing to hold the "
                "policy to: this version of trl keeps the old policy elsewhere than the versions trpl was tried with"
            )
        return output

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        if IDS not in inputs:
            return super()._compute_loss(model, inputs)
        args, mask = self.args, inputs["completion_mask"]
        mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
        request = Score(SparseCategorical(inputs[IDS], inputs[LOG_PROBS]), mask.bool())
        advantages = inputs["advantages"].reshape(len(mask), -1)  # of the sequences, or of their tokens
        found: list[tuple[ProjectedTokens, SparseCategorical[Tensor], Tensor]] = []

        def read(scored: Scored, rows: slice) -> Tensor:
            old = SparseCategorical(*(x[scored.mask] for x in request.rows(rows).old))
            predicted = SparseCategorical(old.ids, scored.log_probs)
            tokens = project_tokens(predicted, old, bound=args.trust_region_bound)
            found.append((tokens, predicted, scored.mask))
            sampled = tokens.policy.log_probs[:, 0]
            if args.pessimism:
                gains = advantages[rows].expand(scored.mask.shape).to(sampled)[scored.mask]
                sampled = pessimistic(sampled, scored.log_probs[:, 0], gains)
            return scatter(sampled, scored.mask)

        self._next_scorer = lambda model, num: Scorer(model, request, read)
        loss = super()._compute_loss(model, inputs)
        regression = torch.cat([scatter(tokens.regression, part) for tokens, _, part in found])
        if args.regression_weight > 0.0:
            weights = token_weights(self, mask, inputs).to(regression)
            loss = loss + args.regression_weight * (weights * regression).sum()
        self._watch.add(self._mode, [tokens for tokens, _, _ in found], [p for _, p, _ in found])
        return loss

    def log(self, logs: dict[str, float], *rest: Any, **options: Any) -> None:
        prefix = "eval_" if self._mode == "eval" else ""
        logs.update({f"{prefix}{name}": value for name, value in self._watch.flush(self._mode).items()})
        super().log(logs, *rest, **options)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"


def base_model(model: nn.Module | None) -> PreTrainedModel:
    """Return the language model under its adapters, if it has any.

    Raises:
        TypeError: The model is not a transformers model.
    """
    under = getattr(model, "get_base_model", None)  # of PEFT
    inner = model if under is None else under()
    if not isinstance(inner, PreTrainedModel):
        raise TypeError(f"the model must be a transformers model, not a {type(inner).__name__}")
    return inner


def token_weights(trainer: TrustRegionGRPOTrainer, mask: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Return the weight of each token's loss in trl's sum, so that α has the same meaning for every loss type.

    Raises:
        ValueError: The loss type is unknown.
    """
    training, kind = trainer.model.training, trainer.loss_type
    steps = trainer.current_gradient_accumulation_steps if training else 1
    if kind in ("grpo", "sapo"):  # the mean of the sequences' means
        return mask / mask.sum(-1, keepdim=True).clamp(min=1) / (len(mask) * steps)
    if kind == "luspo":  # the mean of the sequences' sums
        return mask / (len(mask) * steps)
    if kind == "bnpo":  # the mean of this batch's tokens
        return mask / (mask.sum().clamp(min=1) * steps)
    if kind == "dr_grpo":  # a constant length
        assert trainer.max_completion_length is not None  # trl has divided by it
        return mask / (len(mask) * trainer.max_completion_length * steps)
    if kind in ("dapo", "cispo", "vespo"):  # the mean of all tokens of the optimiser's step
        steps_per_generation = trainer.args.steps_per_generation
        assert steps_per_generation is not None  # its config fills it in
        batches = steps / steps_per_generation if training else 1.0
        tokens = inputs["num_items_in_batch"].clamp(min=1) / trainer.accelerator.num_processes
        return mask / (tokens * batches)
    raise ValueError(
        f"loss_type {kind!r} is not known to trpl; known are grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo"
    )
