"""What the tiny models share: seeded weights, and a folder that is built once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.atomic_folder import write_folder
from fedapp.cache import cache_folder
from fedapp.seeds import derive_seed


def build_once(name: str, write: Callable[[Path], None]) -> Path:
    """Return ``models/NAME`` in the cache folder, written by ``write`` at first use.

    Several processes may build it at once: each writes a folder of its own, and the first to
    rename it into place wins.
    """
    folder = cache_folder() / "models" / name
    if not (folder / "config.json").is_file():
        write_folder(folder, write, replace=False)
    return folder


def normal(seed: tuple[str, ...], shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
    """Draw normal numbers that are the same on every machine."""
    generator = np.random.default_rng(derive_seed(0, *seed))
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write a JSON file of a model folder."""
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def special_tokens(ids: Mapping[str, int], tokens: Iterable[str]) -> list[dict[str, object]]:
    """Return the entries of tokens that are never split, as ``tokenizer.json`` holds them."""
    return [
        {
            "id": ids[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in tokens
    ]
