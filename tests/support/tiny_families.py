"""Tiny random models of several families, as folders that transformers loads."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers

from client_app.tiny_models import tiny_encoder

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = SIZE | {"intermediate_size": 64, "vocab_size": 300, "pad_token_id": 0}
FAMILIES = {
    "bert": ("BertModel", BERT, "query,value"),
    "roberta": ("RobertaModel", BERT, "query,dense"),  # its head has a `dense` of its own
    "electra": ("ElectraModel", BERT | {"embedding_size": 32}, "query"),
    "albert": ("AlbertModel", BERT | {"embedding_size": 32}, "query,value"),  # one layer, twice
    "distilbert": (
        "DistilBertModel",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 300},
        "q_lin,v_lin",
    ),
    "gpt2": (
        "GPT2Model",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 64},
        "c_attn",
    ),
    "llama": (
        "LlamaForCausalLM",
        SIZE | {"intermediate_size": 64, "vocab_size": 300, "tie_word_embeddings": True},
        "q_proj,v_proj",
    ),
}


def save_family(name: str, folder: Path, **changes: object) -> tuple[Path, str]:
    """Write a model of the family with the tiny encoder's tokenizer; returns folder and targets."""
    kind, settings, targets = FAMILIES[name]
    model_class = getattr(transformers, kind)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = model_class(model_class.config_class(**settings | changes))
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(tiny_encoder() / file, folder / file)
    return folder, targets
