"""One class for every pixel of an image."""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.tasks.base import Record
from client_app.tasks.images import ImageTask
from client_app.tasks.segmentation_scores import SegmentationScores


class ImageSegmentation(ImageTask):
    """Implements `client_app.tasks.base.Task` for networks with a 1 x 1 convolution as head.

    Classes exclude one another; the first is the background.
    """

    def _target(self, record: Record) -> Tensor:
        return torch.from_numpy(record["mask"])

    def scores(self, device: torch.device) -> SegmentationScores:
        """A fresh accumulator."""
        return SegmentationScores(len(self.label_map), device)
