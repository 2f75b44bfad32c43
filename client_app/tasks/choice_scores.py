"""Accuracy and loss over questions with different numbers of choices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from client_app.tasks.base import Batch


def score_matrix(scores_p: Tensor, offered_qc: Tensor) -> Tensor:
    """Lay out the scores of all choices, question after question, as one row a question.

    Parameters
    ----------
    scores_p : Tensor, shape (choices of all questions,)
    offered_qc : bool Tensor, shape (questions, most choices of any)
        Which places hold a choice.

    Returns
    -------
    Tensor, shape (questions, most choices of any)
        fp32; a place without a choice is -inf, so its softmax is 0.
    """
    empty_qc = torch.full(offered_qc.shape, float("-inf"), device=scores_p.device)
    return empty_qc.masked_scatter(offered_qc, scores_p.float())


def offered(counts: list[int]) -> Tensor:
    """Return the mask of `score_matrix` for questions with so many choices each."""
    return torch.arange(max(counts)) < torch.tensor(counts)[:, None]


class ChoiceScores:
    """Judges every question by itself, since their numbers of choices differ."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._right: list[Tensor] = []

    def update(self, output: Tensor, batch: Batch) -> None:
        """Take scores as `score_matrix` gives them and ``batch["labels"]``."""
        scores_qc, labels_q = output.detach().double(), batch["labels"]
        self._losses.append(cross_entropy(scores_qc, labels_q, reduction="none"))
        best_qc = scores_qc == scores_qc.amax(dim=1, keepdim=True)
        hit_q = best_qc.gather(1, labels_q[:, None])[:, 0]
        self._right.append(hit_q.double() / best_qc.sum(dim=1).clamp(min=1))

    def compute(self) -> dict[str, float]:
        """Return ``accuracy``, ``loss`` and ``examples`` of everything seen.

        Of choices that tie for the best, each counts as chosen in equal parts: an accuracy must
        not depend on the order in which the choices stand.
        """
        if not self._losses:
            return {"examples": 0.0}
        losses_n, right_n = torch.cat(self._losses).cpu(), torch.cat(self._right).cpu()
        return {
            "loss": float(losses_n.mean()),
            "accuracy": float(right_n.mean()),
            "examples": float(len(losses_n)),
        }
