"""The head of a model: the fresh one that transformers puts on a base model, and its last layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


def last_linear(model: Any) -> nn.Module:
    """Return the last linear layer of the fresh head, as it is trained."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = getattr(inner, head_names(inner)[-1])
    head = getattr(head, "modules_to_save", {"default": head})["default"]  # PEFT's trained copy
    layers = [module for module in head.modules() if isinstance(module, nn.Linear)]
    return layers[-1] if layers else head
