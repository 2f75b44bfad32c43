"""Tiny decoders of several families and questions for multiple choice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from client_app.sources import ModelSource
from client_app.tasks.multiple_choice import multiple_choice
from client_app.tasks.tokenizer import load_tokenizer
from client_app.tiny_models import tiny_encoder
from fedapp.config import RunConfig

_SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_COMMON = _SIZE | {"intermediate_size": 64, "vocab_size": 300, "initializer_range": 0.3}
_IDS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "llama": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2ForCausalLM", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", {"num_key_value_heads": 2, "head_dim": 8}),
    "opt": ("OPTForCausalLM", {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3}),
}

QUESTIONS = [
    {
        "context": "the patient is a man",
        "choices": ["chest pain", "no", "typical angina , yes", "st depression"],
        "label": 2,
    },
    {"context": "this film is", "choices": ["good", "bad story with acting"], "label": 0},
    {
        "context": "of the heart disease the government will not support the plan",
        "choices": ["maximum heart rate", "i love it", "i hate it"],
        "label": 1,
    },
]


def save_decoder(name: str, folder: Path) -> Path:
    """Write a model of the family with the tiny encoder's tokenizer."""
    kind, settings = DECODERS[name]
    model_class = getattr(transformers, kind)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = model_class(model_class.config_class(**_COMMON | _IDS | settings))
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(tiny_encoder() / file, folder / file)
    return folder


def choice_task(folder: Path, settings: dict[str, Any] | None = None) -> Any:
    """Return the task for a model folder; the settings are flat."""
    source = ModelSource(str(folder), "small", "")
    return multiple_choice(RunConfig.from_flat(settings or {}), [], load_tokenizer(source), source)
