"""Language models and a tokenizer from configurations, and sums to learn; nothing is downloaded."""

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CHARACTERS = ["<pad>", "<eos>", *"0123456789+="]
SIZES = {
    "vocab_size": len(CHARACTERS),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def tokenizer():
    """One token per character."""
    words = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def model(seed=0, **settings):
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**(SIZES | settings)))


def sums(num=16):
    """Prompts like `3+4=`."""
    return Dataset.from_list([{"prompt": f"{i % 5}+{i % 3}=", "answer": str(i % 5 + i % 3)} for i in range(num)])


def shorter(completions, **_):
    """A reward that differs between completions."""
    return [float(sum(map(ord, text)) % 7) for text in completions]
