"""A 2-layer Llama-like decoder with a byte-level BPE vocabulary and a chat template of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from client_app.tiny_models.parts import build_once, normal, special_tokens, write_json

_VERSION = 1  # raise it when anything below changes, so that no stale folder is used
_HIDDEN, _INTERMEDIATE, _LAYERS, _HEADS, _KEY_VALUE_HEADS = 64, 128, 2, 4, 2
_POSITIONS = 1024
_PAD, _END = "<|pad|>", "<|end|>"
_SPECIAL = (_PAD, _END, "<|system|>", "<|user|>", "<|assistant|>")
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_WORDS = """
man woman patient years typical angina atypical non-anginal asymptomatic chest pain BP cholesterol
high normal low sugar ECG LVH abnormal ST depression peak pulse exercise flat rising falling slope
vessels thallium reversible fixed defect yes no none the of is a and what which how old kind does
show have heart disease findings are blood pressure resting What Which How Is Does Are left
ventricular hypertrophy abnormality
"""


def tiny_decoder() -> Path:
    """Return the folder of the decoder, built at first use.

    Its weights come from seeded numpy generators, its vocabulary from a fixed list of words, so it
    is the same on every machine. Every text can be written with it, since each byte is a token.
    """
    return build_once(f"tiny-decoder-{_VERSION}", _write_decoder)


def _write_decoder(folder: Path) -> None:
    vocabulary, merges = _vocabulary()
    write_json(folder / "tokenizer.json", _tokenizer(vocabulary, merges))
    write_json(folder / "tokenizer_config.json", _tokenizer_config())
    write_json(folder / "config.json", _config(vocabulary))
    # transformers refuses a file without the format tag
    save_file(_weights(len(vocabulary)), folder / "model.safetensors", {"format": "pt"})


def _vocabulary() -> tuple[dict[str, int], list[list[str]]]:
    """Return the numbers of the tokens, and the merges that lead to every word letter by letter.

    All pieces begin with the blank before the word, so no merge can come in another's way.
    """
    pieces = [*_SPECIAL, *_byte_characters()]
    merges: list[list[str]] = []
    for word in _WORDS.split():
        blank = "\u0120"
        for end in range(1, len(word) + 1):
            piece = blank + word[:end]
            if piece not in pieces:
                merges.append([blank + word[: end - 1], word[end - 1]])
                pieces.append(piece)
    return {piece: number for number, piece in enumerate(pieces)}, merges


def _byte_characters() -> list[str]:
    """Return the characters that stand for the 256 bytes in byte-level BPE, as in GPT-2."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = {byte: chr(byte) for byte in shown}
    characters |= {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]


def _tokenizer(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(vocabulary, _SPECIAL),
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": True},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _POSITIONS,
        "pad_token": _PAD,
        "eos_token": _END,
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }


def _config(vocabulary: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KEY_VALUE_HEADS,
        "max_position_embeddings": _POSITIONS,
        "vocab_size": len(vocabulary),
        "pad_token_id": vocabulary[_PAD],
        "eos_token_id": vocabulary[_END],
        "bos_token_id": None,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-5,
        "dtype": "float32",
    }


def _weights(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    width = _HIDDEN * _KEY_VALUE_HEADS // _HEADS
    shapes: dict[str, tuple[int, int]] = {"model.embed_tokens.weight": (vocabulary, _HIDDEN)}
    norms = ["model.norm"]
    for layer in range(_LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            f"{name}.self_attn.k_proj.weight": (width, _HIDDEN),
            f"{name}.self_attn.v_proj.weight": (width, _HIDDEN),
            f"{name}.self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            f"{name}.mlp.gate_proj.weight": (_INTERMEDIATE, _HIDDEN),
            f"{name}.mlp.up_proj.weight": (_INTERMEDIATE, _HIDDEN),
            f"{name}.mlp.down_proj.weight": (_HIDDEN, _INTERMEDIATE),
        }
        norms += [f"{name}.input_layernorm", f"{name}.post_attention_layernorm"]
    # Rows of unit length on average, also of the embedding, which is the output layer too.
    weights = {
        name: normal(("tiny-decoder", name), shape, 1 / float(np.sqrt(shape[1])))
        for name, shape in shapes.items()
    }
    return weights | {f"{name}.weight": np.ones(_HIDDEN, np.float32) for name in norms}
