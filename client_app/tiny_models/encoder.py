"""A 2-layer BERT-like encoder with a WordPiece vocabulary of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from client_app.tiny_models.parts import build_once, normal, special_tokens, write_json

_VERSION = 1  # raise it when anything below changes, so that no stale folder is used
_HIDDEN, _INTERMEDIATE, _LAYERS, _HEADS, _POSITIONS = 64, 128, 2, 4, 256
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"()-+%/<>=&$#@*_"
_CORPUS = """
the patient is a man aged years . the patient is a woman aged years . age sex male female
chest pain typical angina atypical angina non-anginal pain asymptomatic no chest pain
resting blood pressure mm hg cholesterol mg dl serum cholesterol fasting blood sugar above below
resting ecg normal st-t wave abnormality left ventricular hypertrophy lv hypertrophy
maximum heart rate beats per minute exercise induced angina yes no st depression slope
upsloping flat downsloping major vessels fluoroscopy thalassemia normal fixed defect reversible
defect the heart disease is present absent unknown not recorded missing measured during rest
this film is a great and funny story with good acting . this movie is bad boring and far too long
i love it . i hate it . the product works well and i am happy . it broke after a week , very poor
best worst nice terrible excellent awful wonderful horrible easy useless recommend disappointed
the new york times said that the government will not support the plan and people were worried
what a lovely day so excited thanks lol sad angry fun hope great news for all of us today
and of to in for on with as at by from was were be been has have had are or an but if when
"""


def tiny_encoder() -> Path:
    """Return the folder of a 2-layer BERT-like encoder, built at first use.

    Its weights come from seeded numpy generators and its WordPiece vocabulary from a fixed small
    corpus, so it is the same on every machine. Several processes may build it at once: each
    writes a folder of its own, and the first to rename it into place wins.
    """
    return build_once(f"tiny-encoder-{_VERSION}", _write_encoder)


def _write_encoder(folder: Path) -> None:
    words = Counter(_CORPUS.split())
    frequent = sorted((w for w in words if len(w) > 1), key=lambda word: (-words[word], word))
    pieces = [f"##{character}" for character in _CHARACTERS]
    vocabulary = [*_SPECIAL, *_CHARACTERS, *pieces, *(w for w in frequent if w.isalpha())]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer.json", _tokenizer(vocabulary))
    write_json(folder / "tokenizer_config.json", _tokenizer_config())
    write_json(folder / "config.json", _config(len(vocabulary)))
    # transformers refuses a file without the format tag
    save_file(_weights(len(vocabulary)), folder / "model.safetensors", {"format": "pt"})


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "max_position_embeddings": _POSITIONS,
        "type_vocab_size": 2,
        "vocab_size": vocabulary,
        "pad_token_id": 0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "dtype": "float32",
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": _POSITIONS,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }


def _tokenizer(vocabulary: list[str]) -> dict[str, object]:
    ids = {token: index for index, token in enumerate(vocabulary)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(ids, _SPECIAL),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": ["[SEP]", ids["[SEP]"]],
            "cls": ["[CLS]", ids["[CLS]"]],
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _weights(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocabulary, _HIDDEN),
        "embeddings.position_embeddings.weight": (_POSITIONS, _HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, _HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    linears = {"pooler.dense": (_HIDDEN, _HIDDEN)}
    for layer in range(_LAYERS):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linears[f"{name}.attention.{part}"] = (_HIDDEN, _HIDDEN)
        linears[f"{name}.intermediate.dense"] = (_INTERMEDIATE, _HIDDEN)
        linears[f"{name}.output.dense"] = (_HIDDEN, _INTERMEDIATE)
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    shapes |= {f"{name}.weight": shape for name, shape in linears.items()}
    weights = {name: _normal(name, shape) for name, shape in shapes.items()}
    for name, shape in linears.items():
        weights[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    for name in norms:
        weights[f"{name}.weight"] = np.ones(_HIDDEN, np.float32)
        weights[f"{name}.bias"] = np.zeros(_HIDDEN, np.float32)
    return weights


def _normal(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Wider than BERT's .02: an untrained encoder must still tell words and notes apart."""
    scale = 0.1 if "position" in name or "token_type" in name else 1 / float(np.sqrt(shape[1]))
    return normal(("tiny-encoder", name), shape, 1.0 if "word" in name else scale)
