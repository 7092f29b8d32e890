"""GRPO with trust regions through trl: its losses where the bound is off, the bound where it is on, all it trains."""

import copy
import inspect
import math
import warnings

import pytest
import torch

from trpl.errors import ConfigError
from trpl.families.sparse import SparseCategorical
from trpl.torch.head import score_kept
from trpl.torch.tokens import trust_region_loss

trl = pytest.importorskip("trl", reason="trl is not installed: pip install trpl[trl]")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from peft import LoraConfig, PromptTuningConfig, get_peft_model
    from tiny_language import SIZES, model, shorter, sums, tokenizer
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    from trpl.integrations.trl import TrustRegionGRPOConfig, TrustRegionGRPOTrainer
    from trpl.integrations.trl.scoring import check_head, head_of
    from trpl.integrations.trl.trainer import IDS, LOG_PROBS, OLD, token_weights

pytestmark = [pytest.mark.filterwarnings("ignore:::(transformers|accelerate|trl|peft|torch)")]

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]
FREE = {"trust_region_bound": math.inf, "regression_weight": 0.0}


def settings(folder, **changes):
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 5,
        "num_iterations": 4,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    } | changes


def trust_region(folder, network=None, *, peft_config=None, eval_dataset=None, **changes):
    args = TrustRegionGRPOConfig(**settings(folder, **({"kept_tokens": 5, "kept_mass": 1.0} | changes)))
    return TrustRegionGRPOTrainer(
        network or model(), shorter, args, sums(), eval_dataset, tokenizer(), peft_config=peft_config
    )


def grpo(folder, network=None, *, peft_config=None, **changes):
    args = GRPOConfig(**settings(folder, **changes))
    return GRPOTrainer(network or model(), shorter, args, sums(), None, tokenizer(), peft_config=peft_config)


def batch(trainer, num=8):
    """A batch as the trainer makes it, and the model moved on since."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    rows = [row for row in sums(num // 4) for _ in range(4)]
    inputs = trainer._generate_and_score_completions(rows)
    torch.manual_seed(1)
    inputs["advantages"] = torch.randn(num)
    with torch.no_grad():
        for x in trainer.model.parameters():
            x.add_(0.05 * torch.randn_like(x))
    return inputs


def loss_and_gradient(trainer, inputs):
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.detach(), torch.cat([x.grad.flatten() for x in trainer.model.parameters() if x.grad is not None])


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


# The loss -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", LOSSES)
def test_without_a_bound_it_is_trls_loss_without_a_clip(tmp_path, kind, level):
    shared = {"loss_type": kind, "importance_sampling_level": level}
    ours = trust_region(tmp_path, **shared, **FREE)
    inputs = batch(ours)
    theirs = grpo(tmp_path, copy_of(ours), epsilon=math.inf, **shared)
    close(loss_and_gradient(ours, inputs), loss_and_gradient(theirs, inputs))


def test_a_clip_may_be_asked_for_besides(tmp_path):
    ours = trust_region(tmp_path, epsilon=0.2, **FREE)
    inputs = batch(ours)
    theirs = grpo(tmp_path, copy_of(ours), epsilon=0.2)
    close(loss_and_gradient(ours, inputs), loss_and_gradient(theirs, inputs))
    assert theirs._metrics["train"]["clip_ratio/region_mean"][0] > 0.0


def test_clip_and_trust_region_together_are_the_plain_functions(tmp_path):
    both = {"regression_weight": 0.5, "pessimism": True}
    trainer = trust_region(tmp_path, loss_type="bnpo", trust_region_bound=5e-3, epsilon=0.1, epsilon_high=0.2, **both)
    inputs = batch(trainer)
    mask = inputs["completion_mask"].bool()
    found = loss_and_gradient(trainer, inputs)
    logged = trainer._watch.flush("train")
    assert logged["trust_region/projected_kl/max"] <= 5e-3 * (1.0 + 1e-4) < logged["trust_region/kl/max"]
    assert trainer._metrics["train"]["clip_ratio/region_mean"][0] > 0.0
    old = SparseCategorical(inputs[IDS][mask], inputs[LOG_PROBS][mask])
    ids = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1)
    seen = torch.cat((inputs["prompt_mask"], inputs["completion_mask"]), 1)
    twin = copy_of(trainer)
    hidden = twin.model(ids, seen).last_hidden_state[:, -mask.shape[1] - 1 : -1][mask]
    predicted = score_kept(hidden, head_of(twin), old.ids).policy
    advantages = inputs["advantages"][:, None].expand(mask.shape)[mask]
    wanted = trust_region_loss(predicted, old, advantages, bound=5e-3, clip=0.1, clip_high=0.2, **both)
    torch.testing.assert_close(found[0], wanted.loss.mean().detach(), rtol=1e-5, atol=1e-6)


def copy_of(trainer):
    """A model with the trainer's weights, without its additions to the forward."""
    twin = model()
    twin.load_state_dict(trainer.model.state_dict())
    return twin


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_regression_is_weighted_as_trl_weights_the_loss(tmp_path, kind, training):
    """With advantages of −1 and the policy that sampled, every token's loss is 1 (log-probability for cispo, vespo)."""
    trainer = trust_region(tmp_path, loss_type=kind, **FREE)
    inputs = batch(trainer)
    trainer.model.train(training)
    trainer.current_gradient_accumulation_steps = 2
    inputs["advantages"] = -torch.ones(8)
    mask = inputs["completion_mask"]
    del inputs[IDS], inputs[LOG_PROBS], inputs[OLD]
    loss = trainer._compute_loss(trainer.model, inputs).detach()
    ids = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1)
    seen = torch.cat((inputs["prompt_mask"], mask), 1)
    scores, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, seen, mask.shape[1])
    each = {"cispo": scores, "vespo": scores, "sapo": torch.full_like(scores, 2.0)}.get(kind, torch.ones_like(scores))
    if kind == "sapo":
        each = each / trainer.args.sapo_temperature_neg
    if kind == "vespo":
        weights = trainer.get_gamma_weights(-torch.ones(8, 1), torch.zeros_like(scores), mask, None, 2.0, 3.0, 3.0, 2.0)
        each = each * weights
    torch.testing.assert_close(loss, (token_weights(trainer, mask, inputs) * each.detach()).sum())


def test_the_loss_adds_the_regression_and_projects(tmp_path):
    trainer = trust_region(tmp_path, trust_region_bound=1e-3, regression_weight=2.0)
    inputs = batch(trainer)
    loss, gradient = loss_and_gradient(trainer, inputs)
    logged = trainer._watch.flush("train")
    assert logged["trust_region/share_projected"] > 0.5
    assert logged["trust_region/projected_kl/max"] <= 1e-3 * (1.0 + 1e-4) < logged["trust_region/kl/max"]
    trainer.args.regression_weight = 0.0
    less, _ = loss_and_gradient(trainer, inputs)
    torch.testing.assert_close(loss - less, torch.tensor(2.0 * logged["trust_region/regression"]))
    assert torch.isfinite(gradient).all()


def test_pessimism_in_a_vanishing_region_is_trls_vanishing_clip(tmp_path):
    """Both are min(A, r A) then."""
    ours = trust_region(tmp_path, trust_region_bound=1e-6, regression_weight=0.0, pessimism=True)
    inputs = batch(ours)
    theirs = grpo(tmp_path, copy_of(ours), epsilon=1e-6)
    found, wanted = loss_and_gradient(ours, inputs), loss_and_gradient(theirs, inputs)
    torch.testing.assert_close(found[0], wanted[0], rtol=0.0, atol=2e-3)
    assert (found[1] - wanted[1]).norm() < 0.02 * wanted[1].norm()


def test_tokens_of_tools_have_no_trust_region_and_no_loss(tmp_path):
    trainer = trust_region(tmp_path, trust_region_bound=1e-3)
    inputs = batch(trainer)
    inputs["tool_mask"] = torch.ones_like(inputs["completion_mask"])
    inputs["tool_mask"][:, ::2] = 0
    inputs["num_items_in_batch"] = (inputs["tool_mask"] * inputs["completion_mask"]).sum()
    inputs[LOG_PROBS][:, ::2] = torch.nan  # nobody looks
    loss, gradient = loss_and_gradient(trainer, inputs)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert trainer._watch.sums["train"][0] == inputs["num_items_in_batch"]


def test_a_batch_without_a_token_is_no_trouble(tmp_path):
    trainer = trust_region(tmp_path)
    inputs = batch(trainer)
    inputs["tool_mask"] = torch.zeros_like(inputs["completion_mask"])
    loss, gradient = loss_and_gradient(trainer, inputs)
    assert loss == 0.0
    assert (gradient == 0.0).all()


def test_one_aligned_step_per_batch_is_plain_grpo(tmp_path):
    trainer = trust_region(tmp_path, num_iterations=1, trust_region_bound=1e-9)
    inputs = batch(trainer)
    assert IDS not in inputs
    theirs = grpo(tmp_path, copy_of(trainer), num_iterations=1)
    close(loss_and_gradient(trainer, inputs), loss_and_gradient(theirs, inputs))


# Training -------------------------------------------------------------------------------------------------------------


def test_training_holds_every_token_to_the_bound(tmp_path):
    trainer = trust_region(
        tmp_path, max_steps=8, gradient_accumulation_steps=2, trust_region_bound=0.01, beta=0.0, kept_mass=0.9
    )
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "trust_region/kl/max" in entry]
    assert len(steps) == 8
    assert max(entry["trust_region/projected_kl/max"] for entry in steps) <= 0.01 * (1.0 + 1e-4)
    assert max(entry["trust_region/share_projected"] for entry in steps) > 0.0
    assert max(entry["trust_region/kl/max"] for entry in steps) > 0.01
    assert any(not torch.equal(x, before[name]) for name, x in trainer.model.state_dict().items())


def test_adapters_and_a_reference_train_with_it(tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    trainer = trust_region(tmp_path, peft_config=lora, beta=0.1, trust_region_bound=0.01, learning_rate=0.1)
    before = {name: x.detach().clone() for name, x in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, x in trainer.model.named_parameters() if not torch.equal(x, before[name])}
    assert moved
    assert all("lora" in name for name in moved)
    assert any("trust_region/kl/max" in entry for entry in trainer.state.log_history)
    assert any("kl" in entry for entry in trainer.state.log_history)


def test_virtual_tokens_which_have_no_ids_train_with_it(tmp_path):
    """PEFT's prompt tuning gives the model embeddings instead of ids."""
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    ours = trust_region(tmp_path, peft_config=prompt, **FREE)
    inputs = batch(ours)
    theirs = grpo(tmp_path, peft_config=prompt, epsilon=math.inf)
    theirs.model.load_state_dict(ours.model.state_dict())
    close(loss_and_gradient(ours, inputs), loss_and_gradient(theirs, inputs))


def test_a_checkpoint_goes_on(tmp_path):
    trainer = trust_region(tmp_path, max_steps=8, save_strategy="steps", save_steps=4)
    trainer.train()
    again = trust_region(tmp_path, max_steps=8, save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.state.global_step == 8
    for a, b in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_evaluation_logs_under_its_own_name(tmp_path):
    trainer = trust_region(tmp_path, eval_dataset=sums(4), eval_strategy="steps", eval_steps=2)
    trainer.train()
    found = [entry for entry in trainer.state.log_history if "eval_trust_region/kl/max" in entry]
    assert found
    assert max(entry["eval_trust_region/kl/max"] for entry in found) < 1e-6  # the policy that sampled


def test_gradient_checkpointing_and_a_mixture_of_experts(tmp_path):
    config = transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=8, output_router_logits=True
    )
    torch.manual_seed(0)
    network = transformers.Qwen3MoeForCausalLM(config)
    trainer = trust_region(tmp_path, network, gradient_checkpointing=True, trust_region_bound=0.01)
    trainer.train()
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    assert any(entry.get("aux_loss", 0.0) > 0.0 for entry in trainer.state.log_history)


# The head -------------------------------------------------------------------------------------------------------------

MODELS = {
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 2.0},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 3.0},
    "GPT2": {"n_embd": 16, "n_head": 2, "n_layer": 1},
    "Phi": {},
    "FalconH1": {"lm_head_multiplier": 0.5, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "Llama": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_head_gives_the_models_own_logits(name):
    """Bias, tied weights, scale and soft cap as current models have them."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(SIZES | MODELS[name]))
    kind = getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    network = kind(config).eval()
    ids = torch.randint(2, SIZES["vocab_size"], (2, 5))
    with torch.no_grad():
        for x in network.parameters():
            x.add_(0.3 * torch.randn_like(x))
        wanted = (network(ids).logits / 0.7).log_softmax(-1)
        hidden = network.base_model(ids).last_hidden_state
        every = torch.arange(SIZES["vocab_size"]).expand(2, 5, -1)
        found = score_kept(hidden, head_of(network, temperature=0.7), every).policy.log_probs[..., :-1]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_logits_that_are_computed_in_another_way_are_refused():
    """transformers' MPT has a factor in its configuration that it does not apply."""
    torch.manual_seed(0)
    config = transformers.MptConfig(d_model=16, n_heads=2, n_layers=1, vocab_size=SIZES["vocab_size"], logit_scale=0.5)
    network, ids = transformers.MptForCausalLM(config), torch.randint(2, SIZES["vocab_size"], (2, 5))
    with pytest.raises(
        ValueError, match=r"MptForCausalLM does not compute its logits as .* differ from its own by 50%"
    ):
        check_head(network, network.forward, {"input_ids": ids})
    assert network.training
    network = model()
    check_head(network, network.forward, {"input_ids": ids})


def test_a_head_that_peft_saves_is_the_trained_one():
    network = get_peft_model(model(), LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    inner = network.get_base_model()
    assert head_of(inner).weight is inner.lm_head.modules_to_save["default"].weight
    with network.disable_adapter():
        assert head_of(inner).weight is inner.lm_head.original_module.weight


# The seam -------------------------------------------------------------------------------------------------------------

SEAMS = {
    "_get_per_token_logps_and_entropies": ["self", "model", "input_ids", "attention_mask", "logits_to_keep"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_compute_loss": ["self", "model", "inputs"],
    "log": ["self", "logs"],
}


@pytest.mark.parametrize("method", SEAMS)
def test_trls_methods_are_where_they_were(method):
    found = getattr(GRPOTrainer, method, None)
    assert found is not None, f"trl {trl.__version__} has no GRPOTrainer.{method}: the adapter overrides it"
    names = list(inspect.signature(found).parameters)[: len(SEAMS[method])]
    assert names == SEAMS[method], (
        f"trl {trl.__version__} calls GRPOTrainer.{method} with {names}; the adapter overrides it with {SEAMS[method]}"
    )


def test_trl_calls_the_model_as_the_adapter_expects(tmp_path):
    """What the stand-in for the model is called with, and what trl reads of its answer."""
    trainer = trust_region(tmp_path)
    calls = []

    class Answer:
        log_probs, entropy, aux_loss = torch.full((2, 3), -1.0), torch.full((2, 3), 0.5), torch.tensor(0.1)

    def stand_in(**inputs):
        calls.append(inputs)
        return Answer

    found = trainer._get_per_token_logps_and_entropies(
        stand_in, torch.ones(2, 7, dtype=torch.long), torch.ones(2, 7), 3, compute_entropy=True, compute_aux_loss=True
    )
    words = f"trl {trl.__version__} no longer calls model(input_ids=…, labels=…, fused_lm_head=True) once per batch"
    assert len(calls) == 1, words
    assert {"input_ids", "attention_mask", "labels", "fused_lm_head"} <= set(calls[0]), words
    assert calls[0]["labels"][:, -3:].tolist() == [[1, 1, 1]] * 2, f"{words}: completions are no longer the last labels"
    for value, name in zip(found, ("log_probs", "entropy", "aux_loss"), strict=True):
        assert torch.equal(value, getattr(Answer, name)), f"trl {trl.__version__} no longer reads {name} of the answer"


def test_a_batch_of_trl_holds_what_the_adapter_reads(tmp_path):
    found = batch(trust_region(tmp_path))
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "num_items_in_batch", OLD):
        assert name in found, f"a batch of trl {trl.__version__} has no {name!r}, which the adapter reads"


def test_an_old_policy_that_trl_does_not_return_is_missed(tmp_path, monkeypatch):
    """Otherwise the run would be GRPO without a word."""
    unchanged = GRPOTrainer._generate_and_score_completions

    def forgetful(self, inputs):
        return {name: value for name, value in unchanged(self, inputs).items() if name != OLD}

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", forgetful)
    with pytest.raises(RuntimeError, match=OLD):
        batch(trust_region(tmp_path))


def test_trl_refuses_adapters_on_the_head_itself(tmp_path):
    """Their weights are not in `lm_head.weight`, all that the adapter reads."""
    with pytest.raises(ValueError, match="PEFT adapter to `lm_head`"):
        trust_region(tmp_path, peft_config=LoraConfig(r=4, target_modules=["lm_head"]))


def test_trls_own_head_still_leaves_the_forward_to_others():
    network = model()
    add_fused_lm_head(network)
    assert "forward" in vars(network), (
        f"trl {trl.__version__} no longer puts its fused head into model.forward, which the adapter wraps"
    )


def test_settings_out_of_range_are_said(tmp_path):
    for changes in ({"trust_region_bound": 0.0}, {"regression_weight": -1.0}, {"kept_tokens": 0}, {"kept_mass": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            TrustRegionGRPOConfig(**settings(tmp_path, **changes))
    with pytest.raises(TypeError, match="TrustRegionGRPOConfig"):
        TrustRegionGRPOTrainer(model(), shorter, GRPOConfig(**settings(tmp_path)), sums(), processing_class=tokenizer())
