"""What a run leaves behind: an adapter for plain PEFT, or all weights of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.peft_format import CONFIG_FILE, load_peft, save_peft
from fedapp.whole_format import WEIGHTS_FILE, load_whole, save_whole


def save_exported(
    config: RunConfig, model: Adapter, folder: Path, peft_config: Mapping[str, Any], card: str
) -> None:
    """Write the trained model in the form that ``model.trainable`` asks for.

    Raises
    ------
    ConfigError, OSError
        See `save_peft` and `save_whole`.
    """
    if config.model.trainable == "all":
        save_whole(model, folder, card)
    else:
        save_peft(model, folder, peft_config, card)


def load_exported(config: RunConfig, folder: Path) -> Adapter:
    """Read what `save_exported` has written.

    Raises
    ------
    ConfigError
        See `load_peft` and `load_whole`.
    """
    return load_whole(folder) if config.model.trainable == "all" else load_peft(folder)


def is_exported(config: RunConfig, folder: Path) -> bool:
    """Whether a trained model is there."""
    return (folder / (WEIGHTS_FILE if config.model.trainable == "all" else CONFIG_FILE)).is_file()
