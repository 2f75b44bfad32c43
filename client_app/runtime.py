"""Process-wide settings that hold for one instruction and are put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from client_app.methods.base import LocalRule
from fedapp.config import RunConfig, TrainSection

if TYPE_CHECKING:
    from client_app.models import ResidentModel


@contextmanager
def restored_settings() -> Iterator[None]:
    """Put CPU threads and matrix precision back, so that no instruction inherits another's."""
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = tf32


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch (dropout) for a while, whatever was drawn before, and restore its generators."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def training_mode(resident: ResidentModel, rule: LocalRule, config: RunConfig) -> Iterator[None]:
    """Put the resident model in training mode and leave it usable, also after an error.

    Arrays that the rule freezes need no gradient meanwhile; no gradient survives.
    """
    model, arrays = resident.model, list(resident.parameters.named_arrays())
    required = [parameter.requires_grad for _, parameter in arrays]
    try:
        for name, parameter in arrays:
            parameter.requires_grad_(rule.trainable(name))
        if config.train.gradient_checkpointing:
            # The re-entrant kind would need an input that requires a gradient.
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        yield
    finally:
        model.eval()
        if config.train.gradient_checkpointing:
            model.gradient_checkpointing_disable()
        for (_, parameter), before in zip(arrays, required, strict=True):
            parameter.grad = None
            parameter.requires_grad_(before)


def autocast(train: TrainSection, device: torch.device) -> torch.autocast:
    """bf16 mixed precision of the forward pass where asked for, on CUDA only."""
    enabled = train.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)
