"""The task seam: what differs between classification, language modelling, images, segmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

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
        """Load the pre-trained weights from a folder or hub name, with a fresh seeded head."""

    def heads(self, model: nn.Module) -> list[str]:
        """Names of the modules trained in full (PEFT's ``modules_to_save``)."""

    def prepare(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Turn records into model inputs; each has ``length`` for grouping and ``cut`` (bool)."""

    def collate(self, items: Sequence[Mapping[str, Any]]) -> Batch:
        """Pad and stack prepared items."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean training loss of a batch, a scalar tensor."""

    def output(self, model: nn.Module, batch: Batch) -> Any:
        """What `Scores` needs of a batch, under ``torch.inference_mode``."""

    def scores(self, device: torch.device) -> Scores:
        """A fresh accumulator."""
