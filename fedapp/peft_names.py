"""Names of arrays here and in PEFT's files.

A pair ``encoder.query`` is stored by PEFT as ``base_model.model.encoder.query.lora_A.weight`` and
``...lora_B.weight``, a full tensor ``classifier.weight`` as ``base_model.model.classifier.weight``.
"""

from __future__ import annotations

from typing import Literal

PREFIX = "base_model.model."
Part = Literal["a", "b", "tensor"]
_SUFFIXES: dict[Part, str] = {"a": ".lora_A.weight", "b": ".lora_B.weight", "tensor": ""}


def to_peft(name: str, part: Part) -> str:
    """Return the key of a pair's factor or of a full tensor in PEFT's file.

    Examples
    --------
    >>> to_peft("encoder.query", "a")
    'base_model.model.encoder.query.lora_A.weight'
    """
    return f"{PREFIX}{name}{_SUFFIXES[part]}"


def from_peft(key: str) -> tuple[str, Part]:
    """Return name and part of a key in PEFT's file.

    Raises
    ------
    ValueError
        If the key belongs to something other than a LoRA pair or a fully trained tensor.

    Examples
    --------
    >>> from_peft("base_model.model.classifier.weight")
    ('classifier.weight', 'tensor')
    """
    if not key.startswith(PREFIX):
        raise ValueError(f"'{key}' does not start with '{PREFIX}'")
    name = key.removeprefix(PREFIX)
    parts: tuple[Part, ...] = ("a", "b")
    for part in parts:
        if name.endswith(_SUFFIXES[part]):
            return name.removesuffix(_SUFFIXES[part]), part
    if "lora_" in name:  # DoRA magnitudes, LoRA on embeddings, LoRA with a bias
        raise ValueError(f"'{key}' is not a plain LoRA factor")
    return name, "tensor"
