"""Log-likelihoods of given tokens, without the logits of all tokens in memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

MOST_LOGITS = 2**25  # numbers at a time: 128 MiB in fp32


def token_log_likelihoods(
    head: Callable[[Tensor], Tensor], hidden_th: Tensor, targets_t: Tensor, vocabulary: int
) -> Tensor:
    """Return the natural logarithm of the probability of every target, in fp32.

    Parameters
    ----------
    head : callable
        Maps hidden states (t, h) to logits (t, vocabulary).
    hidden_th : Tensor, shape (tokens, features)
    targets_t : int64 Tensor, shape (tokens,)
    vocabulary : int
        Number of logits a token has. Above `MOST_LOGITS` in all, the head works piece by piece,
        and once more for the gradient.

    Returns
    -------
    Tensor, shape (tokens,)
    """
    size = max(1, MOST_LOGITS // vocabulary)
    if len(targets_t) <= size:
        return _log_likelihoods(head, hidden_th, targets_t)
    parts = []
    for hidden, targets in zip(
        torch.split(hidden_th, size), torch.split(targets_t, size), strict=True
    ):
        if torch.is_grad_enabled():
            part = checkpoint(_log_likelihoods, head, hidden, targets, use_reentrant=False)
            parts.append(cast(Tensor, part))
        else:
            parts.append(_log_likelihoods(head, hidden, targets))
    return torch.cat(parts)


def _log_likelihoods(
    head: Callable[[Tensor], Tensor], hidden_th: Tensor, targets_t: Tensor
) -> Tensor:
    return -cross_entropy(head(hidden_th).float(), targets_t, reduction="none")
