"""The fresh head that transformers puts on a base model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def seeded_head(seed: int) -> Iterator[None]:
    """Draw from the run's seed: transformers draws a new head from the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def head_names(model: nn.Module) -> list[str]:
    """Names of the top-level modules with weights that are not part of the base model."""
    base = getattr(model, "base_model_prefix", "")
    return [
        name
        for name, child in model.named_children()
        if name != base and any(True for _ in child.parameters())
    ]
