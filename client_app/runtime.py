"""Process-wide settings that hold for one instruction and are put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from client_app.methods.base import LocalRule
from client_app.sources import short_name
from fedapp.config import RunConfig, TrainSection
from fedapp.errors import ConfigError

if TYPE_CHECKING:
    from client_app.models import ResidentModel


@contextmanager
def compute_settings(train: TrainSection, device: torch.device) -> Iterator[int]:
    """Set CPU threads and TF32 for a while; yields the number of CPU threads in use.

    With ``train.threads`` 0 the number stays what the process was started with (a simulation
    assigns it through ``OMP_NUM_THREADS``). Putting both back keeps an instruction from inheriting
    the settings of the one before.
    """
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn_tf32 = torch.backends.cudnn.allow_tf32
    try:
        if train.threads:
            torch.set_num_threads(train.threads)
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high" if train.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = train.tf32
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn_tf32


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute matrix products in full fp32 for a while, without TF32 or bf16 inside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


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

    Raises
    ------
    ConfigError
        If gradient checkpointing is asked for and the model has none.
    """
    model: Any = resident.model  # transformers' methods reach through PEFT's wrapper
    arrays = list(resident.parameters.named_arrays())
    required = [parameter.requires_grad for _, parameter in arrays]
    checkpointing = config.train.gradient_checkpointing
    if checkpointing and not getattr(model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"model {short_name(config.model.source)} cannot do gradient checkpointing; "
            "set train.gradient-checkpointing to false"
        )
    try:
        for name, parameter in arrays:
            parameter.requires_grad_(rule.trainable(name))
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
            # This kind needs no input that requires a gradient, and the hook for it would outlast
            # the training.
            model.disable_input_require_grads()
        model.train()
        yield
    finally:
        model.eval()
        if checkpointing:
            model.activation_checkpointing_disable()
        for (_, parameter), before in zip(arrays, required, strict=True):
            parameter.grad = None
            parameter.requires_grad_(before)


def autocast(train: TrainSection, device: torch.device) -> torch.autocast:
    """bf16 mixed precision of the forward pass where asked for, on CUDA only."""
    enabled = train.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)
