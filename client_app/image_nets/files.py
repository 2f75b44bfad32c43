"""Networks for images as folders: ``config.json`` and ``model.safetensors``.

The file of an untrained network lacks the head, whose size the labels decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load_file, save_file

from client_app.image_nets.base import ImageNet
from client_app.image_nets.conv import ConvNet
from client_app.image_nets.unet import GROUPS, UNet

NETS: dict[str, type[ConvNet] | type[UNet]] = {"conv": ConvNet, "unet": UNet}
Width = Annotated[int, Field(ge=1, le=4096)]
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


class NetSettings(BaseModel):
    """Content of ``config.json``; what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    image_net: Literal["conv", "unet"]
    channels: Literal[1, 3]
    widths: Annotated[list[Width], Field(min_length=1, max_length=32)]
    pool_after: list[int] = []
    hidden: Width = 64
    trained: bool = False
    labels: list[str] = []

    @property
    def task(self) -> str:
        """Value of ``model.task`` that the network answers."""
        return NETS[self.image_net].task

    @property
    def least_side(self) -> int:
        """Pixels that an image must have in both directions."""
        return 2 ** len(self.pool_after) if self.image_net == "conv" else 1


def read_settings(folder: Path) -> NetSettings:
    """Read ``config.json``.

    Raises
    ------
    OSError, ValueError
        If it is missing, or does not describe a network for images.
    """
    return _checked(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))


def build_net(settings: Mapping[str, Any], outputs: int) -> ImageNet:
    """Return a network with numbers that mean nothing yet.

    Parameters
    ----------
    settings : mapping
        Content of ``config.json``.
    outputs : int
        Number of labels or classes.

    Raises
    ------
    ValueError
        If the settings do not describe a network.
    """
    known = _checked(settings)
    return NETS[known.image_net](known.model_dump(), outputs)


def read_net(folder: Path, outputs: int) -> ImageNet:
    """Build the network of a folder and read its numbers; a head of other labels is left out.

    Raises
    ------
    OSError, ValueError, SafetensorError
        If a file is missing or damaged, or the two do not belong together.
    """
    net = build_net(read_settings(folder).model_dump(), outputs)
    own, found = net.state_dict(), load_file(folder / WEIGHTS_FILE)
    if any(name in found and found[name].shape != own[name].shape for name in _heads(own)):
        found = {name: tensor for name, tensor in found.items() if name not in _heads(own)}
    missing, unexpected = set(own) - set(found) - set(_heads(own)), set(found) - set(own)
    if missing or unexpected:
        what = "lacks" if missing else "has an unknown"
        raise ValueError(f"its {WEIGHTS_FILE} {what} '{min(missing or unexpected)}'")
    for name, tensor in found.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"'{name}' in its {WEIGHTS_FILE} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(own[name].shape)}"
            )
    net.load_state_dict({**own, **found})
    net.drawn = set(own) - set(found) if net.settings["trained"] else set(own)
    return net


def load_net(source: str, outputs: int) -> ImageNet:
    """Return the network that ``model.source`` names, in evaluation mode, for your own programs.

    Parameters
    ----------
    source : str
        ``embedded:NAME`` or a folder.
    outputs : int
        Number of labels or classes.
    """
    from client_app.sources import resolve_model

    return read_net(Path(resolve_model(source).path), outputs).eval()


def save_net(net: ImageNet, folder: Path, labels: Sequence[str]) -> None:
    """Write a trained network into a folder that `load_net` and ``model.source`` take."""
    settings = {**net.settings, "trained": True, "labels": list(labels)}
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    (folder / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    tensors = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
    save_file(tensors, folder / WEIGHTS_FILE, {"format": "pt"})


def _checked(settings: Any) -> NetSettings:
    try:
        known = NetSettings.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "all of it"
        raise ValueError(
            f"its config.json does not describe a network for images ('{key}': {first['msg']})"
        ) from None
    if known.image_net == "unet" and any(width % GROUPS for width in known.widths):
        raise ValueError(f"its config.json has widths that are no multiples of {GROUPS}")
    return known


def _heads(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name in tensors if name.startswith("head.")]
