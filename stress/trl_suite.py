"""trl's own GRPO tests with the trust-region trainer in the place of GRPO's: it passes wherever GRPO does.

    python stress/trl_suite.py ~/trl --out bench/stress-trl.json     a clone of huggingface/trl, for its folder tests

The trl that is tried is the installed one: the clone's tests run in a copy without its code. They load tiny models and
a dataset from the hub. Models of the same architectures are made here from configurations, the dataset from a few
lines, and the hub is switched off; tests that want more of it fail for GRPO too. Each test runs three times: with GRPO,
with the trust-region trainer, and with it at two optimiser steps per batch. What did not pass is printed with its
reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "trl-suite"
TRAINERS = ("grpo", "trust region", "trust region, two steps")
LEFT_OUT = "not vlm and not vllm and not Slow and not liger"  # what needs a GPU, or models that are not tiny
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
]
CHAT = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"head_dim": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # name on the hub → architecture, kind, settings
    "Qwen2ForCausalLM-2.5": ("Qwen2", "ForCausalLM", {}),
    "Qwen3ForCausalLM": ("Qwen3", "ForCausalLM", {"head_dim": 8}),
    "Qwen3MoeForCausalLM": ("Qwen3Moe", "ForCausalLM", {**EXPERTS, "num_experts": 4}),
    "LlamaForCausalLM-3.2": ("Llama", "ForCausalLM", {}),
    "MistralForCausalLM-0.2": ("Mistral", "ForCausalLM", {"sliding_window": None}),
    "Gemma2ForCausalLM": ("Gemma2", "ForCausalLM", {"head_dim": 8}),
    "Cohere2ForCausalLM": ("Cohere2", "ForCausalLM", {"logit_scale": 0.125}),
    "GptOssForCausalLM": ("GptOss", "ForCausalLM", {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Glm4MoeForCausalLM": ("Glm4Moe", "ForCausalLM", {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1}),
    "Qwen2ForSequenceClassification-2.5": ("Qwen2", "ForSequenceClassification", {"num_labels": 1}),
    "Qwen3ForSequenceClassification": ("Qwen3", "ForSequenceClassification", {"num_labels": 1, "head_dim": 8}),
    "LlamaForSequenceClassification-3.2": ("Llama", "ForSequenceClassification", {"num_labels": 1}),
}
TEMPLATES = {"Qwen2": "qwen2_5.jinja", "Qwen3": "qwen3.jinja", "Qwen3Moe": "qwen3.jinja"}  # those that trl brings
KINDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}  # as a report calls them
PROMPTS = [f"{word} is better than" for word in ("Beautiful", "Explicit", "Simple", "Flat", "Sparse", "Now")]


class Outcome(NamedTuple):
    """What became of a test, and the first line of its reason."""

    kind: str
    why: str


def make_hub(hub: Path) -> None:
    """Tiny models and their tokenizers, in the layout of the hub's cache."""
    import torch
    import transformers
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = Path(trl.__file__).parent
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [path.read_text() for path in sorted(folder.glob("trainer/*.py"))]
    words.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1500, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    for name, (architecture, kind, settings) in MODELS.items():
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
        )
        template = folder / "chat_templates" / TEMPLATES.get(architecture, "none")
        tokenizer.chat_template = template.read_text() if template.exists() else CHAT
        torch.manual_seed(0)
        sizes = SIZES | {"vocab_size": len(tokenizer)} | settings
        model = getattr(transformers, architecture + kind)(getattr(transformers, f"{architecture}Config")(**sizes))
        for x in model.parameters():
            if x.ndim > 1:
                torch.nn.init.normal_(x.data, std=0.02)
        if kind == "ForCausalLM":
            model.generation_config = transformers.GenerationConfig(eos_token_id=2, pad_token_id=0, do_sample=True)
        place = hub / f"models--trl-internal-testing--tiny-{name}"
        snapshot = place / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / "main").write_text("0" * 40)
        model.to(torch.bfloat16).save_pretrained(snapshot)
        tokenizer.save_pretrained(snapshot)


def load_dataset(path: str, name: str = "", split: str | None = None, streaming: bool = False, **_: Any) -> Any:
    """In the place of the hub's: prompts alone, as text or as a conversation."""
    import datasets

    if path != "trl-internal-testing/zen" or name not in ("standard_prompt_only", "conversational_prompt_only"):
        raise ConnectionError(f"the hub is switched off: {path} {name}")
    rows = PROMPTS if name.startswith("standard") else [[{"role": "user", "content": text}] for text in PROMPTS]
    parts = {part: datasets.Dataset.from_list([{"prompt": row} for row in rows * 3]) for part in ("train", "test")}
    if streaming:
        parts = {part: rows.to_iterable_dataset() for part, rows in parts.items()}
        return datasets.IterableDatasetDict(parts) if split is None else parts[split]
    return datasets.DatasetDict(parts) if split is None else parts[split]


def is_available(name: str) -> Callable[[], bool]:
    """In the place of `trl.import_utils.is_…_available` of the clone's version that the installed one has not."""
    found = re.fullmatch(r"is_(\w+)_available", name)
    if found is None:
        raise AttributeError(name)
    return lambda: find_spec(found[1]) is not None


def pytest_configure() -> None:
    """As a plugin of trl's tests: the dataset, and the trainer that is asked for."""
    import dataclasses

    import datasets
    import trl
    from trl import import_utils

    datasets.load_dataset = load_dataset
    import_utils.__dict__.setdefault("__getattr__", is_available)
    which = TRAINERS.index(os.environ["TRPL_TRAINER"])
    if which > 0:
        from trpl.integrations.trl import TrustRegionGRPOConfig, TrustRegionGRPOTrainer

        config: type = TrustRegionGRPOConfig
        if which == 2:
            config = dataclasses.make_dataclass("Twice", [("num_iterations", int, 2)], bases=(config,))
            config.__module__, globals()["Twice"] = __name__, config  # a checkpoint pickles its settings
        trl.GRPOTrainer, trl.GRPOConfig = TrustRegionGRPOTrainer, config


def run(clone: Path, trainer: str, only: str) -> dict[str, Outcome]:
    """The outcome of each test."""
    report = HOME / f"{trainer.replace(', ', '-').replace(' ', '-')}.xml"
    command = [sys.executable, "-m", "pytest", "-p", "trl_suite", "-p", "no:cacheprovider", "-p", "no:warnings"]
    command += ["-q", "--tb=line", f"--junitxml={report}", "-k", f"({LEFT_OUT}) and ({only})"]
    variables = {"TRPL_TRAINER": trainer, "HF_HOME": str(HOME), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join((str(Path(__file__).parent), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    place = HOME / "clone"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(clone / "tests", place / "tests")
    shutil.copy(clone / "pyproject.toml", place)  # its settings of pytest
    file = place / "tests" / "test_grpo_trainer.py"
    subprocess.run([*command, str(file)], env=os.environ | variables | {"PYTHONPATH": path}, cwd=place)
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = Outcome("passed", "")
        for child in case:
            if child.tag in KINDS:
                outcome = Outcome(KINDS[child.tag], child.get("message", "").split("\n")[0][:200])
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def main(argv: list[str]) -> int:
    """Run the tests, say which passed for GRPO and not here, and return their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a clone of huggingface/trl, near the installed version")
    parser.add_argument("--only", default="test", help="a pytest expression over the tests' names")
    parser.add_argument("--out", type=Path, help="write the outcomes as JSON")
    args = parser.parse_args(argv)
    if not (HOME / "hub").exists():
        make_hub(HOME / "hub")
    found = {trainer: run(args.clone.resolve(), trainer, args.only) for trainer in TRAINERS}
    theirs, worse = found["grpo"], 0
    for name, outcome in theirs.items():
        if outcome.kind != "passed":
            print(f"{outcome.kind} with GRPO: {name}: {outcome.why}")
    print(f"trl {version('trl')}")
    for trainer, outcomes in found.items():
        kinds = [outcome.kind for outcome in outcomes.values()]
        print(f"{trainer}: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped")))
        for name, outcome in outcomes.items():
            if outcome.kind == "failed" and theirs[name].kind == "passed":
                worse += 1
                print(f"  passes with GRPO alone: {name}: {outcome.why}")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return worse


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
