"""What trust regions for language models cost beside trl's clip and trl's chunked log-probability.

    python benchmarks/language.py step         loss and gradient of one batch, 32,000 words, K = 64, against trl's GRPO
    python benchmarks/language.py head         kept log-probabilities against trl's chunked log-probability
    python benchmarks/language.py step head --out results/language/cost.json

One thread; time in processor time, by turns; memory as the highest resident set of a process of its own.
"""

import argparse
import ctypes
import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE as TRL_CHUNK

from trpl.integrations.trl import TrustRegionGRPOConfig, TrustRegionGRPOTrainer
from trpl.integrations.trl.scoring import Choose, Chosen, Scorer
from trpl.torch.head import Head, choose_kept, score_kept

CHARACTERS = ["<pad>", "<eos>", *"0123456789+="]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character."""
    words = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left", model_max_length=64
    )


def small_model(vocabulary: int, *, seed: int, width: int = 64, depth: int = 2) -> Qwen2ForCausalLM:
    """A transformer from a configuration, its weights drawn from the seed."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config)


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the right sum."""
    return [float(text.replace(" ", "") == wanted) for text, wanted in zip(completions, answer, strict=True)]


def step(*, repeats: int) -> list[dict[str, Any]]:
    """Loss and gradient of 1024 tokens, 32,000 words, K = 64, every token projected or nearly; trl's clip beside it."""
    calls = {name: loss_step(name) for name in ("clipping", "trust region")}
    times = by_turns(calls, repeats)
    memory = {name: peak_of(loss_step, name) for name in calls}
    clip, ours = "clipping", "trust region"
    print(f"step: {clip} {times[clip]:.2f} s, {memory[clip]:.0f} MB; {ours} {times[ours]:.2f} s, {memory[ours]:.0f} MB")
    return [
        figure("loss and gradient ÷ trl's GRPO with a clip, time", times[ours] / times[clip], 1.15),
        figure("loss and gradient ÷ trl's GRPO with a clip, peak memory", memory[ours] / memory[clip], 1.10),
    ]


def loss_step(name: str, *, num_rows: int = 8, num_last: int = 128, vocabulary: int = 32_000) -> Callable[[], None]:
    """A call that computes the loss of a batch and its gradient, by trl's GRPO or with trust regions."""
    model = small_model(vocabulary, seed=0, width=256, depth=4)
    model.lm_head.weight.data.mul_(30.0)  # a few words hold most of the probability, as they do after training
    folder = tempfile.mkdtemp()
    shared = {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": num_rows,
        "num_generations": num_rows,
        "max_completion_length": num_last,
        "num_iterations": 4,
        "report_to": [],
    }
    config, kind = (GRPOConfig, GRPOTrainer) if name == "clipping" else (TrustRegionGRPOConfig, TrustRegionGRPOTrainer)
    rows = Dataset.from_list([{"prompt": "1+1=", "answer": "02"}])
    trainer = kind(model, right, config(**shared), train_dataset=rows, processing_class=tokenizer())
    model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = step_batch(trainer, num_rows, num_last, vocabulary)
    with torch.no_grad():
        torch.manual_seed(1)
        model.lm_head.weight += 0.1 * torch.randn_like(model.lm_head.weight)

    def run() -> None:
        model.zero_grad()
        trainer._compute_loss(model, inputs).backward()

    run()
    if name != "clipping":
        share = trainer._watch.flush("train")["trust_region/share_projected"]
        print(f"share of tokens projected: {share:.2f}")
    return run


@torch.no_grad()
def step_batch(trainer: GRPOTrainer, num_rows: int, num_last: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Prompts of 16 tokens, random completions, and what the old policy says of them."""
    torch.manual_seed(0)
    prompts = torch.randint(2, vocabulary, (num_rows, 16))
    completions = torch.randint(2, vocabulary, (num_rows, num_last))
    ids, seen = torch.cat((prompts, completions), 1), torch.ones(num_rows, 16 + num_last, dtype=torch.long)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": seen[:, :16],
        "completion_ids": completions,
        "completion_mask": seen[:, 16:],
        "advantages": torch.randn(num_rows),
        "num_items_in_batch": torch.tensor(num_rows * num_last),
    }
    scores, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, seen, num_last)
    inputs["old_per_token_logps"] = scores
    if isinstance(trainer, TrustRegionGRPOTrainer):
        labels = ids.clone()
        labels[:, :16] = -100
        chosen = Chosen()
        request = Choose(trainer.args.kept_tokens, trainer.args.kept_mass, num_last)
        Scorer(trainer.model, request, chosen)(input_ids=ids, attention_mask=seen, labels=labels)
        inputs["old_kept_ids"], inputs["old_kept_log_probs"] = chosen.policy()
    return inputs


def head(*, repeats: int) -> list[dict[str, Any]]:
    """1024 tokens, 32,000 words, width 256: log-probability of one id by trl's function, of 64 and the rest by ours."""
    found = []
    for kind in ("float32", "bfloat16"):
        calls = {name: head_step(name, kind) for name in ("trl", "ours")}
        times = by_turns(calls, repeats)
        memory = {name: peak_of(head_step, name, kind) for name in calls}
        print(
            f"head, {kind}: trl {times['trl']:.2f} s, {memory['trl']:.0f} MB; "
            f"ours {times['ours']:.2f} s, {memory['ours']:.0f} MB"
        )
        found.append(
            figure(f"kept log-probabilities ÷ trl's chunked one, {kind}, time", times["ours"] / times["trl"], 1.15)
        )
        ratio = memory["ours"] / memory["trl"]
        found.append(figure(f"kept log-probabilities ÷ trl's chunked one, {kind}, peak memory", ratio, 1.10))
    return found


def head_step(
    name: str, kind: str, *, num: int = 1024, width: int = 256, vocabulary: int = 32_000
) -> Callable[[], None]:
    """A call that scores tokens, entropy included, and computes the gradient."""
    torch.manual_seed(0)
    dtype = getattr(torch, kind)
    hidden = torch.randn(num, width).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, width) * width**-0.5).to(dtype).requires_grad_()
    sampled = torch.randint(vocabulary, (num,))
    ids = choose_kept(hidden, Head(weight), sampled, kept_tokens=64).policy.ids

    def run() -> None:
        hidden.grad = weight.grad = None
        if name == "trl":
            score, _, *_ = ChunkedLogProbFunction.apply(
                hidden, weight, None, sampled, 1.0, TRL_CHUNK, None, 1.0, ("log_probs", "entropy")
            )
        else:
            score = score_kept(hidden, Head(weight), ids).policy.log_probs
        score.sum().backward()

    return run


def by_turns(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """The median processor time of each call, called in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.process_time()
            call()
            times[name].append(time.process_time() - started)
    return {name: float(np.median(values)) for name, values in times.items()}


def peak_of(make: Callable[..., Callable[[], None]], *arguments: str) -> float:
    """MB by which a call raises the resident set of a process of its own, at the highest."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (make, arguments))


def _peak(make: Callable[..., Callable[[], None]], arguments: tuple[str, ...]) -> float:
    torch.set_num_threads(1)
    call = make(*arguments)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory freed by what came before is not there for the call to use again
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident set so far
    call()
    return (_status("VmHWM") - before) / 1024.0


def _status(name: str) -> float:
    """A number of this process's status, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name)))


def figure(what: str, value: float, bar: float) -> dict[str, Any]:
    """A ratio with its bar, at most so much."""
    return {"what": what, "value": value, "unit": "×", "bar": bar, "met": value <= bar}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("step", "head"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write rows as JSON")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    found = [row for measure in (step, head) if measure.__name__ in args.what for row in measure(repeats=args.repeats)]
    for row in found:
        print(f"{row['what']}: {row['value']:.3f} (bar {row['bar']})")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
