"""Accuracy, loss, AUC and macro F1 of a classifier."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_accuracy,
    multiclass_f1_score,
)

from client_app.tasks.base import Batch


class ClassificationScores:
    """Collects logits and computes every metric once, over all records of a split.

    Parameters
    ----------
    classes : int
        Number of labels.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, output: Tensor, batch: Batch) -> None:
        """Take logits of shape (records, classes) and ``batch["labels"]``."""
        self._logits.append(output.detach())
        self._labels.append(batch["labels"])

    def compute(self) -> dict[str, float]:
        """Return ``accuracy``, ``loss``, ``auc``, ``f1`` and ``examples`` of everything seen.

        ``f1`` is the mean over the labels that occur or are predicted. ``auc`` is the area under
        the ROC curve; with more than two labels, the mean of one-against-rest over the labels that
        occur. With one label in the split it is undefined and left out.
        """
        if not self._labels:
            return {"examples": 0.0}
        # Double precision: in single, a softmax saturates and ties appear that are none.
        logits_nc = torch.cat(self._logits).double().cpu()
        labels_n = torch.cat(self._labels).cpu()
        metrics = {
            "loss": float(cross_entropy(logits_nc, labels_n)),
            "accuracy": float(
                multiclass_accuracy(logits_nc, labels_n, self.classes, average="micro")
            ),
            "f1": float(multiclass_f1_score(logits_nc, labels_n, self.classes, average="macro")),
            "examples": float(len(labels_n)),
        }
        present = sorted(set(labels_n.tolist()))
        if len(present) > 1 and bool(logits_nc.isfinite().all()):
            chance_nc = logits_nc.softmax(dim=1)
            areas = [float(binary_auroc(chance_nc[:, c], labels_n == c)) for c in present]
            # torchmetrics sums in single precision: a perfect ranking may come to 1.0000001.
            metrics["auc"] = min(sum(areas) / len(areas), 1.0)
        return metrics
