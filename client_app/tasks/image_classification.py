"""One label for an image."""

from __future__ import annotations

import torch

from client_app.tasks.base import Record
from client_app.tasks.classification_scores import ClassificationScores
from client_app.tasks.images import ImageTask


class ImageClassification(ImageTask):
    """Implements `client_app.tasks.base.Task` for networks with a linear head."""

    def _target(self, record: Record) -> int:
        return int(record["label"])

    def scores(self, device: torch.device) -> ClassificationScores:
        """A fresh accumulator."""
        return ClassificationScores(len(self.label_map))
