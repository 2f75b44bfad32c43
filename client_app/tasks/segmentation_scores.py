"""Dice, intersection over union, pixel accuracy and loss of a segmentation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics.segmentation import DiceScore

from client_app.tasks.base import Batch


class SegmentationScores:
    """Counts pixels batch by batch; nothing of an image is kept.

    Parameters
    ----------
    classes : int
        Number of classes, the first of which is the background.
    device : torch.device
        Of the outputs.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self._dice = DiceScore(
            classes,
            include_background=False,
            average="none",
            aggregation_level="global",
            input_format="index",
        ).to(device)
        self._images = self._pixels = 0
        self._loss = self._right = 0.0

    def update(self, output: Tensor, batch: Batch) -> None:
        """Take logits of shape (b, classes, h, w) and ``batch["labels"]`` of (b, h, w)."""
        labels_bhw, found_bhw = batch["labels"], output.argmax(dim=1)
        self._dice.update(found_bhw, labels_bhw)
        # Pixel by pixel in double precision: in single, a sum over millions loses digits.
        losses = cross_entropy(output, labels_bhw, reduction="none")
        self._loss += float(losses.double().sum())
        self._right += float((found_bhw == labels_bhw).double().sum())
        self._images += len(labels_bhw)
        self._pixels += labels_bhw.numel()

    def compute(self) -> dict[str, float]:
        """Return ``dice``, ``iou``, ``pixel_accuracy``, ``loss`` and ``examples``.

        ``dice`` is the mean of ``2 TP / (2 TP + FP + FN)`` over the classes but the background,
        counted over all pixels of the split, and ``iou`` that of ``TP / (TP + FP + FN)``, which is
        ``d / (2 - d)`` of a class's Dice d. A class that neither occurs nor is predicted has
        neither; where that is true of all of them, both are left out.
        """
        if not self._images:
            return {"examples": 0.0}
        metrics = {
            "loss": self._loss / self._pixels,
            "pixel_accuracy": self._right / self._pixels,
            "examples": float(self._images),
        }
        dice_c = torch.as_tensor(self._dice.compute()).double().flatten()
        dice_c = dice_c[~dice_c.isnan()]
        if len(dice_c):
            metrics["dice"] = float(dice_c.mean())
            metrics["iou"] = float((dice_c / (2 - dice_c)).mean())
        return metrics
