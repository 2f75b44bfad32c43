"""Loss, perplexity and token accuracy of a language model on given responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from client_app.tasks.base import Batch

# Beyond it a perplexity is larger than any number that the coordinator accepts.
LARGEST_LOSS = 34.0


@dataclass(frozen=True)
class TokenScores:
    """What is kept of a batch's logits, each of shape (records,), per record.

    Attributes
    ----------
    loss : fp64 Tensor
        Sum of the cross entropy over the response's tokens.
    hits : int64 Tensor
        Tokens that were the most likely one, given those before.
    tokens : int64 Tensor
        Tokens of the response with its end.
    """

    loss: Tensor
    hits: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, logits_ntv: Tensor, labels_nt: Tensor, ignored: int) -> TokenScores:
        """Score logits of shape (records, tokens, vocabulary) against labels."""
        losses_nt = cross_entropy(
            logits_ntv.float().transpose(1, 2), labels_nt, ignore_index=ignored, reduction="none"
        )
        hits_nt = logits_ntv.argmax(dim=2) == labels_nt
        return cls(losses_nt.double().sum(1), hits_nt.sum(1), (labels_nt != ignored).sum(1))

    @classmethod
    def join(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """Return the scores of several parts of a batch."""
        return cls(
            torch.cat([part.loss for part in parts]),
            torch.cat([part.hits for part in parts]),
            torch.cat([part.tokens for part in parts]),
        )


class CausalLMScores:
    """Adds up `TokenScores`; every token of a split counts the same."""

    def __init__(self) -> None:
        self._seen: list[TokenScores] = []

    def update(self, output: TokenScores, batch: Batch) -> None:
        """Take the scores of a batch."""
        self._seen.append(output)

    def compute(self) -> dict[str, float]:
        """Return ``loss`` (mean per response token, in nats), ``perplexity`` (its exponential),
        ``token_accuracy``, ``response_tokens`` and ``examples`` of everything seen.

        A perplexity too large to report is left out.
        """
        if not self._seen:
            return {"examples": 0.0}
        seen = TokenScores.join(self._seen)
        tokens = int(seen.tokens.sum())
        loss = float(seen.loss.sum()) / tokens
        metrics = {
            "loss": loss,
            "token_accuracy": int(seen.hits.sum()) / tokens,
            "response_tokens": float(tokens),
            "examples": float(len(seen.tokens)),
        }
        if loss < LARGEST_LOSS:
            metrics["perplexity"] = math.exp(loss)
        return metrics
