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

    peft_task_type: str  # "SEQ_CLS", "CAUSAL_LM", ...

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
