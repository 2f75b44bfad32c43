"""What the tasks on images share: pixels as tensors, and the network behind ``model.source``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from client_app.data.schemas.pixels import to_unit
from client_app.image_nets import read_net
from client_app.image_nets.files import read_settings
from client_app.sources import ModelSource, short_name
from client_app.tasks.base import Batch, Record
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DataError


class ImageTask(ABC):
    """Half of a `client_app.tasks.base.Task`: everything but what the answers are.

    Parameters
    ----------
    config : RunConfig
        ``model.task``.
    label_map : sequence of str
        Names of the labels or classes in their order.
    source : ModelSource
        Its ``config.json`` says which network it is.

    Raises
    ------
    ConfigError
        If it is no network for images, or one for another task.
    """

    peft_task_type = None

    def __init__(self, config: RunConfig, label_map: Sequence[str], source: ModelSource) -> None:
        self.config = config
        self.label_map = list(label_map)
        name = short_name(source.name)
        try:
            self.net = read_settings(Path(source.path))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"model.source {name} is no network for images: {error}; set model.source to "
                "embedded:tiny-cnn, embedded:conv4 or embedded:tiny-unet, or model.task to another"
            ) from None
        if self.net.task != config.model.task:
            raise ConfigError(
                f"model.source {name} is a network for {self.net.task}, but model.task is "
                f"{config.model.task}; change one of them"
            )

    def load_base_model(self, path: str, **options: Any) -> nn.Module:
        """Build the network and read its numbers; the options of transformers do not concern it."""
        return read_net(Path(path), len(self.label_map))

    def heads(self, model: nn.Module) -> list[str]:
        """The last layer."""
        return ["head"]

    def last_layer(self, model: nn.Module) -> nn.Module:
        """The linear layer or 1 x 1 convolution whose inputs are the features."""
        inner: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        head: nn.Module = inner.head
        if isinstance(head, ModulesToSaveWrapper):
            head = head.modules_to_save["default"]
        return head

    def prepare(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Turn images into tensors; items hold ``pixels`` (c, h, w) in float32, and ``label``.

        Raises
        ------
        DataError
            If the images have other channels than the network takes, or are too small for it.
        """
        return [
            {
                "pixels": self._pixels(record),
                "label": self._target(record),
                "length": 1,
                "cut": False,
            }
            for record in records
        ]

    def _pixels(self, record: Record) -> Tensor:
        image_hwc = to_unit(record["image"])
        height, width, channels = image_hwc.shape
        if channels != self.net.channels:
            raise DataError(
                f"the images have {channels} channels, but the network of model.source takes "
                f"{self.net.channels}; convert the images, or name another network"
            )
        if min(height, width) < self.net.least_side:
            raise DataError(
                f"the images have {height} x {width} pixels, but the network of model.source "
                f"needs at least {self.net.least_side} x {self.net.least_side}"
            )
        return torch.from_numpy(image_hwc.transpose(2, 0, 1).copy())

    @abstractmethod
    def _target(self, record: Record) -> Any:
        """What is to be answered: a whole number, or a tensor of them."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy over the images, or over their pixels."""
        return cross_entropy(self.output(model, batch), batch["labels"])

    def counted(self, batch: Batch, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Every image, or every pixel."""
        return torch.ones(shape, dtype=torch.bool), batch["labels"].flatten()

    def collate(self, items: Sequence[Mapping[str, Any]]) -> Batch:
        """Stack images and answers.

        Returns
        -------
        dict of str to Tensor
            ``pixel_values`` (b, c, h, w) in float32, and ``labels`` in int64.
        """
        labels = torch.stack([torch.as_tensor(item["label"]) for item in items])
        return {
            "pixel_values": torch.stack([item["pixels"] for item in items]),
            "labels": labels.long(),
        }

    def output(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits in float32: one row of them an image, or one map a class."""
        logits: Tensor = model(pixel_values=batch["pixel_values"])
        return logits.float()
