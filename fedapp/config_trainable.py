"""What must not be asked for where all weights are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedapp.errors import ConfigError
from fedapp.registry import METHODS

if TYPE_CHECKING:
    from fedapp.config import RunConfig


def check_trainable(config: RunConfig) -> None:
    """Check that nothing asks for LoRA pairs where all weights are trained instead.

    Raises
    ------
    ConfigError
        Naming the setting that needs them, and what to change.
    """
    if config.model.trainable != "all":
        return
    if METHODS[config.method].on_pairs:
        fitting = [name for name, method in METHODS.items() if not method.on_pairs]
        raise ConfigError(
            "model.trainable is all, so that there are no LoRA pairs, and method "
            f"{config.method} works on pairs; choose one of {', '.join(fitting)}"
        )
    if config.federation.interference or config.federation.interference_each:
        raise ConfigError(
            "model.trainable is all, and federation.interference is measured on LoRA pairs; "
            "set it to false"
        )
    if config.model.quantization != "none":
        raise ConfigError(
            f"model.trainable is all, and weights of {config.model.quantization} cannot be "
            "trained; set model.quantization to none, or model.trainable to lora"
        )
