"""Small networks for images: two and four convolutions, and a U-Net.

All their parameters are meant to be trained, and are drawn anew from the seed of each run. The file
holds numbers all the same: with ``model.trainable = "lora"`` a network stays as it is.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from client_app.tiny_models.parts import build_once, normal, write_json

_VERSION = 1  # raise it when anything below changes, so that no stale folder is used
_CONV = {"image_net": "conv", "channels": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny-cnn": {**_CONV, "widths": [8, 16], "pool_after": [1, 2], "hidden": 64},
    "conv4": {**_CONV, "widths": [16, 16, 32, 32], "pool_after": [2, 4], "hidden": 128},
    "tiny-unet": {"image_net": "unet", "channels": 1, "widths": [8, 16, 32]},
}


def tiny_cnn() -> Path:
    """Return the folder of two convolutions and a hidden layer, built at first use."""
    return _built("tiny-cnn")


def conv4() -> Path:
    """Return the folder of four convolutions and a hidden layer of 128, built at first use."""
    return _built("conv4")


def tiny_unet() -> Path:
    """Return the folder of a U-Net of three levels, built at first use."""
    return _built("tiny-unet")


def _built(name: str) -> Path:
    return build_once(f"{name}-{_VERSION}", lambda folder: _write(name, folder))


def _write(name: str, folder: Path) -> None:
    from client_app.image_nets.files import CONFIG_FILE, WEIGHTS_FILE, build_net  # loads torch

    settings = {**SETTINGS[name], "trained": False}
    weights = {}
    for key, value in build_net(settings, outputs=2).state_dict().items():
        if key.startswith("head."):
            continue
        shape = tuple(value.shape)
        if len(shape) > 1:
            weights[key] = normal((name, key), shape, (2 / prod(shape[1:])) ** 0.5)
        else:  # a normalisation's weight is the only one that is not zero
            weights[key] = np.full(shape, key.endswith(".weight"), np.float32)
    save_file(weights, folder / WEIGHTS_FILE, {"format": "pt"})
    write_json(folder / CONFIG_FILE, settings)
