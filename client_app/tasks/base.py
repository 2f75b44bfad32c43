"""The task seam: what differs between classification, language modelling, images, segmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedapp.config import TrainSection

Record = Mapping[str, Any]
Batch = dict[str, Tensor]


class Scores(Protocol):
    """Accumulates predictions batch by batch."""

    def update(self, output: Any, batch: Batch) -> None:
        """Take the model's output for a batch."""

    def compute(self) -> dict[str, float]:
        """Return ``accuracy``, ``loss``, ... of everything seen; an undefined one is left out."""


class Task(Protocol):
    """How records become batches, a model output becomes a loss, and outputs become metrics.

    ``prepare`` runs once per site (tokenising), ``collate`` once per batch (padding).
    """

    peft_task_type: str | None  # "SEQ_CLS", "CAUSAL_LM", ...; None: PEFT has no word for it

    def load_base_model(self, path: str, **options: Any) -> nn.Module:
        """Load the pre-trained weights, with a fresh seeded head where the task has one.

        Parameters
        ----------
        path : str
            Local folder or hub name.
        **options
            Passed to ``from_pretrained``, such as ``dtype`` or ``quantization_config``.
        """

    def heads(self, model: nn.Module) -> list[str]:
        """Names of the modules trained in full (PEFT's ``modules_to_save``)."""

    def prepare(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Turn records into model inputs; each has ``length`` for grouping and ``cut`` (bool).

        Where the loss of a batch is no mean over its records, ``terms`` says over how many of an
        item's own terms it is, so that batches are weighted by them. A record from which nothing
        can be learned may be left out.
        """

    def collate(self, items: Sequence[Mapping[str, Any]]) -> Batch:
        """Pad and stack prepared items."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean training loss of a batch, a scalar tensor."""

    def output(self, model: nn.Module, batch: Batch) -> Any:
        """What `Scores` needs of a batch, under ``torch.inference_mode``."""

    def scores(self, device: torch.device) -> Scores:
        """A fresh accumulator."""


@runtime_checkable
class GeneratingTask(Protocol):
    """A task whose evaluation also lets the model write."""

    def generated(
        self,
        model: nn.Module,
        items: Sequence[Mapping[str, Any]],
        train: TrainSection,
        device: torch.device,
    ) -> dict[str, float]:
        """Return the metrics of what the model writes, under ``torch.inference_mode``."""


@runtime_checkable
class ComparableTask(Protocol):
    """A task of which a site can compare two models: on what goes into their last layer."""

    def last_layer(self, model: nn.Module) -> nn.Module:
        """Return the linear layer, or 1 x 1 convolution, that makes the outputs of features."""

    def counted(self, batch: Batch, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Say which positions of the last layer's input count, and what is right there.

        Parameters
        ----------
        batch : dict of str to Tensor
            What `Task.collate` returned.
        shape : tuple of int
            Of the input, without its features: (records,), (records, tokens), or
            (records, height, width) of a convolution.

        Returns
        -------
        valid : Tensor of bool, of that shape
        labels : Tensor of int64, shape (valid.sum(),)
        """
